// Package delay is the contract of the ways to wait in RabbitMQ itself: a message is published somewhere, and RabbitMQ
// moves it to its work queue when its delay is over. A way is arithmetic: it returns what must exist in the broker and
// where to publish, and package broker does both. So the service and the library share the ways, and one suite
// (delaytest) runs over all of them on real brokers. Read it in this order:
//
//	way.go     the contract, and what ways share in the broker
//	queues.go  queues whose messages expire: levels, dynamic ones, one for each work queue
//	ladder.go  a queue for each bit of the delay
//	others.go  what waits elsewhere: the work queue itself, the plugin's exchange, the service
package delay

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// Way is one way to wait. Its methods are pure, and safe for concurrent use.
type Way interface {
	// Limits returns what the way can do, and what it costs.
	Limits() Limits
	// Topology returns what must exist before a message of the queue waits.
	Topology(queue string) Topology
	// Ticket returns where to publish a message of the queue so that it is retried after delay (0 or more), and never
	// earlier. It fails only for a delay longer than Longest.
	Ticket(queue string, delay time.Duration) (Ticket, error)
}

// For returns a way without the levels that a policy does not need: those beyond the longest delay of its backoff or
// that consumers may ask for.
func For(p *policy.Policy, w Way) Way {
	l, ok := w.(*Levels)
	if !ok {
		return w
	}
	var longest time.Duration
	for _, of := range p.Cases() {
		if of.Attempts > 1 {
			of.MaxRetryAfter = 0
			longest = max(longest, of.LongestRetryAfter(), p.MaxRetryAfter)
		}
	}
	return l.upTo(longest)
}

// Ticket is how to publish one message so that it waits. It is safe when RabbitMQ has confirmed and not returned it.
type Ticket struct {
	// Requeue means that nothing is published: the message is rejected with requeue, and its own queue delays it.
	Requeue bool

	Exchange, RoutingKey string
	Expiration           string
	Headers              amqp.Table    // to be added, or nil
	Delay                time.Duration // as rounded up

	// Unchecked means to publish without mandatory: RabbitMQ would return every message as unroutable.
	Unchecked bool

	// DeclareFirst must be declared before the publish. When more than ConfirmWithin passes between that and the
	// confirm, the message may be lost, and must be published again.
	DeclareFirst  *Topology
	ConfirmWithin time.Duration
}

// Outgoing returns the message as it is published to wait. m has the headers of its history, with the id.
func (t *Ticket) Outgoing(id string, m *wire.Message) wire.Outgoing {
	m.Expiration = t.Expiration
	maps.Copy(m.Headers, t.Headers)
	return wire.Outgoing{Exchange: t.Exchange, RoutingKey: t.RoutingKey, ID: id, Message: m, Unchecked: t.Unchecked}
}

// CheckConfirm returns an error if DeclareFirst was declared too long ago for a confirm to count now.
func (t *Ticket) CheckConfirm(declared time.Time) error {
	if t.DeclareFirst == nil || time.Since(declared) <= t.ConfirmWithin {
		return nil
	}
	return errors.New("the confirm came so late that its delay queue may be gone")
}

// Limits describes what a way can do, as its documentation states and its suite proves.
type Limits struct {
	Name    string
	Longest time.Duration
	// Levels are the only possible delays, shortest first; nil: any delay.
	Levels []time.Duration
	// Delays are rounded up to a multiple of Step, if Levels is nil.
	Step time.Duration
	// Blocks: a message with a short delay waits for those before it with a longer one.
	Blocks bool
	// AcceptsBlocking: mixed delays are allowed although the way Blocks.
	AcceptsBlocking bool
	// Linear: the delay is the number of failures times a constant, and nothing else.
	Linear bool
	// QueueCounts: the work queue itself counts the failures and delays the rejected message, which gets none of our
	// headers.
	QueueCounts bool
	// ServiceDecides: the service consumes the message and decides by its own policy.
	ServiceDecides bool
	// DropsWhenFull: it dead-letters at-most-once, so what comes due while its work queue is full or has no leader is
	// lost.
	DropsWhenFull bool
	// ChangesRoutingKey: a message is retried with its work queue's name as routing key. The first one is in its header
	// x-redrive-routing-key, and the library shows that one.
	ChangesRoutingKey bool

	Survives string // what the waiting messages survive
	Declares string // what the way declares in the broker
	Needs    string // besides RabbitMQ 3.10; "" for nothing
	Since    [2]int // the oldest version of RabbitMQ, as major and minor; zero: 3.10
}

