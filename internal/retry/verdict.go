package retry

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/headers"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// longestText bounds what is kept and sent on of a header: properties that do not
// fit one frame cost the whole connection.
const longestText = 2048

// judge makes a record of a dead letter: waiting until its due time, parked with
// the reason, waiting to be forwarded, or to be discarded. Nothing in a message can make it
// fail: what cannot be decided about is parked. i is its place in the batch.
//
// away is how it is to wait in RabbitMQ; nil when it does not wait there.
func (f *Intake) judge(ctx context.Context, i int, d *wire.Delivery, rules *Rules, now time.Time) (rec *store.Record, action policy.Action, away *held) {
	defer func() {
		if p := recover(); p != nil {
			rec, action, away = unread(d, now, p), policy.Park, nil
		}
	}()

	o := originOf(d)
	m := &d.Message
	rec = &store.Record{
		Queue: o.queue, Reason: o.reason, Proven: o.proven,
		FailedAt: now, Message: *m,
	}
	who := f.identify(i, d, now)
	rec.ID, rec.Fingerprint, rec.FirstFailed = who.id, who.fingerprint, who.first
	rec.Message.Exchange, rec.Message.RoutingKey = o.exchange, o.routingKey
	addNote(rec, d.Note)
	before, note := headers.Failures(m)
	addNote(rec, note)
	rec.Attempt = before + 1
	if before > 0 {
		rec.FirstFailed = headers.FirstFailed(m, now)
	}
	if o.returned && m.UserID == "" {
		// We took user-id off when we returned it; only then is this header ours.
		rec.Message.UserID, _ = m.Headers[wire.HeaderUserID].(string)
	}
	switch {
	case o.proven && f.prove != nil:
		f.prove(o.queue)
	case !o.proven && !f.names.admit(ctx, o.queue, m.UserID):
		rec.Queue = ""
		return rec, park(rec, now, tooMany(o.queue)), nil
	}
	if o.refusal != "" {
		return rec, park(rec, now, o.refusal), nil
	}
	if d.Unreadable != "" {
		return rec, park(rec, now, d.Unreadable), nil
	}
	p, ok := rules.Policies.Match(o.queue)
	if !ok {
		return rec, park(rec, now, fmt.Sprintf("no policy allows the queue %q", o.queue)), nil
	}

	failure := policy.Failure{Queue: o.queue, Reason: o.reason, Attempt: rec.Attempt, Seed: seed(rec.ID, rec.Attempt)}
	if d.From == wire.ExchangeFailures {
		rec.Error = text(m, wire.HeaderError)
		failure.Suggested, note = headers.Suggested(m)
		addNote(rec, note)
	}
	v := p.Decide(failure)
	rec.Policy = v.Policy
	if v.Asked > 0 {
		addNote(rec, fmt.Sprintf("its consumer asked for a delay of %s; policy %q allows %s (max_retry_after)", policy.FormatDuration(v.Asked), p.Name, policy.FormatDuration(v.Delay)))
	}
	switch v.Action {
	case policy.Retry:
		until(rec, now.Add(v.Delay))
		// Where messages stand behind each other a wait of its own would hold up
		// others.
		if way := rules.Ways[p.Name]; way != nil && (failure.Suggested == 0 || !way.Limits().Blocks) {
			away = &held{rec: rec, way: way, delay: v.Delay}
		}
	case policy.Forward:
		// It goes by way of the store, so that an exchange that is not there
		// never stops the intake.
		rec.Forward = &store.Destination{Exchange: v.Forward.Exchange, RoutingKey: v.Forward.RoutingKey}
		until(rec, now)
	case policy.Park:
		park(rec, now, v.Why)
	}
	return rec, v.Action, away
}

// unread parks what could not be decided about, with the reason.
func unread(d *wire.Delivery, now time.Time, why any) *store.Record {
	rec := &store.Record{ID: uuid.Must(uuid.NewV7()), FailedAt: now, FirstFailed: now, Message: d.Message}
	park(rec, now, fmt.Sprintf("it could not be read: %v", why))
	return rec
}

// until rounds up: stores keep microseconds, and early is never.
func until(rec *store.Record, due time.Time) {
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

// text is a header that holds one.
func text(m *wire.Message, header string) string {
	s, _ := m.Headers[header].(string)
	return shown(s)
}

// shown is text for people, of at most longestText: bytes that are not UTF-8 are \xNN.
func shown(s string) string {
	var b strings.Builder
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		piece := s[:size]
		if r == utf8.RuneError && size == 1 {
			piece = fmt.Sprintf(`\x%02x`, s[0])
		}
		if b.Len()+len(piece) > longestText {
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
