package world

import (
	amqp "github.com/rabbitmq/amqp091-go"

	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/wire"
)

// ledger accounts for each message on its own, from what publishers, consumers and people see.
type ledger struct {
	scenario *scenario
	start    time.Time

	mu       sync.Mutex
	accounts map[string]*account
	cuts     []time.Time // when a connection was cut or the process crashed, or will be
	stops    []time.Time // when the process had stopped
	// said is when the service said that it took or published a message, by the id that it gave it.
	// Its consumer may learn of that long after.
	said     map[string][]time.Time
	attempts map[*workQueue][]allowed
	pauses   map[*workQueue]time.Time // since when
	troubled bool                     // there was a fault
	alarms   []alarm
	off      int64           // by how many messages the store's own ledger is off, since it is damaged
	unsure   map[string]bool // messages that a damaged store has lost, or has as they were before
	lateTo   time.Time       // until when the store may answer late
	heals    atomic.Bool     // what a person changes now is processed from then on
	broken   []string        // what the service said and must not have done
}

// alarm is when RabbitMQ was short of memory.
type alarm struct {
	from, to time.Time
	troubled bool // something else happened meanwhile
}

// allowed is how many attempts a policy allows from a moment on.
type allowed struct {
	from     time.Time
	attempts int
}

// account is what happened to one message.
type account struct {
	message
	redriveID string // that the service gave it; "" until it failed
	lives     []*life
	seen      []time.Time        // when anything happened to it that anyone saw
	doubts    map[string][]doubt // by the part of the service that has it in doubt
	processed int
	edits     int
	// leaseEnded: a replica had claimed it, and did not end its claim within the lease.
	leaseEnded bool
	mayBeLost  bool // by a damaged store: whatever becomes of it is right
	// discarded and restored: that is what a person did last.
	discarded, restored bool
}

// life is from attempt 1 on: the first from the message's publishing, each other from its replay.
type life struct {
	due   time.Time
	fails int
	// failedAt is when its consumer first failed it, by how often it had failed before.
	failedAt map[int]time.Time
	hastened []time.Time // to when a person moved what waited
}

func (a *account) life() *life { return a.lives[len(a.lives)-1] }

func newLife(due time.Time, fails int) *life {
	return &life{due: due, fails: fails, failedAt: map[int]time.Time{}}
}

func newLedger(s *scenario) *ledger {
	l := &ledger{scenario: s, start: time.Now(), accounts: map[string]*account{}, said: map[string][]time.Time{},
		attempts: map[*workQueue][]allowed{}, pauses: map[*workQueue]time.Time{}, unsure: map[string]bool{}}
	for _, q := range s.queues {
		l.attempts[q] = []allowed{{l.start, q.policy.Attempts}}
	}
	for _, m := range s.messages {
		l.accounts[m.id] = &account{message: m, lives: []*life{newLife(l.start, m.fails)}}
	}
	return l
}

func (l *ledger) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cuts = append(l.cuts, time.Now())
}

// trouble enters that something happens to the service.
func (l *ledger) trouble() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.troubled = true
	for i := range l.alarms {
		l.alarms[i].troubled = l.alarms[i].troubled || l.alarms[i].to.After(time.Now())
	}
}

// heard enters what the service says of a message.
func (l *ledger) heard(e retry.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	id, now := e.ID.String(), time.Now()
	l.said[id] = append(l.said[id], now)
	if e.Instead != "" && !l.troubled {
		l.broken = append(l.broken, fmt.Sprintf("%s waits in the store instead of %s, and nothing had happened to the service", id, e.Instead))
	}
	if e.Kind != retry.Retried {
		return
	}
	for q, since := range l.pauses {
		if since = l.publishedUntil(since); q.name == e.Queue && now.Sub(since) > time.Second {
			l.broken = append(l.broken, fmt.Sprintf("%s was retried to %s at %s, which is paused since %s", id, q.name, now.Sub(l.start), since.Sub(l.start)))
		}
	}
}

// publishedUntil is until when what was claimed before since may be published or confirmed. l.mu is held.
func (l *ledger) publishedUntil(since time.Time) time.Time {
	for _, a := range l.alarms {
		if a.to.After(since) {
			since = a.to // what was published before may come in until then
		}
	}
	if l.lateTo.After(since) {
		since = l.lateTo // what was claimed before may be published until then
	}
	return since
}

// alarm enters that RabbitMQ is short of memory for a while.
func (l *ledger) alarm(lasts time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.alarms = append(l.alarms, alarm{from: time.Now(), to: time.Now().Add(lasts)})
}

// storeTrouble enters that the store is in trouble for a while.
func (l *ledger) storeTrouble(lasts time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lateTo = time.Now().Add(lasts + callTimeout)
}

// alarmOver tells whether all alarms are over.
func (l *ledger) alarmOver() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !slices.ContainsFunc(l.alarms, func(a alarm) bool { return a.to.After(time.Now()) })
}

// allow enters that a queue's policy is reloaded.
func (l *ledger) allow(q *workQueue, attempts int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.attempts[q] = append(l.attempts[q], allowed{time.Now(), attempts})
}

// allows is how many attempts a queue's policy allows now.
func (l *ledger) allows(q *workQueue) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.attempts[q][len(l.attempts[q])-1].attempts
}

