package redrive

import (
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/delay"
)

// Way is where messages wait for their next attempt. Make one with Levels, ClassicLevels,
// Dynamic, MessageTTL, MixedMessageTTL, Service, DelayedExchange, Binary or Native.
type Way struct {
	way delay.Way
	err error
}

// Limits describes what a Way can do and costs. docs/explanation/ways-to-wait.md compares them.
type Limits struct {
	// Name of the way, as errors have it.
	Name string
	// Longest is the longest delay.
	Longest time.Duration
	// Levels are the only delays there are, shortest first; nil where any is possible.
	Levels []time.Duration
	// Delays are rounded up to Step, where Levels is nil.
	Step time.Duration
	// Blocks: a message with a short delay waits behind those with a longer one.
	Blocks bool
	// Linear: the n-th delay is n times the first one, up to a longest; none other.
	Linear bool
	// ServiceDecides: the service decides by its own policy, and Consumer.Policy is not used.
	// Only Service has this limit.
	ServiceDecides bool
	// DropsWhenFull: messages that come due while their work queue is full or has no leader are
	// lost, since they are dead-lettered at-most-once.
	DropsWhenFull bool
	// ChangesRoutingKey: on the wire a message is retried with its work queue's name as routing key. The library shows
	// the first one; a consumer without it finds that in the header x-redrive-routing-key.
	ChangesRoutingKey bool
	// Survives says what waiting messages survive, in words.
	Survives string
	// Declares says what the way declares in RabbitMQ, in words.
	Declares string
	// Needs says what it needs besides RabbitMQ 3.10, in words; "" for nothing.
	Needs string
}

// Limits returns the limits of the way; those of the zero Way, and of one that cannot be made, are zero.
func (w Way) Limits() Limits {
	if w.way == nil {
		return Limits{}
	}
	l := w.way.Limits()
	return Limits{Name: l.Name, Longest: l.Longest, Levels: slices.Clone(l.Levels), Step: l.Step, Blocks: l.Blocks,
		Linear: l.Linear, ServiceDecides: l.ServiceDecides,
		DropsWhenFull: l.DropsWhenFull, ChangesRoutingKey: l.ChangesRoutingKey, Survives: l.Survives,
		Declares: l.Declares, Needs: l.Needs}
}

func wrapWay[W delay.Way](w W, err error) Way {
	if err != nil {
		return Way{err: err}
	}
	return Way{way: w}
}

// Levels waits in one quorum queue per level, shared by all work queues. Behind them each work queue has a queue of its
// own, so that one that is full or down delays no other. Delays are rounded up to the next level, and jitter has no
// effect. Without arguments the levels are 1, 2, 4, 8, 16 and 32 seconds, 1, 2, 5, 10 and 30 minutes, and an hour.
// Those beyond the policy's longest delay are not declared. A level is a whole number of milliseconds up to
// policy.LongestDelay. For the same delay before each attempt, give one level.
func Levels(levels ...time.Duration) Way {
	return wrapWay(delay.NewLevels(delay.Quorum, levels...))
}

// ClassicLevels is Levels in classic queues, which are on one node and dead-letter at-most-once: messages that come due
// while their work queue cannot accept them are lost. A quorum work queue cannot just after RabbitMQ has started, so
// messages that came due while RabbitMQ was down are lost then.
func ClassicLevels(levels ...time.Duration) Way {
	return wrapWay(delay.NewLevels(delay.Classic, levels...))
}

// Dynamic waits in a queue for each delay that occurs, rounded up to two digits and at least 0.1 s: at most 90 queues
// for each power of ten. A queue is declared when it is needed, and expires when it is idle. They are classic queues,
// with the risk of ClassicLevels: a quorum queue that expires is deleted with its messages.
func Dynamic() Way { return wrapWay(delay.NewDynamic(100 * time.Millisecond)) }

// MessageTTL waits in one quorum queue for each work queue, each message with a time to
// live of its own. A message with a short delay waits behind one with a long delay, so a
// policy with different waits is refused; MixedMessageTTL accepts it.
func MessageTTL() Way { return Way{way: delay.NewMessageTTL(delay.Quorum, false)} }

// MixedMessageTTL is MessageTTL for policies with different waits: messages may come late.
func MixedMessageTTL() Way { return Way{way: delay.NewMessageTTL(delay.Quorum, true)} }

// Service publishes failures, with the text of the error, to the Redrive service, which
// decides by its own policies: Consumer.Policy is not used.
func Service() Way { return Way{way: delay.Report{}} }

// DelayedExchange waits in an exchange of the plugin rabbitmq_delayed_message_exchange, on
// one node and in its memory. The plugin cannot run on RabbitMQ 4.3.
func DelayedExchange() Way { return Way{way: delay.Plugin{}} }

// Binary waits in 28 queues, one for each bit of the delay, shared by all work queues, each of which has one of its own
// behind them as with Levels. Delays are up to 2²⁸ units, rounded up to a unit. A unit is from 1 ms to 1 s.
func Binary(unit time.Duration) Way { return wrapWay(delay.NewLadder(unit)) }

// Native waits in the work queue itself, which must be a quorum queue of RabbitMQ 4.3 or
// later, declared with NativeArguments or with a RabbitMQ policy that says the same. Only
// a linear backoff is possible, and Consumer.Policy must say what the queue does.
func Native() Way { return Way{way: delay.Native{}} }

// NativeArguments returns the arguments of a work queue for Native: it waits min after the
// first failure, min more after each further one, and max at most.
func NativeArguments(min, max time.Duration) amqp.Table { return delay.NativeArguments(min, max) }
