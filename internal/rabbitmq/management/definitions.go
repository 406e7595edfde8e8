package management

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"unicode"

	"github.com/redrive-mq/redrive/internal/delay"
)

// Definitions are what `rabbitmqctl import_definitions` and POST
// /api/definitions take.
type Definitions struct {
	Exchanges []exchangeDefinition `json:"exchanges"`
	Queues    []queueDefinition    `json:"queues"`
	Bindings  []bindingDefinition  `json:"bindings"`
	Policies  []policyDefinition   `json:"policies,omitempty"`
}

type exchangeDefinition struct {
	VHost string `json:"vhost"`
	Exchange
}

type queueDefinition struct {
	Name       string         `json:"name"`
	VHost      string         `json:"vhost"`
	Durable    bool           `json:"durable"`
	AutoDelete bool           `json:"auto_delete"`
	Arguments  map[string]any `json:"arguments"`
}

type bindingDefinition struct {
	Source          string         `json:"source"`
	VHost           string         `json:"vhost"`
	Destination     string         `json:"destination"`
	DestinationType string         `json:"destination_type"`
	RoutingKey      string         `json:"routing_key"`
	Arguments       map[string]any `json:"arguments"`
}

type policyDefinition struct {
	VHost string `json:"vhost"`
	Policy
}

// Define puts a topology and policies into that form.
func Define(vhost string, t delay.Topology, policies ...Policy) Definitions {
	d := Definitions{Exchanges: []exchangeDefinition{}, Queues: []queueDefinition{}, Bindings: []bindingDefinition{}}
	for _, e := range t.Exchanges {
		d.Exchanges = append(d.Exchanges, exchangeDefinition{vhost, Exchange{Name: e.Name, Type: e.Kind, Durable: true, AutoDelete: e.AutoDelete, Internal: e.Internal, Arguments: arguments(e.Args)}})
	}
	for _, q := range t.Queues {
		d.Queues = append(d.Queues, queueDefinition{Name: q.Name, VHost: vhost, Durable: true, Arguments: arguments(q.Args)})
	}
	for _, b := range t.Bindings {
		to, kind := b.ToQueue, "queue"
		if b.ToExchange != "" {
			to, kind = b.ToExchange, "exchange"
		}
		d.Bindings = append(d.Bindings, bindingDefinition{Source: b.From, VHost: vhost, Destination: to, DestinationType: kind, RoutingKey: b.Key, Arguments: arguments(nil)})
	}
	for _, p := range policies {
		d.Policies = append(d.Policies, policyDefinition{vhost, p})
	}
	return d
}

// arguments is never null, which RabbitMQ refuses.
func arguments(table map[string]any) map[string]any {
	if table == nil {
		return map[string]any{}
	}
	return table
}

// Text is a value of the API's as it was set: JSON's numbers are floats, and a day of
// message-ttl would read 8.64e+07.
func Text(v any) string {
	if f, ok := v.(float64); ok {
		return strconv.FormatFloat(f, 'f', -1, 64)
	}
	text := fmt.Sprint(v)
	if strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(text) // it is shown on terminals
	}
	return text
}

// Declare declares the exchanges, queues and bindings of a topology in the client's
// virtual host, one by one: importing them at once needs an administrator.
func (c *Client) Declare(ctx context.Context, t delay.Topology) error {
	return t.Declare(func(t delay.Topology) error { return c.declare(ctx, t) })
}

func (c *Client) declare(ctx context.Context, t delay.Topology) error {
	d := Define(c.vhost, t)
	for _, e := range d.Exchanges {
		if err := c.Call(ctx, http.MethodPut, c.path("exchanges", e.Name), e, nil); err != nil {
			return err
		}
	}
	for _, q := range d.Queues {
		if err := c.Call(ctx, http.MethodPut, c.path("queues", q.Name), q, nil); err != nil {
			return err
		}
	}
	for _, b := range d.Bindings {
		path := "bindings/" + url.PathEscape(c.vhost) + "/e/" + url.PathEscape(b.Source) + "/" + b.DestinationType[:1] + "/" + url.PathEscape(b.Destination)
		if err := c.Call(ctx, http.MethodPost, path, map[string]any{"routing_key": b.RoutingKey}, nil); err != nil {
			return err
		}
	}
	return nil
}
