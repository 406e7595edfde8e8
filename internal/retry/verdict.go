package retry

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/headers"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// maxText bounds the bytes of a header that are kept and sent on: properties must fit into one frame.
const maxText = 2048

// decide makes a record of message i of the batch: waiting until its due time or to be forwarded, or parked with the
// reason. With policy.Discard the record has no state, and is not stored. Undecidable messages are parked. delayed is
// nil unless the message waits in RabbitMQ.
func (in *Intake) decide(
	ctx context.Context, i int, d *wire.Delivery, rules *Rules, now time.Time,
) (rec *store.Record, action policy.Action, delayed *delayedMessage) {
	defer func() {
		if p := recover(); p != nil {
			rec, action, delayed = parkUndecided(d, now, p), policy.Park, nil
		}
	}()

	o := in.receipts.originOf(d, now)
	rec = in.failedRecord(o, i, d, now)
	if o.proven && in.names != nil {
		in.names.markProven(o.queue)
	}
	if why := in.refusal(ctx, rec, o, d); why != "" {
		return rec, park(rec, now, why), nil
	}
	p, ok := rules.Policies.Match(o.queue)
	if !ok {
		return rec, park(rec, now, fmt.Sprintf(noPolicy, o.queue)), nil
	}

	failure := policy.Failure{Queue: o.queue, Reason: o.reason, Attempt: rec.Failures, Replays: rec.Replays,
		Seed: seed(rec.ID, rec.Failures), Message: &rec.Message, FirstFailed: rec.FirstFailed, At: now}
	through := d.Message.Exchange
	deadLetter := through == wire.ExchangeDeadLetters || o.claim != nil
	if through == wire.ExchangeFailures || deadLetter && headers.ByConsumer(o.reason) {
		// In a dead letter only a consumer by AMQP 1.0, a framework or the first publisher can have written them: a
		// retry removes them all.
		errorIn, note := wire.HeaderRejectReason, ""
		if through == wire.ExchangeFailures {
			errorIn = wire.HeaderError
		}
		rec.Error = cmp.Or(headerText(&d.Message, errorIn), rec.Error)
		failure.Suggested, note = headers.SuggestedDelay(&d.Message)
		addNote(rec, note)
		if _, asked := d.Message.Headers[wire.HeaderPark]; asked {
			failure.Park = cmp.Or(headerText(&d.Message, wire.HeaderPark), "it did not say why")
		}
	}
	failure.Error = rec.Error
	if len(p.Rules) > 0 && in.decode != nil {
		failure.Decoded = sync.OnceValue(func() any { return in.decode(rec) })
	}
	v := p.Decide(failure)
	rec.Policy, rec.Rule, rec.Notify = v.Policy, v.Rule, notifyOf[v.Notify]
	if v.Asked > 0 {
		addNote(rec, fmt.Sprintf("its consumer asked for a delay of %s; policy %q allows %s (max_retry_after)",
			policy.FormatDuration(v.Asked), p.Name, policy.FormatDuration(v.Delay)))
	}
	switch v.Action {
	case policy.Retry:
		waitUntil(rec, now.Add(v.Delay))
		// In a way that blocks at the head, a suggested delay would delay others.
		mayDelay := in.delayQueues != nil // not of a followed queue
		if way := rules.Ways[p.Name]; way != nil && mayDelay && (failure.Suggested == 0 || !way.Limits().Blocks) {
			delayed = &delayedMessage{rec: rec, way: way, delay: v.Delay}
		}
	case policy.Forward:
		// It is forwarded from the store, so that a missing exchange never stops the intake.
		rec.Forward = &store.Destination{Exchange: v.Forward.Exchange, RoutingKey: v.Forward.RoutingKey}
		waitUntil(rec, now)
	case policy.Park:
		park(rec, now, v.Why)
	}
	return rec, v.Action, delayed
}

var notifyOf = map[policy.Importance]store.Notify{policy.Urgent: store.Urgent, policy.Never: store.Never}

