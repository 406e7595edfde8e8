// Package delay is the contract of the ways to wait in RabbitMQ itself: a message is published
// somewhere, and RabbitMQ moves it to its work queue by itself when its delay is over.
//
// A way is arithmetic. It returns what must exist in the broker and where to publish; package
// broker does both. So the service and the library share the ways, and one suite (delaytest)
// runs over all of them on real brokers.
package delay

import (
	"errors"
	"fmt"
	"maps"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/rabbitmq/version"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// Way is one way to wait. Its methods have no effects, may be called from many goroutines, and
// give the same answer when called twice.
type Way interface {
	// Limits returns what the way can do, and what it costs.
	Limits() Limits
	// Topology returns what must exist before a message of the queue waits: what all queues
	// share, and the path back to this one.
	Topology(queue string) Topology
	// Ticket returns where to publish a message of the queue so that it is retried after delay
	// (0 or more), and never earlier. It fails only for a delay longer than Longest.
	Ticket(queue string, delay time.Duration) (Ticket, error)
}

// Leveled is a Way with a queue for each of its delays.
type Leveled interface {
	// UpTo returns the way without the levels that no delay up to longest needs.
	UpTo(longest time.Duration) Way
}

// For returns a way as a policy needs it: without levels beyond the longest delay of its backoff
// and that which consumers may ask for.
func For(p *policy.Policy, w Way) Way {
	l, ok := w.(Leveled)
	switch own := *p; {
	case !ok:
		return w
	case p.Attempts <= 1:
		return l.UpTo(0)
	default:
		own.MaxRetryAfter = 0
		return l.UpTo(max(own.LongestRetryAfter(), p.MaxRetryAfter))
	}
}

// Ticket is how to publish one message so that it waits. When RabbitMQ has confirmed the
// publish, and has not returned it as unroutable, the message is safe there.
type Ticket struct {
	// Requeue: nothing is published. The message is rejected with requeue, and its own queue
	// delays it.
	Requeue bool

	Exchange, RoutingKey string
	Expiration           string        // milliseconds; "" for none
	Headers              amqp.Table    // to be added, or nil
	Delay                time.Duration // the real one, rounded up

	// Unchecked: it must be published without mandatory, since RabbitMQ would return every
	// message as unroutable.
	Unchecked bool

	// DeclareFirst must be declared before the publish. When more than ConfirmWithin passes
	// between that declaration and the confirm, the message may be lost, and must be published
	// again.
	DeclareFirst  *Topology
	ConfirmWithin time.Duration
}

// Outgoing returns the message as it is published to wait. m has the headers of its history,
// with the id.
func (t *Ticket) Outgoing(id string, m *wire.Message) wire.Outgoing {
	m.Expiration = t.Expiration
	maps.Copy(m.Headers, t.Headers)
	return wire.Outgoing{Exchange: t.Exchange, RoutingKey: t.RoutingKey, ID: id, Message: m, Unchecked: t.Unchecked}
}

// CheckConfirm returns an error for a message confirmed just now whose DeclareFirst was
// declared too long ago for the confirm to count.
func (t *Ticket) CheckConfirm(declared time.Time) error {
	if t.DeclareFirst == nil || time.Since(declared) <= t.ConfirmWithin {
		return nil
	}
	return errors.New("the confirm came so late that its delay queue may be gone")
}

// Limits are a way's own, as its documentation states them and its suite proves them.
type Limits struct {
	Name string
	// Longest is the longest delay.
	Longest time.Duration
	// Levels are the only delays there are, shortest first; nil: any.
	Levels []time.Duration
	// Step is what delays are rounded up to, where Levels is nil.
	Step time.Duration
	// Blocks: a message with a short delay waits for those before it that have a longer one.
	Blocks bool
	// AcceptsBlocking: mixed delays are allowed although the way Blocks.
	AcceptsBlocking bool
	// Linear: the delay is the number of failures times a constant, and nothing else.
	Linear bool
	// QueueCounts: the work queue itself counts the failures and delays the message, which is
	// rejected and never published again: it gets none of our headers.
	QueueCounts bool
	// ServiceDecides: the service consumes the message and decides by its own policy.
	ServiceDecides bool
	// DropsWhenFull: it dead-letters at-most-once, so what comes due while its work queue is
	// full or has no leader is lost.
	DropsWhenFull bool
	// ChangesRoutingKey: a message is retried with its work queue's name as routing key. The
	// first one is in its header x-redrive-routing-key, and the library shows that one.
	ChangesRoutingKey bool
	// Survives names what the waiting messages survive.
	Survives string
	// Declares names what the way declares in the broker.
	Declares string
	// Needs names what the way needs besides RabbitMQ 3.10; "" for nothing.
	Needs string
	// Since is the oldest version of RabbitMQ it works on, as major and minor;
	// zero: 3.10.
	Since [2]int
}

// Check returns what a policy asks for that the way cannot keep, with the remedy: of its waits the
// first, and max_retry_after, by errors.Join.
func (l Limits) Check(p *policy.Policy) error {
	if l.ServiceDecides {
		return nil
	}
	var asked error
	if p.MaxRetryAfter > l.Longest {
		asked = fmt.Errorf("policy %q lets consumers ask for delays of up to %s, and %s waits %s at most: allow less, or choose another way to wait",
			p.Name, policy.FormatDuration(p.MaxRetryAfter), l.Name, policy.FormatDuration(l.Longest))
	}
	return errors.Join(asked, l.checkWaits(p))
}

func (l Limits) checkWaits(p *policy.Policy) error {
	waits := p.Waits()
	for i, w := range waits {
		if most := p.Jitter.Longest(w); l.Spreads() && w <= l.Longest && most > l.Longest {
			return fmt.Errorf("policy %q waits up to %s before attempt %d, its jitter included, and %s waits %s at most: shorten it, or take off the jitter",
				p.Name, policy.FormatDuration(most), i+2, l.Name, policy.FormatDuration(l.Longest))
		}
		if w > l.Longest {
			return fmt.Errorf("policy %q waits %s before attempt %d, and %s waits %s at most: shorten it, or choose another way to wait",
				p.Name, policy.FormatDuration(w), i+2, l.Name, policy.FormatDuration(l.Longest))
		}
		if l.Linear && w != linear(waits[0], i+1, p.Backoff.Max()) {
			return fmt.Errorf("policy %q waits %s before attempt %d, and %s can only wait %s more each time, up to a maximum: use a linear backoff whose step is its initial wait",
				p.Name, policy.FormatDuration(w), i+2, l.Name, policy.FormatDuration(waits[0]))
		}
		if l.Blocks && !l.AcceptsBlocking && i > 0 && w != waits[i-1] {
			return fmt.Errorf("policy %q waits %s before attempt %d and %s before the next: with %s a message with the short wait would wait behind those with the long one: use a fixed backoff, or accept that (in the library: MixedMessageTTL)",
				p.Name, policy.FormatDuration(waits[i-1]), i+1, policy.FormatDuration(w), l.Name)
		}
	}
	return nil
}

// linear is n times first, and at most longest.
func linear(first time.Duration, n int, longest time.Duration) time.Duration {
	if first > longest/time.Duration(n) {
		return longest
	}
	return first * time.Duration(n)
}

// CheckVersion returns an error for a RabbitMQ version ("4.3.1") on which the way does not
// work.
func (l Limits) CheckVersion(broker string) error {
	if yes, ok := version.AtLeast(broker, l.Since[0], l.Since[1]); ok && !yes { // one that cannot be read: let it try
		return fmt.Errorf("%s needs %s, and the broker is %s", l.Name, l.Needs, broker)
	}
	return nil
}

// Spreads tells whether jitter has an effect: with few levels it would only push messages to
// the next level.
func (l Limits) Spreads() bool {
	return l.Levels == nil && !l.Linear && (!l.Blocks || l.AcceptsBlocking)
}
