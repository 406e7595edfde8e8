// Package cluster makes one service of several processes that share a store, its replicas: which are alive, which of
// them leads, and what they announce to each other.
//
// It knows nothing of messages, queues or policies: its caller says what to do and to announce. Nothing here outlasts
// the processes: what must is in the store's side table.
package cluster

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/condition"
	"github.com/redrive-mq/redrive/internal/store"
)

// About is how a replica describes itself. The names in JSON are stored, and never change.
type About struct {
	Address    string                `json:"address"` // of its page and API
	Version    string                `json:"version"`
	Since      time.Time             `json:"since"`
	Conditions []condition.Condition `json:"conditions,omitempty"` // present there
	// NotReady reports whether its readiness check fails, over Conditions.
	NotReady bool `json:"unready,omitempty"`
	// CanPublish reports whether it could retry messages now.
	CanPublish bool `json:"able"`
}

// Replica is a live replica.
type Replica struct {
	ID string
	About
	Self  bool
	Leads bool
	// Beat is when this replica saw its latest heartbeat, by its own clock.
	Beat time.Time
}

// Share is a replica's share of the common limits: number I, from 0, of N, until Until. N is 0 while it has none.
type Share struct {
	N, I  int
	Until time.Time
}

// Config says what a replica does. One goroutine at a time calls each of its functions.
type Config struct {
	Store store.Shared
	// ID is unique to this process: see NewID.
	ID    string
	About func() About
	// OnShare receives its share, with each heartbeat.
	OnShare func(Share)
	// Lead does what only one replica may, until ctx ends, which is as soon as it is not certain that this replica
	// leads. Its writes to the side table with ctx fail once another replica leads. It first reads again all that it
	// depends on.
	Lead func(ctx context.Context)
	// Poll reads what others may have changed in the side table: every half second, and as
	// soon as one of them announces it.
	Poll func(ctx context.Context)
	// Receive receives the announcements of other replicas.
	Receive func(Announcement)
	// OnMissed is called at the start, and when announcements may have been missed; after an error it is called again.
	OnMissed func(ctx context.Context) error
	Log      *slog.Logger
}

// Replicas is this replica, and what it knows of the others. Create it with New, then Run it.
type Replicas struct {
	Config
	out     outbox
	pollNow chan struct{} // makes runPolling poll at once

	mu         sync.Mutex
	known      map[string]*knownReplica
	askedSince time.Time // when it asked for a share; zero: it has not
	termLed    uint64    // the term in which it leads; 0: it does not lead
	lastAble   time.Time // when it could last retry messages, or no other replica could
}

// New returns a replica. The others do not know it before Run.
func New(c Config) *Replicas {
	return &Replicas{Config: c, pollNow: make(chan struct{}, 1), known: map[string]*knownReplica{},
		out: outbox{ready: make(chan struct{}, 1)}}
}

// NewID returns an id for this process, which begins with the machine's name.
func NewID() string {
	host, _ := os.Hostname()
	var random [4]byte
	_, _ = rand.Read(random[:]) // it never fails
	return cmp.Or(host, "replica") + "-" + hex.EncodeToString(random[:])
}

// Run takes part until ctx ends. Then it leaves, so that the others need not wait for missing heartbeats.
func (r *Replicas) Run(ctx context.Context) {
	var parts sync.WaitGroup
	parts.Go(func() { r.runHeartbeats(ctx) })
	parts.Go(func() { r.runElection(ctx) })
	parts.Go(func() { r.runPolling(ctx) })
	parts.Go(func() { r.runSending(ctx) })
	parts.Go(func() { r.runReceiving(ctx) })
	parts.Wait()
	leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	if err := r.Store.Leave(leaving, r.ID); err != nil {
		r.Log.Info("cannot announce to the other replicas that this one stops; they notice within seconds",
			"error", err)
	}
}

// storeTimeout is how long a call of the store may take.
const storeTimeout = time.Second

// All returns the replicas that this one knows to be alive, by id.
func (r *Replicas) All() []Replica {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	var all []Replica
	for id, k := range r.known {
		if now.Sub(k.seen) < goneAfter {
			all = append(all, Replica{ID: id, About: k.latest.About, Leads: k.latest.Leads, Self: id == r.ID,
				Beat: k.seen})
		}
	}
	slices.SortFunc(all, func(a, b Replica) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

// Leads reports whether this replica is the leader.
func (r *Replicas) Leads() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.termLed != 0
}

// PollSoon makes Run call Poll at once.
func (r *Replicas) PollSoon() { signal(r.pollNow) }

// pollEvery is how often Poll is called, in case an announcement of a change was lost.
const pollEvery = 500 * time.Millisecond

func (r *Replicas) runPolling(ctx context.Context) {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		r.Poll(ctx)
		select {
		case <-ctx.Done():
		case <-tick.C:
		case <-r.pollNow:
		}
	}
}

