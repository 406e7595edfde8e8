package model

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Rights are what a user can configure, write to and read from: patterns of names.
type Rights struct{ Configure, Write, Read string }

// user is one who can connect.
type user struct {
	password string
	rights   map[string]*regexp.Regexp            // by configure, write and read; nil: no access to the virtual host
	topics   map[string]map[string]*regexp.Regexp // by exchange, then write and read
}

const (
	permissionCache = 12          // of a channel
	forgets         = time.Second // what it had permitted, when it was idle for so long
)

// SetUser makes a user without rights, or changes the password.
func (b *Broker) SetUser(name, password string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if u := b.users[name]; u != nil {
		u.password = password
		return
	}
	b.users[name] = &user{password: password, topics: map[string]map[string]*regexp.Regexp{}}
}

// Grant replaces a user's rights. A channel that is not idle goes by what it was permitted.
func (b *Broker) Grant(name string, r Rights) error {
	return b.grant(name, func(u *user) (err error) {
		u.rights, err = patterns(map[string]string{"configure": r.Configure, "write": r.Write, "read": r.Read})
		return err
	})
}

// GrantTopics replaces a user's rights to the routing keys of a topic exchange.
func (b *Broker) GrantTopics(name, exchange, write, read string) error {
	return b.grant(name, func(u *user) (err error) {
		u.topics[exchange], err = patterns(map[string]string{"write": write, "read": read})
		return err
	})
}

func (b *Broker) grant(name string, change func(*user) error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	u := b.users[name]
	if u == nil {
		return fmt.Errorf("there is no user %q", name)
	}
	return change(u)
}

func patterns(of map[string]string) (map[string]*regexp.Regexp, error) {
	all := map[string]*regexp.Regexp{}
	for _, key := range sorted(of) {
		pattern := of[key]
		if pattern == "" {
			pattern = "^$"
		}
		if strings.Contains(pattern, "{") {
			return nil, fmt.Errorf("the model of RabbitMQ has no pattern %q", pattern)
		}
		compiled, err := regexp.Compile(pattern)
		if err != nil {
			return nil, err
		}
		all[key] = compiled
	}
	return all, nil
}

func (c *connection) user() *user { return c.b.users[c.userName] }

// may refuses what the user has no right to.
func (ch *channel) may(right, kind, name string) *fault {
	if name == "" {
		name = "amq.default"
	}
	u, subject := ch.c.user(), ch.c.b.in(kind, name)
	if slices.Contains(ch.permitted, right+subject) {
		return nil
	}
	if u == nil || u.rights == nil || !u.rights[right].MatchString(name) {
		return ch.refused(right, subject)
	}
	ch.permitted = append([]string{right + subject}, ch.permitted[:min(len(ch.permitted), permissionCache-1)]...)
	return nil
}

// mayAny is the right to declare passively, since RabbitMQ 4.3.
func (ch *channel) mayAny(kind, name string) (f *fault) {
	if !ch.c.b.since4() {
		return nil
	}
	for _, right := range []string{"read", "write", "configure"} {
		if f = ch.may(right, kind, name); f == nil {
			return nil
		}
	}
	return f
}

// mayTopic looks at a routing key of a topic exchange, where rights to it were given.
func (ch *channel) mayTopic(right string, x *exchange, key string) *fault {
	u := ch.c.user()
	if x == nil || x.kind != "topic" || u == nil {
		return nil
	}
	if of := u.topics[x.name]; of != nil && !of[right].MatchString(key) {
		return ch.refused(right, "topic '"+key+"' in "+ch.c.b.in("exchange", x.name))
	}
	return nil
}

func (ch *channel) refused(right, subject string) *fault {
	if ch.c.b.since4() {
		right += " "
	} else {
		right = ""
	}
	return faultf(403, "%saccess to %s refused for user '%s'", right, subject, ch.c.userName)
}

// hear lets a channel that was idle look at its rights again.
func (ch *channel) hear() {
	if time.Since(ch.heard) > forgets {
		ch.permitted = nil
	}
	ch.heard = time.Now()
}

// mayLead is the right to declare what leads to an exchange: to read one and to write to the
// other.
func (ch *channel) mayLead(kind, name, to string) *fault {
	if f := ch.may("read", kind, name); f != nil {
		return f
	}
	return ch.may("write", "exchange", to)
}

func (ch *channel) mayDeclare(passive bool, kind, name string) *fault {
	switch {
	case passive:
		return ch.mayAny(kind, name)
	case name == "":
		return nil // newQueue looks, when it has a name
	}
	return ch.may("configure", kind, name)
}

func (ch *channel) mayBind(kind, destination, source, key string) *fault {
	if kind == "exchange" {
		if f := ch.may("write", kind, destination); f != nil {
			return f
		}
	}
	if source == "" || kind == "exchange" && destination == "" {
		return nil // refused otherwise
	}
	if f := ch.may("read", "exchange", source); f != nil {
		return f
	}
	return ch.mayTopic("read", ch.c.b.exchanges[source], key)
}
