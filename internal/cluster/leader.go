package cluster

import (
	"context"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
)

const (
	// leaderRole names in the store what the leader leads.
	leaderRole = "service"
	// leadFor is how long a leader leads without renewing its term, and electEvery how often
	// replicas try to become leader: a dead one has a successor within their sum. A leader
	// stops by itself, stopEarly before its term ends.
	leadFor    = 3500 * time.Millisecond
	electEvery = 500 * time.Millisecond
	stopEarly  = 500 * time.Millisecond
	// maxUnable is how long a leader may be unable to retry messages, and so to probe, while
	// another replica could.
	maxUnable = 5 * time.Second
)

// runElection asks for the lead until ctx ends, and leads when it has it.
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
			case err != nil || !leads: // a term goes on for as long as it is sure
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

// isCandidate tells whether this replica may lead: the leader probes breakers, so it must be
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
		r.Log.Info("cannot announce to the other replicas that this one no longer leads; they notice within seconds", "error", err)
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

// beginTerm leads in term n, whose time counts from when it was asked for.
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

// over tells whether the term has ended.
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
