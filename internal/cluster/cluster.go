// Package cluster makes one service of several processes that share a store. Read it
// in this order:
//
//	cluster.go    what a replica is, and what runs in each
//	heartbeat.go  which are alive, and the share of each in a limit
//	leader.go     the leader does what only one may
//	messages.go   what they announce to each other
//
// It knows nothing of messages, queues or policies: its caller passes what to do and to announce.
// Nothing here outlasts the processes: longer agreements are in the store's side table.
package cluster

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
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
	Address    string                `json:"address"` // where its page and API are
	Version    string                `json:"version"`
	Since      time.Time             `json:"since"`
	Conditions []condition.Condition `json:"conditions,omitempty"` // that hold there
	// NotReady: its readiness check fails over Conditions.
	NotReady bool `json:"unready,omitempty"`
	// CanPublish: it could retry messages now.
	CanPublish bool `json:"able"`
}

// Replica is a replica that is alive.
type Replica struct {
	ID string
	About
	Self  bool
	Leads bool
	// Beat is when its latest heartbeat was seen, by the clock here.
	Beat time.Time
}

// Share is a replica's share of the limits that all share: it is the I-th of N, from 0 on,
// until Until. N is 0 while it has none.
type Share struct {
	N, I  int
	Until time.Time
}

// Config is what a replica does. Each of its functions is called by one goroutine at a time.
type Config struct {
	Store store.Shared
	// ID is unique to this process: see NewID.
	ID    string
	About func() About
	// OnShare receives its share, with each heartbeat.
	OnShare func(Share)
	// Lead does what only one replica may, until ctx ends: as soon as it is not certain any
	// more that this replica leads. Its writes to the side table with ctx fail once another
	// replica leads. It first reads again all that it depends on.
	Lead func(ctx context.Context)
	// Poll reads what others may have changed in the side table: every half second, and as
	// soon as one of them announces it.
	Poll func(ctx context.Context)
	// Receive receives the announcements of other replicas.
	Receive func(Announcement)
	// OnMissed is called at first, and when announcements may have been missed. After an error
	// it is called again.
	OnMissed func(ctx context.Context) error
	Log      *slog.Logger
}

// Replicas is this replica, and what it knows of the others. Make it with New, and Run it.
type Replicas struct {
	Config
	out     outbox
	pollNow chan struct{} // Poll is due

	mu         sync.Mutex
	known      map[string]*knownReplica
	askedSince time.Time // when it asked for a share; zero: it has not asked
	termLed    uint64    // the term in which it leads; 0: it does not
	lastAble   time.Time // when it could last retry messages, or no other could either
}

// New makes a replica. The others do not know it before Run.
func New(c Config) *Replicas {
	return &Replicas{Config: c, pollNow: make(chan struct{}, 1), known: map[string]*knownReplica{}, out: outbox{ready: make(chan struct{}, 1)}}
}

// NewID returns an id for this process, which begins with the machine's name.
func NewID() string {
	host, _ := os.Hostname()
	var random [4]byte
	_, _ = rand.Read(random[:]) // it never fails
	return cmp.Or(host, "replica") + "-" + hex.EncodeToString(random[:])
}

// Run takes part until ctx ends. Then it leaves, so that the others need not wait until its
// heartbeats are missing.
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
		r.Log.Info("cannot announce to the other replicas that this one stops; they notice within seconds", "error", err)
	}
}

// storeTimeout is how long a call of the store may take.
const storeTimeout = time.Second

// All returns the replicas that are alive, as far as this one knows, in the order of their ids.
func (r *Replicas) All() []Replica {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	var all []Replica
	for id, k := range r.known {
		if now.Sub(k.seen) < goneAfter {
			all = append(all, Replica{ID: id, About: k.latest.About, Leads: k.latest.Leads, Self: id == r.ID, Beat: k.seen})
		}
	}
	slices.SortFunc(all, func(a, b Replica) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

// Leads tells whether this replica is the leader.
func (r *Replicas) Leads() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.termLed != 0
}

// PollSoon makes Poll be called at once.
func (r *Replicas) PollSoon() { signal(r.pollNow) }

// pollEvery is how often Poll is called: changes of the side table are announced too, and this
// is for announcements that were lost.
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
