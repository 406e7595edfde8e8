package flow

import (
	"context"
	"fmt"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/trail"
	"github.com/redrive-mq/redrive/wire"
)

// Collector keeps what is parked in RabbitMQ, in redrive.parked, so that it can be
// seen and sent back like all else: from the library, and from waits whose queue
// is gone. Anybody with the right to may have put it there, so its headers are a
// claim: they are shown, and prove no queue. Its methods are called as those of
// Flow.
type Collector struct {
	keeper
	lost func(queue string)
}

// NewCollector keeps in s. lost is told of queues to which nothing could come back.
func NewCollector(s store.Store, lost func(queue string), events Listener) *Collector {
	return &Collector{keeper: keeper{store: s, events: events}, lost: lost}
}

// Take keeps a batch: see Flow.Take.
func (c *Collector) Take(ctx context.Context, batch []Delivery) error {
	if err := c.begin(ctx, batch); err != nil {
		return err
	}
	now := time.Now()
	keep := make([]*store.Record, len(batch))
	told := make([]Event, len(batch))
	for i := range batch {
		keep[i] = c.record(i, &batch[i], now)
		told[i] = parkedEvent(keep[i])
	}
	return c.keep(ctx, keep, told, now)
}

// record makes a parked record. Nothing in a message can make it fail.
func (c *Collector) record(i int, d *Delivery, now time.Time) (rec *store.Record) {
	defer func() {
		if p := recover(); p != nil {
			rec = unread(d, now, p)
		}
	}()
	m := &d.Message
	rec = &store.Record{FailedAt: now, FirstFailed: now, Message: *m}
	rec.ID, rec.Fingerprint = c.identify(i, d)
	addNote(rec, d.Note)
	var note string
	rec.Attempt, note = trail.Failures(m)
	addNote(rec, note)
	if rec.Attempt > 0 {
		rec.FirstFailed = trail.FirstFailed(m, now)
	}
	rec.Error = text(m, wire.HeaderError)
	switch r := text(m, wire.HeaderReason); r {
	case wire.ReasonRejected, wire.ReasonExpired, wire.ReasonMaxLen, wire.ReasonDeliveryLimit, wire.ReasonReported:
		rec.Reason = r
	}
	rec.Queue = short(m, wire.HeaderQueue)
	rec.Message.Exchange, rec.Message.RoutingKey = short(m, wire.HeaderExchange), short(m, wire.HeaderRoutingKey)
	if u := short(m, wire.HeaderUserID); u != "" {
		addNote(rec, fmt.Sprintf("its %s header says %q; nobody vouches for that, so it does not go back with it", wire.HeaderUserID, u))
	}
	why := text(m, wire.HeaderParkedFor)
	switch {
	case d.From != wire.ExchangeParked: // by an alternate exchange
		if d.From == wire.ExchangeDue || d.From == wire.ExchangeDelayed {
			rec.Queue = m.RoutingKey
		}
		if rec.Queue != "" && c.lost != nil {
			c.lost(rec.Queue)
		}
		why = fmt.Sprintf("it waited in RabbitMQ, and then the queue %q was gone or not bound to exchange %q", rec.Queue, d.From)
	case why == "":
		why = "it was published to redrive.parked without a reason"
	}
	if d.Unreadable != "" {
		why += "; " + d.Unreadable
	}
	park(rec, now, why)
	return rec
}

// short is a header that holds a name, as long as RabbitMQ takes them.
func short(m *wire.Message, header string) string {
	if s := text(m, header); len(s) <= 255 {
		return s
	}
	return ""
}