// pause enters that a queue's retries are paused since then; the zero time: they are not.
func (l *ledger) pause(q *workQueue, since time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if delete(l.pauses, q); !since.IsZero() {
		l.pauses[q] = since
	}
}

// pausedSince is the zero time for a queue that is not paused.
func (l *ledger) pausedSince(q *workQueue) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pauses[q]
}

// named enters the id that the service gave a message.
func (l *ledger) named(message, id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.accounts[message]; a != nil {
		a.redriveID = id
	}
}

// edit enters the message that a person is about to make of another, and returns its id; end tells
// whether it was made.
func (l *ledger) edit(id string, a action) (made string, end func(done bool)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	of := l.accounts[id]
	of.edits++
	m := of.message
	m.id = fmt.Sprintf("%s.%d", id, of.edits)
	fails := of.life().fails
	if a.heals {
		fails = 0
	}
	if a.size >= 0 {
		m.size, m.content = a.size, m.id
	}
	l.accounts[m.id] = &account{message: m, lives: []*life{newLife(time.Now(), fails)}}
	return m.id, func(done bool) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if !done {
			delete(l.accounts, m.id)
		}
	}
}

// delivered enters that a consumer received a message, checks what must hold then, and returns
// how often its consumer fails it.
func (l *ledger) delivered(q *workQueue, d amqp.Delivery, failures int, now time.Time) (id string, fails int, err error) {
	id, _ = d.Headers[idHeader].(string)
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.accounts[id]
	switch {
	case a == nil:
		return id, 0, fmt.Errorf("%s received a message that was never published: %q", q.name, id)
	case a.queue != q:
		return id, 0, fmt.Errorf("%s received %s, which is of %s", q.name, id, a.queue.name)
	}
	if what := a.changed(d); what != "" {
		return id, 0, fmt.Errorf("%s came with another %s", id, what)
	}
	if _, has := d.Headers["x-death"]; has && q.way == nil && failures > 0 {
		return id, 0, fmt.Errorf("%s was retried with an x-death header", id)
	}
	if failures > 0 || len(a.lives) > 1 {
		a.redriveID, _ = d.Headers[wire.HeaderID].(string)
	}
	a.seen = append(a.seen, now)
	if err := l.early(a, failures, now); err != nil {
		return id, 0, err
	}
	return id, a.life().fails, l.late(a, failures, now)
}

func (l *ledger) failed(id string, failures int, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.accounts[id]
	if _, did := a.life().failedAt[failures]; !did {
		a.life().failedAt[failures] = now
	}
	a.seen = append(a.seen, now)
}

func (l *ledger) processed(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.accounts[id]
	a.processed++
	a.seen = append(a.seen, time.Now())
}

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

// observed is a Change under way, which a person asked for. The ledger has it from before anything can
// come of it; it is undone where the store does not do it.
type observed struct {
	ledger  *ledger
	heals   bool // its messages are processed from then on
	changes []recordChange
	undo    []func()
}

type recordChange struct {
	id      string // of the message in the world
	was, is store.State
	due     time.Time
	leaves  bool // it goes to a forward target, and not back to its queue
}

// observe returns a Change that the ledger enters.
func (l *ledger) observe(edit func(store.Key, *store.Record) store.Edit, entries func(int) []store.Entry) (
	*observed, func(store.Key, *store.Record) store.Edit, func(int) []store.Entry) {
	o := &observed{ledger: l, heals: entries == nil && l.heals.Load()}
	edited := func(k store.Key, r *store.Record) store.Edit {
		if r == nil || r.Unreadable != nil {
			return edit(k, r)
		}
		c := recordChange{id: idIn(r.Message.Headers), was: r.State}
		e := edit(k, r)
		if c.is, c.due, c.leaves = r.State, r.Due, r.Forward != nil; e.Keep {
			o.changes = append(o.changes, c)
		}
		return e
	}
	return o, edited, func(n int) (all []store.Entry) {
		if entries != nil {
			all = entries(n)
		}
		o.enter()
		return all
	}
}

func (o *observed) enter() {
	l := o.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range o.changes {
		of := l.accounts[c.id]
		if of == nil {
			continue
		}
		discarded, restored := of.discarded, of.restored
		undo := func() {}
		if of.discarded, of.restored = c.is == store.Discarded, c.was == store.Discarded; c.is == store.Waiting {
			undo = of.replay(c.was, c.due, o.heals && !c.leaves)
		}
		o.undo = append(o.undo, func() {
			undo()
			of.discarded, of.restored = discarded, restored
		})
	}
}

// end enters whether it was done.
func (o *observed) end(done bool) {
	o.ledger.mu.Lock()
	defer o.ledger.mu.Unlock()
	for _, undo := range o.undo {
		if !done {
			undo()
		}
	}
}

// replay enters that a message is retried at due.
func (of *account) replay(was store.State, due time.Time, heals bool) (undo func()) {
	if was == store.Parked {
		next := newLife(due, of.life().fails)
		if heals {
			next.fails = 0
		}
		of.lives = append(of.lives, next)
		return func() { of.lives = of.lives[:len(of.lives)-1] }
	}
	life := of.life()
	fails, hastened := life.fails, life.hastened
	life.hastened = append(life.hastened, due)
	if heals {
		life.fails = 0
	}
	return func() { life.fails, life.hastened = fails, hastened }
}
