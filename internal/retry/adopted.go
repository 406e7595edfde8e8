package retry

import (
	"context"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/wire"
)

// Adoption is a dead-letter queue that a person has adopted.
type Adoption struct {
	From string // the dead-letter queue
	By   string // the person
	// Named are the work queues that the person names: no message is of another. Where there is none,
	// each message says for itself; Leads, if it is the only queue that dead-letters to From, is that
	// of the others.
	Named []string
	Leads string
}

// workQueue returns the work queue of a message that claims to have failed in a queue, and a note
// where that is another one.
func (a *Adoption) workQueue(claimed string) (queue, note string) {
	switch {
	case len(a.Named) == 0 && claimed != "":
		return claimed, ""
	case len(a.Named) == 0:
		return a.Leads, ""
	case slices.Contains(a.Named, claimed):
		return claimed, ""
	case len(a.Named) == 1:
		queue = a.Named[0]
	}
	if claimed != "" {
		note = fmt.Sprintf("it says that it failed in queue %q, which %s did not name", printable(claimed), a.By)
	}
	return queue, note
}

// NewAdoptedIntake makes a ParkedIntake for messages that are taken from a queue that is adopted. What
// they say of their failure is a claim: it is shown, and a replay of them is a person's decision.
func NewAdoptedIntake(s store.Store, names *ReportedNames, a Adoption, events Listener) *ParkedIntake {
	in := &ParkedIntake{keeper: keeper{store: s, events: events}, names: names}
	in.decide = func(ctx context.Context, i int, d *wire.Delivery, now time.Time) *store.Record {
		return in.decideAdopted(ctx, a, i, d, now)
	}
	return in
}

// decideAdopted parks a message, with what it says of itself. It is no failure of now, so that no one
// is notified of it.
func (in *ParkedIntake) decideAdopted(ctx context.Context, a Adoption, i int, d *wire.Delivery, now time.Time) *store.Record {
	rec, own := in.record(i, d, now)
	rec.Imported = true
	c := claimOf(&d.Message, now)
	var note string
	if rec.Queue, note = a.workQueue(c.queue); note != "" {
		addNote(rec, note)
	}
	why := fmt.Sprintf("%s adopted it from queue %q", a.By, a.From)
	switch {
	case len(rec.Queue) > 255 || !utf8.ValidString(rec.Queue) || wire.OwnQueue(rec.Queue):
		why += fmt.Sprintf("; it names the queue %q, which is no work queue", printable(rec.Queue))
		rec.Queue = ""
	case !slices.Contains(a.Named, rec.Queue) && rec.Queue != a.Leads && !in.names.admits(ctx, rec.Queue, d.Message.UserID):
		why += "; " + tooMany(rec.Queue)
		rec.Queue = ""
	}
	rec.Reason, rec.Error = c.reason, c.errText
	rec.Message.Exchange, rec.Message.RoutingKey = c.exchange, c.routingKey
	if own { // it was retried by Redrive before
		rec.Failures++
	} else {
		rec.Failures = c.failures
	}
	if c.first.Before(rec.FirstFailed) {
		rec.FirstFailed = c.first
	}
	rec.FailedAt = c.last
	if d.CannotRepublish != "" {
		why += "; " + d.CannotRepublish
	}
	park(rec, now, why)
	return rec
}

// claim is what a message in a dead-letter queue says of its failure.
type claim struct {
	queue, reason, errText string
	exchange, routingKey   string // as first published
	failures               int    // at least 1
	first, last            time.Time
}

// claimOf reads what x-death says, and then what the framework does that moved the message there. Where
// they say nothing, the failure is one that is known since now.
func claimOf(m *wire.Message, now time.Time) claim {
	c := claim{exchange: m.Exchange, routingKey: m.RoutingKey, failures: 1, first: now, last: now}
	c.readDeaths(m, now)
	for i := range formats {
		if f := &formats[i]; f.wrote(m) {
			c.read(f, m, now)
			break
		}
	}
	return c
}

// readDeaths reads x-death. RabbitMQ writes the newest death first, each queue and reason once.
func (c *claim) readDeaths(m *wire.Message, now time.Time) {
	deaths, head := deathsOf(m)
	c.queue, _ = head["queue"].(string)
	if reason, _ := head["reason"].(string); utf8.ValidString(reason) {
		c.reason = printable(reason)
	}
	var count int64
	for i, one := range deaths {
		death, _ := one.(amqp.Table)
		if at, ok := death["time"].(time.Time); ok && at.Unix() > 0 && at.Before(now) {
			if c.first.After(at) {
				c.first = at
			}
			if i == 0 {
				c.last = at
			}
		}
		if queue, _ := death["queue"].(string); queue == c.queue && queue != "" {
			n, _ := death["count"].(int64)
			count = min(count+min(max(n, 0), wire.MaxAttempt), wire.MaxAttempt)
			// The oldest death of this queue has the exchange that the message first came through.
			c.exchange, _ = death["exchange"].(string)
			if keys, _ := death["routing-keys"].([]any); len(keys) > 0 {
				c.routingKey, _ = keys[0].(string)
			}
		}
	}
	c.failures = max(1, int(count))
	if len(c.exchange) > 255 || len(c.routingKey) > 255 {
		c.exchange, c.routingKey = "", ""
	}
}
