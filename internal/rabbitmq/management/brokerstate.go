package management

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/wire"
)

// QueueState is a queue with its counts and rates.
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
	// Delivers and Gets count those that are to be acknowledged, since RabbitMQ started.
	Delivers int `json:"deliver"`
	Gets     int `json:"get"`
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
const stateColumns = "name,vhost,type,arguments,policy,consumers,messages,messages_ready," +
	"messages_unacknowledged,durable,auto_delete,exclusive,operator_policy,effective_policy_definition," +
	"message_bytes,idle_since,delivery_limit,members,leader,online,messages_dlx," +
	"message_stats.redeliver_details.rate,message_stats.redeliver_details.avg_rate," +
	"message_stats.deliver_get_details.rate,message_stats.deliver_get_details.avg_rate," +
	"message_stats.deliver,message_stats.get"

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
	return c.URL("bindings") + "/e/" + url.PathEscape(b.Source) + "/" + b.DestinationType[:1] + "/" +
		url.PathEscape(b.Destination) + "/" + url.PathEscape(b.PropertiesKey)
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

// Exchange is an exchange as the API describes it.
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

// QueueBindings returns a queue's bindings, without the one to the default exchange that each has.
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
	if limits, _ := delay.VersionAtLeast(of, 4, 0); argument == nil && policy == nil && limits {
		return 20, true
	}
	return limit, limited
}

// Definitions are the input of `rabbitmqctl import_definitions` and POST
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
		d.Exchanges = append(d.Exchanges, exchangeDefinition{vhost, Exchange{Name: e.Name, Type: e.Kind, Durable: true,
			AutoDelete: e.AutoDelete, Internal: e.Internal, Arguments: arguments(e.Args)}})
	}
	for _, q := range t.Queues {
		d.Queues = append(d.Queues, queueDefinition{Name: q.Name, VHost: vhost, Durable: true,
			Arguments: arguments(q.Args)})
	}
	for _, b := range t.Bindings {
		to, kind := b.ToQueue, "queue"
		if b.ToExchange != "" {
			to, kind = b.ToExchange, "exchange"
		}
		d.Bindings = append(d.Bindings, bindingDefinition{Source: b.From, VHost: vhost, Destination: to,
			DestinationType: kind, RoutingKey: b.Key, Arguments: arguments(nil)})
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
		path := "bindings/" + url.PathEscape(c.vhost) + "/e/" + url.PathEscape(b.Source) + "/" + b.DestinationType[:1] +
			"/" + url.PathEscape(b.Destination)
		if err := c.Call(ctx, http.MethodPost, path, map[string]any{"routing_key": b.RoutingKey}, nil); err != nil {
			return err
		}
	}
	return nil
}

// Policy is a RabbitMQ policy, or an operator policy.
type Policy struct {
	Name       string         `json:"name,omitempty"`
	Pattern    string         `json:"pattern"`
	ApplyTo    string         `json:"apply-to"`
	Priority   int            `json:"priority"`
	Definition map[string]any `json:"definition"`
}

// PolicyNamed returns the policy of that name; nil when there is none.
func PolicyNamed(all []Policy, name string) *Policy {
	if i := slices.IndexFunc(all, func(p Policy) bool { return p.Name == name }); i >= 0 {
		return &all[i]
	}
	return nil
}

// For reports whether a policy is for a queue of that name and type; known is false where Go cannot
// compile its pattern. A queue need not have it all the same: see Client.Queues.
func (p *Policy) For(name, kind string) (is, known bool) {
	switch p.ApplyTo {
	case "exchanges":
		return false, true
	case "classic_queues", "quorum_queues", "streams":
		if strings.TrimSuffix(strings.TrimSuffix(p.ApplyTo, "s"), "_queue") != kind {
			return false, true
		}
	} // a value that only later versions have counts as all types
	re, err := regexp.Compile(p.Pattern)
	return err == nil && re.MatchString(name), err == nil
}

