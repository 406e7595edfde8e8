// Package retry is the path of one failed message, a file for each step. Read it in this
// order:
//
//	intake.go        a batch of dead letters, safe in the store before it is acknowledged
//	receipts.go      the id that a message had, if it is redelivered
//	verdict.go       which queue it failed in, what proves that, and what the policy decides
//	persist.go       records into the store, in one commit where there is room for it; what log, metrics
//	                 and displays receive
//	delayqueue.go    a policy that waits in RabbitMQ: declared, and published to where it waits
//	scheduler.go     what is due in the store: claimed, published, and only then deleted
//	retrytargets.go  which queues a message may be retried to
//	sender.go        the only place that publishes retries and forwards
//	parkedintake.go  what others have parked in RabbitMQ, safe in the store as well
//
// Messages are parked in three places: by their verdict (park in verdict.go), because they
// can never be retried (finishClaims in scheduler.go), and by others (parkedintake.go). The
// event of each is made by parkedEvent in persist.go.
//
// What a message carries from attempt to attempt is package headers. This package opens no
// AMQP connection, and imports no HTTP and no store engine: its callers pass it those.
package retry

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/headers"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// Rules are the policies in force.
type Rules struct {
	Policies policy.Set
	// Ways has, by a policy's name, how its messages wait in RabbitMQ. Those of the other
	// policies wait in the store.
	Ways map[string]delay.Way
}

// InForce holds the rules in force. It is safe for concurrent use.
type InForce struct{ rules atomic.Pointer[Rules] }

// NewInForce returns an InForce with rules.
func NewInForce(rules Rules) *InForce {
	f := new(InForce)
	f.Replace(rules)
	return f
}

// Replace puts rules in force, from the next dead letter and the next retry on. Waiting messages
// keep their due time.
func (f *InForce) Replace(rules Rules) { f.rules.Store(&rules) }

// Policies returns the policies in force.
func (f *InForce) Policies() policy.Set { return f.rules.Load().Policies }

// Way returns how the messages of a policy wait in RabbitMQ; nil: in the store.
func (f *InForce) Way(policyName string) delay.Way { return f.rules.Load().Ways[policyName] }

// Intake decides about dead letters and makes them durable, in the store or in a delay queue.
// Its methods are called from one goroutine.
type Intake struct {
	keeper
	inForce     *InForce
	delayQueues *DelayQueues
	names       *ReportedNames
}

// NewIntake makes an intake that stores messages in s, or publishes them to delayQueues,
// and reports to events. delayQueues may be nil when no rules ever have ways; without names any
// report may give the name of a queue.
func NewIntake(s store.Store, inForce *InForce, delayQueues *DelayQueues, names *ReportedNames, events Listener) *Intake {
	return &Intake{keeper: keeper{store: s, events: events}, inForce: inForce, delayQueues: delayQueues, names: names}
}

// Handle decides about a batch and makes it durable. When it returns nil, every message of the
// batch is durable or was discarded by its policy, and may be acknowledged. On an error none
// may be, and the caller calls again with the same batch.
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
		events = append(events, failedEvent(rec))
		durable, isDurable := in.durable[i]
		switch {
		case isDurable: // whatever rules have been loaded since
			events = append(events, durable)
			continue
		case action == policy.Discard:
			e := Event{Kind: Discarded, Queue: rec.Queue, ID: rec.ID, Failures: rec.Failures, Reason: rec.Reason}
			events = append(events, e)
			in.markDurable(i, e)
			continue
		case rec.State == store.Parked:
			events = append(events, parkedEvent(rec))
		default:
			events = append(events, Event{Kind: Waiting, Queue: rec.Queue, ID: rec.ID, Failures: rec.Failures, Delay: rec.Due.Sub(now), Way: InStore})
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
			in.markDurable(m.messageIndex, *e)
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
		Ignored: headers.Ignored(&r.Message, r.Reason == wire.ReasonReported)}
}

// countUnstored counts in the ledger the messages that are not stored.
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

// publishDelayed publishes messages to the delay queues where they wait. Each has its id in a
// receipt first, so that its copy has the same id should the acknowledgement be lost.
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
