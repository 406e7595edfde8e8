package retry

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/headers"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// maxText bounds what is kept and sent on of a header: RabbitMQ closes the connection on
// which properties do not fit one frame.
const maxText = 2048

// decide makes a record of a dead letter: waiting until its due time, waiting to be forwarded,
// or parked with the reason. With policy.Discard the record has no state, and is not stored.
// Nothing in a message can make decide fail: undecidable messages are parked. i is the message's
// index in the batch.
//
// delayed is how the message waits in RabbitMQ; nil when it does not wait there.
func (in *Intake) decide(ctx context.Context, i int, d *wire.Delivery, b *batchRules, now time.Time) (rec *store.Record, action policy.Action, delayed *delayedMessage) {
	defer func() {
		if p := recover(); p != nil {
			rec, action, delayed = parkUndecided(d, now, p), policy.Park, nil
		}
	}()
	b.severity = ""
	o := originOf(d)
	if o.proven && in.markProven != nil {
		in.markProven(o.queue)
	}
	note := o.redirect(b.Redirects)
	rec = in.failedRecord(o, i, d, now)
	addNote(rec, note)
	says := annotation
	if d.Message.Exchange == wire.ExchangeFailures {
		says = report
	}
	rec.Error = errorOf(d, o, says)
	if why := in.refusal(ctx, rec, o, d); why != "" {
		return rec, park(rec, now, why), nil
	}
	p, ok := b.Policies.Match(o.queue)
	if !ok {
		return rec, park(rec, now, fmt.Sprintf("no policy allows the queue %q", o.queue)), nil
	}
	failure := policy.Failure{Queue: o.queue, Reason: o.reason, Attempt: rec.Failures, Seed: seed(rec.ID, rec.Failures), Age: now.Sub(rec.FirstFailed)}
	if why, parks := parkedByConsumer(&d.Message, says.park); parks {
		rec.Policy = p.Name
		return rec, park(rec, now, why), nil
	}
	failure.Suggested, note = headers.SuggestedDelay(&d.Message, says.delay)
	addNote(rec, note)
	if len(p.Rules) > 0 {
		failure.Error, failure.Headers, failure.Details = rec.Error, d.Message.Headers, b.conditions.Details(rec)
	}
	v := p.Decide(failure)
	b.severity = v.Severity
	return rec, v.Action, in.apply(rec, v, b.Ways[p.Name], failure.Suggested > 0, now)
}

// apply makes of a record what its policy has decided; the result is as that of decide.
func (in *Intake) apply(rec *store.Record, v policy.Verdict, way delay.Way, suggested bool, now time.Time) *delayedMessage {
	rec.Policy = store.DecidedBy(v.Policy, v.Rule)
	addNote(rec, v.Note)
	if v.Asked > 0 {
		addNote(rec, fmt.Sprintf("its consumer asked for a delay of %s; policy %q allows %s (max_retry_after)", policy.FormatDuration(v.Asked), v.Policy, policy.FormatDuration(v.Delay)))
	}
	switch v.Action {
	case policy.Retry:
		waitUntil(rec, now.Add(v.Delay))
		// In a way that blocks at the head, a suggested delay would delay others.
		if way != nil && (!suggested || !way.Limits().Blocks) {
			return &delayedMessage{rec: rec, way: way, delay: v.Delay}
		}
	case policy.Forward:
		// It is forwarded from the store, so that an exchange that does not exist
		// never stops the intake.
		rec.Forward = &store.Destination{Exchange: v.Forward.Exchange, RoutingKey: v.Forward.RoutingKey}
		waitUntil(rec, now)
	case policy.Park:
		park(rec, now, v.Why)
	}
	return nil
}

// consumerSays names the headers in which a consumer says why a message failed, and what it asks
// for. A dead letter has such headers from an AMQP 1.0 consumer.
type consumerSays struct{ error, delay, park string }

var (
	report     = consumerSays{wire.HeaderError, wire.HeaderDelay, wire.HeaderPark}
	annotation = consumerSays{wire.AnnotationError, wire.AnnotationDelay, wire.AnnotationPark}
)

