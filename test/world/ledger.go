package world

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/wire"
)

// ledger accounts for each message on its own, from what publishers, consumers and people see.
type ledger struct {
	scenario *scenario
	start    time.Time
	clock    *wallClock

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
	stalls   []alarm // when a replica stood still
	refusals []alarm // when the service had fewer rights
	lost     lost
	byItself map[*workQueue]bool // whose messages may have been dead-lettered without a consumer
	off      int64               // by how many messages the store's own ledger is off, since it is damaged
	unsure   map[string]bool     // messages that a damaged store has lost, or has as they were before
	gone     map[*workQueue]int  // that were deleted, with so many messages
	away     []time.Time         // until when RabbitMQ was away
	lateTo   time.Time           // until when the store may answer late
	// strangers is how many consumers received of each hostile message.
	strangers  map[string]int
	touched    map[string]bool       // hostile messages that a person has done something to
	heals      atomic.Bool           // what a person changes now is processed from then on
	operations map[string]*operation // by id
	events     map[string]int        // how many the service has sent, by kind
	retried    map[*workQueue][]time.Time
	broken     []string                 // what the service said and must not have done
	outcomes   map[redrive.Outcome]int  // of attempts in the library
	circuits   map[string]brokenCircuit // by queue
	process    int                      // that started last
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
	libraryID string // that a handler saw last
	lives     []*life
	seen      []time.Time        // when anything happened to it that anyone saw
	doubts    map[string][]doubt // by the part of the service that has it in doubt
	processed int
	edits     int
	// leaseEnded: a replica had claimed it, and did not end its claim within the lease.
	leaseEnded bool
	mayBeLost  bool // by RabbitMQ: whatever becomes of it is right
	waiting    int  // after how many failures it waits; 0: it does not
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
	byQueue  int         // how many of its failures RabbitMQ counted, at a cut
}

func (a *account) life() *life { return a.lives[len(a.lives)-1] }

func newLife(due time.Time, fails int) *life {
	return &life{due: due, fails: fails, failedAt: map[int]time.Time{}}
}

func newLedger(s *scenario, clock *wallClock) *ledger {
	l := &ledger{scenario: s, clock: clock, operations: map[string]*operation{}, strangers: map[string]int{}, touched: map[string]bool{}, byItself: map[*workQueue]bool{}, gone: map[*workQueue]int{}, unsure: map[string]bool{}, events: map[string]int{}, outcomes: map[redrive.Outcome]int{}, circuits: map[string]brokenCircuit{}, retried: map[*workQueue][]time.Time{}, start: time.Now(), accounts: map[string]*account{}, said: map[string][]time.Time{},
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
	l.events[strings.TrimSpace(string(e.Kind)+" "+e.Way)]++
	l.retriedTo(e, now)
	if e.Kind == retry.Retried && wire.OwnQueue(e.Queue) {
		l.broken = append(l.broken, fmt.Sprintf("%s was retried to %s, which is Redrive's own", id, e.Queue))
	}
	if e.Instead != "" && !l.troubled {
		l.broken = append(l.broken, fmt.Sprintf("%s waits in the store instead of %s, and nothing had happened to the service", id, e.Instead))
	}
	l.retriedAgainst(e, now)
	for q, since := range l.pauses {
		if e.Kind != retry.Retried || q.name != e.Queue {
			continue
		}
		if since = l.publishedUntil(since, now); now.Sub(since) > time.Second {
			l.broken = append(l.broken, fmt.Sprintf("%s was retried to %s at %s, which is paused since %s", id, q.name, now.Sub(l.start), since.Sub(l.start)))
		}
	}
}

// publishedUntil is until when what was claimed before since may be published or confirmed. l.mu is held.
func (l *ledger) publishedUntil(since, now time.Time) time.Time {
	for _, a := range l.alarms {
		if a.to.After(since) {
			since = a.to // what was published before may come in until then
		}
	}
	for _, s := range l.stalls {
		if s.to.After(since) && !s.from.After(now) {
			since = s.to // it has the pause half a second later
		}
	}
	if l.lateTo.After(since) {
		since = l.lateTo // what was claimed before may be published until then
	}
	return l.sentUntil(since)
}

// alarm enters that RabbitMQ is short of memory for a while.
func (l *ledger) alarm(lasts time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.alarms = append(l.alarms, alarm{from: time.Now(), to: time.Now().Add(lasts)})
}

// stall enters that a replica stands still for a while. Where it loses a connection, that is a cut;
// what it had received before may be stored when it goes on.
func (l *ledger) stall(lasts time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.stalls = append(l.stalls, alarm{from: now, to: now.Add(lasts)})
	l.cuts = append(l.cuts, now.Add(lasts))
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

// has tells whether the ledger has an account for a message.
func (l *ledger) has(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.accounts[id] != nil
}

// stranger enters a hostile message that a consumer received; false: it is none of its queue's.
func (l *ledger) stranger(q *workQueue, d amqp.Delivery) bool {
	id, _ := d.Headers[idHeader].(string)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range l.scenario.hostile {
		if h.id == id && h.queue == q && hostileKinds[h.kind].key == anyQueue {
			l.strangers[id]++
			return true
		}
	}
	return false
}

func (l *ledger) eventsSoFar() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.events)
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

// openEdit enters that it is not known whether a message was made of another.
func (l *ledger) openEdit(of, made string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unsure[of], l.unsure[made], l.accounts[made].mayBeLost = true, true, true
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
	l.failedUnseen(a, failures)
	a.seen, a.waiting = append(a.seen, now), 0
	if err := errors.Join(l.early(a, failures, now), l.overtaken(a, failures)); err != nil {
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
	a.seen, a.waiting = append(a.seen, now), failures+1
}

func (l *ledger) processed(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.accounts[id]
	a.processed++
	a.seen = append(a.seen, time.Now())
}
