package flow

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/store"
)

// keeper is how a batch of RabbitMQ's becomes durable in the store.
type keeper struct {
	store    store.Store
	events   Listener
	receipts receipts
	// given are the identities of the batch under way, by index. When it could not be
	// kept, and is offered again, they stay: the error of a store on a network may come
	// after it kept them.
	given map[int]identity
}

type identity struct {
	id          uuid.UUID
	fingerprint [16]byte
}

// Connected is to be called each time there is a new connection, before Take:
// what was stored but perhaps not acknowledged is about to come again.
func (k *keeper) Connected(ctx context.Context) error {
	k.receipts, k.given = receipts{}, nil
	return k.load(ctx)
}

// begin is to be called before a batch is judged. Where several services use one
// store, another may have kept something of it, and ended, after this one connected.
func (k *keeper) begin(ctx context.Context, batch []Delivery) error {
	if k.given != nil {
		return nil // it is offered again
	}
	if _, shared := k.store.(store.Shared); shared && k.receipts.lack(batch) {
		if err := k.load(ctx); err != nil {
			return err
		}
	}
	k.given = map[int]identity{}
	return nil
}

// identify gives the message of a batch its id, as receipts do.
func (k *keeper) identify(i int, d *Delivery) (uuid.UUID, [16]byte) {
	known, ok := k.given[i]
	if !ok {
		known.id, known.fingerprint = k.receipts.identify(d)
		k.given[i] = known
	}
	return known.id, known.fingerprint
}

func (k *keeper) load(ctx context.Context) error {
	kept, err := k.store.Receipts(ctx)
	if err != nil {
		return fmt.Errorf("reading receipts: %w", err)
	}
	k.receipts.load(kept)
	return nil
}

// keep adds records, and tells what has happened when they are kept.
func (k *keeper) keep(ctx context.Context, records []*store.Record, told []Event, now time.Time) error {
	if len(records) > 0 {
		if err := k.store.Add(ctx, records); err != nil {
			return fmt.Errorf("keeping %d failed messages: %w", len(records), err)
		}
	}
	k.given = nil
	for i := range told {
		told[i].At = now
		k.events(told[i])
	}
	return nil
}

func parkedEvent(r *store.Record) Event {
	return Event{Kind: Parked, Queue: r.Queue, ID: r.ID, Attempt: r.Attempt, Reason: r.Reason, Error: r.Error, Why: r.ParkedFor}
}
