package auth

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/background"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/internal/store"
)

// ErrUnchecked: RabbitMQ does not answer, so no user can be checked.
var ErrUnchecked = hint.New("unchecked", "RabbitMQ's management API does not answer, so no user can sign in")

// TooMany: too many of What, such as attempts to sign in; Wait is when to try again.
type TooMany struct {
	What string
	Wait time.Duration
}

func (*TooMany) Unwrap() error { return background.ErrTooMany }

func (e *TooMany) Error() string {
	return fmt.Sprintf("too many %s: try again in %s", e.What, max(time.Second, e.Wait.Round(time.Second)))
}

// Grant is the permissions of users with a tag, or of people in a group.
type Grant struct {
	Role   Role
	Queues []string // nil: all
}

// DefaultGrants are the grants of RabbitMQ's own tags: its administrators can do anything to its
// messages anyway, and users who can see its management API may see messages here. No one else
// can change anything here unless the config gives their tag a role.
func DefaultGrants() map[string]Grant {
	return map[string]Grant{"administrator": {Role: Admin}, "monitoring": {Role: Viewer}, "policymaker": {Role: Viewer},
		"management": {Role: Viewer}}
}

// Users signs in users of RabbitMQ, by its management API.
type Users struct {
	api    *management.Client
	vhost  string
	grants map[string]Grant
	key    [32]byte // of the cache, so that it holds nothing that can be guessed from

	pairs     limiter       // of a name from an address
	names     limiter       // of a name, from wherever
	addresses limiter       // of an address, for names that have not signed in from there
	checks    chan struct{} // bounds how many run at once

	kept store.SideTable // has who signed in from where

	mu    sync.Mutex
	known map[[32]byte]knownUser
}

type knownUser struct {
	caller Caller
	until  time.Time
}

const (
	// knownFor is how long an answer of RabbitMQ's is used again, where each request has the
	// password: so long, a removed user still has access.
	knownFor     = 2 * time.Minute
	maxKnown     = 1_000
	maxName      = 255 // bytes, as in AMQP
	checkWithin  = 10 * time.Second
	checksAtOnce = 8
)

// NewUsers makes the users of the RabbitMQ that the client calls. kept has who signed in.
func NewUsers(client *management.Client, vhost string, grants map[string]Grant, kept store.SideTable) *Users {
	users := &Users{api: client, vhost: vhost, grants: grants, kept: kept,
		checks: make(chan struct{}, checksAtOnce), known: map[[32]byte]knownUser{},
		pairs: limiter{most: 10, every: 30 * time.Second}, names: limiter{most: 30, every: 10 * time.Second},
		addresses: limiter{most: 100, every: 5 * time.Second}}
	_, _ = rand.Read(users.key[:]) // it never fails
	return users
}

var errGuest = hint.Errorf("make a user of your own", "%w: RabbitMQ's user guest cannot sign in here", ErrSignIn)

// SignIn returns the caller with this name and password in RabbitMQ. Its errors are ErrSignIn,
// ErrForbidden (a user without a role here), *TooMany and ErrUnchecked. Failures count for the
// name from this address, so that an attacker locks out no one else behind the same proxy; for
// the name over all addresses; and for the address, as long as the name has not signed in from
// there. A password that was right a moment ago is accepted in spite of them.
func (u *Users) SignIn(ctx context.Context, name, password, from string) (Caller, error) {
	if name == "" || password == "" {
		return Caller{}, fmt.Errorf("%w: a user of RabbitMQ's has a name and a password", ErrSignIn)
	}
	if name == "guest" {
		// RabbitMQ lets it in only from its own machine, since everybody knows its
		// password; asked by a service on that machine it would let in everybody.
		return Caller{}, errGuest
	}
	if len(name) > maxName || strings.Contains(name, ":") {
		// On the way to RabbitMQ a colon ends the name: it would be a guess at the
		// password of another user, and count for none.
		return Caller{}, fmt.Errorf("%w: RabbitMQ has no user of that name that could sign in here", ErrSignIn)
	}
	m := hmac.New(sha256.New, u.key[:])
	fmt.Fprintf(m, "%d %s%s", len(name), name, password)
	key := [32]byte(m.Sum(nil))
	u.mu.Lock()
	k, ok := u.known[key]
	u.mu.Unlock()
	if ok && time.Now().Before(k.until) {
		return k.caller, nil
	}
	called := strings.ToLower(name) // a directory behind RabbitMQ may not tell them apart
	pair := called + " " + from
	limits := []struct {
		of  *limiter
		key string
	}{{&u.pairs, pair}, {&u.names, called}, {&u.addresses, from}}
	at := u.lastSignIn(ctx, pair)
	if !at.IsZero() {
		limits = limits[:2]
	}
	for i, l := range limits {
		if wait := l.of.charge(l.key); wait > 0 {
			for _, charged := range limits[:i] {
				charged.of.refund(charged.key)
			}
			return Caller{}, &TooMany{"attempts to sign in have failed", wait}
		}
	}
	c, err := u.check(ctx, name, password)
	if !errors.Is(err, ErrSignIn) {
		for _, l := range limits {
			l.of.refund(l.key)
		}
	}
	if err == nil {
		u.remember(key, c)
		if time.Since(at) > signedInEvery {
			u.keepSignIn(ctx, pair)
		}
	}
	return c, err
}

