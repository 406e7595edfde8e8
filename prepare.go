package redrive

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/wire"
)

// prepare declares the exchanges and queues that failed messages need, and returns nil when they
// exist. Its error is ctx's, or one that a person must correct.
func (a *acknowledger) prepare(ctx context.Context) error {
	version, err := a.publish.Version(ctx)
	if err != nil {
		return context.Cause(ctx) // it waits for a connection until then
	}
	if err := a.limits.CheckVersion(version); err != nil {
		return fmt.Errorf("redrive: %w", err)
	}
	for pause := minPublishWait; ; pause = min(2*pause, maxPublishWait) {
		err := a.declare(ctx)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case broker.NeedsPerson(err) || a.verify && errors.Is(err, wire.ErrUnroutable):
			return a.withRemedy(fmt.Errorf("redrive: %s for queue %q: %w", a.limits.Name, a.consumer.Queue, err), err)
		}
		a.log.Warn("cannot declare the exchanges and queues that failed messages need; trying again", "queue", a.consumer.Queue, "error", err)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}

func (a *acknowledger) declare(ctx context.Context) error {
	if a.verify {
		err := a.publish.Verify(ctx, a.way.Topology(a.consumer.Queue))
		if err != nil || !a.limits.ServiceDecides {
			return err
		}
		// The service declares this exchange, and may not have started yet.
		if err = a.publish.MayPublish(ctx, wire.ExchangeFailures, a.consumer.Queue); errors.Is(err, wire.ErrUnroutable) {
			return nil
		}
		return err
	}
	return a.publish.Declare(ctx, a.way.Topology(a.consumer.Queue))
}

// withRemedy adds the remedy for cause to err, where one is known.
func (a *acknowledger) withRemedy(err, cause error) error {
	remedy := ""
	switch {
	case errors.Is(cause, wire.ErrForbidden) && a.verify:
		remedy = "`redrive permissions --for library` prints the rights that it needs"
	case errors.Is(cause, wire.ErrForbidden):
		remedy = fmt.Sprintf("`redrive permissions --for library --queue %s` prints the rights that it needs; or let another user declare what is needed, and set Config.Verify", a.consumer.Queue)
	case a.verify:
		remedy = "declare it, or run once without Config.Verify as a user with the permission to configure"
	case errors.Is(cause, wire.ErrQueueGone):
		remedy = "declare the work queue first"
	case errors.Is(cause, wire.ErrDiffers):
		remedy = "delete it when it is empty; it is then declared again"
	default:
		return err
	}
	return hint.Errorf(remedy, "%w", err)
}
