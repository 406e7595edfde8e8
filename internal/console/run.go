package console

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/redrive-mq/redrive/internal/store"
)

const (
	firstRest   = 250 * time.Millisecond
	longestRest = 15 * time.Second
	// stepsASecond is how many steps of an operation with a rate there are at least
	// in a second, so that its messages do not come in bursts.
	stepsASecond = 10
)

// Run does operations until ctx ends, those first that were under way when the
// service ended, and forgets what is old. What is under way then goes on at the
// next start.
//
// One goroutine does all operations, a step of each in turn: one of a million
// messages holds up another by no more than a step, and they take no more of the
// store than one goroutine can.
func (c *Console) Run(ctx context.Context) error {
	var others sync.WaitGroup
	defer others.Wait()
	others.Go(func() { c.forgetting(ctx) })
	for ctx.Err() == nil {
		at := c.round(ctx)
		timer := time.NewTimer(time.Until(at))
		if at.IsZero() {
			timer.Stop() // until something is told
		}
		select {
		case <-ctx.Done():
		case <-c.ops.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
	return nil
}

// round does a step of each operation that is ready for one, and tells when the
// next of them is; the zero time: when something is told.
func (c *Console) round(ctx context.Context) (next time.Time) {
	all, err := c.operations(ctx)
	if err != nil {
		if ctx.Err() == nil {
			c.Log.Error("operations cannot go on; trying again", "error", err)
		}
		return time.Now().Add(longestRest)
	}
	for _, id := range slices.Sorted(maps.Keys(all)) {
		op := all[id]
		op.mu.Lock()
		at := c.step(ctx, op)
		op.mu.Unlock()
		if !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	return next
}

// step does one step of an operation if it is ready, and tells when it will be
// ready for the next; the zero time: never by itself. The caller holds op.mu.
func (c *Console) step(ctx context.Context, op *operation) (next time.Time) {
	p := &op.progress
	if p.State != Running && p.State != Canary {
		if p.Ended != nil && p.Untold {
			c.over(ctx, op) // the service ended before it was told
		}
		return time.Time{}
	}
	if time.Now().Before(op.next) {
		return op.next
	}
	var err error
	if p.State == Canary {
		op.next, err = c.watch(ctx, op)
	} else {
		op.next, err = c.some(ctx, op)
	}
	if ctx.Err() != nil {
		return time.Time{}
	}
	if err != nil {
		if op.trouble == "" {
			c.Log.Warn("an operation cannot go on for now; trying again", "operation", op.ID, "error", err)
		}
		op.trouble = err.Error()
		op.next = time.Now().Add(min(firstRest<<min(op.tries, 16), longestRest))
		op.tries++
	} else {
		op.tries, op.trouble = 0, ""
	}
	if p.Ended != nil {
		c.over(ctx, op)
		return time.Time{}
	}
	return op.next
}

// some deals with the next messages of an operation, as many as one step may.
func (c *Console) some(ctx context.Context, op *operation) (next time.Time, err error) {
	p := op.progress
	at := p.dealt()
	if at == op.Count { // its last messages were the canary
		return c.put(ctx, op, Finished, "")
	}
	n := min(chunk, op.Count-at)
	if c := int64(op.Canary); at < c {
		n = min(n, c-at)
	}
	now := time.Now()
	if op.Rate > 0 {
		n = min(n, max(1, int64(op.Rate/stepsASecond)))
		if op.limit == nil {
			op.limit = rate.NewLimiter(rate.Limit(op.Rate), int(max(1, int64(op.Rate/stepsASecond))))
		}
	}
	frozen, err := c.readChunk(ctx, partsOf(op.ID)+"keys/"+chunkName(at/chunk))
	if err != nil {
		return next, err
	}
	if at%chunk >= int64(len(frozen)) {
		return c.put(ctx, op, Stopped, "the list of its messages is damaged: make a new plan for what is left")
	}
	frozen = frozen[at%chunk:]
	frozen = frozen[:min(n, int64(len(frozen)))]
	if op.limit != nil && !op.limit.AllowN(now, len(frozen)) {
		wait := op.limit.ReserveN(now, len(frozen))
		defer wait.CancelAt(now)
		return now.Add(wait.DelayFrom(now)), nil
	}
	if why := c.lost(ctx, op, frozen); why != "" {
		return c.put(ctx, op, Stopped, why)
	}
	targets := make([]target, len(frozen))
	for i, f := range frozen {
		targets[i] = target{id: f.id, queue: op.Queues[f.queue].Queue, key: f.key, state: f.state}
	}
	d := deed{verb: op.Verb, by: op.StartedBy, to: op.To, at: op.At, restorable: c.Restorable}
	var watched []sent
	if at < int64(op.Canary) {
		d.sent = func(r *store.Record) { watched = append(watched, sentAs(r)) }
	}
	outcomes, err := c.apply(ctx, d, targets, func(all []Outcome) []store.Entry {
		p = op.progress
		for _, o := range all {
			if o.Outcome == done {
				p.Done++
			} else {
				p.Skipped++
			}
		}
		switch dealt := p.dealt(); {
		case at < int64(op.Canary) && (dealt == int64(op.Canary) || dealt == op.Count):
			p.State = Canary
		case dealt == op.Count:
			ended := c.Now()
			p.State, p.Ended = Finished, &ended
		}
		entries := []store.Entry{
			entryOf(partsOf(op.ID)+"progress", p),
			entryOf(partsOf(op.ID)+"outcome/"+fmt.Sprintf("%012d", at), all),
		}
		if len(watched) > 0 {
			entries = append(entries, entryOf(partsOf(op.ID)+"canary/"+fmt.Sprintf("%012d", at), watched))
		}
		return entries
	})
	if err != nil {
		return next, err
	}
	op.progress = p
	op.forget(now)
	op.speed = append(op.speed, pace{time.Now(), p.dealt()})
	c.tellOf(d, outcomes)
	return now, nil
}

// put writes that an operation is in another state.
func (c *Console) put(ctx context.Context, op *operation, state, why string) (time.Time, error) {
	p := op.progress
	p.State, p.Why = state, why
	if state == Finished || state == Stopped {
		now := c.Now()
		p.Ended = &now
	}
	if err := c.Store.PutEntries(ctx, []store.Entry{entryOf(partsOf(op.ID)+"progress", p)}); err != nil {
		return time.Time{}, err
	}
	op.progress = p
	return time.Now(), nil
}

// lost is why messages have nowhere to go any more, or "". That RabbitMQ does not
// say is no reason: they wait then until it takes them.
func (c *Console) lost(ctx context.Context, op *operation, of []frozen) string {
	ask := map[string]bool{}
	switch op.Verb {
	case Replay:
		for _, f := range of {
			ask[op.Queues[f.queue].Queue] = true
		}
	case Copy:
		ask[op.To] = true
	}
	now := time.Now()
	for queue := range ask {
		if now.Sub(op.there[queue]) < seenLately {
			continue
		}
		switch at, err := c.atBroker(ctx, queue); {
		case err != nil:
		case !at.Exists:
			return fmt.Sprintf("the queue %q does not exist any more; what is left is as it was", queue)
		}
		if op.there == nil {
			op.there = map[string]time.Time{}
		}
		op.there[queue] = now
	}
	return ""
}

// seenLately is how long a queue that was there is taken to be.
const seenLately = 2 * time.Second

// over writes the last line of an ended operation to the audit log. It stands
// there once or, when the service ends in between, twice. The caller holds op.mu.
func (c *Console) over(ctx context.Context, op *operation) {
	c.ops.ended(op.ID)
	p := op.progress
	end, err := c.begin(op.StartedAs, "operation.end", op.ID, op.Count, p.Why)
	if err == nil {
		end(nil, p.Done)
		p.Untold = false
		err = c.Store.PutEntries(context.WithoutCancel(ctx), []store.Entry{entryOf(partsOf(op.ID)+"progress", p)})
	}
	if err != nil {
		c.Log.Error("the end of an operation is not in the audit log; it will be written at the next start", "operation", op.ID, "error", err)
		return
	}
	op.progress = p
	c.Log.Info("an operation has ended", "operation", op.ID, "state", p.State, "done", p.Done, "skipped", p.Skipped, "of", op.Count)
}
