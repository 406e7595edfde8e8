package retry

import (
	"fmt"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/wire"
)

type Following struct {
	From  string // the dead-letter queue
	Queue string // the work queue that the config names; "": none
	Retry bool   // they are retried by the policy of their work queue; otherwise parked
	// Leads returns the only queue that dead-letters to From, or why none is known. It is called only without Queue.
	Leads func() (queue, why string)
}

// NewFollowedIntake makes an Intake of a followed queue. Its messages wait in s.
//
// What they say of their failure is a claim. It counts only if it agrees with the config, which names the work queue,
// or with RabbitMQ, where only one queue dead-letters there and the config says to retry. That queue then is one of the
// retryTargets, as if RabbitMQ had proven it. Other messages are parked.
//
// Receipts recognize a message that is delivered twice, as for redrive.intake: deliveries continue while others are
// stored, so there are no epochs as in an adoption. If the service stops between two messages with the same bytes, the
// second may get the id of the first; both are kept.
func NewFollowedIntake(
	s store.Store, inForce *InForce, names *ReportedNames, f Following,
	decode func(*store.Record) any, events Listener,
) *Intake {
	in := NewIntake(s, inForce, nil, names, decode, events)
	in.receipts.origin, in.receipts.from = f.origin, f.From
	return in
}

func (f *Following) origin(d *wire.Delivery, now time.Time) (o origin) {
	defer func() {
		if p := recover(); p != nil {
			o = origin{refusal: fmt.Sprintf("it could not be read: %v", p)}
		}
	}()
	fitted := &store.Record{Message: d.Message, AdoptedFrom: f.From}
	framework, inner, says := fit(fitted, "")
	c := claimOf(&d.Message, now)
	c.read(framework, says, now)
	if c.queue != "" && c.queue == deadLetteredFrom(&d.Message) {
		o = deadLettered(d)
		o.proven = false
	} else { // a framework published it
		o = origin{queue: c.queue, reason: wire.ReasonReported,
			exchange: c.exchange, routingKey: c.routingKey, retried: true}
		if o.queue != "" {
			o = o.checked()
		}
	}
	o.claim, o.fitted, o.inner = &c, fitted, &inner
	queue, why := f.Queue, ""
	if queue == "" {
		queue, why = f.Leads()
	}
	switch {
	case o.refusal != "":
	case o.queue != "" && o.queue != queue && f.Retry && queue != "":
		o.refusal = fmt.Sprintf("it landed in %q, from where messages of %q are retried, and says that it failed in %q",
			f.From, queue, o.queue)
	case f.Retry && queue != "":
		o.queue, o.proven = queue, true
	case f.Retry:
		o.refusal = fmt.Sprintf("it landed in %q, and %s", f.From, why)
	default:
		o.refusal = fmt.Sprintf("it landed in %q, and what lands there is parked", f.From)
		if o.queue == "" {
			o.queue = queue
		}
	}
	return o
}

// addTo adds the claim to a message's record, and takes the message out of its envelope. Without our headers a message
// fails for the first time; when parked, it shows the failures that it claims.
func (c *claim) addTo(rec, fitted *store.Record, own, refused bool) {
	rec.Message, rec.Format, rec.Envelope = fitted.Message, fitted.Format, fitted.Envelope
	rec.AdoptedFrom = fitted.AdoptedFrom
	rec.Notes = append(rec.Notes, fitted.Notes...)
	rec.Error, rec.FailedAt = c.errText, c.last
	if own {
		return
	}
	if c.first.Before(rec.FirstFailed) {
		rec.FirstFailed = c.first
	}
	if refused {
		rec.Failures = c.failures
	}
}
