package management

import (
	"context"
	"net/http"
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

func (c *Client) Exchange(ctx context.Context, name string) (e Exchange, err error) {
	return e, c.Call(ctx, http.MethodGet, c.path("exchanges", name), nil, &e)
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