func (c *Client) Policies(ctx context.Context) (all []Policy, err error) {
	return all, c.Call(ctx, http.MethodGet, c.path("policies"), nil, &all)
}

func (c *Client) Policy(ctx context.Context, name string) (p Policy, err error) {
	return p, c.Call(ctx, http.MethodGet, c.path("policies", name), nil, &p)
}

func (c *Client) PutPolicy(ctx context.Context, p Policy) error {
	name := p.Name
	p.Name = ""
	return c.Call(ctx, http.MethodPut, c.path("policies", name), p, nil)
}

func (c *Client) DeletePolicy(ctx context.Context, name string) error {
	return c.Call(ctx, http.MethodDelete, c.path("policies", name), nil, nil)
}

func (c *Client) DeleteExchange(ctx context.Context, name string) error {
	return c.Call(ctx, http.MethodDelete, c.path("exchanges", name), nil, nil)
}

func (c *Client) OperatorPolicies(ctx context.Context) (all []Policy, err error) {
	return all, c.Call(ctx, http.MethodGet, c.path("operator-policies"), nil, &all)
}

// Queues are all of the virtual host, with what their policies set, as it is now. They come without
// statistics, which are seconds old or switched off: without any count.
//
// Which policy a queue has only RabbitMQ knows: none with a key that the queue's type does not have.
func (c *Client) Queues(ctx context.Context) (all []Queue, err error) {
	const columns = "name,vhost,type,arguments,policy,operator_policy,effective_policy_definition," +
		"exclusive,durable,auto_delete"
	if err = c.Call(ctx, http.MethodGet, c.path("queues")+"?disable_stats=true&columns="+columns, nil,
		&all); err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(all, func(q Queue) bool { return q.Effective == nil }) {
		return all, nil
	}
	// RabbitMQ 3 takes only a policy's name from elsewhere than its statistics.
	policies, err := c.Policies(ctx)
	if err != nil {
		return nil, err
	}
	operator, err := c.OperatorPolicies(ctx)
	if err != nil {
		return nil, err
	}
	for i := range all {
		if all[i].Effective == nil && !all[i].inForce(policies, operator) {
			return nil, fmt.Errorf("policy %q of queue %q was deleted just now", all[i].Policy, all[i].Name)
		}
	}
	return all, nil
}

// inForce sets what the queue's policy and operator policy set together. It is false where its policy
// is not among these.
func (q *Queue) inForce(policies, operator []Policy) bool {
	q.Effective = Definition{}
	p := PolicyNamed(policies, q.Policy)
	if p != nil {
		maps.Copy(q.Effective, p.Definition)
	}
	var best *Policy
	for i := range operator {
		if is, _ := operator[i].For(q.Name, q.Type); is && (best == nil || operator[i].Priority > best.Priority) {
			best = &operator[i]
		}
	}
	if best == nil {
		return p != nil || q.Policy == ""
	}
	q.OperatorPolicy = best.Name
	for key, v := range best.Definition {
		limit, isNumber := v.(float64)
		if was, ok := q.Effective[key].(float64); !ok || !isNumber || limit < was {
			q.Effective[key] = v
		}
	}
	return p != nil || q.Policy == ""
}

// useInForce sets the settings in force on queues, which their statistics may not know.
func (c *Client) useInForce(ctx context.Context, queues ...*Queue) error {
	all, err := c.Queues(ctx)
	if err != nil {
		return err
	}
	now := make(map[string]*Queue, len(all))
	for i := range all {
		now[all[i].Name] = &all[i]
	}
	for _, q := range queues {
		if is := now[q.Name]; is != nil {
			q.Policy, q.OperatorPolicy, q.Effective = is.Policy, is.OperatorPolicy, is.Effective
		}
	}
	return nil
}

