package actions

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/store"
)

// Breaker sets a queue's circuit breaker, over restarts: open, closed, or auto, with which
// it opens and closes by itself again.
func (a *Actions) Breaker(ctx context.Context, by auth.Caller, queue, to, reason string) error {
	if err := a.Permit(by, auth.Operator, "breaker", queue, queue); err != nil {
		return err
	}
	// What was set for a queue can be undone when the queue is gone.
	if set, err := a.Store.Entry(ctx, store.BreakerPrefix+queue); err != nil {
		return err
	} else if set == nil || to != "auto" {
		if err := a.checkWorkQueue(ctx, queue); err != nil {
			return err
		}
	}
	var entry []byte
	switch to {
	case "auto":
	case "open", "closed":
		var err error
		if entry, err = json.Marshal(inspect.Forced{To: to, By: by.Name, Since: a.now(), Reason: reason}); err != nil {
			return err
		}
	default:
		return fmt.Errorf("%w: a breaker can be set to open, closed or auto, not to %.20q", inspect.ErrInvalid, to)
	}
	return a.set(ctx, by, "breaker "+to, queue, reason, store.Entry{Name: store.BreakerPrefix + queue, Value: entry}, func() {
		if a.Force != nil {
			a.Force(queue, to, by.Name, reason)
			a.noteForced(queue, entry)
		}
	})
}