func (k *keeper) failedRecord(o origin, i int, d *wire.Delivery, now time.Time) *store.Record {
	rec, own := k.record(i, d, now)
	rec.Failures++
	firstReport := d.Message.Exchange == wire.ExchangeFailures && d.Message.Headers[wire.HeaderID] == nil
	if own && (o.retried || !o.proven) || firstReport {
		o.firstPublished(o.message(d))
	}
	if o.claim != nil {
		o.claim.addTo(rec, o.fitted, own, o.refusal != "")
	}
	rec.Queue, rec.Reason, rec.Proven = o.queue, o.reason, o.proven
	rec.Message.Exchange, rec.Message.RoutingKey = o.exchange, o.routingKey
	if o.retried && own && rec.Message.UserID == "" {
		// We removed user-id when we retried it; only then is this header ours.
		rec.Message.UserID, _ = rec.Message.Headers[wire.HeaderUserID].(string)
	}
	return rec
}

// record makes the record of a message, with the failures that its headers count. own: they have its history.
func (k *keeper) record(i int, d *wire.Delivery, now time.Time) (rec *store.Record, own bool) {
	known := k.identify(i, d, now)
	rec = &store.Record{ID: known.id, Fingerprint: known.fingerprint, Failures: known.failures, Replays: known.replays,
		FirstFailed: known.firstFailed, FailedAt: now, Message: d.Message}
	addNote(rec, d.Note)
	addNote(rec, known.note)
	return rec, known.own
}

// historyOf reads the history in our headers of a message, if they are its own.
func historyOf(d *wire.Delivery, now time.Time) (t headers.History, own bool, note string) {
	queue, _ := d.Message.Headers[wire.HeaderQueue].(string) // of what is parked in RabbitMQ nothing proves it
	viaOurs := true
	if through := d.Message.Exchange; through == wire.ExchangeDeadLetters || through == wire.ExchangeFailures {
		o := originOf(d)
		queue, viaOurs = o.queue, o.retried || !o.proven
	}
	return headers.Read(&d.Message, queue, viaOurs, now)
}

// refusal returns why a message is parked whatever the policies say, or "" if they decide.
func (in *Intake) refusal(ctx context.Context, rec *store.Record, o origin, d *wire.Delivery) string {
	if !o.proven && !in.names.admits(ctx, o.queue, d.Message.UserID) {
		rec.Queue = ""
		return tooMany(o.queue)
	}
	return cmp.Or(o.refusal, d.CannotRepublish)
}

func parkUndecided(d *wire.Delivery, now time.Time, why any) *store.Record {
	rec := &store.Record{ID: headers.NewID(&d.Message), FailedAt: now, FirstFailed: now, Message: d.Message}
	park(rec, now, fmt.Sprintf("it could not be read: %v", why))
	return rec
}

// waitUntil rounds up, since stores keep microseconds: a message is never retried before it is due.
func waitUntil(rec *store.Record, due time.Time) {
	rec.State = store.Waiting
	rec.Due = due.Add(time.Microsecond - 1).Truncate(time.Microsecond)
}

func park(rec *store.Record, now time.Time, why string) policy.Action {
	rec.State, rec.Due, rec.ParkedFor = store.Parked, now, why
	return policy.Park
}

// seed returns a seed for jitter: it differs between messages and attempts, and is the same when asked twice.
func seed(id uuid.UUID, attempt int) uint64 {
	return binary.BigEndian.Uint64(id[8:]) ^ uint64(attempt)*0x9e3779b97f4a7c15
}

// headerText returns a header that is a string, as text for people.
func headerText(m *wire.Message, header string) string {
	s, _ := m.Headers[header].(string)
	return printable(s)
}

// printable returns text for people, of at most maxText bytes: bytes that are not UTF-8 become \xNN.
func printable(s string) string {
	if len(s) <= maxText && utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		piece := s[:size]
		if r == utf8.RuneError && size == 1 {
			piece = fmt.Sprintf(`\x%02x`, s[0])
		}
		if b.Len()+len(piece) > maxText {
			break
		}
		b.WriteString(piece)
		s = s[size:]
	}
	return b.String()
}

func addNote(rec *store.Record, note string) {
	if note != "" {
		rec.Notes = append(rec.Notes, note)
	}
}