// Check returns what a policy asks for that the way cannot do, with the remedy. It joins the errors of max_retry_after
// and, for each case of the policy, of the first wait.
func (l Limits) Check(p *policy.Policy) error {
	if l.ServiceDecides {
		return nil
	}
	var all []error
	if p.MaxRetryAfter > l.Longest {
		all = append(all, fmt.Errorf("policy %q lets consumers ask for delays of up to %s, and %s waits %s at most: "+
			"allow less, or choose another way to wait",
			p.Name, policy.FormatDuration(p.MaxRetryAfter), l.Name, policy.FormatDuration(l.Longest)))
	}
	var waits []time.Duration // the policy's own
	for i, of := range p.Cases() {
		err := l.checkWaits(&of)
		if own := of.Waits(); i == 0 {
			waits = own
		} else if err == nil && l.Blocks && !l.AcceptsBlocking && len(waits) > 0 && len(own) > 0 && own[0] != waits[0] {
			err = fmt.Errorf("policy %q waits %s, and one of its rules %s: with %s a message with the short "+
				"wait would wait behind those with the long one: use the same wait in both, or another way to wait",
				p.Name, policy.FormatDuration(waits[0]), policy.FormatDuration(own[0]), l.Name)
		}
		all = append(all, err)
	}
	return errors.Join(all...)
}

func (l Limits) checkWaits(p *policy.Policy) error {
	waits := p.Waits()
	for i, w := range waits {
		if spread := p.Jitter.Longest(w); l.Spreads() && w <= l.Longest && spread > l.Longest {
			return fmt.Errorf("policy %q waits up to %s before attempt %d, its jitter included, and %s waits %s at "+
				"most: shorten it, or take off the jitter",
				p.Name, policy.FormatDuration(spread), i+2, l.Name, policy.FormatDuration(l.Longest))
		}
		if w > l.Longest {
			return fmt.Errorf("policy %q waits %s before attempt %d, and %s waits %s at most: shorten it, or choose "+
				"another way to wait",
				p.Name, policy.FormatDuration(w), i+2, l.Name, policy.FormatDuration(l.Longest))
		}
		if l.Linear && w != linear(waits[0], i+1, p.Backoff.Max()) {
			return fmt.Errorf("policy %q waits %s before attempt %d, and %s can only wait %s more each time, up to a "+
				"maximum: use a linear backoff whose step is its initial wait",
				p.Name, policy.FormatDuration(w), i+2, l.Name, policy.FormatDuration(waits[0]))
		}
		if l.Blocks && !l.AcceptsBlocking && i > 0 && w != waits[i-1] {
			return fmt.Errorf("policy %q waits %s before attempt %d and %s before the next: with %s a message with "+
				"the short wait would wait behind those with the long one: use a fixed backoff, or accept that (in "+
				"the library: MixedMessageTTL)",
				p.Name, policy.FormatDuration(waits[i-1]), i+1, policy.FormatDuration(w), l.Name)
		}
	}
	return nil
}

// linear returns n times first, limit at most.
func linear(first time.Duration, n int, limit time.Duration) time.Duration {
	if first > limit/time.Duration(n) {
		return limit
	}
	return first * time.Duration(n)
}

// CheckVersion returns an error for a RabbitMQ version ("4.3.1") on which the way does not work. Any other text passes.
func (l Limits) CheckVersion(broker string) error {
	if yes, ok := VersionAtLeast(broker, l.Since[0], l.Since[1]); ok && !yes {
		return fmt.Errorf("%s needs %s, and the broker is %s", l.Name, l.Needs, broker)
	}
	return nil
}

