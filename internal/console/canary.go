package console

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/store"
)

// sent is one of the first messages of an operation, as it was sent: what has the
// same id, but not these, has come back.
type sent struct {
	ID      uuid.UUID
	Attempt int
	Failed  int64 // microseconds
}

func sentAs(r *store.Record) sent { return sent{r.ID, r.Attempt, r.FailedAt.UnixMicro()} }

// canaryLooks is how often the first messages are looked for while they are
// watched, and most and least how far apart.
const (
	canaryLooks = 20
	leastLook   = 100 * time.Millisecond
	mostLook    = 5 * time.Second
)

// watch looks whether any of the first messages is kept again. What is kept in the
// store says so, and nothing in memory: it is the same after a restart. The wait
// begins when all of them are out.
func (c *Console) watch(ctx context.Context, op *operation) (next time.Time, err error) {
	if op.canary == nil {
		if op.canary, err = c.readCanary(ctx, op.ID); err != nil {
			return next, err
		}
	}
	back, unsent, first := 0, 0, ""
	for _, s := range op.canary {
		kept, err := c.Store.Find(ctx, s.ID)
		if err != nil {
			return next, err
		}
		switch how, why := s.among(kept); how {
		case cameBack:
			if back++; first == "" {
				first = fmt.Sprintf("message %s: %s", s.ID, why)
			}
		case stillHere:
			unsent++
		}
	}
	p := op.progress
	now := c.Now()
	switch look := min(max(op.CanaryWait/canaryLooks, leastLook), mostLook); {
	case len(op.canary) == 0: // none of all was there any more
		return c.put(ctx, op, Running, "")
	case back > 0:
		return c.put(ctx, op, Stopped, fmt.Sprintf("of the first %d messages %d came back (%s); what is left is as it was", len(op.canary), back, first))
	case unsent > 0:
		if p.Watched.IsZero() {
			return time.Now().Add(look), nil
		}
		op.set(func() { op.progress.Watched = time.Time{} })
		return c.put(ctx, op, Canary, "")
	case p.Watched.IsZero():
		op.set(func() { op.progress.Watched = now })
		return c.put(ctx, op, Canary, "")
	case now.Sub(p.Watched) < op.CanaryWait:
		return time.Now().Add(min(look, op.CanaryWait-now.Sub(p.Watched))), nil
	}
	return c.put(ctx, op, Running, "")
}

type whereabouts int

const (
	out whereabouts = iota
	stillHere
	cameBack
)

// among looks for a message among what is kept under its id.
func (s sent) among(kept []store.Listed) (how whereabouts, why string) {
	for _, l := range kept {
		r := l.Record
		switch same := r.Attempt == s.Attempt && r.FailedAt.UnixMicro() == s.Failed; {
		case !same && r.Error != "":
			return cameBack, short(r.Error)
		case !same:
			return cameBack, "it failed again: " + r.Reason
		case r.State == store.Parked: // it could not be returned
			return cameBack, r.ParkedFor
		case r.State == store.Waiting:
			how = stillHere
		}
	}
	return how, ""
}

func (c *Console) readCanary(ctx context.Context, id string) ([]sent, error) {
	all := []sent{}
	err := c.Store.Entries(ctx, partsOf(id)+"canary/", "", func(e store.Entry) (bool, error) {
		var some []sent
		if err := json.Unmarshal(e.Value, &some); err != nil {
			return false, fmt.Errorf("%s: %w", e.Name, err)
		}
		all = append(all, some...)
		return true, nil
	})
	return all, err
}
