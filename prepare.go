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
func (s *settler) prepare(ctx context.Context) error {
	version, err := s.publish.Version(ctx)
	if err != nil {
		return context.Cause(ctx) // it waits for a connection until then
	}
	if err := s.limits.CheckVersion(version); err != nil {
		return fmt.Errorf("redrive: %w", err)
	}
	for pause := minPublishWait; ; pause = min(2*pause, maxPublishWait) {
		err := s.declare(ctx)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case broker.NeedsPerson(err) || s.verify && errors.Is(err, wire.ErrUnroutable):
			return s.withRemedy(fmt.Errorf("redrive: %s for queue %q: %w", s.limits.Name, s.consumer.Queue, err), err)
		}
		s.log.Warn("cannot declare the exchanges and queues that failed messages need; trying again", "queue", s.consumer.Queue, "error", err)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}

func (s *settler) declare(ctx context.Context) error {
	if s.verify {
		err := s.publish.Verify(ctx, s.way.Topology(s.consumer.Queue))
		if err != nil || !s.limits.ServiceDecides {
			return err
		}
		// The service declares this exchange, and may not have started yet.
		if err = s.publish.MayPublish(ctx, wire.ExchangeFailures, s.consumer.Queue); errors.Is(err, wire.ErrUnroutable) {
			return nil
		}
		return err
	}
	return s.publish.Declare(ctx, s.way.Topology(s.consumer.Queue))
}

// withRemedy adds the remedy for cause to err, where one is known.
func (s *settler) withRemedy(err, cause error) error {
	remedy := ""
	switch {
	case errors.Is(cause, wire.ErrForbidden) && s.verify:
		remedy = "`redrive permissions --for library` prints the rights that it needs"
	case errors.Is(cause, wire.ErrForbidden):
		remedy = fmt.Sprintf("`redrive permissions --for library --queue %s` prints the rights that it needs; or let another user declare what is needed, and set Config.Verify", s.consumer.Queue)
	case s.verify:
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
