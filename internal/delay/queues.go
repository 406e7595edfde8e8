package delay

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// The ways of this file wait in queues whose messages expire. RabbitMQ then dead-letters them, by the name of the work
// queue: from quorum queues that work queues share to the exchange redrive.lane, from the others to redrive.due. Each
// delay queue has a fanout exchange before it, so that this name is the routing key from the first hop on.

// QueueType is the type of delay queues.
type QueueType string

const (
	// Quorum queues dead-letter at-least-once: what waits survives the loss of a minority of nodes.
	Quorum QueueType = "quorum"
	// Classic queues are on one node, and dead-letter at-most-once: what expires while its work queue cannot accept it
	// is lost, as when RabbitMQ has started and a quorum work queue has no leader yet. [measured on 3.10.8]
	Classic QueueType = "classic"
)

func (t QueueType) survives() string {
	if t == Classic {
		return "a restart of RabbitMQ, but with a quorum work queue not what comes due meanwhile; not the loss of " +
			"the queue's node"
	}
	return "a restart of RabbitMQ and the loss of a minority of its nodes"
}

// label returns a delay as part of a name: "1s", "1m30s", "250ms".
func label(d time.Duration) string {
	return strings.NewReplacer("h0m0s", "h", "m0s", "m").Replace(d.String())
}

// name returns the name of a delay queue and its exchange. It depends on the type, which cannot be changed (406).
func (t QueueType) name(label string) string {
	if t == Classic {
		return wire.DelayPrefix + label + ".classic"
	}
	return wire.DelayPrefix + label
}

func (t QueueType) delayQueue(name string, ttl time.Duration, more amqp.Table) Topology {
	args := AtLeastOnce(wire.ExchangeLane, ttl)
	if t == Classic {
		args = amqp.Table{"x-queue-type": string(t), "x-message-ttl": ttl.Milliseconds(),
			"x-dead-letter-exchange": wire.ExchangeDue}
	}
	maps.Copy(args, more)
	return queueBehind(name, args)
}

func queueBehind(name string, args amqp.Table) Topology {
	return Topology{
		Exchanges: []Exchange{Own(name, amqp.ExchangeFanout)},
		Queues:    []Queue{{Name: name, Args: args}},
		Bindings:  []Binding{{From: name, ToQueue: name}},
	}
}

// roundUp rounds up, since no message may be retried early.
func roundUp(d, step time.Duration) time.Duration { return (d + step - 1) / step * step }

// Dynamic waits in a queue for each delay, which is declared when it is needed, and expires when it is idle.
//
// x-expires deletes a queue with the messages in it. Declaring the queue again postpones that only for classic queues
// [measured on 3.10.8 and 4.3.6], so these are classic. Each publish comes soon after a declaration, the expiry is well
// past the delay, and a message counts as waiting only if it was confirmed while that declaration covered its wait.
type Dynamic struct {
	step time.Duration
	// Spare is how much longer than its delay an unused queue exists: half of it for the time from declaration to
	// confirm, half for a broker that dead-letters slowly. Tests shorten it.
	Spare func(time.Duration) time.Duration
}

// NewDynamic returns a Dynamic that rounds delays up to two significant digits, and to at least step, which is 1 ms or
// more. That makes at most 90 queues for each power of ten.
func NewDynamic(step time.Duration) (*Dynamic, error) {
	if step < time.Millisecond || step%time.Millisecond != 0 {
		return nil, fmt.Errorf("a step of %s is not a number of whole milliseconds from 1 ms", step)
	}
	return &Dynamic{step, spare}, nil
}

func spare(d time.Duration) time.Duration { return max(10*time.Minute, d/10) }

// maxDynamic leaves room for the expiry, which has the same limit as a time to live: policy.LongestDelay.
const maxDynamic = policy.LongestDelay / 2

func (d *Dynamic) Limits() Limits {
	return Limits{Name: "dynamic", Longest: maxDynamic, Step: d.step, DropsWhenFull: true, ChangesRoutingKey: true,
		Survives: Classic.survives(),
		Declares: fmt.Sprintf("one queue and one exchange per delay in use, rounded up to two digits: at most %d for "+
			"delays up to an hour; gone when not used for ten minutes more than the delay", d.count(time.Hour))}
}

func (d *Dynamic) Topology(queue string) Topology { return Due(queue) }

func (d *Dynamic) Ticket(queue string, wait time.Duration) (Ticket, error) {
	if wait > maxDynamic {
		return Ticket{}, fmt.Errorf("a delay of %s is longer than %s, the longest of dynamic queues",
			policy.FormatDuration(wait), policy.FormatDuration(maxDynamic))
	}
	wait = d.round(wait)
	name := Classic.name("dynamic." + label(wait))
	first := Classic.delayQueue(name, wait, amqp.Table{"x-expires": (wait + d.Spare(wait)).Milliseconds()})
	first.Exchanges[0].AutoDelete = true
	return Ticket{Exchange: name, RoutingKey: queue, Delay: wait, DeclareFirst: &first,
		ConfirmWithin: d.Spare(wait) / 2}, nil
}

// round rounds up to two significant digits: with more, jitter would make a queue for each message.
func (d *Dynamic) round(wait time.Duration) time.Duration {
	step := d.step
	for step*100 < wait {
		step *= 10
	}
	return max(roundUp(wait, step), d.step)
}