// Spreads reports whether jitter has an effect: with few levels it would only move messages to the next level.
func (l Limits) Spreads() bool {
	return l.Levels == nil && !l.Linear && (!l.Blocks || l.AcceptsBlocking)
}

// Topology lists durable exchanges, queues and bindings, in an order in which they can be declared.
type Topology struct {
	Exchanges []Exchange
	Queues    []Queue
	Bindings  []Binding
}

// Exchange is a durable exchange. Clients cannot publish to an internal one.
type Exchange struct {
	Name, Kind string
	Internal   bool
	AutoDelete bool // RabbitMQ deletes it with its last binding
	Args       amqp.Table
}

// alternate names the exchange that gets what another cannot route. As an argument it wins over a RabbitMQ policy, by
// which RabbitMQ would confirm a retry to a deleted queue, and not return it.
const alternate = "alternate-exchange"

// Nowhere names an alternate exchange that does not exist, for exchanges that no one may write to.
const Nowhere = "redrive.none"

// Own returns an exchange that is its own alternate, so that RabbitMQ returns a mandatory message that it cannot route,
// whatever policy others have set. (TestAnExchangeThatIsItsOwnAlternateReturnsWhateverAPolicySays) Another name would
// need the right to write to that.
func Own(name, kind string) Exchange {
	return Exchange{Name: name, Kind: kind, Args: amqp.Table{alternate: name}}
}

// Declare calls do to declare t. Exchanges that an earlier version declared without an alternate stay as they are:
// RabbitMQ changes no argument, and messages published while an exchange is deleted and declared again would be lost.
func (t Topology) Declare(do func(Topology) error) error {
	for again := true; ; {
		err := do(t)
		if t, again = t.older(err); !again {
			return err
		}
	}
}

// older returns t without the alternate of the exchange that RabbitMQ refused to declare because of it; false if
// refused has another cause.
func (t Topology) older(refused error) (Topology, bool) {
	for i, e := range t.Exchanges {
		over := "inequivalent arg '" + alternate + "' for exchange '" + e.Name + "' in vhost "
		if to := e.Args[alternate]; (to == e.Name || to == Nowhere) && refused != nil &&
			strings.Contains(refused.Error(), over) && strings.Contains(refused.Error(), "but current is none") {
			e.Args = maps.Clone(e.Args)
			delete(e.Args, alternate)
			t.Exchanges = slices.Clone(t.Exchanges)
			t.Exchanges[i] = e
			return t, true
		}
	}
	return t, false
}

// Queue is a durable queue. Its type is always among Args: a virtual host's default may change.
type Queue struct {
	Name string
	Args amqp.Table
}

// Binding leads from an exchange to a queue, or to another exchange.
type Binding struct {
	From, Key  string
	ToQueue    string
	ToExchange string
}

func (t Topology) With(more Topology) Topology {
	return Topology{slices.Concat(t.Exchanges, more.Exchanges), slices.Concat(t.Queues, more.Queues),
		slices.Concat(t.Bindings, more.Bindings)}
}

// Named returns t with its delay queue, and the exchange before that, under another name. The delay queue then serves
// one work queue, which also gets what is published to the delay queue by name.
func (t Topology) Named(name, queue string) (Topology, error) {
	t = Topology{}.With(t)
	is := func(s string) bool { return strings.HasPrefix(s, wire.DelayPrefix) }
	n := 0
	for i, q := range t.Queues {
		if is(q.Name) {
			n++
			t.Queues[i] = Queue{name, maps.Clone(q.Args)}
			t.Queues[i].Args["x-dead-letter-routing-key"] = queue
		}
	}
	if n != 1 {
		return t, fmt.Errorf("one name for %d delay queues", n)
	}
	for i, e := range t.Exchanges {
		if is(e.Name) {
			t.Exchanges[i].Name = name
		}
	}
	for i, b := range t.Bindings {
		if is(b.From) {
			t.Bindings[i].From, t.Bindings[i].ToQueue = name, name
		}
	}
	return t, nil
}

