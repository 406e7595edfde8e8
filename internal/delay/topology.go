package delay

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/wire"
)

// Topology lists exchanges, queues and bindings, all durable, in an order in which they can be
// declared.
type Topology struct {
	Exchanges []Exchange
	Queues    []Queue
	Bindings  []Binding
}

// Exchange is durable. Clients cannot publish to an internal one.
type Exchange struct {
	Name, Kind string
	Internal   bool
	AutoDelete bool // RabbitMQ deletes it with its last binding
	Args       amqp.Table
}

// alternate is where an exchange sends what it cannot route. The argument wins over a RabbitMQ
// policy, which would have a retry to a deleted queue confirmed, and not returned.
const alternate = "alternate-exchange"

// Nowhere names an alternate exchange that does not exist, for exchanges to which nobody may write.
const Nowhere = "redrive.none"

// Own returns an exchange of ours that is its own alternate, so that a mandatory message that it
// cannot route is returned, whatever policy others have set.
// (TestAnExchangeThatIsItsOwnAlternateReturnsWhateverAPolicySays) Another name would need the
// right to write to that.
func Own(name, kind string) Exchange {
	return Exchange{Name: name, Kind: kind, Args: amqp.Table{alternate: name}}
}

// Declare calls do to declare t. Exchanges of a version before ours had alternates stay as they are:
// RabbitMQ changes no argument, and what is published while one is deleted and declared again
// would be lost.
func (t Topology) Declare(do func(Topology) error) error {
	for again := true; ; {
		err := do(t)
		if t, again = t.older(err); !again {
			return err
		}
	}
}

// older returns t without the alternate of the exchange that RabbitMQ refused to declare over that;
// false when it was not over that.
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

// Queue is durable. Its type is always among Args: a virtual host's default may
// change.
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

// With returns t with more added.
func (t Topology) With(more Topology) Topology {
	return Topology{slices.Concat(t.Exchanges, more.Exchanges), slices.Concat(t.Queues, more.Queues), slices.Concat(t.Bindings, more.Bindings)}
}

// Named returns t with its delay queue, and the exchange before that, under another name. The delay queue is
// then of the one work queue, so what is published to it by its name goes there, too.
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

// NoLimit is a delivery limit that is never reached. RabbitMQ 4 gives quorum queues a limit of
// 20: a message that exceeds it is dropped, or leaves a delay queue early, and a person who
// looks at the messages 20 times is enough to exceed it. All versions get the same arguments: after
// an upgrade RabbitMQ would refuse another declaration (406). [measured: 3.10.8 and 4.3.6 accept it]
const NoLimit = int64(1_000_000_000)

// Parked is where messages are parked in RabbitMQ: those that cannot or must not be retried wait
// there for a person, or for the service to collect them.
func Parked() Topology {
	return Topology{
		Exchanges: []Exchange{Own(wire.ExchangeParked, amqp.ExchangeFanout)},
		Queues:    []Queue{{Name: wire.QueueParked, Args: amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": NoLimit}}},
		Bindings:  []Binding{{From: wire.ExchangeParked, ToQueue: wire.QueueParked}},
	}
}

// Retry is the retry exchange of a work queue, bound to that alone.
func Retry(queue string) Topology {
	exchange := wire.RetryExchange(queue)
	return Topology{Exchanges: []Exchange{Own(exchange, amqp.ExchangeFanout)}, Bindings: []Binding{{From: exchange, ToQueue: queue}}}
}

// Due is the last hop of all ways that wait in queues: an internal exchange, bound to each work
// queue by its name. Messages whose queue no longer exists are parked: a queue that
// dead-letters at-least-once is blocked by a message that cannot be routed, and others wait in
// the same queue.
func Due(queue string) Topology {
	return Parked().With(Topology{
		Exchanges: []Exchange{{Name: wire.ExchangeDue, Kind: amqp.ExchangeDirect, Internal: true, Args: amqp.Table{alternate: wire.ExchangeParked}}},
		Bindings:  []Binding{{From: wire.ExchangeDue, Key: queue, ToQueue: queue}},
	})
}

// DuePerQueue is like Due, with a queue for each work queue in front, the lane queue: for delay
// queues that work queues share.
// RabbitMQ's at-least-once dead-lettering of a queue handles 32 messages at a time: 32 for a
// work queue that is full or has no leader would stop the retries of all others.
// (TestOneUnavailableQueueStopsNoOther) A lane queue accepts whatever comes due and expires it
// at once, so the 32 are of its work queue alone.
func DuePerQueue(queue string) Topology {
	lane := wire.LaneQueue(queue)
	args := AtLeastOnce(wire.ExchangeDue, 0)
	args["x-dead-letter-routing-key"] = queue
	return Due(queue).With(Topology{
		Exchanges: []Exchange{{Name: wire.ExchangeLane, Kind: amqp.ExchangeDirect, Internal: true, Args: amqp.Table{alternate: wire.ExchangeDue}}},
		Queues:    []Queue{{Name: lane, Args: args}},
		Bindings:  []Binding{{From: wire.ExchangeLane, Key: queue, ToQueue: lane}},
	})
}

// AtLeastOnce returns the arguments of a quorum queue that dead-letters expired messages to an
// exchange, and keeps each until RabbitMQ has confirmed it there. Strategy and overflow are
// both needed: with drop-head it is silently at-most-once.
func AtLeastOnce(exchange string, ttl time.Duration) amqp.Table {
	return amqp.Table{"x-queue-type": "quorum", "x-message-ttl": ttl.Milliseconds(), "x-dead-letter-exchange": exchange,
		"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish", "x-delivery-limit": NoLimit}
}

// NameIn returns the name of a work queue as a part of a longer name: as it is, or a hash of it
// where it has more than room bytes. A name that looks like such a hash is hashed too.
func NameIn(queue string, room int) string {
	if len(queue) <= room && !strings.HasPrefix(queue, "sha256.") {
		return queue
	}
	sum := sha256.Sum256([]byte(queue))
	return "sha256." + hex.EncodeToString(sum[:])
}

// EndsWait tells whether a wait ends at an exchange: a message that reached its work queue
// through it had waited before. Not all of them are internal; users who can write to the
// exchanges in which a wait begins can send through them.
func EndsWait(exchange string) bool {
	return exchange == wire.ExchangeDue || exchange == wire.ExchangeLane || exchange == wire.ExchangeDelayed || strings.HasPrefix(exchange, wire.DelayPrefix)
}
