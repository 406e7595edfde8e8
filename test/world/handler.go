package world

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive"
	"github.com/redrive-mq/redrive/wire"
)

// inLibrary is the part of the world that has failures in doubt until the library has acknowledged them.
const inLibrary = "library"

// addedHeader is what handlers add to a message: which attempt failed.
const addedHeader = "world-attempt"

var (
	errKilled     = errors.New("the program was killed")
	errNotRetried = errors.New("not to be retried")
)

// handler handles the messages of a queue as the seed says.
type handler struct {
	program *program
	queue   *workQueue
}

// attempt is one try at a message.
type attempt struct {
	id       string
	message  message
	failures int // before
	fails    int // in its life
	began    time.Time
}

func (h *handler) handle(ctx context.Context, m *redrive.Message) error {
	b := h.begin(m)
	if b == nil {
		return nil
	}
	if err := h.work(ctx); err != nil {
		return err
	}
	return h.end(ctx, m, b, true)
}

func (h *handler) handleBatch(ctx context.Context, batch []*redrive.Message) map[*redrive.Message]error {
	if len(batch) > h.queue.library.batch {
		h.program.broken(fmt.Errorf("%s has a batch of %d, and may have %d", h.queue.name, len(batch), h.queue.library.batch))
	}
	all, failed := map[*redrive.Message]*attempt{}, map[*redrive.Message]error{}
	for _, m := range batch {
		all[m] = h.begin(m)
	}
	err := h.work(ctx)
	for _, m := range batch {
		switch {
		case err != nil:
			failed[m] = err
		case all[m] != nil:
			failed[m] = h.end(ctx, m, all[m], false)
		}
	}
	return failed
}

// begin enters that the handler has received a message; nil: it has nothing more to do with it.
func (h *handler) begin(m *redrive.Message) *attempt {
	l := h.program.world.ledger
	d := asDelivered(m)
	if h.program.dead.Load() || l.stranger(h.queue, d) {
		return nil
	}
	b := &attempt{failures: m.Attempt - 1, began: time.Now()}
	var err error
	b.id, b.fails, err = l.deliveredToLibrary(h.queue, d, m)
	if err != nil {
		h.program.broken(err)
		return nil
	}
	b.message = l.messageOf(b.id)
	return b
}

// work takes as long as the consumer does.
func (h *handler) work(ctx context.Context) error {
	if h.queue.handles > 0 {
		h.program.busy.Add(1)
		defer h.program.busy.Add(-1)
		select {
		case <-ctx.Done():
			return h.interrupted(ctx)
		case <-time.After(h.queue.handles):
		}
	}
	if h.program.dead.Load() {
		return errKilled
	}
	return nil
}

// interrupted is the end of an attempt whose context has ended: the consumer was stopped, and had its
// time. The error is no failure.
func (h *handler) interrupted(ctx context.Context) error {
	stopped, may := h.program.stopped.Load(), h.queue.library.shutdown
	if stopped == nil || time.Since(*stopped) < may {
		h.program.broken(fmt.Errorf("the context of a handler of %s ended, and it may take %s after its program was stopped (at %v)", h.queue.name, may, stopped))
	}
	return ctx.Err()
}

// end ends an attempt: a success, or a failure as the seed says. Alone, a handler may panic and take
// too long.
func (h *handler) end(ctx context.Context, m *redrive.Message, b *attempt, alone bool) error {
	l := h.program.world.ledger
	if b.failures >= b.fails {
		l.processed(b.id)
		return nil
	}
	how := b.message.handling
	if alone && how.style == exceedsTimeout && h.queue.library.timeout > 0 {
		<-ctx.Done()
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return h.interrupted(ctx)
		}
	}
	if h.program.dead.Load() {
		return errKilled
	}
	l.failed(b.id, b.failures, l.countedAt(h.queue, b.began))
	l.doubt(inLibrary, []string{b.id})
	m.Headers[addedHeader] = int64(m.Attempt)
	err := fmt.Errorf("failure %d of %s", m.Attempt, b.id)
	if b.failures == b.fails-1 {
		switch how.ends {
		case discarded:
			return fmt.Errorf("%w: %w", redrive.ErrDiscard, err)
		case parked:
			return redrive.Park(err)
		case notRetried:
			return fmt.Errorf("%w: %w", errNotRetried, err)
		}
	}
	switch {
	case how.style == panics && alone:
		panic(err)
	case how.style == asksForDelay:
		return fmt.Errorf("handling: %w", redrive.RetryAfter(err, how.asks))
	}
	return err
}

