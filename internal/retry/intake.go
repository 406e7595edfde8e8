// Package retry is the path of one failed message, a file for each step. Read it in this
// order:
//
//	intake.go        a batch of dead letters, safe in the store before it is acknowledged
//	origin.go        which queue a message failed in, and who proves it
//	receipts.go      the id that it had, should RabbitMQ deliver it a second time
//	(fingerprint.go, known.go: by what it is recognized, and what is remembered)
//	verdict.go       what the policy says, as a record to keep
//	persist.go       records into the store, all or none
//	delayqueue.go    a policy that waits in RabbitMQ: published to where it waits, which
//	                 declare.go declares first
//	scheduler.go     what is due in the store: claimed, published, and only then deleted
//	(inflight.go, backoff.go, pause.go: how much at once, after what wait, and when not at all)
//	enrolled.go      which queues a message may be retried to
//	(names.go, consent.go, ask.go: names that only reports gave, the queue's own
//	consent, and questions to RabbitMQ beside the scheduler)
//	publish.go       the one place that publishes: to the work queue, or to a forward target
//	collect.go       what others have parked in RabbitMQ, safe in the store as well
//	events.go        what log, metrics and displays receive
//
// What a message carries from attempt to attempt is package headers. This package knows no
// AMQP, no HTTP and no store engine: its callers give it those.
package retry

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// Rules are the policies in force.
type Rules struct {
	Policies policy.Set
	// Ways are how the messages of a policy wait in RabbitMQ, by its name. Those
	// of the others wait in the store.
	Ways map[string]delay.Way
}

// Intake decides about dead letters and makes them durable, in the store or in a delay queue.
// Take, Connected and Disconnected are called from one goroutine; SetRules may be called at
// any time.
type Intake struct {
	keeper
	hold  *DelayQueues
	names *Names
	prove func(queue string)
	rules atomic.Pointer[Rules]
}

// NewIntake makes an intake that stores messages in s, or publishes them to hold's delay
// queues, and reports to events. hold may be nil when no rules ever have ways.
func NewIntake(s store.Store, r Rules, hold *DelayQueues, events Listener) *Intake {
	f := &Intake{keeper: keeper{store: s, events: events}, hold: hold}
	f.SetRules(r)
	return f
}

// Vouch bounds by n the queue names that only reports gave, and tells g from which queues
// RabbitMQ has dead-lettered. Call it before the first batch.
func (f *Intake) Vouch(n *Names, g *Sender) { f.names, f.prove = n, g.enrolled.prove }

// SetRules applies from the next dead letter and the next retry on. Waiting messages keep
// their due time.
func (f *Intake) SetRules(r Rules) { f.rules.Store(&r) }

// Policies are those in force.
func (f *Intake) Policies() policy.Set { return f.rules.Load().Policies }

// Way is how the messages of a policy wait in RabbitMQ; nil: in the store.
func (f *Intake) Way(policyName string) delay.Way { return f.rules.Load().Ways[policyName] }

// Take decides about a batch and makes it durable. When it returns nil, every message of the
// batch is durable or was discarded by its policy, and may be acknowledged. On an error none
// may be, and the caller offers the same batch again.
func (f *Intake) Take(ctx context.Context, batch []wire.Delivery) error {
	if err := f.begin(ctx, batch); err != nil {
		return err
	}
	now := time.Now()
	rules := f.rules.Load()
	keep := make([]kept, 0, len(batch))
	told := make([]Event, 0, 2*len(batch))
	var away []held      // to wait in RabbitMQ
	var at, events []int // index in batch and in told of each of away
	for i := range batch {
		rec, verdict, m := f.judge(ctx, i, &batch[i], rules, now)
		told = append(told, Event{Kind: Failed, Queue: rec.Queue, ID: rec.ID, Attempt: rec.Attempt, Reason: rec.Reason, Error: rec.Error})
		durable, isDurable := f.durable[i]
		switch {
		case isDurable: // whatever the rules say that are in force since
			told = append(told, durable)
			continue
		case verdict == policy.Discard:
			told = append(told, Event{Kind: Discarded, Queue: rec.Queue, ID: rec.ID, Attempt: rec.Attempt, Reason: rec.Reason})
			continue
		case rec.State == store.Parked:
			told = append(told, parkedEvent(rec))
		default:
			told = append(told, Event{Kind: Waiting, Queue: rec.Queue, ID: rec.ID, Attempt: rec.Attempt, Delay: rec.Due.Sub(now), Way: Disk})
		}
		if m == nil {
			keep = append(keep, kept{rec, i, len(told) - 1})
			continue
		}
		away = append(away, *m)
		at, events = append(at, i), append(events, len(told)-1)
	}
	f.handOver(ctx, away, at)
	for i, m := range away {
		e, name := &told[events[i]], m.way.Limits().Name
		if m.err == nil {
			e.Way, e.Delay = name, m.real
			f.isDurable(at[i], *e)
			continue
		}
		e.Instead = name
		keep = append(keep, kept{m.rec, at[i], events[i]})
	}
	if err := f.keep(ctx, keep, told, now); err != nil {
		return err
	}
	f.account(told)
	return nil
}

// account counts in the ledger the messages that are never stored here.
func (f *Intake) account(told []Event) {
	for i := range told {
		switch e := &told[i]; {
		case e.Kind == Discarded:
			f.store.Passed(e.Queue, store.Dropped, 1)
		case e.Kind == Waiting && e.Way != Disk:
			f.store.Passed(e.Queue, store.Delayed, 1)
		}
	}
}

// handOver publishes messages to the delay queues where they wait. Each has its id in a
// receipt first, so that its copy has the same id should the acknowledgement be lost. at are
// their places in the batch.
func (f *Intake) handOver(ctx context.Context, away []held, at []int) {
	if len(away) == 0 {
		return
	}
	var first []store.Receipt
	for n, m := range away {
		if m.rec.Fingerprint != ([16]byte{}) && !f.given[at[n]].remembered {
			first = append(first, m.rec.Receipt())
		}
	}
	if len(first) == 0 || f.store.Remember(ctx, first) == nil { // a full disk stops what must wait there, nothing else
		for n, m := range away {
			who := f.given[at[n]]
			who.remembered = true
			f.given[at[n]] = who
			m.rec.Fingerprint = [16]byte{} // or, kept after all, it had two
		}
	}
	f.hold.hold(ctx, away)
}
