package flow

import (
	"context"
	"fmt"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
)

// keeper is how a batch of RabbitMQ's becomes durable in the store.
type keeper struct {
	store    store.Store
	events   Listener
	receipts receipts
}

// Connected is to be called each time there is a new connection, before Take:
// what was stored but perhaps not acknowledged is about to come again.
func (k *keeper) Connected(ctx context.Context) error {
	kept, err := k.store.Receipts(ctx)
	if err != nil {
		return fmt.Errorf("reading receipts: %w", err)
	}
	k.receipts.load(kept)
	return nil
}

// keep adds records and tells what has happened, or gives back the receipts that
// were taken since mark.
func (k *keeper) keep(ctx context.Context, records []*store.Record, told []Event, now time.Time) error {
	if len(records) > 0 {
		if err := k.store.Add(ctx, records); err != nil {
			k.receipts.restore()
			return fmt.Errorf("keeping %d failed messages: %w", len(records), err)
		}
	}
	for i := range told {
		told[i].At = now
		k.events(told[i])
	}
	return nil
}

func parkedEvent(r *store.Record) Event {
	return Event{Kind: Parked, Queue: r.Queue, ID: r.ID, Attempt: r.Attempt, Reason: r.Reason, Why: r.ParkedFor}
}
