// Package retry is the path of one failed message, a file for each step. Read it in this order:
//
//	intake.go        a batch of dead letters, or parked messages, safe in the store before it is acknowledged
//	receipts.go      the id that a message had, if it is redelivered
//	verdict.go       which queue it failed in, what proves that, and what the policy decides
//	persist.go       records into the store; the events that log, metrics and displays receive
//	delayqueue.go    a policy that waits in RabbitMQ: declared, and published to where it waits
//	scheduler.go     what is due in the store: claimed, published, and only then deleted
//	retrytargets.go  which queues a message may be retried to
//	sender.go        the only place that publishes retries and forwards
//	adopted.go       what is taken from dead-letter queues that existed before Redrive
//	formats.go       what frameworks write to such messages
//	followed.go      of which queue they are, where Redrive stays a consumer
//
// Messages are parked in three places: by their verdict (park in verdict.go), because they can never be retried
// (finishClaims in scheduler.go), and by others (ParkedIntake). parkedEvent in persist.go makes the event of each.
//
// What a message carries from attempt to attempt is package headers. This package opens no AMQP connection, and imports
// no HTTP and no store engine.
package retry

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/errorgroup"
	"github.com/redrive-mq/redrive/internal/headers"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

type Rules struct {
	Policies policy.Set
	// Ways maps a policy's name to the way its messages wait in RabbitMQ. Those of other policies wait in the store.
	Ways map[string]delay.Way
}

// InForce holds the rules in force. It is safe for concurrent use.
type InForce struct {
	rules atomic.Pointer[Rules]
	known atomic.Pointer[map[errorgroup.ID]bool]
}

func NewInForce(rules Rules) *InForce {
	f := new(InForce)
	f.Replace(rules)
	return f
}

// Replace puts rules in force, from the next dead letter and retry on. Waiting messages keep their due time.
func (f *InForce) Replace(rules Rules) { f.rules.Store(&rules) }

// SetKnown replaces the error groups that people know of: their messages are parked without a notification.
func (f *InForce) SetKnown(groups map[errorgroup.ID]bool) { f.known.Store(&groups) }

func (f *InForce) Policies() policy.Set { return f.rules.Load().Policies }

// Way returns how the messages of a policy wait in RabbitMQ; nil: in the store.
func (f *InForce) Way(policyName string) delay.Way { return f.rules.Load().Ways[policyName] }

// Intake decides about dead letters and makes them durable, in the store or in a delay queue.
// Its methods are called from one goroutine.
type Intake struct {
	keeper
	delayQueues *DelayQueues
	names       *ReportedNames
	decode      func(*store.Record) any
}

// NewIntake returns an Intake that stores messages in s, or publishes them to delayQueues, and reports to events.
// delayQueues may be nil when no rules ever have ways; without names a report may name any queue. decode decodes a
// record's body for the rules of policies; nil: they find nothing in bodies.
func NewIntake(
	s store.Store, inForce *InForce, delayQueues *DelayQueues, names *ReportedNames,
	decode func(*store.Record) any, events Listener,
) *Intake {
	return &Intake{keeper{store: s, events: events, inForce: inForce}, delayQueues, names, decode}
}

// Handle decides about a batch and makes it durable. When it returns nil, every message is durable or was discarded by
// its policy, and may be acknowledged. On an error none may be, and the caller passes the same batch again.
func (in *Intake) Handle(ctx context.Context, batch []wire.Delivery) error {
	if err := in.begin(ctx, batch); err != nil {
		return err
	}
	now := time.Now()
	rules := in.inForce.rules.Load()
	toStore := make([]recordToStore, 0, len(batch))
	events := make([]Event, 0, 2*len(batch))
	var delayed []delayedMessage // to wait in RabbitMQ
	for i := range batch {
		if t, was := in.tried[i]; was {
			events = append(events, failedEvent(t.rec), t.event)
			if _, isDurable := in.durable[i]; !isDurable {
				toStore = append(toStore, recordToStore{t.rec, i, len(events) - 1})
			}
			continue
		}
		rec, action, m := in.decide(ctx, i, &batch[i], rules, now)
		in.hush(rec)
		events = append(events, failedEvent(rec))
		durable, isDurable := in.durable[i]
		switch {
		case isDurable: // whatever rules have been loaded since
			events = append(events, durable)
			continue
		case action == policy.Discard:
			e := Event{Kind: Discarded, Queue: rec.Queue, ID: rec.ID, Failures: rec.Failures, Reason: rec.Reason}
			events = append(events, e)
			in.durable[i] = e
			continue
		case rec.State == store.Parked:
			events = append(events, parkedEvent(rec))
		default:
			events = append(events, Event{Kind: Waiting, Queue: rec.Queue, ID: rec.ID, Failures: rec.Failures,
				Delay: rec.Due.Sub(now), Way: InStore})
		}
		if m == nil {
			toStore = append(toStore, recordToStore{rec, i, len(events) - 1})
			continue
		}
		m.messageIndex, m.eventIndex = i, len(events)-1
		delayed = append(delayed, *m)
	}
	in.publishDelayed(ctx, delayed)
	for _, m := range delayed {
		e, name := &events[m.eventIndex], m.way.Limits().Name
		if m.err == nil {
			e.Way, e.Delay = name, m.rounded
			in.durable[m.messageIndex] = *e
			continue
		}
		e.Instead = name
		toStore = append(toStore, recordToStore{m.rec, m.messageIndex, m.eventIndex})
	}
	if err := in.keep(ctx, toStore, events, now); err != nil {
		return err
	}
	in.countUnstored(events)
	return nil
}

