package retry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/headers"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/wire"
)

// AdoptedIntake parks what is adopted from a user's dead-letter queue, and remembers what is
// not known to be acknowledged (adoptledger.go). Its methods are called from one goroutine.
type AdoptedIntake struct {
	Adoption
	store  store.Store
	events Listener
	names  *ReportedNames
	// Obstacle is why messages cannot be retried to a queue, or "".
	Obstacle func(ctx context.Context, queue string) string
	// Parked tells whether the messages are reported as parked, as those are that fail now.
	Parked bool

	progress AdoptProgress
	ledger   adoptLedger
	scratch  []byte
}

// NewAdoptedIntake makes an intake of an adoption that stores in s.
func NewAdoptedIntake(s store.Store, a Adoption, names *ReportedNames, events Listener) *AdoptedIntake {
	return &AdoptedIntake{Adoption: a, store: s, names: names, events: events, ledger: adoptLedger{store: s, queue: a.Queue}}
}

// Doubts implements broker.Adopting.
func (in *AdoptedIntake) Doubts(ctx context.Context) (Doubts, error) {
	if err := readEntry(ctx, in.store, adoptProgressEntry+in.Queue, &in.progress); err != nil {
		return nil, err
	}
	if !in.progress.Since.Equal(in.Since) {
		in.progress = AdoptProgress{}
	}
	return in.ledger.read(ctx)
}

// Keep implements broker.Adopting.
func (in *AdoptedIntake) Keep(ctx context.Context, batch []wire.Delivery) (again bool, err error) {
	now := time.Now()
	records := make([]*store.Record, len(batch))
	part := make([]adoptedMessage, len(batch))
	for i := range batch {
		f := fingerprint(&batch[i].Message, &in.scratch)
		records[i] = in.record(ctx, &batch[i], f, now)
		part[i] = adoptedMessage{fingerprint: f, id: records[i].ID, redelivered: batch[i].Redelivered, deliveries: headers.Deliveries(batch[i].Message.Headers)}
	}
	next := AdoptProgress{Since: in.Since, Count: in.progress.Count + int64(len(batch)), Last: now}
	value, err := json.Marshal(next)
	if err != nil {
		return false, err
	}
	// No record has this key: Change asks once what it is to add.
	_, err = in.store.Change(ctx, []store.Key{store.MakeKey(uuid.Nil, 0)}, func(store.Key, *store.Record) store.Edit {
		return store.Edit{Add: records}
	}, func(int) []store.Entry {
		return []store.Entry{in.ledger.entryOf(part), {Name: adoptProgressEntry + in.Queue, Value: value}}
	})
	if err != nil {
		return errors.Is(err, store.ErrFull), fmt.Errorf("store %d messages of %q: %w", len(batch), in.Queue, err)
	}
	in.ledger.kept(part)
	in.progress = next
	in.report(records, now)
	return false, nil
}

// report sends events: one for each queue or, where they are reported as parked, for each message.
func (in *AdoptedIntake) report(records []*store.Record, now time.Time) {
	count := map[string]int{}
	for _, r := range records {
		count[r.Queue]++
		if in.Parked {
			e := parkedEvent(r)
			e.At = now
			in.events(e)
		}
	}
	for queue, n := range count {
		in.events(Event{Kind: Adopted, At: now, Queue: queue, N: n, Why: in.Queue})
	}
}

// Acknowledged implements broker.Adopting.
func (in *AdoptedIntake) Acknowledged(ctx context.Context) error { return in.ledger.acknowledged(ctx) }

// record makes the parked record of a message.
func (in *AdoptedIntake) record(ctx context.Context, d *wire.Delivery, fingerprint [16]byte, now time.Time) (rec *store.Record) {
	f := in.Read(d, now)
	adopted := &store.Adopted{Queue: in.Queue, Preset: f.Framework}
	rec = &store.Record{ID: in.idOf(d, fingerprint), Queue: f.Queue, Failures: f.Attempts, Reason: f.Reason, Error: f.Error,
		FirstFailed: now, FailedAt: now, Adopted: adopted, Message: d.Message}
	if !f.Last.IsZero() {
		rec.FailedAt = f.Last
	}
	if !f.First.IsZero() {
		rec.FirstFailed = f.First
	}
	if f.Exchange != "" || f.RoutingKey != "" {
		rec.Message.Exchange, rec.Message.RoutingKey = f.Exchange, f.RoutingKey
	}
	if !in.names.admits(ctx, rec.Queue, d.Message.UserID) {
		addNote(rec, tooMany(rec.Queue))
		rec.Queue = ""
	}
	addNote(rec, d.Note)
	if len(f.Unknown) > 0 {
		addNote(rec, "not known: "+strings.Join(f.Unknown, "; "))
	}
	why := fmt.Sprintf("adopted from queue %q", in.Queue)
	switch {
	case d.CannotRepublish != "":
		why += "; " + d.CannotRepublish
	case rec.Queue == "":
		why += "; it does not say which queue it failed in: redrive copy --to QUEUE sends it to one"
	case in.Obstacle != nil:
		if o := in.Obstacle(ctx, rec.Queue); o != "" {
			why += "; " + o
		}
	}
	park(rec, now, why)
	return rec
}

// idOf is the id that the message has in its headers, or got when it was kept before, or a new one.
func (in *AdoptedIntake) idOf(d *wire.Delivery, fingerprint [16]byte) uuid.UUID {
	if id, ok := headers.ID(&d.Message); ok {
		return id
	}
	if d.Redelivered {
		if id, was := in.ledger.known(fingerprint); was {
			return id
		}
	}
	return uuid.Must(uuid.NewV7())
}
