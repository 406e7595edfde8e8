package world

import (
	"context"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/wire"
)

// doubt is a time in which the service has begun to store or end a message, and was not told that
// it is done. Where a connection is cut or the process ends then, a copy is allowed.
type doubt struct{ from, to time.Time } // to is zero while it lasts

// watched enters in the ledger what an intake has in doubt.
type watched struct {
	broker.Handler
	ledger   *ledger
	name     string
	stored   []string // the batches before
	storedAt time.Time
}

// Handle implements broker.Handler. Batches that come at once after each other may be acknowledged
// together; but one that cannot be stored is not waited for.
func (h *watched) Handle(ctx context.Context, batch []wire.Delivery) error {
	if !time.Now().Equal(h.storedAt) {
		h.stored = nil
	}
	ids := make([]string, 0, len(batch))
	for i := range batch {
		ids = append(ids, idIn(batch[i].Message.Headers))
	}
	h.ledger.doubt(h.name, slices.Concat(h.stored, ids))
	err := h.Handler.Handle(ctx, batch)
	h.ledger.certain(h.name, h.stored)
	if err != nil {
		h.stored = nil
		return err
	}
	h.ledger.certain(h.name, ids)
	h.stored, h.storedAt = append(h.stored, ids...), time.Now()
	return nil
}

func idIn(h amqp.Table) string {
	id, _ := h[idHeader].(string)
	return id
}

// doubt enters that a part of the service has messages in doubt from now on.
func (l *ledger) doubt(part string, ids []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range ids {
		a := l.accounts[id]
		if a == nil {
			continue
		}
		if a.doubts == nil {
			a.doubts = map[string][]doubt{}
		}
		if of := a.doubts[part]; len(of) == 0 || !of[len(of)-1].to.IsZero() {
			a.doubts[part] = append(of, doubt{from: time.Now()})
		}
	}
}

// certain enters that it has not any more.
func (l *ledger) certain(part string, ids []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range ids {
		if a := l.accounts[id]; a != nil && len(a.doubts[part]) > 0 {
			last := &a.doubts[part][len(a.doubts[part])-1]
			if last.to.IsZero() {
				last.to = time.Now()
			}
		}
	}
}

// leasesEnded enters that a process could not renew its leases of messages, so that others may retry
// them as well: whether it has published them, only RabbitMQ knows.
func (l *ledger) leasesEnded(of []store.Claim) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range of {
		if a := l.accounts[idIn(c.Record.Message.Headers)]; a != nil {
			a.leaseEnded = true
		}
	}
}

// stopped enters that the process was stopped.
func (l *ledger) stopped() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stops = append(l.stops, time.Now())
}

// doubtedIn tells whether the message was in doubt at any moment of a time. l.mu is held.
func (a *account) doubtedIn(from, to time.Time) bool {
	for _, of := range a.doubts {
		if slices.ContainsFunc(of, func(d doubt) bool { return !d.from.After(to) && (d.to.IsZero() || !d.to.Before(from)) }) {
			return true
		}
	}
	return false
}

// inDoubt tells whether a cut, a crash or a stop came while the message was in doubt. l.mu is held.
func (l *ledger) inDoubt(a *account) bool {
	for _, of := range a.doubts {
		for _, d := range of {
			during := func(at time.Time) bool { return !at.Before(d.from) && (d.to.IsZero() || at.Sub(d.to) <= time.Second) }
			if slices.ContainsFunc(l.cuts, during) || slices.ContainsFunc(l.stops, during) {
				return true
			}
		}
	}
	return false
}