const (
	// signedInPrefix begins an entry for each pair of user and address that has signed in: when.
	signedInPrefix = "signed-in/"
	// signedInFor is how long failures of others at an address do not limit who signed in from there, and
	// signedInEvery how often it is written that they did.
	signedInFor, signedInEvery = 90 * 24 * time.Hour, 24 * time.Hour
)

func signedInName(pair string) string {
	sum := sha256.Sum256([]byte(pair))
	return signedInPrefix + hex.EncodeToString(sum[:])
}

// lastSignIn returns when a name signed in from an address; zero where that is too long ago, or the
// store cannot tell.
func (u *Users) lastSignIn(ctx context.Context, pair string) (at time.Time) {
	value, _ := u.kept.Entry(ctx, signedInName(pair))
	if at.UnmarshalText(value) != nil || time.Since(at) > signedInFor {
		return time.Time{}
	}
	return at
}

// keepSignIn stores that a name signed in from an address. Where it cannot, they are limited as others are.
func (u *Users) keepSignIn(ctx context.Context, pair string) {
	if at, err := time.Now().MarshalText(); err == nil {
		_ = u.kept.PutEntries(ctx, []store.Entry{{Name: signedInName(pair), Value: at}})
	}
}

// forget deletes sign-ins older than signedInFor.
func (u *Users) forget(ctx context.Context, now time.Time) error {
	var old []store.Entry
	err := u.kept.Entries(ctx, signedInPrefix, "", func(e store.Entry) (bool, error) {
		var at time.Time
		if at.UnmarshalText(e.Value) != nil || now.Sub(at) > signedInFor {
			old = append(old, store.Entry{Name: e.Name})
		}
		return true, nil
	})
	if err != nil || len(old) == 0 {
		return err
	}
	return u.kept.PutEntries(ctx, old)
}

func (u *Users) remember(key [32]byte, c Caller) {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := time.Now()
	if len(u.known) >= maxKnown {
		maps.DeleteFunc(u.known, func(_ [32]byte, k knownUser) bool { return !now.Before(k.until) })
	}
	if len(u.known) < maxKnown {
		u.known[key] = knownUser{c, now.Add(knownFor)}
	}
}

func (u *Users) check(ctx context.Context, name, password string) (Caller, error) {
	ctx, cancel := context.WithTimeout(ctx, checkWithin)
	defer cancel()
	select {
	case u.checks <- struct{}{}:
		defer func() { <-u.checks }()
	case <-ctx.Done():
		return Caller{}, fmt.Errorf("%w: %w", ErrUnchecked, ctx.Err())
	}
	client := u.api.As(name, password)
	var who struct {
		Name string `json:"name"`
		Tags tags   `json:"tags"`
	}
	switch err := client.Call(ctx, http.MethodGet, "whoami", nil, &who); {
	case errors.Is(err, management.ErrDenied):
		return Caller{}, fmt.Errorf("%w: RabbitMQ's management does not let this user and password in", ErrSignIn)
	case err != nil:
		return Caller{}, fmt.Errorf("%w: %w", ErrUnchecked, err)
	case who.Name != name:
		return Caller{}, fmt.Errorf("%w: it answers for %q", ErrUnchecked, who.Name)
	}
	// A user without rights in this virtual host must not see its messages. Seen asks for an object of
	// it, since RabbitMQ shows permissions to administrators alone.
	switch err := client.Seen(ctx); {
	case errors.Is(err, management.ErrDenied), errors.Is(err, management.ErrNotFound):
		return Caller{}, fmt.Errorf("%w: the user %s has no rights in RabbitMQ's virtual host %q", ErrForbidden,
			name, u.vhost)
	case err != nil:
		return Caller{}, fmt.Errorf("%w: %w", ErrUnchecked, err)
	}
	g := highest(u.grants, who.Tags)
	if g.Role == NoRole {
		return Caller{}, fmt.Errorf("%w: no tag of the user %s (%s) has a role here; auth.roles gives tags roles",
			ErrForbidden, name, strings.Join(who.Tags, ", "))
	}
	return Caller{Name: name, How: "rabbitmq", Role: g.Role, Queues: g.Queues}, nil
}

// highest returns the highest of the grants of tags or groups; the queues of equal ones add up.
func highest(grants map[string]Grant, of []string) (best Grant) {
	for _, tag := range of {
		switch g := grants[tag]; {
		case g.Role > best.Role:
			best = g
		case g.Role == best.Role && best.Queues != nil:
			if g.Queues == nil {
				best.Queues = nil
			} else {
				best.Queues = slices.Concat(best.Queues, g.Queues)
			}
		}
	}
	return best
}

// tags are a list, or in one text, as versions of RabbitMQ have it.
type tags []string

func (t *tags) UnmarshalJSON(data []byte) error {
	if err := json.Unmarshal(data, (*[]string)(t)); err == nil {
		return nil
	}
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return err
	}
	*t = strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
	return nil
}