func failedEvent(r *store.Record) Event {
	return Event{Kind: Failed, Queue: r.Queue, ID: r.ID, Failures: r.Failures, Reason: r.Reason, Error: r.Error,
		Policy: r.Policy, Rule: r.Rule, Ignored: headers.Ignored(&r.Message, r.Reason)}
}

// countUnstored counts in the ledger the messages that do not enter the store.
func (in *Intake) countUnstored(events []Event) {
	for i := range events {
		switch e := &events[i]; {
		case e.Kind == Discarded:
			in.store.CountUnstored(e.Queue, store.DiscardedAtOnce, 1)
		case e.Kind == Waiting && e.Way != InStore:
			in.store.CountUnstored(e.Queue, store.Delayed, 1)
		}
	}
}

// publishDelayed publishes messages to the delay queues where they wait. A receipt keeps each id first, so that a
// message redelivered after a lost acknowledgement gets the same one.
func (in *Intake) publishDelayed(ctx context.Context, delayed []delayedMessage) {
	if len(delayed) == 0 {
		return
	}
	var receipts []store.Receipt
	for _, m := range delayed {
		if m.rec.Fingerprint != ([16]byte{}) && !in.identities[m.messageIndex].hasReceipt {
			receipts = append(receipts, m.rec.Receipt())
		}
	}
	// A full disk stops messages that must wait there, and no others.
	if len(receipts) == 0 || in.store.Remember(ctx, receipts) == nil {
		for _, m := range delayed {
			in.identities[m.messageIndex].hasReceipt = true
			m.rec.Fingerprint = [16]byte{} // otherwise it would have two receipts if it is stored after all
		}
	}
	in.delayQueues.publish(ctx, delayed)
}

// ParkedIntake stores messages from other queues than the intake's, so that they can be seen and replayed like all
// others. None of them proves its queue. Its methods are called like those of Intake. There is one for each of:
//
//   - redrive.parked. The library parks there, and waits in RabbitMQ end there when their queue has no binding; those
//     messages are retried at once. Any user with write permission may publish there.
//   - redrive.quarantine, with what RabbitMQ failed to deliver to the Intake. On RabbitMQ 3 a publisher can forge all
//     entries of x-death but the newest.
//   - dead-letter queues that existed before Redrive: see adopted.go.
type ParkedIntake struct {
	keeper
	before    func(wire.Message) wire.Message // applied first; nil: messages stay as they are
	decide    func(ctx context.Context, i int, d *wire.Delivery, now time.Time) *store.Record
	lostQueue func(queue string)
	names     *ReportedNames
}

// NewParkedIntake returns a ParkedIntake that stores in s. names bounds the queue names that only its messages give;
// lostQueue receives each queue that was gone or not bound when a wait in RabbitMQ ended.
func NewParkedIntake(
	s store.Store, inForce *InForce, names *ReportedNames, lostQueue func(queue string), events Listener,
) *ParkedIntake {
	in := &ParkedIntake{keeper: keeper{store: s, events: events, inForce: inForce}, names: names, lostQueue: lostQueue}
	in.decide = in.decideParked
	return in
}

func NewQuarantineIntake(s store.Store, names *ReportedNames, events Listener) *ParkedIntake {
	in := &ParkedIntake{keeper: keeper{store: s, events: events}, names: names, before: beforeQuarantine}
	in.decide = in.decideQuarantined
	return in
}

