package retry

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/wire"
)

// ParkedIntake stores what is parked in RabbitMQ, in redrive.parked, so that it can be seen and
// replayed like all others. The library parks there, and waits in RabbitMQ end there when their
// queue has no binding; those messages are retried at once. Any user with write permission may
// publish there, so headers are shown, and prove no queue. Its methods are called as those of
// Intake.
//
// A second one parks messages from redrive.quarantine, which RabbitMQ failed to deliver to the Intake. On
// RabbitMQ 3 a publisher can forge all entries of their x-death but the newest, so they prove no queue
// either.
type ParkedIntake struct {
	keeper
	quarantined bool // consumes redrive.quarantine
	lostQueue   func(queue string)
	names       *ReportedNames
}

// NewParkedIntake makes a ParkedIntake that stores in s. names bounds the queue names that only
// its messages give; lostQueue receives each queue that was gone or not bound when a wait in
// RabbitMQ ended.
func NewParkedIntake(s store.Store, names *ReportedNames, lostQueue func(queue string), events Listener) *ParkedIntake {
	return &ParkedIntake{keeper: keeper{store: s, events: events}, names: names, lostQueue: lostQueue}
}

// NewQuarantineIntake makes a ParkedIntake for redrive.quarantine.
func NewQuarantineIntake(s store.Store, names *ReportedNames, events Listener) *ParkedIntake {
	return &ParkedIntake{keeper: keeper{store: s, events: events}, names: names, quarantined: true}
}

// Handle stores a batch, as Intake.Handle does.
func (in *ParkedIntake) Handle(ctx context.Context, batch []wire.Delivery) error {
	if in.quarantined {
		batch = slices.Clone(batch)
		for i := range batch {
			batch[i].Message = beforeQuarantine(batch[i].Message)
		}
	}
	if err := in.begin(ctx, batch); err != nil {
		return err
	}
	now := time.Now()
	keep := make([]recordToStore, 0, len(batch))
	events := make([]Event, len(batch))
	for i := range batch {
		var isDurable bool
		if events[i], isDurable = in.durable[i]; isDurable {
			continue
		}
		if t, was := in.tried[i]; was {
			events[i] = t.event
			keep = append(keep, recordToStore{t.rec, i, i})
			continue
		}
		rec := in.decide(ctx, i, &batch[i], now)
		keep = append(keep, recordToStore{rec, i, i})
		if events[i] = parkedEvent(rec); rec.State == store.Waiting {
			events[i] = Event{Kind: Waiting, Queue: rec.Queue, ID: rec.ID, Failures: rec.Failures, Reason: rec.Reason, Way: InStore}
		}
	}
	return in.keep(ctx, keep, events, now)
}

