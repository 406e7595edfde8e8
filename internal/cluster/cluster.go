// Package cluster makes one service of several processes that share a store. Read it
// in this order:
//
//	replicas.go  what a replica is, and what runs in each
//	beat.go      which are alive, and the share of each in a limit
//	lead.go      the leader does what only one may
//	messages.go  what they announce to each other
//
// It knows nothing of messages, queues or policies: its caller says what to do and to announce.
// Nothing here must be kept: what the replicas agree on for longer is in the store's side table.
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

	"github.com/redrive-mq/redrive/internal/store"
)

// About is what a replica tells of itself.
type About struct {
	Address string    `json:"address"` // where its page and API are
	Version string    `json:"version"`
	Since   time.Time `json:"since"`
	// Wrong is what is wrong there now, by part of the service.
	Wrong map[string]string `json:"wrong,omitempty"`
	// Unready: it is not ready for that.
	Unready bool `json:"unready,omitempty"`
	// Able: it could return messages now.
	Able bool `json:"able"`
}

// Replica is one that is alive.
type Replica struct {
	ID string
	About
	Self  bool
	Leads bool
	// Beat is when it was last heard of, by the clock here.
	Beat time.Time
}

// Part is what a replica has of what is limited for all: it is the I-th of N, from 0
// on, until Until. N is 0 while it has none.
type Part struct {
	N, I  int
	Until time.Time
}

// Config is what a replica does. Its functions are each called by one goroutine at a
// time.
type Config struct {
	Store store.Shared
	// ID is no other process's, now or ever: see NewID.
	ID    string
	About func() About
	// Parted receives its part, with each beat.
	Parted func(Part)
	// Lead does what only one of all replicas may, until ctx ends, which it does as
	// soon as it is not certain any more that this replica leads. What it writes with
	// ctx to the side table is refused once another leads. It begins by reading again
	// whatever it goes by.
	Lead func(ctx context.Context)
	// Look looks at what others may have changed in the side table: every half second,
	// and as soon as one of them says so.
	Look func(ctx context.Context)
	// Hear receives what another replica says.
	Hear func(Said)
	// Missed is called when something that was said may not have been heard, and at
	// first. After an error it is called again.
	Missed func(ctx context.Context) error
	Log    *slog.Logger
}

// Replicas is this replica, among the others. Make it with New, and Run it.
type Replicas struct {
	Config
	out  outbox
	look chan struct{} // it is time to

	mu    sync.Mutex
	known map[string]*known
	since time.Time // when it asked others to reckon with it; zero: it does not
	leads uint64    // the term in which it leads; 0: it does not
	able  time.Time // when it could return messages last, or another could not either
}

// New makes a replica, which the others know nothing of before Run.
func New(c Config) *Replicas {
	return &Replicas{Config: c, look: make(chan struct{}, 1), known: map[string]*known{}, out: outbox{news: make(chan struct{}, 1)}}
}

// NewID is an id for this process, with the machine's name so that people know it.
func NewID() string {
	host, _ := os.Hostname()
	var random [4]byte
	_, _ = rand.Read(random[:]) // it never fails
	return cmp.Or(host, "replica") + "-" + hex.EncodeToString(random[:])
}

// Run is a replica until ctx ends; then it leaves, so that the others need not wait to
// find it gone.
func (r *Replicas) Run(ctx context.Context) {
	var parts sync.WaitGroup
	parts.Go(func() { r.beating(ctx) })
	parts.Go(func() { r.standing(ctx) })
	parts.Go(func() { r.looking(ctx) })
	parts.Go(func() { r.telling(ctx) })
	parts.Go(func() { r.listening(ctx) })
	parts.Wait()
	leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), call)
	defer cancel()
	if err := r.Store.Leave(leaving, r.ID); err != nil {
		r.Log.Info("the other replicas are not told that this one ends; they find out within seconds", "error", err)
	}
}

// call is how long a question to the store may take.
const call = time.Second

// All are the replicas that are alive, as far as is known here, in the order of their
// ids.
func (r *Replicas) All() []Replica {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	var all []Replica
	for id, k := range r.known {
		if now.Sub(k.seen) < gone {
			all = append(all, Replica{ID: id, About: k.about.About, Leads: k.about.Leads, Self: id == r.ID, Beat: k.seen})
		}
	}
	slices.SortFunc(all, func(a, b Replica) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

// Leads tells whether this replica is the leader.
func (r *Replicas) Leads() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.leads != 0
}

// LookSoon lets Look be called at once.
func (r *Replicas) LookSoon() { signal(r.look) }

// lookEvery is how often the side table is looked at: who changes it says so too, and
// this is for what was not heard.
const lookEvery = 500 * time.Millisecond

func (r *Replicas) looking(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		r.Look(ctx)
		select {
		case <-ctx.Done():
		case <-tick.C:
		case <-r.look:
		}
	}
}

// signal lets who waits for a channel know that there is news.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// rest waits for so long, or until ctx ends.
func rest(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