// maxParkReason is how many bytes of its reason a consumer can give.
const maxParkReason = 500

// parkedByConsumer tells whether a consumer has its message parked at once, and why.
func parkedByConsumer(m *wire.Message, header string) (why string, parks bool) {
	v, parks := m.Headers[header]
	if !parks {
		return "", false
	}
	switch v := v.(type) {
	case string:
		why = v
	case []byte:
		why = string(v)
	}
	why = strings.Join(strings.FieldsFunc(printable(why), func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }), " ")
	if len(why) > maxParkReason {
		why = strings.ToValidUTF8(why[:maxParkReason], "") + "…"
	}
	if why == "" {
		return "its consumer parked it, without a reason", true
	}
	return "its consumer parked it: " + why, true
}

// failedRecord makes the record of a message that has failed once more.
func (in *Intake) failedRecord(o origin, i int, d *wire.Delivery, now time.Time) *store.Record {
	rec := in.record(i, d, now)
	rec.Failures++
	rec.Queue, rec.Reason, rec.Proven = o.queue, o.reason, o.proven
	rec.Message.Exchange, rec.Message.RoutingKey = o.exchange, o.routingKey
	if o.retried && rec.Message.UserID == "" {
		// We removed user-id when we retried it; only then is this header ours.
		rec.Message.UserID, _ = rec.Message.Headers[wire.HeaderUserID].(string)
	}
	return rec
}

// record makes the record of a message, with the failures that its headers count.
func (k *keeper) record(i int, d *wire.Delivery, now time.Time) *store.Record {
	known := k.identify(i, d, now)
	rec := &store.Record{ID: known.id, Fingerprint: known.fingerprint, FirstFailed: known.firstFailed, FailedAt: now, Message: d.Message}
	addNote(rec, d.Note)
	var note string
	rec.Failures, note = headers.Failures(&d.Message)
	addNote(rec, note)
	if _, has := headers.Read(d.Message.Headers, now); has { // also of 0 failures, after a replay
		rec.FirstFailed = headers.FirstFailed(&d.Message, now)
	}
	return rec
}

// refusal is why a message is parked whatever the policies say; "": they decide.
func (in *Intake) refusal(ctx context.Context, rec *store.Record, o origin, d *wire.Delivery) string {
	if !o.proven && !in.names.admits(ctx, o.queue, d.Message.UserID) {
		rec.Queue = ""
		return tooMany(o.queue)
	}
	return cmp.Or(o.refusal, d.CannotRepublish)
}

// parkUndecided parks what could not be decided about, with the reason.
func parkUndecided(d *wire.Delivery, now time.Time, why any) *store.Record {
	rec := &store.Record{ID: uuid.Must(uuid.NewV7()), FailedAt: now, FirstFailed: now, Message: d.Message}
	park(rec, now, fmt.Sprintf("it could not be read: %v", why))
	return rec
}

// waitUntil rounds up, since stores keep microseconds: a message is never retried before it
// is due.
func waitUntil(rec *store.Record, due time.Time) {
	rec.State = store.Waiting
	rec.Due = due.Add(time.Microsecond - 1).Truncate(time.Microsecond)
}

func park(rec *store.Record, now time.Time, why string) policy.Action {
	rec.State, rec.Due, rec.ParkedFor = store.Parked, now, why
	return policy.Park
}

// seed makes jitter differ between messages and attempts, and the same when
// asked twice.
func seed(id uuid.UUID, attempt int) uint64 {
	return binary.BigEndian.Uint64(id[8:]) ^ uint64(attempt)*0x9e3779b97f4a7c15
}

// headerText returns a header that is a string, as text for people.
func headerText(m *wire.Message, header string) string {
	s, _ := m.Headers[header].(string)
	return printable(s)
}

// printable returns text for people, of at most maxText bytes.
func printable(s string) string { return headers.Printable(s, maxText) }

func addNote(rec *store.Record, note string) {
	if note != "" {
		rec.Notes = append(rec.Notes, note)
	}
}
