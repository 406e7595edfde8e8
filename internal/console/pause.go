package console

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/wire"
)

// PauseQueue pauses the retries of a queue until ResumeQueue, over restarts. Waiting messages
// keep their attempts and due times; what is in flight still arrives.
func (c *Console) PauseQueue(ctx context.Context, by auth.Caller, queue, reason string) error {
	if err := c.permit(by, auth.Operator, "pause", queue, queue); err != nil {
		return err
	}
	if err := c.known(ctx, queue); err != nil {
		return err
	}
	pause, err := c.pausedAlready(ctx, queue)
	if err != nil {
		return err
	}
	switch {
	case pause.By == "":
		pause = QueuePause{By: by.Name, Since: c.Now(), Reason: reason}
	case reason != "" && reason != pause.Reason: // the first reason stays
		pause.Reason = strings.TrimPrefix(pause.Reason+"; "+by.Name+": "+reason, "; ")
	}
	h, err := json.Marshal(pause)
	if err != nil {
		return err
	}
	return c.setPaused(ctx, by, retry.Paused, queue, reason, h)
}

// pausedAlready is the pause of a queue, without By where there is none.
func (c *Console) pausedAlready(ctx context.Context, queue string) (h QueuePause, err error) {
	value, err := c.Store.Entry(ctx, store.PausePrefix+queue)
	if err != nil || value == nil {
		return h, err
	}
	if err := json.Unmarshal(value, &h); err != nil {
		return h, fmt.Errorf("the pause of %q: %w", queue, err)
	}
	return h, nil
}

// ResumeQueue resumes the retries of a queue: due messages are retried at once.
func (c *Console) ResumeQueue(ctx context.Context, by auth.Caller, queue, reason string) error {
	if err := c.permit(by, auth.Operator, "resume", queue, queue); err != nil {
		return err
	}
	switch h, err := c.Store.Entry(ctx, store.PausePrefix+queue); {
	case err != nil:
		return err
	case h == nil:
		return fmt.Errorf("%w: the retries of the queue %q are not paused", ErrPrecondition, queue)
	}
	return c.setPaused(ctx, by, retry.Resumed, queue, reason, nil)
}

// setPaused writes the pause to the store before it calls the scheduler: a pause must not
// be forgotten at the next start.
func (c *Console) setPaused(ctx context.Context, by auth.Caller, kind retry.Kind, queue, reason string, pause []byte) error {
	did := map[retry.Kind]string{retry.Paused: "pause", retry.Resumed: "resume"}[kind]
	end, err := c.begin(by, did, queue, 0, reason)
	if err != nil {
		return err
	}
	c.pausing.Lock()
	err = c.Store.PutEntries(context.WithoutCancel(ctx), []store.Entry{{Name: store.PausePrefix + queue, Value: pause}})
	if err == nil && c.SetPaused != nil {
		c.SetPaused(queue, pause != nil)
	}
	c.pausing.Unlock()
	c.changed()
	if err == nil {
		c.tell(retry.Event{Kind: kind, Queue: queue, By: by.Name, Why: reason})
	}
	end(err, 0)
	return err
}

// known refuses a queue that has nothing to retry: one with a typing error in its
// name would look as if it were paused.
func (c *Console) known(ctx context.Context, queue string) error {
	if queue == "" || wire.OwnQueue(queue) {
		return fmt.Errorf("%w: %q is not a work queue", ErrInvalid, queue)
	}
	counts, err := c.Store.Counts(ctx)
	if err != nil {
		return err
	}
	for _, n := range counts {
		if n.Queue == queue {
			return nil
		}
	}
	if c.Config.Policies != nil {
		if _, ok := c.policies().Match(queue); !ok {
			return fmt.Errorf("%w: no policy names the queue %q, and nothing is kept for it", ErrNotFound, queue)
		}
	}
	// Where RabbitMQ does not answer, a person who pauses a queue now is right.
	if at, err := c.atBroker(ctx, queue); err == nil && !at.Exists {
		return fmt.Errorf("%w: RabbitMQ has no queue %q, and nothing is kept for it", ErrNotFound, queue)
	}
	return nil
}

// pauses are the queues whose retries a person has paused.
func (c *Console) pauses(ctx context.Context) (map[string]QueuePause, error) {
	all := map[string]QueuePause{}
	err := c.Store.Entries(ctx, store.PausePrefix, "", func(e store.Entry) (bool, error) {
		var h QueuePause
		if err := json.Unmarshal(e.Value, &h); err != nil {
			return false, fmt.Errorf("the pause of %q: %w", e.Name, err)
		}
		all[strings.TrimPrefix(e.Name, store.PausePrefix)] = h
		return true, nil
	})
	return all, err
}