// signal wakes the goroutine that receives from c.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

const (
	// A replica sends a heartbeat every beatEvery. It counts as dead goneAfter its latest one.
	beatEvery = 250 * time.Millisecond
	goneAfter = 5 * time.Second
	// shareLease is how long a replica has its share of the limits after it sends a heartbeat. Others divide that share
	// when they have seen no heartbeat for as long, which is later.
	shareLease = 1250 * time.Millisecond
	// maxText bounds the text of a condition in a heartbeat, in bytes, and maxConditions their number.
	maxText, maxConditions = 200, 20
)

// heartbeat is what a live replica writes to the store.
type heartbeat struct {
	About
	N     uint64 `json:"n"` // makes each one differ
	Leads bool   `json:"leads"`
}

// knownReplica is a replica whose heartbeat was seen.
type knownReplica struct {
	latest heartbeat
	seen   time.Time // when its heartbeat last changed
	// acknowledged reports whether it has sent a heartbeat since this replica asked for a share: then it has divided
	// the limits with this one.
	acknowledged bool
}

func (r *Replicas) runHeartbeats(ctx context.Context) {
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	var n uint64
	failing := false
	for ctx.Err() == nil {
		n++
		began := time.Now()
		about := heartbeat{About: r.About(), N: n, Leads: r.Leads()}
		about.Conditions = shortened(about.Conditions)
		all, err := r.sendHeartbeat(ctx, about)
		switch {
		case err == nil:
			r.OnShare(r.divide(all, about, began, time.Now()))
			if failing {
				r.Log.Info("this replica can read and write heartbeats again")
			}
		case ctx.Err() == nil && !failing:
			r.Log.Warn("this replica cannot write its heartbeat, nor read those of others; until it can, it retries "+
				"nothing to queues with a rate, a bound in flight or a breaker", "error", err)
		}
		failing = err != nil
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

func (r *Replicas) sendHeartbeat(ctx context.Context, about heartbeat) ([]store.Replica, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	text, err := json.Marshal(about)
	if err != nil {
		return nil, err
	}
	return r.Store.Beat(ctx, r.ID, text, goneAfter)
}

func shortened(all []condition.Condition) []condition.Condition {
	short := slices.Clone(all[:min(len(all), maxConditions)])
	for i := range short {
		short[i].Text = short[i].Text[:min(len(short[i].Text), maxText)]
	}
	return short
}

// divide updates which replicas are alive, and returns this one's share of the limits. own is the heartbeat that this
// replica began to send at began.
//
// A share must not begin before all others know of it. A replica that can retry messages says so in its heartbeat, and
// waits until each other one has sent a heartbeat after that, and so has divided again, or has lost its share.
func (r *Replicas) divide(all []store.Replica, own heartbeat, began, now time.Time) Share {
	r.mu.Lock()
	defer r.mu.Unlock()
	asks := own.CanPublish && r.askedSince.IsZero()
	if asks {
		r.askedSince = now
	} else if !own.CanPublish {
		r.askedSince = time.Time{}
	}
	there := map[string]bool{}
	share, self, acknowledged := Share{Until: began.Add(shareLease)}, -1, true
	others := false // others could retry messages
	for _, s := range all {
		var b heartbeat
		if json.Unmarshal(s.About, &b) != nil {
			continue // of a version with another format
		}
		there[s.ID] = true
		k := r.known[s.ID]
		if k == nil {
			k = &knownReplica{}
			r.known[s.ID] = k
		}
		if k.latest.N != b.N || k.seen.IsZero() {
			k.acknowledged = !asks
			k.seen = now
		} else if asks {
			k.acknowledged = false
		}
		k.latest = b
		switch fresh := now.Sub(k.seen) < shareLease; {
		case s.ID == r.ID:
			self = share.N
			share.N++
		case fresh && b.CanPublish:
			share.N++
			others = true
			acknowledged = acknowledged && k.acknowledged
		case fresh:
			acknowledged = acknowledged && k.acknowledged
		}
	}
	for id := range r.known {
		if !there[id] {
			delete(r.known, id)
		}
	}
	if own.CanPublish || !others {
		r.lastAble = now
	}
	share.I = self
	if !own.CanPublish || self < 0 || !acknowledged && now.Sub(r.askedSince) < shareLease {
		return Share{Until: share.Until}
	}
	return share
}

const (
	// leaderRole names the leader's role in the store.
	leaderRole = "service"
	// A leader leads for leadFor unless it renews its term, and each replica tries to become leader every electEvery: a
	// dead leader has a successor within their sum. A leader stops by itself, stopEarly before its term ends.
	leadFor    = 3500 * time.Millisecond
	electEvery = 500 * time.Millisecond
	stopEarly  = 500 * time.Millisecond
	// maxUnable is how long a leader may be unable to retry messages, and so to probe, while another replica is able.
	maxUnable = 5 * time.Second
)

// runElection asks for the lead until ctx ends, and leads while it has it.
func (r *Replicas) runElection(ctx context.Context) {
	var t *term
	for ctx.Err() == nil {
		began := time.Now()
		if r.isCandidate(began) {
			n, leads, err := r.requestLead(ctx)
			if t != nil && (err == nil && !leads || leads && t.number != n) {
				t.end()
				t = nil
			}
			switch {
			case err != nil || !leads: // the term continues while that is certain
			case t == nil:
				t = r.beginTerm(ctx, n, began)
			default:
				t.renew(began)
			}
		} else if t != nil {
			t.end()
			t = nil
			r.resign(ctx)
		}
		if t != nil && t.over() {
			t.end()
			t = nil
		}
		sleep(ctx, electEvery)
	}
	if t != nil {
		t.end()
		r.resign(ctx)
	}
}

func (r *Replicas) requestLead(ctx context.Context) (n uint64, leads bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	return r.Store.Lead(ctx, leaderRole, r.ID, leadFor)
}

// isCandidate reports whether this replica may lead: the leader probes breakers, so it must be
// able to retry messages.
func (r *Replicas) isCandidate(now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return now.Sub(r.lastAble) < maxUnable
}

func (r *Replicas) resign(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	if err := r.Store.Resign(ctx, leaderRole, r.ID); err != nil {
		r.Log.Info("cannot announce to the other replicas that this one no longer leads; they notice within seconds",
			"error", err)
	}
}

// term is the time in which this replica leads, from one election to the next.
type term struct {
	replicas *Replicas
	number   uint64
	cancel   context.CancelFunc
	ends     *time.Timer // cancels
	ctx      context.Context
	running  sync.WaitGroup
}

// beginTerm leads in term n, whose time counts from the request, asked.
func (r *Replicas) beginTerm(ctx context.Context, n uint64, asked time.Time) *term {
	t := &term{replicas: r, number: n}
	t.ctx, t.cancel = context.WithCancel(store.WithTerm(ctx, leaderRole, n))
	t.ends = time.AfterFunc(time.Until(asked.Add(leadFor-stopEarly)), t.cancel)
	r.setTerm(n)
	r.Log.Info("this replica leads now", "replica", r.ID, "term", n)
	t.running.Go(func() { r.Lead(t.ctx) })
	return t
}

func (t *term) renew(asked time.Time) { t.ends.Reset(time.Until(asked.Add(leadFor - stopEarly))) }

// over reports whether the term has ended.
func (t *term) over() bool { return t.ctx.Err() != nil }

// end ends the term, and waits until Lead has returned.
func (t *term) end() {
	t.ends.Stop()
	t.cancel()
	t.running.Wait()
	t.replicas.setTerm(0)
	t.replicas.Log.Info("this replica leads no longer", "replica", t.replicas.ID, "term", t.number)
}

func (r *Replicas) setTerm(n uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.termLed = n
}

const (
	announcementTopic = "replicas"
	// sendEvery is how long to collect announcements, so that a thousand failures are one message.
	sendEvery = 100 * time.Millisecond
	// A replica sends itself a ping every pingWhileUnsure until it receives one, and so knows that it receives
	// anything, and then every pingWhileReceiving. After silentFor without one it connects again.
	pingWhileUnsure, pingWhileReceiving = 200 * time.Millisecond, time.Second
	silentFor                           = 5 * time.Second
	// maxFailedIDs bounds the ids to announce, in bytes for each queue.
	maxFailedIDs = 16 * 65_536
)

// Announcement is what a replica sends to the others. It may be lost: replicas later read from the store what depends
// on it.
type Announcement struct {
	From string `json:"from"`
	Ping string `json:"ping,omitempty"` // to itself
	// SideTableChanged makes replicas read the side table again.
	SideTableChanged bool `json:"look,omitempty"`
	// Operations has the ids of operations that have changed.
	Operations []string `json:"operations,omitempty"`
	// Failed has, by queue, the ids, of 16 bytes each, of failed messages that the sender had not retried.
	Failed map[string][]byte `json:"failed,omitempty"`
	// Flows has, by queue, how many messages failed, were retried, parked and discarded since the sender's last
	// announcement.
	Flows map[string][4]int64 `json:"flows,omitempty"`
	// RetryStats has the results of the sender's latest retries, by queue; absent: unchanged.
	RetryStats json.RawMessage `json:"breakers,omitempty"`
}

// outbox collects the next announcement.
type outbox struct {
	mu    sync.Mutex
	next  *Announcement
	ready chan struct{}
}

// Announce sends an announcement soon, together with others. add adds to it; it must be quick, and must not keep its
// argument.
func (r *Replicas) Announce(add func(*Announcement)) {
	r.out.mu.Lock()
	defer r.out.mu.Unlock()
	if r.out.next == nil {
		r.out.next = &Announcement{From: r.ID}
	}
	add(r.out.next)
	signal(r.out.ready)
}

// AddFailed adds the id of a message that failed.
func (a *Announcement) AddFailed(queue string, id [16]byte) {
	if a.Failed == nil {
		a.Failed = map[string][]byte{}
	}
	if len(a.Failed[queue]) < maxFailedIDs {
		a.Failed[queue] = append(a.Failed[queue], id[:]...)
	}
}

// AddChanged adds operations that have changed.
func (a *Announcement) AddChanged(operations ...string) {
	for _, id := range operations {
		if !slices.Contains(a.Operations, id) {
			a.Operations = append(a.Operations, id)
		}
	}
}

// AddFlows adds what happened to the messages of queues.
func (a *Announcement) AddFlows(of map[string][4]int64) {
	if a.Flows == nil {
		a.Flows = map[string][4]int64{}
	}
	for queue, n := range of {
		sum := a.Flows[queue]
		for i := range n {
			sum[i] += n[i]
		}
		a.Flows[queue] = sum
	}
}

// runSending sends announcements until ctx ends.
func (r *Replicas) runSending(ctx context.Context) {
	failing := false
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return
		case <-r.out.ready:
		}
		r.out.mu.Lock()
		sent := r.out.next
		r.out.next = nil
		r.out.mu.Unlock()
		if sent == nil {
			continue
		}
		err := r.send(ctx, sent)
		if err != nil && ctx.Err() == nil {
			if !failing {
				r.Log.Warn("cannot send announcements to the other replicas; trying again", "error", err)
			}
			r.Announce(func(a *Announcement) { // the rest will be out of date
				a.SideTableChanged = a.SideTableChanged || sent.SideTableChanged
				a.AddChanged(sent.Operations...)
				a.AddFlows(sent.Flows)
			})
		}
		failing = err != nil
		sleep(ctx, sendEvery)
	}
}