// decide makes a record: parked, or due now where only a queue's binding was missing.
// Nothing in a message can make it fail.
func (in *ParkedIntake) decide(ctx context.Context, i int, d *wire.Delivery, now time.Time) (rec *store.Record) {
	defer func() {
		if p := recover(); p != nil {
			rec = parkUndecided(d, now, p)
		}
	}()
	if in.quarantined {
		return in.decideQuarantined(ctx, i, d, now)
	}
	m := &d.Message
	rec, _ = in.record(i, d, now)
	rec.Error = headerText(m, wire.HeaderError)
	switch r := headerText(m, wire.HeaderReason); r {
	case wire.ReasonRejected, wire.ReasonExpired, wire.ReasonMaxLen, wire.ReasonDeliveryLimit, wire.ReasonReported:
		rec.Reason = r
	}
	rec.Queue = nameHeader(m, wire.HeaderQueue)
	rec.Message.Exchange, rec.Message.RoutingKey = nameHeader(m, wire.HeaderExchange), nameHeader(m, wire.HeaderRoutingKey)
	if u := printable(nameHeader(m, wire.HeaderUserID)); u != "" {
		addNote(rec, fmt.Sprintf("its %s header is %q; that is not proven, so it is retried without it", wire.HeaderUserID, u))
	}
	why := headerText(m, wire.HeaderParkReason)
	switch {
	case d.Message.Exchange != wire.ExchangeParked: // by an alternate exchange
		if d.Message.Exchange == wire.ExchangeDue || d.Message.Exchange == wire.ExchangeLane || d.Message.Exchange == wire.ExchangeDelayed {
			rec.Queue = m.RoutingKey
		}
		if rec.Queue != "" && in.lostQueue != nil {
			in.lostQueue(rec.Queue)
		}
		why = fmt.Sprintf("it waited in RabbitMQ, and then the queue %q was gone or not bound to exchange %q", rec.Queue, d.Message.Exchange)
	case why == "":
		why = "it was published to redrive.parked without a reason"
	}
	if !utf8.ValidString(rec.Queue) {
		why += fmt.Sprintf("; it names the queue %q, which is not valid UTF-8, so RabbitMQ has no such queue", rec.Queue)
		rec.Queue = ""
	}
	if !in.names.admits(ctx, rec.Queue, m.UserID) {
		why += "; " + tooMany(rec.Queue)
		rec.Queue = ""
	}
	if rec.Queue != "" && d.CannotRepublish == "" && delay.EndsWait(d.Message.Exchange) {
		// Its wait is over. The queue may exist and only lack its binding, as just
		// after RabbitMQ has started: it is due, and the scheduler's publish shows that.
		addNote(rec, why)
		waitUntil(rec, now)
		return rec
	}
	if d.CannotRepublish != "" {
		why += "; " + d.CannotRepublish
	}
	park(rec, now, why)
	return rec
}

// beforeQuarantine returns a message as RabbitMQ tried to deliver it from the intake, so that it has
// the identity that it would have had there. Where the newest entry of x-death does not say that the
// intake dead-lettered it, it stays as it is.
func beforeQuarantine(m wire.Message) wire.Message {
	deaths, head := deathsOf(&m)
	if queue, _ := head["queue"].(string); m.Exchange != wire.ExchangeQuarantine || queue != wire.QueueIntake {
		return m
	}
	m.Exchange, _ = head["exchange"].(string)
	m.RoutingKey = ""
	if keys, _ := head["routing-keys"].([]any); len(keys) > 0 {
		m.RoutingKey, _ = keys[0].(string)
	}
	m.Headers = maps.Clone(m.Headers)
	if m.Headers["x-death"] = deaths[1:]; len(deaths) == 1 {
		delete(m.Headers, "x-death")
	}
	return m
}

// decideQuarantined parks what could not be delivered to the intake, as failed in the queue that it
// names.
func (in *ParkedIntake) decideQuarantined(ctx context.Context, i int, d *wire.Delivery, now time.Time) *store.Record {
	o := originOf(d)
	o.proven = false
	rec := in.failedRecord(o, i, d, now)
	rec.Error = headerText(&d.Message, wire.HeaderError)
	why := fmt.Sprintf("RabbitMQ failed to deliver it to Redrive as often as the delivery limit of %s allows, and moved it to %s",
		wire.QueueIntake, wire.QueueQuarantine)
	switch {
	case d.Message.Exchange == "" || d.Message.Exchange == wire.ExchangeQuarantine:
		why = "it was published to " + wire.QueueQuarantine
	case o.refusal != "":
		why += "; " + o.refusal
	case !in.names.admits(ctx, o.queue, d.Message.UserID):
		why += "; " + tooMany(o.queue)
		rec.Queue = ""
	}
	if d.CannotRepublish != "" {
		why += "; " + d.CannotRepublish
	}
	park(rec, now, why)
	return rec
}

// nameHeader returns a header that holds a name, of any bytes; "" where it is longer than
// RabbitMQ allows.
func nameHeader(m *wire.Message, header string) string {
	if s, _ := m.Headers[header].(string); len(s) <= 255 {
		return s
	}
	return ""
}