// count returns how many different delays there are up to limit, each with a queue.
func (d *Dynamic) count(limit time.Duration) (n int) {
	for wait := d.step; wait <= limit; wait = d.round(wait + 1) {
		n++
	}
	return n
}

// DefaultLevels suits a backoff that doubles, from a second to an hour.
var DefaultLevels = []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second,
	32 * time.Second, time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 30 * time.Minute, time.Hour}

// Levels waits in one queue per level, shared by all work queues. In quorum queues each work queue has a lane queue of
// its own at the end (DuePerQueue).
type Levels struct {
	name   string
	levels []time.Duration // sorted, at least one
	kind   QueueType
}

// NewLevels returns Levels; without levels, those of DefaultLevels. Each is from 1 ms to policy.LongestDelay, in whole
// milliseconds.
func NewLevels(kind QueueType, levels ...time.Duration) (*Levels, error) {
	if len(levels) == 0 {
		levels = DefaultLevels
	}
	levels = slices.Compact(slices.Sorted(slices.Values(levels)))
	for _, l := range levels {
		if l < time.Millisecond || l > policy.LongestDelay || l%time.Millisecond != 0 {
			return nil, fmt.Errorf("the level %s is not a number of whole milliseconds from 1 ms to ten years", l)
		}
	}
	return &Levels{name: "levels", levels: levels, kind: kind}, nil
}

// upTo returns Levels without those that no delay up to longest needs.
func (l *Levels) upTo(longest time.Duration) *Levels {
	i, _ := slices.BinarySearch(l.levels, longest)
	return &Levels{l.name, l.levels[:min(i+1, len(l.levels))], l.kind}
}

func NewFixed(kind QueueType, d time.Duration) (*Levels, error) {
	l, err := NewLevels(kind, d)
	if err == nil {
		l.name = "fixed"
	}
	return l, err
}

func (l *Levels) Limits() Limits {
	names := make([]string, len(l.levels))
	for i, d := range l.levels {
		names[i] = policy.FormatDuration(d)
	}
	makes := "one queue and one exchange per level, for all work queues together"
	if l.kind == Quorum {
		makes += ", and one queue for each work queue"
	}
	return Limits{Name: l.name, Longest: l.levels[len(l.levels)-1], Levels: l.levels, DropsWhenFull: l.kind == Classic,
		ChangesRoutingKey: true, Survives: l.kind.survives(),
		Declares: makes + ": " + strings.Join(names, ", ")}
}

func (l *Levels) Topology(queue string) Topology {
	t := Due(queue)
	if l.kind == Quorum {
		t = DuePerQueue(queue)
	}
	for _, d := range l.levels {
		t = t.With(l.kind.delayQueue(l.kind.name(label(d)), d, nil))
	}
	return t
}

func (l *Levels) Ticket(queue string, wait time.Duration) (Ticket, error) {
	i, _ := slices.BinarySearch(l.levels, wait)
	if i == len(l.levels) {
		return Ticket{}, fmt.Errorf("a delay of %s is longer than the longest level, %s", policy.FormatDuration(wait),
			policy.FormatDuration(l.levels[i-1]))
	}
	return Ticket{Exchange: l.kind.name(label(l.levels[i])), RoutingKey: queue, Delay: l.levels[i]}, nil
}

// MessageTTL waits in one queue for each work queue, each message with a time to live of its own. RabbitMQ expires
// messages at the head only, so one with a short delay waits for those of its work queue before it.
type MessageTTL struct {
	kind  QueueType
	mixed bool
}

// NewMessageTTL returns a MessageTTL. mixed accepts different delays, and that a short one waits behind a long one.
func NewMessageTTL(kind QueueType, mixed bool) *MessageTTL { return &MessageTTL{kind, mixed} }

func (m *MessageTTL) Limits() Limits {
	return Limits{Name: "message-ttl", Longest: policy.LongestDelay, Step: time.Millisecond, Blocks: true,
		AcceptsBlocking: m.mixed, DropsWhenFull: m.kind == Classic, ChangesRoutingKey: true,
		Survives: m.kind.survives(),
		Declares: "one queue and one exchange for each work queue"}
}

func (m *MessageTTL) queue(work string) string {
	prefix := wire.DelayPrefix + "message-ttl." + string(m.kind) + "."
	return prefix + NameIn(work, 255-len(prefix))
}

func (m *MessageTTL) Topology(queue string) Topology {
	args := amqp.Table{"x-queue-type": string(m.kind), "x-dead-letter-exchange": wire.ExchangeDue}
	if m.kind == Quorum {
		// Straight to redrive.due: only one work queue uses it, so it can block no other.
		args = AtLeastOnce(wire.ExchangeDue, 0)
		delete(args, "x-message-ttl")
	}
	return Due(queue).With(queueBehind(m.queue(queue), args))
}

func (m *MessageTTL) Ticket(queue string, wait time.Duration) (Ticket, error) {
	if wait > policy.LongestDelay {
		return Ticket{}, fmt.Errorf("a delay of %s is longer than RabbitMQ's longest time to live, ten years",
			policy.FormatDuration(wait))
	}
	wait = roundUp(wait, time.Millisecond)
	return Ticket{Exchange: m.queue(queue), RoutingKey: queue, Delay: wait,
		Expiration: strconv.FormatInt(wait.Milliseconds(), 10)}, nil
}
