package management

import (
	"context"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
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