// QueueInForce is Queue with what its policies set as it is now.
func (c *Client) QueueInForce(ctx context.Context, name string) (Queue, error) {
	q, err := c.Queue(ctx, name)
	if err == nil {
		err = c.useInForce(ctx, &q)
	}
	return q, err
}

// Foreign is the effect of others' policies on exchanges or queues of Redrive.
type Foreign struct {
	Kind  string   // exchange or queue
	Names []string // at least one
	// Policy and OperatorPolicy are in force there.
	Policy, OperatorPolicy string
	// Settings lists the settings that matter, as "key: value".
	Settings []string
	// Cluster is the other one that federates the exchange, by a policy of its own: it gets a copy
	// of each message. "": none does.
	Cluster string
}

func (f *Foreign) String() string {
	names := f.Kind + " " + hint.Few(f.Names, 1)
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
	const some = "?page=1&page_size=500&use_regex=true" +
		"&name=%5Eredrive%5C.(intake%7Cparked%7Cquarantine%7Cdelay)&columns="
	err = c.Call(ctx, http.MethodGet, c.path("queues")+some+stateColumns, nil, &queues)
	return FindForeign(exchanges, queues.Items, policies), err
}

// Settings returns the values of some keys of a policy.
func Settings(definition map[string]any, keys []string) (all []string) {
	for _, key := range keys {
		if v, ok := definition[key]; ok {
			all = append(all, fmt.Sprintf("%s: %s", key, Text(v)))
		}
	}
	return all
}

const (
	// consentEvery is the least time between two lists of all queues; where one takes long
	// it is consentShare times that.
	consentEvery, consentShare = time.Second, 10
	// consentFresh is how long a list counts for queues that are in it.
	consentFresh = 30 * time.Second
)

var errNotConfigured = hint.Errorf("set broker.management", "there is no management API in the config")

// Consent knows which queues of the virtual host have a certain exchange as their
// effective dead-letter exchange. It lists all queues at once, and only while somebody
// wants to know: what a client reports must not cost a question for each name.
type Consent struct {
	client   *Client // nil: there is no API
	exchange string
	wanted   chan struct{}

	mu    sync.Mutex
	yes   map[string]bool
	began time.Time // of the list; zero: there is none
	err   error     // of the last try
}

// NewConsent is for a dead-letter exchange. client may be nil: then nothing is ever known.
func NewConsent(client *Client, exchange string) *Consent {
	c := &Consent{client: client, exchange: exchange, wanted: make(chan struct{}, 1)}
	if client == nil {
		c.err = errNotConfigured
	}
	return c
}

// Consented answers from memory, and requests a new list: see retry.Consent. Safe
// for concurrent use.
func (c *Consent) Consented(queue string) (yes bool, asOf time.Time, err error) {
	select {
	case c.wanted <- struct{}{}:
	default:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.yes[queue] {
		return false, c.began, c.err
	}
	if time.Since(c.began) > consentFresh {
		return false, time.Time{}, c.err
	}
	return true, c.began, nil
}

// Run asks until ctx ends.
func (c *Consent) Run(ctx context.Context) {
	if c.client == nil {
		return
	}
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return
		case <-c.wanted:
		}
		began := time.Now()
		yes, err := c.list(ctx)
		if ctx.Err() != nil {
			return
		}
		c.mu.Lock()
		if c.err = err; err == nil {
			c.yes, c.began = yes, began
		}
		c.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(max(consentEvery, consentShare*time.Since(began))):
		}
	}
}

func (c *Consent) list(ctx context.Context) (yes map[string]bool, err error) {
	all, err := c.client.Queues(ctx)
	if errors.Is(err, ErrDenied) || errors.Is(err, ErrNotFound) {
		err = fmt.Errorf("%w. A user without a tag gets one by: rabbitmqctl set_user_tags '%s' management", err,
			c.client.User())
	}
	yes = map[string]bool{}
	for _, q := range all {
		if q.Setting("dead-letter-exchange") == c.exchange {
			yes[q.Name] = true
		}
	}
	return yes, err
}