// asDelivered is a message as a consumer without the library would have it, had it never failed.
func asDelivered(m *redrive.Message) amqp.Delivery {
	headers := maps.Clone(m.Headers)
	if m.ID != "" {
		headers[wire.HeaderID] = m.ID
	}
	return amqp.Delivery{Headers: headers, Body: m.Body, RoutingKey: m.RoutingKey, MessageId: m.MessageID, Type: m.Type, DeliveryMode: m.DeliveryMode}
}

func (l *ledger) messageOf(id string) message {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.accounts[id].message
}

// deliveredToLibrary enters that a handler received a message, checks what must hold then, and returns
// how often it fails it.
func (l *ledger) deliveredToLibrary(q *workQueue, d amqp.Delivery, m *redrive.Message) (id string, fails int, err error) {
	id, _ = d.Headers[idHeader].(string)
	l.certain(inLibrary, []string{id})
	if q.library.native {
		l.countedByQueue(id, m.Attempt-1)
	}
	id, fails, err = l.delivered(q, d, m.Attempt-1, time.Now())
	if err == nil {
		err = l.asFirstPublished(id, m)
	}
	return id, fails, err
}

// asFirstPublished checks that a message is as it was published at first, and its history what its handlers said.
func (l *ledger) asFirstPublished(id string, m *redrive.Message) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.accounts[id]
	native := a.queue.library.native
	known := a.libraryID
	if !native {
		a.libraryID = m.ID
	}
	added, _ := m.Headers[addedHeader].(int64)
	switch {
	case !native && m.Exchange != a.queue.firstExchange():
		return fmt.Errorf("%s came with the exchange %q", id, m.Exchange)
	case native && m.Attempt == 1, m.Attempt == 1 && len(a.lives) == 1 && m.ID == "":
		return nil
	case native:
		if m.ID != "" || m.LastError != "" {
			return fmt.Errorf("%s waited in its queue, and has the id %q and the error %q", id, m.ID, m.LastError)
		}
	case m.ID == "" || known != "" && m.ID != known:
		return fmt.Errorf("%s has the id %q at attempt %d, and had %q before", id, m.ID, m.Attempt, known)
	case m.Attempt == 1: // a person had it replayed
	case added != int64(m.Attempt-1):
		return fmt.Errorf("%s is at attempt %d, and its handler added %d at the one before", id, m.Attempt, added)
	case !strings.Contains(m.LastError, fmt.Sprintf("failure %d of %s", m.Attempt-1, id)):
		return fmt.Errorf("%s is at attempt %d, and its last error is %q", id, m.Attempt, m.LastError)
	case m.FirstFailed.IsZero() || m.FirstFailed.After(time.Now()):
		return fmt.Errorf("%s first failed at %s", id, m.FirstFailed)
	}
	return nil
}

// countedAt is when an attempt that fails now failed: with Native, when a connection was cut meanwhile.
func (l *ledger) countedAt(q *workQueue, began time.Time) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, cut := range l.cuts {
		if q.library.native && cut.After(began) && !cut.After(time.Now()) {
			return cut
		}
	}
	return time.Now()
}

// mayCountMore tells whether RabbitMQ may have counted a failure that is none: with Native, what is
// delivered and not acknowledged when a connection is cut has failed, and so has what its handler
// failed the last time and the library had no time to park. l.mu is held.
func (l *ledger) mayCountMore(a *account) bool {
	return a.queue.library != nil && a.queue.library.native && (a.life().byQueue > 0 || l.explained(a))
}

// countedByQueue enters the failures that RabbitMQ counted itself since a connection was cut: with
// Native, what was delivered then has failed.
func (l *ledger) countedByQueue(id string, failures int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.accounts[id]
	if a == nil {
		return
	}
	since := l.start
	for n := range failures {
		at, did := a.life().failedAt[n]
		for _, cut := range l.cuts {
			if !did && cut.After(since) && !cut.After(time.Now()) {
				a.life().failedAt[n], at, did = cut, cut, true
				a.life().byQueue++
			}
		}
		if !did {
			return
		}
		since = at
	}
}
