package management

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
)

// Binding leads messages from an exchange to a queue or another exchange.
type Binding struct {
	Source          string         `json:"source"` // "": the default exchange
	Destination     string         `json:"destination"`
	DestinationType string         `json:"destination_type"` // queue or exchange
	RoutingKey      string         `json:"routing_key"`
	Arguments       map[string]any `json:"arguments"`
	PropertiesKey   string         `json:"properties_key"`
}

// Exchange is what the API knows of one.
type Exchange struct {
	Name       string         `json:"name"`
	Type       string         `json:"type"`
	Durable    bool           `json:"durable"`
	AutoDelete bool           `json:"auto_delete"`
	Internal   bool           `json:"internal"`
	Arguments  map[string]any `json:"arguments"`
	Policy     string         `json:"policy"`
}

// Exchange looks for it in the list of all: RabbitMQ 3 answers 500 for one where its metrics
// collector is switched off.
func (c *Client) Exchange(ctx context.Context, name string) (Exchange, error) {
	all, err := c.Exchanges(ctx)
	if err != nil {
		return Exchange{}, err
	}
	i := slices.IndexFunc(all, func(e Exchange) bool { return e.Name == name })
	if i < 0 {
		return Exchange{}, fmt.Errorf("exchange %q: %w", name, ErrNotFound)
	}
	return all[i], nil
}

// Seen is nil when the user may see the virtual host: each has exchanges.
func (c *Client) Seen(ctx context.Context) error {
	var answer json.RawMessage
	return c.Call(ctx, http.MethodGet, c.path("exchanges")+"?page=1&page_size=1&columns=name,vhost", nil, &answer)
}

// QueueBindings are those of a queue, but for the one to the default exchange that each has.
func (c *Client) QueueBindings(ctx context.Context, queue string) (all []Binding, err error) {
	var answer []Binding
	err = c.Call(ctx, http.MethodGet, c.path("queues", queue, "bindings"), nil, &answer)
	for _, b := range answer {
		if b.Source != "" {
			all = append(all, b)
		}
	}
	return all, err
}

// BindingsTo are those that lead to an exchange.
func (c *Client) BindingsTo(ctx context.Context, exchange string) (all []Binding, err error) {
	return all, c.Call(ctx, http.MethodGet, c.path("exchanges", exchange, "bindings", "destination"), nil, &all)
}
