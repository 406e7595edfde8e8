// Package flow is the path of one failed message. Read it in this order:
//
//	flow.go      a batch of dead letters in, safe in the store before it is acknowledged
//	origin.go    which queue it failed in, by whose word
//	verdict.go   what the policy says, as a record to keep
//	(waiting: internal/wait/stored wakes what is due)
//	giveback.go  the one place that publishes: back to its queue, or forward
//	events.go    what log, metrics and displays are told
//
// What it carries from attempt to attempt is package trail. It knows no AMQP, no HTTP and no store engine: those are handed to it.
package flow

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// Delivery is one dead letter as the broker handed it over.
type Delivery struct {
	Message     wire.Message
	From        string // the exchange it came through
	Redelivered bool   // RabbitMQ has handed it out before and got no acknowledgement
	Note        string // what was changed so that it could be read; "" for nothing
	Unreadable  string // why it cannot be returned as it was; "" when it can
}

// Flow takes dead letters in. Take and Connected are called by the intake, one
// at a time; SetPolicies may be called at any time.
type Flow struct {
	store    store.Store
	events   Listener
	policies atomic.Pointer[policy.Set]
	receipts receipts
}

// New makes a flow that keeps what it takes in s and tells events about it.
func New(s store.Store, policies policy.Set, events Listener) *Flow {
	f := &Flow{store: s, events: events}
	f.SetPolicies(policies)
	return f
}

// SetPolicies is in force from the next dead letter and the next return on.
// What waits keeps the due time it was given.
func (f *Flow) SetPolicies(p policy.Set) { f.policies.Store(&p) }

// Policies are those in force.
func (f *Flow) Policies() policy.Set { return *f.policies.Load() }

// Connected is to be called each time the intake has connected, before Take:
// what was stored but perhaps not acknowledged is about to come again.
func (f *Flow) Connected(ctx context.Context) error {
	kept, err := f.store.Receipts(ctx)
	if err != nil {
		return fmt.Errorf("reading receipts: %w", err)
	}
	f.receipts.load(kept)
	return nil
}

// Take judges a batch and keeps it. When it returns nil every message of the
// batch is durable (or discarded by its policy) and may be acknowledged; on an
// error none may be, and the same batch may be offered again.
func (f *Flow) Take(ctx context.Context, batch []Delivery) error {
	now := time.Now()
	policies := f.Policies()
	keep := make([]*store.Record, 0, len(batch))
	told := make([]Event, 0, 2*len(batch))
	undo := f.receipts.mark()
	for i := range batch {
		rec, verdict := f.judge(&batch[i], policies, now)
		told = append(told, Event{Kind: Failed, Queue: rec.Queue, ID: rec.ID, Attempt: rec.Attempt, Reason: rec.Reason, Error: rec.Error})
		switch {
		case verdict == policy.Discard:
			told = append(told, Event{Kind: Discarded, Queue: rec.Queue, ID: rec.ID, Attempt: rec.Attempt, Reason: rec.Reason})
			continue
		case rec.State == store.Parked:
			told = append(told, Event{Kind: Parked, Queue: rec.Queue, ID: rec.ID, Attempt: rec.Attempt, Reason: rec.Reason, Why: rec.ParkedFor})
		default:
			told = append(told, Event{Kind: Waiting, Queue: rec.Queue, ID: rec.ID, Attempt: rec.Attempt, Delay: rec.Due.Sub(now)})
		}
		keep = append(keep, rec)
	}
	if len(keep) > 0 {
		if err := f.store.Add(ctx, keep); err != nil {
			f.receipts.restore(undo)
			return fmt.Errorf("keeping %d failed messages: %w", len(keep), err)
		}
	}
	for i := range told {
		told[i].At = now
		f.events(told[i])
	}
	return nil
}
