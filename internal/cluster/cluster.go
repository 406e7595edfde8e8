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
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
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

// Member is this replica, and what it knows of the others. Create it with New, then Run it.
type Member struct {
	Config
	out     outbox
	pollNow chan struct{} // makes runPolling poll at once
	termLed atomic.Uint64 // the term in which it leads; 0: it does not lead

	mu         sync.Mutex
	known      map[string]*knownReplica
	askedSince time.Time // when it asked for a share; zero: it has not
	lastAble   time.Time // when it could last retry messages, or no other replica could
}

func New(c Config) *Member {
	return &Member{Config: c, pollNow: make(chan struct{}, 1), known: map[string]*knownReplica{},
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
func (m *Member) Run(ctx context.Context) {
	var parts sync.WaitGroup
	parts.Go(func() { m.runHeartbeats(ctx) })
	parts.Go(func() { m.runElection(ctx) })
	parts.Go(func() { m.runPolling(ctx) })
	parts.Go(func() { m.runSending(ctx) })
	parts.Go(func() { m.runReceiving(ctx) })
	parts.Wait()
	leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	if err := m.Store.Leave(leaving, m.ID); err != nil {
		m.Log.Info("cannot announce to the other replicas that this one stops; they notice within seconds",
			"error", err)
	}
}

const storeTimeout = time.Second

// All returns the replicas that this one knows to be alive, by id.
func (m *Member) All() []Replica {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	var all []Replica
	for id, k := range m.known {
		if now.Sub(k.seen) < goneAfter {
			all = append(all, Replica{ID: id, About: k.latest.About, Leads: k.latest.Leads, Self: id == m.ID,
				Beat: k.seen})
		}
	}
	slices.SortFunc(all, func(a, b Replica) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

func (m *Member) Leads() bool { return m.termLed.Load() != 0 }

func (m *Member) PollSoon() { signal(m.pollNow) }

// pollEvery is how often Poll is called, in case an announcement of a change was lost.
const pollEvery = 500 * time.Millisecond

func (m *Member) runPolling(ctx context.Context) {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		m.Poll(ctx)
		select {
		case <-ctx.Done():
		case <-tick.C:
		case <-m.pollNow:
		}
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
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

type heartbeat struct {
	About
	N     uint64 `json:"n"` // makes each one differ
	Leads bool   `json:"leads"`
}

type knownReplica struct {
	latest heartbeat
	seen   time.Time // when its heartbeat last changed
	// acknowledged reports whether it has sent a heartbeat since this replica asked for a share: then it has divided
	// the limits with this one.
	acknowledged bool
}

func (m *Member) runHeartbeats(ctx context.Context) {
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	var n uint64
	failing := false
	for ctx.Err() == nil {
		n++
		began := time.Now()
		about := heartbeat{About: m.About(), N: n, Leads: m.Leads()}
		about.Conditions = shortened(about.Conditions)
		all, err := m.sendHeartbeat(ctx, about)
		switch {
		case err == nil:
			m.OnShare(m.divide(all, about, began, time.Now()))
			if failing {
				m.Log.Info("this replica can read and write heartbeats again")
			}
		case ctx.Err() == nil && !failing:
			m.Log.Warn("this replica cannot write its heartbeat, nor read those of others; until it can, it retries "+
				"nothing to queues with a rate, a bound in flight or a breaker", "error", err)
		}
		failing = err != nil
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

func (m *Member) sendHeartbeat(ctx context.Context, about heartbeat) ([]store.Replica, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	text, err := json.Marshal(about)
	if err != nil {
		return nil, err
	}
	return m.Store.Beat(ctx, m.ID, text, goneAfter)
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
func (m *Member) divide(all []store.Replica, own heartbeat, began, now time.Time) Share {
	m.mu.Lock()
	defer m.mu.Unlock()
	asks := own.CanPublish && m.askedSince.IsZero()
	if asks {
		m.askedSince = now
	} else if !own.CanPublish {
		m.askedSince = time.Time{}
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
		k := m.known[s.ID]
		if k == nil {
			k = &knownReplica{}
			m.known[s.ID] = k
		}
		if k.latest.N != b.N || k.seen.IsZero() {
			k.acknowledged, k.seen = !asks, now
		} else if asks {
			k.acknowledged = false
		}
		k.latest = b
		switch {
		case s.ID == m.ID:
			self = share.N
			share.N++
		case now.Sub(k.seen) < shareLease:
			acknowledged = acknowledged && k.acknowledged
			if b.CanPublish {
				share.N++
				others = true
			}
		}
	}
	maps.DeleteFunc(m.known, func(id string, _ *knownReplica) bool { return !there[id] })
	if own.CanPublish || !others {
		m.lastAble = now
	}
	share.I = self
	if !own.CanPublish || self < 0 || !acknowledged && now.Sub(m.askedSince) < shareLease {
		return Share{Until: share.Until}
	}
	return share
}

const (
	leaderRole = "service"
	// A leader leads for leadFor unless it renews its term, and each replica tries to become leader every electEvery: a
	// dead leader has a successor within their sum. A leader stops by itself, stopEarly before its term ends.
	leadFor    = 3500 * time.Millisecond
	electEvery = 500 * time.Millisecond
	stopEarly  = 500 * time.Millisecond
	// maxUnable is how long a leader may be unable to retry messages, and so to probe, while another replica is able.
	maxUnable = 5 * time.Second
)

func (m *Member) runElection(ctx context.Context) {
	var t *term
	for ctx.Err() == nil {
		began := time.Now()
		if m.isCandidate(began) {
			n, leads, err := m.requestLead(ctx)
			if t != nil && (err == nil && !leads || leads && t.number != n) {
				t.end()
				t = nil
			}
			switch {
			case err != nil || !leads: // the term continues while that is certain
			case t == nil:
				t = m.beginTerm(ctx, n, began)
			default:
				t.ends.Reset(time.Until(began.Add(leadFor - stopEarly)))
			}
		} else if t != nil {
			t.end()
			t = nil
			m.resign(ctx)
		}
		if t != nil && t.ctx.Err() != nil {
			t.end()
			t = nil
		}
		sleep(ctx, electEvery)
	}
	if t != nil {
		t.end()
		m.resign(ctx)
	}
}

func (m *Member) requestLead(ctx context.Context) (n uint64, leads bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	return m.Store.Lead(ctx, leaderRole, m.ID, leadFor)
}

// isCandidate reports whether this replica may lead: the leader probes breakers, so it must be
// able to retry messages.
func (m *Member) isCandidate(now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return now.Sub(m.lastAble) < maxUnable
}

func (m *Member) resign(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	if err := m.Store.Resign(ctx, leaderRole, m.ID); err != nil {
		m.Log.Info("cannot announce to the other replicas that this one no longer leads; they notice within seconds",
			"error", err)
	}
}

type term struct {
	member  *Member
	number  uint64
	cancel  context.CancelFunc
	ends    *time.Timer // cancels
	ctx     context.Context
	running sync.WaitGroup
}

// beginTerm leads in term n, whose time counts from the request, asked.
func (m *Member) beginTerm(ctx context.Context, n uint64, asked time.Time) *term {
	t := &term{member: m, number: n}
	t.ctx, t.cancel = context.WithCancel(store.WithTerm(ctx, leaderRole, n))
	t.ends = time.AfterFunc(time.Until(asked.Add(leadFor-stopEarly)), t.cancel)
	m.termLed.Store(n)
	m.Log.Info("this replica leads now", "replica", m.ID, "term", n)
	t.running.Go(func() { m.Lead(t.ctx) })
	return t
}

// end ends the term, and waits until Lead has returned.
func (t *term) end() {
	t.ends.Stop()
	t.cancel()
	t.running.Wait()
	t.member.termLed.Store(0)
	t.member.Log.Info("this replica leads no longer", "replica", t.member.ID, "term", t.number)
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
	SideTableChanged bool     `json:"look,omitempty"`
	Operations       []string `json:"operations,omitempty"`
	// Failed has, by queue, the ids, of 16 bytes each, of failed messages that the sender had not retried.
	Failed map[string][]byte `json:"failed,omitempty"`
	// Flows has, by queue, how many messages failed, were retried, parked and discarded since the sender's last
	// announcement.
	Flows map[string][4]int64 `json:"flows,omitempty"`
	// RetryStats has the results of the sender's latest retries, by queue; absent: unchanged.
	RetryStats json.RawMessage `json:"breakers,omitempty"`
}

type outbox struct {
	mu    sync.Mutex
	next  *Announcement
	ready chan struct{}
}

// Announce sends an announcement soon, together with others. add adds to it; it must be quick, and must not keep its
// argument.
func (m *Member) Announce(add func(*Announcement)) {
	m.out.mu.Lock()
	defer m.out.mu.Unlock()
	if m.out.next == nil {
		m.out.next = &Announcement{From: m.ID}
	}
	add(m.out.next)
	signal(m.out.ready)
}

func (a *Announcement) AddFailed(queue string, id [16]byte) {
	if a.Failed == nil {
		a.Failed = map[string][]byte{}
	}
	if len(a.Failed[queue]) < maxFailedIDs {
		a.Failed[queue] = append(a.Failed[queue], id[:]...)
	}
}

func (a *Announcement) AddChanged(operations ...string) {
	for _, id := range operations {
		if !slices.Contains(a.Operations, id) {
			a.Operations = append(a.Operations, id)
		}
	}
}

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

func (m *Member) runSending(ctx context.Context) {
	failing := false
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return
		case <-m.out.ready:
		}
		m.out.mu.Lock()
		sent := m.out.next
		m.out.next = nil
		m.out.mu.Unlock()
		if sent == nil {
			continue
		}
		err := m.send(ctx, sent)
		if err != nil && ctx.Err() == nil {
			if !failing {
				m.Log.Warn("cannot send announcements to the other replicas; trying again", "error", err)
			}
			m.Announce(func(a *Announcement) { // the rest will be out of date
				a.SideTableChanged = a.SideTableChanged || sent.SideTableChanged
				a.AddChanged(sent.Operations...)
				a.AddFlows(sent.Flows)
			})
		}
		failing = err != nil
		sleep(ctx, sendEvery)
	}
}

func (m *Member) send(ctx context.Context, sent *Announcement) error {
	b, err := json.Marshal(sent)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	return m.Store.Send(ctx, announcementTopic, b)
}

func (m *Member) runReceiving(ctx context.Context) {
	failing := false
	for ctx.Err() == nil {
		err := m.receive(ctx, func() { failing = false })
		if ctx.Err() != nil {
			return
		}
		if !failing {
			m.Log.Warn("cannot receive announcements of the other replicas; trying again", "error", err)
		}
		failing = true
		sleep(ctx, electEvery)
	}
}

var errPingLost = errors.New("its own ping did not arrive")

// receive receives announcements until some may have been missed. It calls live once it does receive.
func (m *Member) receive(ctx context.Context, live func()) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ping, received := NewID(), make(chan struct{}, 1)
	var pings sync.WaitGroup
	pings.Go(func() { m.ping(ctx, ping, received, live, cancel) })
	defer pings.Wait()
	err := m.Store.Listen(ctx, announcementTopic, func(b []byte) {
		var a Announcement
		switch err := json.Unmarshal(b, &a); {
		case err != nil: // of a version with another format
		case a.From == m.ID && a.Ping == ping:
			signal(received)
		case a.From != m.ID && a.Ping == "":
			if a.SideTableChanged {
				signal(m.pollNow)
			}
			m.Receive(a)
		}
	})
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	cancel(err)
	return err
}

func (m *Member) ping(
	ctx context.Context, ping string, received <-chan struct{}, live func(), fail context.CancelCauseFunc,
) {
	last, again, missed := time.Now(), pingWhileUnsure, true
	for ctx.Err() == nil {
		_ = m.send(ctx, &Announcement{From: m.ID, Ping: ping}) // a failed one does not arrive
		timer := time.After(again)
		select {
		case <-ctx.Done():
		case <-timer:
			if time.Since(last) > silentFor {
				fail(errPingLost)
			}
			continue
		case <-received:
			last = time.Now()
		}
		if ctx.Err() == nil && missed {
			// From here on all announcements arrive; earlier ones may be missing.
			if missed = m.OnMissed(ctx) != nil; !missed {
				again = pingWhileReceiving
				live()
			}
		}
		select {
		case <-ctx.Done():
		case <-timer:
		}
	}
}
