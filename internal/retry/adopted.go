package retry

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/headers"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/wire"
)

// Adoption is a dead-letter queue that a person adopts.
type Adoption struct {
	ID   string // of the operation
	From string // the dead-letter queue
	By   string
	// Named are the work queues that the person names: messages belong to no other. Without any, a
	// message belongs to the queue that it claims, or to Leads when it claims none.
	Named []string
	Leads string // the only queue that dead-letters to From; "": not known
	// Format is one of FormatNames; "" detects it message by message.
	Format string
}

// workQueue returns the work queue of a message that claims to have failed in claimed, and a note if that is another
// queue.
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

// AdoptedIntake parks messages from an adopted queue. What they say of their failure is a claim: it is
// shown and searched, and only a person replays them.
//
// A message that is taken twice gets the same id. It is a hash of the adoption, the epoch, the message and its position
// among equal messages of the epoch. An epoch starts when everything delivered before it is acknowledged, so
// redelivered messages come first in it, in order. It writes no receipts, which would displace the intake's.
type AdoptedIntake struct {
	ParkedIntake
	adoption Adoption
	epoch    string
	equal    map[[16]byte]int // messages of this epoch, by fingerprint
	scratch  []byte
}

// NewAdoptedIntake makes an AdoptedIntake that stores in s. Set the epoch before each batch.
func NewAdoptedIntake(s store.Store, names *ReportedNames, a Adoption, events Listener) *AdoptedIntake {
	in := &AdoptedIntake{ParkedIntake: ParkedIntake{keeper: keeper{store: s, events: events}, names: names},
		adoption: a, equal: map[[16]byte]int{}}
	in.decide = in.decideAdopted
	return in
}

func (in *AdoptedIntake) SetEpoch(epoch string) {
	if in.epoch != epoch {
		in.epoch, in.equal = epoch, map[[16]byte]int{}
	}
}

var adoptedIDs = uuid.MustParse("7d0b7c0e-5f43-4d0c-9a55-1f0a3f6b8e21")

// Sample returns the records that an adoption would store.
func (a *Adoption) Sample(ctx context.Context, all []wire.Delivery, now time.Time) (records []*store.Record) {
	in := NewAdoptedIntake(nil, nil, *a, nil)
	for i := range all {
		records = append(records, in.decideAdopted(ctx, i, &all[i], now))
	}
	return records
}

// record returns the record of a message and its claim. own reports whether Redrive retried it before.
func (in *AdoptedIntake) record(d *wire.Delivery, now time.Time) (rec *store.Record, c claim, own bool) {
	f := fingerprint(&d.Message, &in.scratch)
	rec = &store.Record{FirstFailed: now, FailedAt: now, Message: d.Message, Imported: true}
	addNote(rec, d.Note)
	framework, m, says := fit(rec, in.adoption.Format)
	c = claimOf(&d.Message, now)
	c.read(framework, says, now)
	queue, _ := m.Headers[wire.HeaderQueue].(string)
	t, own, note := headers.Read(&m, queue, false, now)
	addNote(rec, note)
	if own {
		rec.Failures, rec.Replays, rec.FirstFailed = t.Failures+1, t.Replays, t.FirstFailed
	}
	if t.ID != "" {
		rec.ID = uuid.MustParse(t.ID)
		return rec, c, own
	}
	of := fmt.Appendf(f[:], "%s %s %d", in.adoption.ID, in.epoch, in.equal[f])
	in.equal[f]++
	rec.ID = headers.BindID(uuid.NewHash(sha256.New(), adoptedIDs, of, 8), &m)
	return rec, c, own
}

// decideAdopted parks a message with its claims. It failed long ago, so no notification is sent.
func (in *AdoptedIntake) decideAdopted(ctx context.Context, _ int, d *wire.Delivery, now time.Time) *store.Record {
	a := &in.adoption
	rec, c, own := in.record(d, now)
	var note string
	if rec.Queue, note = a.workQueue(c.queue); note != "" {
		addNote(rec, note)
	}
	why := fmt.Sprintf("%s adopted it from queue %q", a.By, a.From)
	switch {
	case len(rec.Queue) > 255 || !utf8.ValidString(rec.Queue) || wire.OwnQueue(rec.Queue):
		why += fmt.Sprintf("; it names the queue %q, which is no work queue", printable(rec.Queue))
		rec.Queue = ""
	case slices.Contains(a.Named, rec.Queue) || rec.Queue == a.Leads:
	case !in.names.admits(ctx, rec.Queue, d.Message.UserID):
		why += "; " + tooMany(rec.Queue)
		rec.Queue = ""
	}
	rec.Reason, rec.Error, rec.FailedAt, rec.AdoptedFrom = c.reason, c.errText, c.last, a.From
	rec.Message.Exchange, rec.Message.RoutingKey = c.exchange, c.routingKey
	if !own {
		rec.Failures = c.failures
	}
	if c.first.Before(rec.FirstFailed) {
		rec.FirstFailed = c.first
	}
	if d.CannotRepublish != "" {
		why += "; " + d.CannotRepublish
	}
	park(rec, now, why)
	return rec
}

// claim holds what a message says of its failure. Nothing proves it.
type claim struct {
	queue, reason, errText string
	exchange, routingKey   string // as first published
	failures               int    // at least 1
	first, last            time.Time
}

// claimOf reads x-death. A message without one failed now.
func claimOf(m *wire.Message, now time.Time) claim {
	c := claim{exchange: m.Exchange, routingKey: m.RoutingKey, failures: 1, first: now, last: now}
	c.readDeaths(m, now)
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