func (in *ParkedIntake) Handle(ctx context.Context, batch []wire.Delivery) error {
	if in.before != nil {
		batch = slices.Clone(batch)
		for i := range batch {
			batch[i].Message = in.before(batch[i].Message)
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
		rec := in.decideSafely(ctx, i, &batch[i], now)
		in.hush(rec)
		keep = append(keep, recordToStore{rec, i, i})
		switch events[i] = parkedEvent(rec); {
		case rec.State == store.Waiting:
			events[i] = Event{Kind: Waiting, Queue: rec.Queue, ID: rec.ID, Failures: rec.Failures, Reason: rec.Reason,
				Way: InStore}
		case rec.Imported:
			events[i] = Event{Kind: Imported, Queue: rec.Queue, N: 1}
		}
	}
	return in.keep(ctx, keep, events, now)
}

// decideSafely calls decide, and parks a message on which that panics.
func (in *ParkedIntake) decideSafely(ctx context.Context, i int, d *wire.Delivery, now time.Time) (rec *store.Record) {
	defer func() {
		if p := recover(); p != nil {
			rec = parkUndecided(d, now, p)
		}
	}()
	return in.decide(ctx, i, d, now)
}

// decideParked makes a record: parked, or due now where only a queue's binding was missing.
func (in *ParkedIntake) decideParked(ctx context.Context, i int, d *wire.Delivery, now time.Time) *store.Record {
	m := &d.Message
	rec, _ := in.record(i, d, now)
	rec.Error = headerText(m, wire.HeaderError)
	switch r := headerText(m, wire.HeaderReason); r {
	case wire.ReasonRejected, wire.ReasonExpired, wire.ReasonMaxLen, wire.ReasonDeliveryLimit, wire.ReasonReported:
		rec.Reason = r
	}
	rec.Queue = nameHeader(m, wire.HeaderQueue)
	rec.Message.Exchange, rec.Message.RoutingKey = nameHeader(m, wire.HeaderExchange),
		nameHeader(m, wire.HeaderRoutingKey)
	if u := printable(nameHeader(m, wire.HeaderUserID)); u != "" {
		addNote(rec, fmt.Sprintf("its %s header is %q; that is not proven, so it is retried without it",
			wire.HeaderUserID, u))
	}
	why := headerText(m, wire.HeaderParkReason)
	switch {
	case d.Message.Exchange != wire.ExchangeParked: // by an alternate exchange
		if d.Message.Exchange == wire.ExchangeDue || d.Message.Exchange == wire.ExchangeLane ||
			d.Message.Exchange == wire.ExchangeDelayed {
			rec.Queue = m.RoutingKey
		}
		if rec.Queue != "" && in.lostQueue != nil {
			in.lostQueue(rec.Queue)
		}
		why = fmt.Sprintf("it waited in RabbitMQ, and then the queue %q was gone or not bound to exchange %q",
			rec.Queue, d.Message.Exchange)
	case why == "":
		why = "it was published to redrive.parked without a reason"
	}
	if !utf8.ValidString(rec.Queue) {
		why += fmt.Sprintf("; it names the queue %q, which is not valid UTF-8, so RabbitMQ has no such queue",
			rec.Queue)
		rec.Queue = ""
	}
	if !in.names.admits(ctx, rec.Queue, m.UserID) {
		why += "; " + tooMany(rec.Queue)
		rec.Queue = ""
	}
	if rec.Queue != "" && d.CannotRepublish == "" && delay.EndsWait(d.Message.Exchange) {
		// Its wait is over. The queue may exist and only lack its binding, as just after RabbitMQ has started. Make it
		// due: the scheduler's publish shows which.
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

// beforeQuarantine returns a message as RabbitMQ tried to deliver it from the intake, so that it gets the same identity
// as there. It stays as it is unless the newest entry of x-death says that the intake dead-lettered it.
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

// decideQuarantined parks a message that could not be delivered to the intake, under the queue that it names.
func (in *ParkedIntake) decideQuarantined(ctx context.Context, i int, d *wire.Delivery, now time.Time) *store.Record {
	o := originOf(d)
	o.proven = false
	rec := in.failedRecord(o, i, d, now)
	rec.Error = headerText(&d.Message, wire.HeaderError)
	why := fmt.Sprintf("RabbitMQ failed to deliver it to Redrive as often as the delivery limit of %s allows, and "+
		"moved it to %s",
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

// nameHeader returns a header that holds a name, of any bytes; "" where it is longer than RabbitMQ allows.
func nameHeader(m *wire.Message, header string) string {
	if s, _ := m.Headers[header].(string); len(s) <= 255 {
		return s
	}
	return ""
}