// NoLimit is a delivery limit that is never reached. RabbitMQ 4 gives quorum queues a limit of 20, which a person
// exceeds who looks at the messages 20 times: it drops them then, or they leave a delay queue early. All versions get
// the same arguments, or RabbitMQ would refuse them after an upgrade (406). [measured: 3.10.8 and 4.3.6 accept it]
const NoLimit = int64(1_000_000_000)

// Parked returns where messages are parked in RabbitMQ: those that cannot or must not be retried wait there for a
// person, or for the service to collect them.
func Parked() Topology {
	return Topology{
		Exchanges: []Exchange{Own(wire.ExchangeParked, amqp.ExchangeFanout)},
		Queues: []Queue{{Name: wire.QueueParked,
			Args: amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": NoLimit}}},
		Bindings: []Binding{{From: wire.ExchangeParked, ToQueue: wire.QueueParked}},
	}
}

// Retry returns the retry exchange of a work queue, bound to that alone.
func Retry(queue string) Topology {
	exchange := wire.RetryExchange(queue)
	return Topology{Exchanges: []Exchange{Own(exchange, amqp.ExchangeFanout)},
		Bindings: []Binding{{From: exchange, ToQueue: queue}}}
}

// Due returns the last hop of all ways that wait in queues: an internal exchange, bound to each work queue by its name.
// Messages whose queue no longer exists are parked; otherwise they would block a queue that dead-letters at-least-once.
func Due(queue string) Topology {
	return Parked().With(Topology{
		Exchanges: []Exchange{{Name: wire.ExchangeDue, Kind: amqp.ExchangeDirect, Internal: true,
			Args: amqp.Table{alternate: wire.ExchangeParked}}},
		Bindings: []Binding{{From: wire.ExchangeDue, Key: queue, ToQueue: queue}},
	})
}

// DuePerQueue is like Due with a queue for each work queue in front, the lane queue, for delay queues that work queues
// share. RabbitMQ's at-least-once dead-lettering handles 32 messages of a queue at a time: 32 for a work queue that is
// full or has no leader would stop the retries of all others. (TestOneUnavailableQueueStopsNoOther) A lane queue
// expires at once whatever comes due, so the 32 are of its work queue alone.
func DuePerQueue(queue string) Topology {
	lane := wire.LaneQueue(queue)
	args := AtLeastOnce(wire.ExchangeDue, 0)
	args["x-dead-letter-routing-key"] = queue
	return Due(queue).With(Topology{
		Exchanges: []Exchange{{Name: wire.ExchangeLane, Kind: amqp.ExchangeDirect, Internal: true,
			Args: amqp.Table{alternate: wire.ExchangeDue}}},
		Queues:   []Queue{{Name: lane, Args: args}},
		Bindings: []Binding{{From: wire.ExchangeLane, Key: queue, ToQueue: lane}},
	})
}

// AtLeastOnce returns the arguments of a quorum queue that keeps each expired message until exchange has confirmed it.
// It needs strategy and overflow: with drop-head it is silently at-most-once.
func AtLeastOnce(exchange string, ttl time.Duration) amqp.Table {
	return amqp.Table{"x-queue-type": "quorum", "x-message-ttl": ttl.Milliseconds(), "x-dead-letter-exchange": exchange,
		"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish", "x-delivery-limit": NoLimit}
}

// NameIn returns the name of a work queue as a part of a longer name, or a hash of it if it has more than room bytes. A
// name that looks like such a hash is hashed too.
func NameIn(queue string, room int) string {
	if len(queue) <= room && !strings.HasPrefix(queue, "sha256.") {
		return queue
	}
	sum := sha256.Sum256([]byte(queue))
	return "sha256." + hex.EncodeToString(sum[:])
}

// EndsWait reports whether a wait ends at this exchange: a message that reached its work queue through it had waited.
// Not all of them are internal; users who can write to the exchanges in which a wait begins can send through them.
func EndsWait(exchange string) bool {
	return exchange == wire.ExchangeDue || exchange == wire.ExchangeLane || exchange == wire.ExchangeDelayed ||
		strings.HasPrefix(exchange, wire.DelayPrefix)
}
