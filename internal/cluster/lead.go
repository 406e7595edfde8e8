package cluster

import (
	"context"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
)

const (
	// what there is one leader of.
	what = "service"
	// leadFor is how long a leader leads without saying so again, and standEvery how
	// often replicas try to become it: a dead one has a successor within their sum. A
	// leader stops by itself sure before its time is over.
	leadFor    = 3500 * time.Millisecond
	standEvery = 500 * time.Millisecond
	sure       = 500 * time.Millisecond
	// unable is how long a leader may be unable to return messages, and so to probe,
	// while another replica could.
	unable = 5 * time.Second
)

// standing stands for leader until ctx ends, and leads when it is.
func (r *Replicas) standing(ctx context.Context) {
	var t *term
	for ctx.Err() == nil {
		began := time.Now()
		if r.stands(began) {
			n, leads, err := r.stand(ctx)
			if t != nil && (err == nil && !leads || leads && t.n != n) {
				t.end()
				t = nil
			}
			switch {
			case err != nil || !leads: // a term goes on for as long as it is sure
			case t == nil:
				t = r.begin(ctx, n, began)
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
		rest(ctx, standEvery)
	}
	if t != nil {
		t.end()
		r.resign(ctx)
	}
}

func (r *Replicas) stand(ctx context.Context) (n uint64, leads bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, call)
	defer cancel()
	return r.Store.Lead(ctx, what, r.ID, leadFor)
}

// stands tells whether this replica is fit to lead: breakers are probed by the leader.
func (r *Replicas) stands(now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return now.Sub(r.able) < unable
}

func (r *Replicas) resign(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), call)
	defer cancel()
	if err := r.Store.Resign(ctx, what, r.ID); err != nil {
		r.Log.Info("the other replicas are not told that this one leads no longer; they find out within seconds", "error", err)
	}
}

// term is a time of leading.
type term struct {
	r      *Replicas
	n      uint64
	cancel context.CancelFunc
	ends   *time.Timer // cancels
	ctx    context.Context
	doing  sync.WaitGroup
}

// begin leads from when it was said on.
func (r *Replicas) begin(ctx context.Context, n uint64, said time.Time) *term {
	t := &term{r: r, n: n}
	t.ctx, t.cancel = context.WithCancel(store.WithTerm(ctx, what, n))
	t.ends = time.AfterFunc(time.Until(said.Add(leadFor-sure)), t.cancel)
	r.set(n)
	r.Log.Info("this replica leads now", "replica", r.ID, "term", n)
	t.doing.Go(func() { r.Lead(t.ctx) })
	return t
}

func (t *term) renew(said time.Time) { t.ends.Reset(time.Until(said.Add(leadFor - sure))) }

// over tells whether its time is.
func (t *term) over() bool { return t.ctx.Err() != nil }

// end waits until nothing of it is done any more.
func (t *term) end() {
	t.ends.Stop()
	t.cancel()
	t.doing.Wait()
	t.r.set(0)
	t.r.Log.Info("this replica leads no longer", "replica", t.r.ID, "term", t.n)
}

func (r *Replicas) set(n uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leads = n
}
