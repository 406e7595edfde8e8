package management

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/redrive-mq/redrive/wire"
)

// Foreign is what policies of others do to exchanges or queues of Redrive's.
type Foreign struct {
	Kind  string   // exchange or queue
	Names []string // at least one
	// Policy and OperatorPolicy are in force there.
	Policy, OperatorPolicy string
	// Settings are what they set that matters, as "key: value".
	Settings []string
	// Cluster is the other one that federates the exchange, by a policy of its own: it gets a copy
	// of each message. "": none does.
	Cluster string
}

func (f *Foreign) String() string {
	names := f.Kind + " " + f.Names[0]
	if more := len(f.Names) - 1; more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	if f.Cluster != "" {
		return fmt.Sprintf("%s gets a copy of each message of our %s, by federation", f.Cluster, names)
	}
	by := strings.Trim(f.Policy+", "+f.OperatorPolicy, ", ")
	return fmt.Sprintf("a RabbitMQ policy (%s) puts %s on our %s", by, strings.Join(f.Settings, ", "), names)
}

// sameAs reports whether g is the same for other names.
func (f *Foreign) sameAs(g *Foreign) bool {
	return f.Kind == g.Kind && f.Policy == g.Policy && f.OperatorPolicy == g.OperatorPolicy && f.Cluster == g.Cluster &&
		slices.Equal(f.Settings, g.Settings)
}

// federating are the keys of policies that federate. RabbitMQ does not federate internal exchanges,
// whatever the policy. [measured on 3.10.8 and 4.3.6]
var federating = []string{"federation-upstream", "federation-upstream-set"}

// losing are those with which a queue loses messages, or refuses them.
var losing = append([]string{"message-ttl", "expires", "max-length", "max-length-bytes", "overflow"}, federating...)

// FindForeign finds it in what RabbitMQ knows. An argument of ours wins over an alternate exchange or
// a routing key; of a TTL or a length RabbitMQ applies the smaller one.
func FindForeign(exchanges []Exchange, queues []QueueState, policies []Policy) (all []Foreign) {
	ours := func(name string) bool { return name == wire.ExchangeDeadLetters || wire.OwnQueue(name) }
	add := func(f Foreign, name string) {
		f.Names = []string{name}
		for i := range all {
			if all[i].sameAs(&f) {
				all[i].Names = append(all[i].Names, name)
				return
			}
		}
		all = append(all, f)
	}
	for i := range exchanges {
		x := &exchanges[i]
		of, _, is := strings.Cut(strings.TrimPrefix(x.Name, "federation: "), " -> ")
		if is && x.Type == "x-federation-upstream" && ours(of) {
			vhost, name := Text(x.Arguments["x-downstream-vhost"]), Text(x.Arguments["x-downstream-name"])
			add(Foreign{Kind: "exchange", Cluster: "the virtual host " + vhost + " of " + name}, of)
		}
		p := PolicyNamed(policies, x.Policy)
		if p == nil || !ours(x.Name) {
			continue
		}
		var keys []string
		if x.Arguments["alternate-exchange"] == nil {
			keys = append(keys, "alternate-exchange")
		}
		if !x.Internal {
			keys = append(keys, federating...)
		}
		if set := Settings(p.Definition, keys); len(set) > 0 {
			add(Foreign{Kind: "exchange", Policy: x.Policy, Settings: set}, x.Name)
		}
	}
	for i := range queues {
		q := &queues[i]
		if !ours(q.Name) {
			continue
		}
		keys := losing
		ttl, set := q.Effective["message-ttl"].(float64)
		if own, is := q.Arguments["x-message-ttl"].(float64); is && set && own <= ttl {
			keys = losing[1:]
		}
		if strings.HasPrefix(q.Name, wire.DelayPrefix) && q.Arguments["x-dead-letter-routing-key"] == nil {
			keys = append([]string{"dead-letter-routing-key"}, keys...)
		}
		if set := Settings(q.Effective, keys); len(set) > 0 {
			add(Foreign{Kind: "queue", Policy: q.Policy, OperatorPolicy: q.OperatorPolicy, Settings: set}, q.Name)
		}
	}
	for i := range all {
		slices.Sort(all[i].Names)
	}
	slices.SortFunc(all, func(a, b Foreign) int { return cmp.Compare(a.String(), b.String()) })
	return all
}

// Foreign finds it for all exchanges, and for the queues but those of single work queues, of which
// there may be many.
func (c *Client) Foreign(ctx context.Context) ([]Foreign, error) {
	exchanges, err := c.Exchanges(ctx)
	if err != nil {
		return nil, err
	}
	policies, err := c.Policies(ctx)
	if err != nil {
		return nil, err
	}
	var queues struct {
		Items []QueueState `json:"items"`
	}
	const some = `?page=1&page_size=500&use_regex=true&name=%5Eredrive%5C.(intake%7Cparked%7Cquarantine%7Cdelay)&columns=`
	err = c.Call(ctx, http.MethodGet, c.path("queues")+some+stateColumns, nil, &queues)
	return FindForeign(exchanges, queues.Items, policies), err
}

// Settings are those of some keys that a policy sets.
func Settings(definition map[string]any, keys []string) (all []string) {
	for _, key := range keys {
		if v, ok := definition[key]; ok {
			all = append(all, fmt.Sprintf("%s: %s", key, Text(v)))
		}
	}
	return all
}
