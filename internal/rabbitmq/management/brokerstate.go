package management

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/rabbitmq/version"
)

// QueueState is a queue with what it does.
type QueueState struct {
	Queue
	Bytes int64 `json:"message_bytes"`
	// Dead are the dead letters that a quorum queue keeps, at-least-once, until their target has
	// confirmed them. They count neither as ready nor as unacknowledged.
	Dead int `json:"messages_dlx"`
	// IdleSince is when it last did anything, in whatever form this version writes.
	IdleSince string `json:"idle_since"`
	// Members are the nodes with a replica of a quorum queue, Leader is the one that leads, and
	// Online are those that run.
	Members []string `json:"members"`
	Leader  string   `json:"leader"`
	Online  []string `json:"online"`
	// DeliveryLimit is the one in force; nil where RabbitMQ is too old to report it.
	DeliveryLimit any   `json:"delivery_limit"`
	Stats         Stats `json:"message_stats"`
}

// Stats are of a queue's deliveries; redeliveries are deliveries, too.
type Stats struct {
	Redelivered Rate `json:"redeliver_details"`
	Delivered   Rate `json:"deliver_get_details"`
}

// UnmarshalJSON also accepts the empty list that RabbitMQ has for a queue that has delivered nothing.
func (s *Stats) UnmarshalJSON(data []byte) error {
	type plain Stats
	return unlessEmpty(data, (*plain)(s))
}

// Rate is how many there are a second, over the last seconds and, from QueueStates, over the last minute.
type Rate struct {
	Now     float64 `json:"rate"`
	Average float64 `json:"avg_rate"`
}

// InMinute is how many there were in the last minute.
func (r Rate) InMinute() int { return int(math.Round(60 * r.Average)) }

// lastMinute makes RabbitMQ add averages over the last minute to its rates.
const lastMinute = "&msg_rates_age=60&msg_rates_incr=5"

// stateColumns keep the answer small where there are many queues.
const stateColumns = "name,vhost,type,arguments,policy,consumers,messages,messages_ready,messages_unacknowledged,durable,auto_delete,exclusive,operator_policy,effective_policy_definition,message_bytes,idle_since,delivery_limit,members,leader,online,messages_dlx," +
	"message_stats.redeliver_details.rate,message_stats.redeliver_details.avg_rate,message_stats.deliver_get_details.rate,message_stats.deliver_get_details.avg_rate"

// Node is one of the broker's.
type Node struct {
	Name      string `json:"name"`
	Running   bool   `json:"running"`
	MemAlarm  bool   `json:"mem_alarm"`
	DiskAlarm bool   `json:"disk_free_alarm"`
	DiskFree  int64  `json:"disk_free"`
	DiskLimit int64  `json:"disk_free_limit"`
}

// Permission of a user in the virtual host.
type Permission struct {
	User      string `json:"user"`
	VHost     string `json:"vhost"`
	Configure string `json:"configure"`
	Write     string `json:"write"`
	Read      string `json:"read"`
}

// QueueStates are the states of all queues of the virtual host.
func (c *Client) QueueStates(ctx context.Context) (all []QueueState, err error) {
	if err = c.Call(ctx, http.MethodGet, c.path("queues")+"?columns="+stateColumns+lastMinute, nil, &all); err != nil {
		return nil, err
	}
	queues := make([]*Queue, len(all))
	for i := range all {
		queues[i] = &all[i].Queue
	}
	return all, c.useInForce(ctx, queues...)
}

// QueueState is the state of one queue.
func (c *Client) QueueState(ctx context.Context, name string) (q QueueState, err error) {
	err = c.Call(ctx, http.MethodGet, c.path("queues", name), nil, &q)
	if err == nil && q.Effective == nil {
		err = c.useInForce(ctx, &q.Queue)
	}
	return q, err
}

func (c *Client) Exchanges(ctx context.Context) (all []Exchange, err error) {
	return all, c.Call(ctx, http.MethodGet, c.path("exchanges"), nil, &all)
}

func (c *Client) Bindings(ctx context.Context) (all []Binding, err error) {
	return all, c.Call(ctx, http.MethodGet, c.path("bindings"), nil, &all)
}

// Nodes needs the tag monitoring.
func (c *Client) Nodes(ctx context.Context) (all []Node, err error) {
	return all, c.Call(ctx, http.MethodGet, "nodes", nil, &all)
}

// Permissions of all users of the virtual host need the tag administrator.
func (c *Client) Permissions(ctx context.Context) (all []Permission, err error) {
	err = c.Call(ctx, http.MethodGet, "permissions", nil, &all)
	return slices.DeleteFunc(all, func(p Permission) bool { return p.VHost != c.vhost }), err
}

// ClockAhead is how far the broker's clock is ahead of this one, as exact as its answer's
// Date is (a second) and as the way there and back took.
func (c *Client) ClockAhead(ctx context.Context) (ahead, within time.Duration, err error) {
	before := time.Now()
	date, err := c.call(ctx, http.MethodGet, "overview", nil, nil)
	if err != nil {
		return 0, 0, err
	}
	took := time.Since(before)
	at, err := http.ParseTime(date)
	if err != nil {
		return 0, 0, err
	}
	// The date has no fractions: on average half a second is cut off.
	return at.Add(time.Second / 2).Sub(before.Add(took / 2)), (took + time.Second) / 2, nil
}

// User is the name that it signs in with.
func (c *Client) User() string { return c.user.Username() }

// URL is the URL of a path below /api/, without a password, for commands people copy.
func (c *Client) URL(kind string, names ...string) string {
	return strings.TrimSuffix(c.base().String(), "/") + "/api/" + c.path(kind, names...)
}

// BindingURL is the URL of one binding.
func (c *Client) BindingURL(b Binding) string {
	return c.URL("bindings") + "/e/" + url.PathEscape(b.Source) + "/" + b.DestinationType[:1] + "/" + url.PathEscape(b.Destination) + "/" + url.PathEscape(b.PropertiesKey)
}

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

// LimitInForce is the delivery limit in force of a quorum queue, when there is one: the least
// of what its argument, its policy and an operator policy say. of is RabbitMQ's version.
func (q *QueueState) LimitInForce(of string) (limit int, limited bool) {
	if q.Type != "quorum" {
		return 0, false
	}
	least := func(v any) {
		if f, ok := v.(float64); ok && f >= 0 && (!limited || int(f) < limit) {
			limit, limited = int(f), true
		}
	}
	if q.DeliveryLimit != nil { // RabbitMQ has combined them
		least(q.DeliveryLimit)
		return limit, limited
	}
	argument, policy := q.Arguments["x-delivery-limit"], q.Effective["delivery-limit"]
	least(argument)
	least(policy)
	if limits, _ := version.AtLeast(of, 4, 0); argument == nil && policy == nil && limits {
		return 20, true
	}
	return limit, limited
}

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
