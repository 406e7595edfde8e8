package world

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/policy"
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
	lateTo   time.Time   // until when the store may answer late
	heals    atomic.Bool // what a person changes now is processed from then on
	broken   []string    // what the service said and must not have done
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
		attempts: map[*workQueue][]allowed{}, pauses: map[*workQueue]time.Time{}}
	for _, q := range s.queues {
		l.attempts[q] = []allowed{{l.start, q.policy.Attempts}}
	}
	for _, m := range s.messages {
		l.accounts[m.id] = &account{message: m, lives: []*life{newLife(l.start, m.fails)}}
	}
	return l
}

func (l *ledger) cut() {
	defer lock(&l.mu)()
	l.cuts = append(l.cuts, time.Now())
}

// trouble enters that something happens to the service.
func (l *ledger) trouble() {
	defer lock(&l.mu)()
	l.troubled = true
	for i := range l.alarms {
		l.alarms[i].troubled = l.alarms[i].troubled || l.alarms[i].to.After(time.Now())
	}
}

// heard enters what the service says of a message.
func (l *ledger) heard(e retry.Event) {
	defer lock(&l.mu)()
	id, now := e.ID.String(), time.Now()
	l.said[id] = append(l.said[id], now)
	if e.Instead != "" && !l.troubled {
		l.broken = append(l.broken, fmt.Sprintf("%s waits in the store instead of %s, and nothing had happened to the service", id, e.Instead))
	}
	if e.Kind != retry.Retried {
		return
	}
	for q, since := range l.pauses {
		until := []time.Time{since, l.lateTo} // what was claimed before may be published, and what was published come in
		for _, a := range l.alarms {
			until = append(until, a.to)
		}
		if since = slices.MaxFunc(until, time.Time.Compare); q.name == e.Queue && now.Sub(since) > time.Second {
			l.broken = append(l.broken, fmt.Sprintf("%s was retried to %s at %s, which is paused since %s", id, q.name, now.Sub(l.start), since.Sub(l.start)))
		}
	}
}

// alarm enters that RabbitMQ is short of memory for a while.
func (l *ledger) alarm(lasts time.Duration) {
	defer lock(&l.mu)()
	l.alarms = append(l.alarms, alarm{from: time.Now(), to: time.Now().Add(lasts)})
}

// storeTrouble enters that the store is in trouble for a while.
func (l *ledger) storeTrouble(lasts time.Duration) {
	defer lock(&l.mu)()
	l.lateTo = time.Now().Add(lasts + callTimeout)
}

// allow enters that a queue's policy is reloaded.
func (l *ledger) allow(q *workQueue, attempts int) {
	defer lock(&l.mu)()
	l.attempts[q] = append(l.attempts[q], allowed{time.Now(), attempts})
}

// allows is how many attempts a queue's policy allows now.
func (l *ledger) allows(q *workQueue) int {
	defer lock(&l.mu)()
	return l.attempts[q][len(l.attempts[q])-1].attempts
}

// pause enters that a queue's retries are paused since then; the zero time: they are not.
func (l *ledger) pause(q *workQueue, since time.Time) {
	defer lock(&l.mu)()
	if delete(l.pauses, q); !since.IsZero() {
		l.pauses[q] = since
	}
}

// pausedSince is the zero time for a queue that is not paused.
func (l *ledger) pausedSince(q *workQueue) time.Time {
	defer lock(&l.mu)()
	return l.pauses[q]
}

// named enters the id that the service gave a message, which somebody must have published.
func (l *ledger) named(message, id string) error {
	defer lock(&l.mu)()
	a := l.accounts[message]
	if a == nil {
		return fmt.Errorf("the service has a message that was never published: %q", message)
	}
	a.redriveID = id
	return nil
}

// edit enters the message that a person is about to make of another, and returns its id; end tells
// whether it was made.
func (l *ledger) edit(id string, a action) (made string, end func(done bool)) {
	defer lock(&l.mu)()
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
		defer lock(&l.mu)()
		if !done {
			delete(l.accounts, m.id)
		}
	}
}

// delivered enters that a consumer received a message, checks what must hold then, and returns
// how often its consumer fails it.
func (l *ledger) delivered(q *workQueue, d amqp.Delivery, failures int, now time.Time) (id string, fails int, err error) {
	id, _ = d.Headers[idHeader].(string)
	defer lock(&l.mu)()
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
	defer lock(&l.mu)()
	a := l.accounts[id]
	if _, did := a.life().failedAt[failures]; !did {
		a.life().failedAt[failures] = now
	}
	a.seen = append(a.seen, now)
}