func (r *Replicas) send(ctx context.Context, sent *Announcement) error {
	b, err := json.Marshal(sent)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	return r.Store.Send(ctx, announcementTopic, b)
}

// runReceiving receives announcements of others until ctx ends.
func (r *Replicas) runReceiving(ctx context.Context) {
	failing := false
	for ctx.Err() == nil {
		err := r.receive(ctx, func() { failing = false })
		if ctx.Err() != nil {
			return
		}
		if !failing {
			r.Log.Warn("cannot receive announcements of the other replicas; trying again", "error", err)
		}
		failing = true
		sleep(ctx, electEvery)
	}
}

var errPingLost = errors.New("its own ping did not arrive")

// receive receives announcements until some may have been missed. It calls live once it does receive.
func (r *Replicas) receive(ctx context.Context, live func()) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ping, received := NewID(), make(chan struct{}, 1)
	var pings sync.WaitGroup
	pings.Go(func() { r.ping(ctx, ping, received, live, cancel) })
	defer pings.Wait()
	err := r.Store.Listen(ctx, announcementTopic, func(b []byte) {
		var a Announcement
		switch err := json.Unmarshal(b, &a); {
		case err != nil: // of a version with another format
		case a.From == r.ID && a.Ping == ping:
			signal(received)
		case a.From != r.ID && a.Ping == "":
			if a.SideTableChanged {
				signal(r.pollNow)
			}
			r.Receive(a)
		}
	})
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	cancel(err)
	return err
}

// ping checks that this replica receives announcements.
func (r *Replicas) ping(
	ctx context.Context, ping string, received <-chan struct{}, live func(), fail context.CancelCauseFunc,
) {
	last, again, missed := time.Now(), pingWhileUnsure, true
	for ctx.Err() == nil {
		_ = r.send(ctx, &Announcement{From: r.ID, Ping: ping}) // a failed one does not arrive
		timer := time.NewTimer(again)
		select {
		case <-ctx.Done():
		case <-timer.C:
			if time.Since(last) > silentFor {
				fail(errPingLost)
			}
			timer.Stop()
			continue
		case <-received:
			last = time.Now()
		}
		if ctx.Err() == nil && missed {
			// From here on all announcements arrive; earlier ones may be missing.
			if missed = r.OnMissed(ctx) != nil; !missed {
				again = pingWhileReceiving
				live()
			}
		}
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}