// origin is where a message failed and what is known of its first publication.
type origin struct {
	queue  string
	reason string
	// proven reports whether RabbitMQ itself wrote queue and reason, or the config consents (see NewFollowedIntake):
	// then the queue is one of the retryTargets.
	proven     bool
	retried    bool   // Redrive published it last, or a consumer to the exchange through which it came
	exchange   string // as first published
	routingKey string
	refusal    string // not empty: no origin can be believed, and why

	// Of a message from a followed queue:
	claim  *claim
	fitted *store.Record // by its framework's format
	inner  *wire.Message // without an envelope
}

// originOf reads the origin from what a publisher cannot forge: the exchange that a message came through, and the head
// entry of x-death, unless a name stands there twice: RabbitMQ 3.10 writes to the first, and its client reads the last.
// x-first-death-* and x-last-death-* are never read: on RabbitMQ 3 a publisher can set them.
func originOf(d *wire.Delivery) origin {
	switch d.Message.Exchange {
	case wire.ExchangeDeadLetters:
		return deadLettered(d)
	case wire.ExchangeFailures:
		return reported(d)
	}
	return origin{refusal: fmt.Sprintf("it was published to the intake through exchange %q, not dead-lettered or "+
		"reported", d.Message.Exchange)}
}

func deadLettered(d *wire.Delivery) origin {
	if d.DuplicateHeader != "" {
		return origin{refusal: d.DuplicateHeader + ", so the queue it failed in is not proven"}
	}
	deaths, head := deathsOf(&d.Message)
	if len(deaths) == 0 {
		return origin{refusal: "its x-death header is missing or malformed, so the queue it failed in is unknown"}
	}
	o := origin{proven: true}
	o.queue, _ = head["queue"].(string)
	o.reason, _ = head["reason"].(string)
	o.exchange, _ = head["exchange"].(string)
	if keys, _ := head["routing-keys"].([]any); len(keys) > 0 {
		o.routingKey, _ = keys[0].(string)
	}
	if o.queue == "" || o.reason == "" {
		return origin{refusal: "the head entry of its x-death header names no queue or no reason"}
	}
	// Of a retried message RabbitMQ names the retry exchange, or that where a wait ends; our headers have the first.
	o.retried = o.exchange == wire.RetryExchange(o.queue) || delay.EndsWait(o.exchange)
	return o.checked()
}

func reported(d *wire.Delivery) origin {
	return origin{queue: d.Message.RoutingKey, reason: wire.ReasonReported}.checked()
}

// firstPublished reads exchange and routing key from our own headers. They never decide where a message goes.
func (o *origin) firstPublished(m *wire.Message) {
	if s, ok := m.Headers[wire.HeaderExchange].(string); ok {
		o.exchange = s
	}
	if s, ok := m.Headers[wire.HeaderRoutingKey].(string); ok {
		o.routingKey = s
	}
}

// message returns the message that a delivery has, without an envelope.
func (o *origin) message(d *wire.Delivery) *wire.Message {
	if o.inner != nil {
		return o.inner
	}
	return &d.Message
}

func (o origin) checked() origin {
	switch {
	case o.queue == "":
		o.refusal = "it was reported with an empty routing key, which must be the work queue's name"
	case len(o.queue) > 255:
		o.refusal = fmt.Sprintf("it names a queue of %d bytes, and RabbitMQ's have at most 255", len(o.queue))
		o.queue = ""
	case !utf8.ValidString(o.queue):
		// RabbitMQ ends the connection that asks for such a queue (501).
		o.refusal = fmt.Sprintf("it names the queue %q, which is not valid UTF-8, so RabbitMQ has no such queue",
			o.queue)
		o.queue = ""
	case !utf8.ValidString(o.reason):
		o.refusal = fmt.Sprintf("its x-death header has the reason %q, which is not valid UTF-8 and no reason of "+
			"RabbitMQ's", o.reason)
		o.reason = ""
	case wire.OwnQueue(o.queue):
		o.refusal = fmt.Sprintf("it failed in %q, which is one of Redrive's own queues", o.queue)
	}
	return o
}
