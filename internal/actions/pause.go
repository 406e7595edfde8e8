package actions

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/wire"
)

// PauseQueue pauses the retries of a queue until ResumeQueue, over restarts. Waiting messages
// keep their attempts and due times; what is in flight still arrives.
func (a *Actions) PauseQueue(ctx context.Context, by auth.Caller, queue, reason string) error {
	if err := a.Permit(by, auth.Operator, "pause", queue, queue); err != nil {
		return err
	}
	if err := a.checkWorkQueue(ctx, queue); err != nil {
		return err
	}
	pauses, err := inspect.Pauses(ctx, a.Store)
	if err != nil {
		return err
	}
	pause, paused := pauses[queue]
	switch {
	case !paused:
		pause = inspect.QueuePause{By: by.Name, Since: a.now(), Reason: reason}
	case reason != "": // the first reason stays, and each is there once
		before, more := pause.Reason+"; ", "; "+by.Name+": "+reason
		if !strings.HasPrefix(before, reason+"; ") && !strings.Contains("; "+before, more+"; ") {
			pause.Reason = strings.TrimPrefix(pause.Reason+more, "; ")
		}
	}
	entry, err := json.Marshal(pause)
	if err != nil {
		return err
	}
	return a.setPaused(ctx, by, "pause", retry.Paused, queue, reason, entry)
}

// ResumeQueue resumes the retries of a queue: due messages are retried at once.
func (a *Actions) ResumeQueue(ctx context.Context, by auth.Caller, queue, reason string) error {
	if err := a.Permit(by, auth.Operator, "resume", queue, queue); err != nil {
		return err
	}
	switch entry, err := a.Store.Entry(ctx, store.PausePrefix+queue); {
	case err != nil:
		return err
	case entry == nil:
		return fmt.Errorf("%w: the retries of the queue %q are not paused", inspect.ErrPrecondition, queue)
	}
	return a.setPaused(ctx, by, "resume", retry.Resumed, queue, reason, nil)
}

func (a *Actions) setPaused(ctx context.Context, by auth.Caller, did string, kind retry.Kind, queue, reason string, pause []byte) error {
	err := a.set(ctx, by, did, queue, reason, store.Entry{Name: store.PausePrefix + queue, Value: pause}, func() {
		if a.SetPaused != nil {
			a.SetPaused(queue, pause != nil)
		}
	})
	if err == nil {
		a.event(retry.Event{Kind: kind, Queue: queue, By: by.Name, Why: reason})
	}
	return err
}

// checkWorkQueue refuses a queue that has nothing to retry: one with a typing error in its
// name would look as if it were paused.
func (a *Actions) checkWorkQueue(ctx context.Context, queue string) error {
	if queue == "" || wire.OwnQueue(queue) {
		return fmt.Errorf("%w: %q is not a work queue", inspect.ErrInvalid, queue)
	}
	counts, err := a.Store.Counts(ctx)
	if err != nil {
		return err
	}
	for _, n := range counts {
		if n.Queue == queue {
			return nil
		}
	}
	if !a.Inspect.HasPolicy(queue) {
		return fmt.Errorf("%w: no policy names the queue %q, and nothing is kept for it", inspect.ErrNotFound, queue)
	}
	// Where RabbitMQ does not answer, the queue is taken to exist: that may be why it is paused.
	if at, err := a.Inspect.AtBroker(ctx, queue); err == nil && !at.Exists {
		return fmt.Errorf("%w: RabbitMQ has no queue %q, and nothing is kept for it", inspect.ErrNotFound, queue)
	}
	return nil
}