func (l *ledger) processed(id string) {
	defer lock(&l.mu)()
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
	var ids []string
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
	defer lock(&l.mu)()
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
	defer lock(&l.mu)()
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
	defer lock(&l.mu)()
	for _, c := range of {
		if a := l.accounts[idIn(c.Record.Message.Headers)]; a != nil {
			a.leaseEnded = true
		}
	}
}

// stopped enters that the process was stopped.
func (l *ledger) stopped() {
	defer lock(&l.mu)()
	l.stops = append(l.stops, time.Now())
}

// doubtedIn reports whether the message was in doubt at any moment of a time. l.mu is held.
func (a *account) doubtedIn(from, to time.Time) bool {
	for _, of := range a.doubts {
		if slices.ContainsFunc(of, func(d doubt) bool { return !d.from.After(to) && (d.to.IsZero() || !d.to.Before(from)) }) {
			return true
		}
	}
	return false
}

// inDoubt reports whether a cut, a crash or a stop came while the message was in doubt. l.mu is held.
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
		if r == nil {
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
	defer lock(&l.mu)()
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
	defer lock(&o.ledger.mu)()
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

// early checks that a message is retried as often as its policy allows, and not before it is due.
// A copy of a life before, which a cut explains, may still come.
func (l *ledger) early(a *account, failures int, now time.Time) (err error) {
	for i := len(a.lives) - 1; i >= 0; i-- {
		switch e := l.earlyIn(a, a.lives[i], failures, now); {
		case e == nil:
			return nil
		case err == nil:
			err = e
		}
		if !l.explained(a) {
			break
		}
	}
	return err
}

func (l *ledger) earlyIn(a *account, life *life, failures int, now time.Time) error {
	if failures == 0 {
		due := life.due
		for _, at := range life.hastened {
			if at.Before(due) {
				due = at
			}
		}
		if now.Before(due) {
			return fmt.Errorf("%s was retried before %s, when a person had it replayed", a.id, due.Sub(l.start))
		}
		return nil
	}
	failed, did := life.failedAt[failures-1]
	if !did {
		return fmt.Errorf("%s was retried as failed %d times, which it has not", a.id, failures)
	}
	if _, most := l.allowed(a.queue, failed, now); failures >= most {
		return fmt.Errorf("%s was delivered although it has failed %d times, and %d attempts are allowed", a.id, failures, most)
	}
	p := a.queue.policy
	least := failed.Add(p.Jitter.Shortest(p.Backoff.Delay(failures)).Truncate(time.Millisecond))
	for _, at := range life.hastened {
		if at.Before(least) && !at.Before(failed) {
			least = at
		}
	}
	if now.Before(least) {
		return fmt.Errorf("%s was retried %s after failure %d: that is before %s, when it was due at the earliest", a.id, now.Sub(failed), failures, least.Sub(l.start))
	}
	return nil
}

// lateBy is how much later than it is due a message may come to a consumer that is never busy, while nothing happens to the service.
const lateBy = 5 * time.Second

// late checks that a message is not retried long after it is due, where nothing may delay it.
func (l *ledger) late(a *account, failures int, now time.Time) error {
	q := a.queue
	failed, did := a.life().failedAt[failures-1]
	punctual := q.way == nil && q.handles == 0 && q.limits == (throttle.Rules{})
	if !did || len(a.life().hastened) > 0 || !punctual || !l.calm(q, failed, now) {
		return nil
	}
	if latest := failed.Add(q.policy.Jitter.Longest(q.policy.Backoff.Delay(failures)) + lateBy); now.After(latest) {
		return fmt.Errorf("%s was retried %s after failure %d: that is after %s, when it was due at the latest", a.id, now.Sub(failed), failures, latest.Sub(l.start))
	}
	return nil
}

// calm reports whether nothing happened to the service, nor shortly before, and its retries to the
// queue were never paused.
func (l *ledger) calm(q *workQueue, from, to time.Time) bool {
	const after = 5 * time.Minute
	for _, a := range l.scenario.actions {
		if a.verb == pause && a.queue == q {
			return false
		}
	}
	for _, f := range l.scenario.faults {
		if at := l.start.Add(settling + f.at); !at.After(to) && at.Add(f.away+after).After(from) {
			return false
		}
	}
	return !slices.ContainsFunc(l.cuts, func(at time.Time) bool { return !at.After(to) && at.Add(after).After(from) })
}

// allowed is how many attempts a queue's policy allows at least and at most in a time.
func (l *ledger) allowed(q *workQueue, from, to time.Time) (least, most int) {
	all := l.attempts[q]
	for i, a := range all {
		if i+1 < len(all) && all[i+1].from.Before(from) || a.from.After(to) {
			continue
		}
		if least == 0 || a.attempts < least {
			least = a.attempts
		}
		most = max(most, a.attempts)
	}
	return least, most
}

// ends is where messages are at the end: how many copies of each.
type ends struct{ waiting, parked, discarded, forwarded map[string]int }

// missing are the messages that have not come to where they belong.
func (l *ledger) missing(at ends) (all []string) {
	defer lock(&l.mu)()
	for id, a := range l.accounts {
		if !l.arrived(a, at) {
			all = append(all, fmt.Sprintf("%s of %s (failed %d of %d times)", id, a.queue.name, len(a.life().failedAt), a.life().fails))
		}
	}
	for id, copies := range at.waiting {
		all = append(all, fmt.Sprintf("%s still waits, %d times", id, copies))
	}
	slices.Sort(all)
	return all
}

// arrived reports whether a message is where it belongs.
func (l *ledger) arrived(a *account, at ends) bool {
	least, most := l.allowedIn(a)
	switch {
	case a.discarded:
		return at.discarded[a.id] > 0
	case a.restored:
		return at.parked[a.id] > 0
	case a.life().fails < least:
		return a.processed > 0
	case a.life().fails >= most:
		return l.ended(a, at)
	}
	return a.processed > 0 || l.ended(a, at)
}

// allowedIn is how many attempts are allowed in a message's life, at least and at most.
func (l *ledger) allowedIn(a *account) (least, most int) {
	now := time.Now()
	from := now
	if first, did := a.life().failedAt[0]; did {
		from = first
	}
	return l.allowed(a.queue, from, now)
}

// ended reports whether its failures ended as its policy says. That a message was discarded
// no one sees but in its last failure.
func (l *ledger) ended(a *account, at ends) bool {
	switch a.queue.policy.Exhausted.Action {
	case policy.Park:
		return at.parked[a.id] > 0
	case policy.Forward:
		return at.forwarded[a.id] > 0
	}
	for failures, failed := range a.life().failedAt {
		if least, _ := l.allowed(a.queue, failed, time.Now()); failures+1 >= least {
			return true
		}
	}
	return false
}

// wrong is what must not be at the end: messages where they do not belong, and copies that
// no cut explains.
func (l *ledger) wrong(at ends) error {
	defer lock(&l.mu)()
	all := slices.Clone(l.broken)
	for id, a := range l.accounts {
		exhausted := at.parked[id] + at.forwarded[id]
		if least, _ := l.allowedIn(a); a.life().fails < least && exhausted > 0 && !a.restored && !l.explained(a) {
			all = append(all, fmt.Sprintf("%s is parked %d and forwarded %d times, and %d attempts were enough", id, at.parked[id], at.forwarded[id], a.life().fails+1))
		}
		if copies := a.processed + exhausted + at.discarded[id]; copies > 1 && !l.explained(a) {
			all = append(all, fmt.Sprintf("%s has %d copies at the end, and nothing happened to it when a connection was cut: it was seen at %s, the service had it at %s, and cuts were at %s",
				id, copies, l.times(a.seen), l.times(l.said[a.redriveID]), l.times(l.cuts)))
		}
	}
	if slices.Sort(all); len(all) == 0 {
		return nil
	}
	return errors.New(strings.Join(all, "\n"))
}

// explained reports whether something happened to the message within a second of a cut, or during an
// alarm while it was on its way to wait in RabbitMQ, or in which the service was stopped or cut
// off, or while it was in doubt: what has no answer then is published or delivered again, and that is allowed.
func (l *ledger) explained(a *account) bool {
	if a.leaseEnded || l.inDoubt(a) {
		return true
	}
	seen := slices.Concat(a.seen, l.said[a.redriveID])
	for _, alarm := range l.alarms {
		during := func(at time.Time) bool { return !at.Before(alarm.from) && at.Sub(alarm.to) <= time.Second }
		if (a.queue.way != nil || alarm.troubled) && (slices.ContainsFunc(seen, during) || a.doubtedIn(alarm.from, alarm.to)) {
			return true
		}
	}
	for _, cut := range l.cuts {
		near := func(at time.Time) bool { return at.Sub(cut).Abs() <= time.Second+2*a.queue.handles }
		if slices.ContainsFunc(seen, near) {
			return true
		}
	}
	return false
}

// times are moments as the log has them.
func (l *ledger) times(all []time.Time) (since []time.Duration) {
	for _, at := range all {
		since = append(since, at.Sub(l.start))
	}
	return since
}
