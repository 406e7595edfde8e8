package replica

import (
	"context"
	"time"
)

// rereadEvery is how often all operations are read again: a replica may have written a change, and
// died before it announced that.
const rereadEvery = 30 * time.Second

// poll reads what other replicas have written, and writes the breakers if this one leads.
func (r *Replica) poll(ctx context.Context) {
	r.mu.Lock()
	term := r.term
	r.mu.Unlock()
	err := r.Actions.ReadSettings(ctx, r.Scheduler.SetPauses)
	r.Operations.Wake() // for those of a replica that has died
	if err == nil {
		err = r.Inspect.ReadRecount(ctx)
	}
	if err == nil && time.Since(r.rereadAt) >= rereadEvery {
		r.rereadAt = time.Now()
		r.Operations.Reread()
	}
	if err == nil && term != nil {
		err = r.writeBreakers(term)
	} else if err == nil {
		err = r.followBreakers(ctx)
	}
	r.mu.Lock()
	was := r.unreadable
	r.unreadable = err != nil && ctx.Err() == nil
	is := r.unreadable
	r.mu.Unlock()
	switch {
	case is && !was:
		r.log.Warn("the changes of other replicas cannot be read for now: pauses, breakers", "error", err)
	case was && !is:
		r.log.Info("the changes of other replicas can be read again")
	}
}

// missed reads again what announcements that were lost may have been about.
func (r *Replica) missed(context.Context) error {
	r.PollSoon()
	r.Operations.Reread()
	return nil
}
