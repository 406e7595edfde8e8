package redrive

import (
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/wait"
	"github.com/redrive-mq/redrive/internal/wait/binary"
	"github.com/redrive-mq/redrive/internal/wait/delayx"
	"github.com/redrive-mq/redrive/internal/wait/native"
	"github.com/redrive-mq/redrive/internal/wait/report"
	"github.com/redrive-mq/redrive/internal/wait/ttlqueue"
)

// Way is how messages wait for their next attempt. Make one with Levels, Fixed,
// Dynamic, MessageTTL, Service, DelayedExchange, Binary or Native.
type Way struct {
	way wait.Way
	err error
}

// Limits are what a way can keep, and what it makes in RabbitMQ.
type Limits = wait.Limits

// Limits of the way.
func (w Way) Limits() Limits { return w.way.Limits() }

// QueueType of the queues in which messages wait.
type QueueType = ttlqueue.Type

const (
	// Quorum, the default: what waits survives the loss of a minority of nodes,
	// and is kept until it has arrived in its work queue.
	Quorum = ttlqueue.Quorum
	// Classic is on one node and hands on at-most-once: what comes due while its
	// work queue cannot take it is lost. A quorum work queue cannot just after
	// RabbitMQ has started, so what came due while RabbitMQ was down is lost then.
	Classic = ttlqueue.Classic
)

func way[W wait.Way](w W, err error) Way {
	if err != nil {
		return Way{err: err}
	}
	return Way{way: w}
}

// Levels waits in one queue per level, shared by all work queues, each of which has a
// queue of its own behind them: one that is full or down holds up no other. Delays are
// rounded up to the next level, and jitter has no effect. Without levels they are
// 1, 2, 4, 8, 16 and 32 seconds, 1, 2, 5, 10 and 30 minutes, and an hour.
func Levels(levels ...time.Duration) Way { return way(ttlqueue.NewLevels(Quorum, levels...)) }

// ClassicLevels is Levels in classic queues. See Classic for the risk.
func ClassicLevels(levels ...time.Duration) Way { return way(ttlqueue.NewLevels(Classic, levels...)) }

// Fixed waits the same time before each attempt, as Levels with one level.
func Fixed(d time.Duration) Way { return way(ttlqueue.NewFixed(Quorum, d)) }

// Dynamic waits in a queue for each delay that occurs, rounded up to two digits
// and at least 0.1 s: at most 90 queues for each power of ten. A queue is made
// when it is needed, and gone when it is idle. They are classic queues, see
// Classic for the risk: quorum queues that expire would take their messages with
// them.
func Dynamic() Way { return way(ttlqueue.NewDynamic(100 * time.Millisecond)) }

// MessageTTL waits in one queue for each work queue, each message with a time to
// live of its own. A message with a short delay stays behind one with a long
// delay, so a policy with different waits is refused; MixedMessageTTL takes it.
func MessageTTL() Way { return Way{way: ttlqueue.NewMessageTTL(Quorum, false)} }

// MixedMessageTTL is MessageTTL for those who accept that messages come late.
func MixedMessageTTL() Way { return Way{way: ttlqueue.NewMessageTTL(Quorum, true)} }

// Service hands failures to the Redrive service, with the text of the error. The
// service decides by its own policies, and this one's waits do not matter.
func Service() Way { return Way{way: report.Way{}} }

// DelayedExchange waits in the exchange of the plugin
// rabbitmq_delayed_message_exchange, which RabbitMQ 4.3 cannot have: on one node,
// in its memory.
func DelayedExchange() Way { return Way{way: delayx.Way{}} }

// Binary waits on 28 queues, one for each bit of the delay, shared by all work
// queues, each of which has one of its own behind them as with Levels: any delay up to 2²⁸ units, rounded up to a unit. A unit is from 1 ms to
// 1 s.
func Binary(unit time.Duration) Way { return way(binary.New(unit)) }

// Native leaves the waiting to the work queue itself, which must be a quorum
// queue of RabbitMQ 4.3 or later. Only a linear backoff is possible.
//
// Declare the work queue with NativeArguments, or set the same by a RabbitMQ
// policy: the policy of the consumer says how many attempts, and its waits must
// be those of the queue.
func Native() Way { return Way{way: native.Way{}} }

// NativeArguments are the arguments of a work queue for Native: it waits min after
// the first failure, as much more after each, and max at most.
func NativeArguments(min, max time.Duration) amqp.Table { return native.Arguments(min, max) }
