package management

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/wire"
)

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

func (c *Client) OperatorPolicies(ctx context.Context) (all []Policy, err error) {
	return all, c.Call(ctx, http.MethodGet, c.path("operator-policies"), nil, &all)
}

// Queues are all of the virtual host, with what their policies set, as it is now. They come without
// statistics, which are seconds old or switched off: without any count.
//
// Which policy a queue has only RabbitMQ knows: none with a key that the queue's type does not have.
func (c *Client) Queues(ctx context.Context) (all []Queue, err error) {
	const columns = "name,vhost,type,arguments,policy,operator_policy,effective_policy_definition,exclusive,durable,auto_delete"
	if err = c.Call(ctx, http.MethodGet, c.path("queues")+"?disable_stats=true&columns="+columns, nil, &all); err != nil {
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

// useInForce sets on queues what is in force, which the statistics they come with may not know.
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
		err = fmt.Errorf("%w. A user without a tag gets one by: rabbitmqctl set_user_tags '%s' management", err, c.client.User())
	}
	yes = map[string]bool{}
	for _, q := range all {
		if q.Setting("dead-letter-exchange") == c.exchange {
			yes[q.Name] = true
		}
	}
	return yes, err
}
