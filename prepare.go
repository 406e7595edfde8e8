package redrive

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/wire"
)

// prepare is done when what is needed is there. Its error is ctx's, or one that
// a person must correct.
func (s *settler) prepare(ctx context.Context) error {
	version, err := s.publish.Version(ctx)
	if err != nil {
		return context.Cause(ctx) // it waits for a connection until then
	}
	if err := s.limits.CheckVersion(version); err != nil {
		return fmt.Errorf("redrive: %w", err)
	}
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		err := s.declare(ctx)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case broker.NeedsPerson(err) || s.verify && errors.Is(err, wire.ErrUnroutable):
			return fmt.Errorf("redrive: %s for queue %q: %w%s", s.limits.Name, s.consumer.Queue, err, s.advice(err))
		}
		s.log.Warn("what failed messages need cannot be made yet; trying again", "queue", s.consumer.Queue, "error", err)
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
		if err != nil || !s.limits.Decides {
			return err
		}
		// The service makes this exchange, and may not have started yet.
		if err = s.publish.MayPublish(ctx, wire.ExchangeFailures, s.consumer.Queue); errors.Is(err, wire.ErrUnroutable) {
			return nil
		}
		return err
	}
	return s.publish.Declare(ctx, s.way.Topology(s.consumer.Queue))
}

// advice says what to do about an error.
func (s *settler) advice(err error) string {
	switch {
	case errors.Is(err, wire.ErrForbidden) && s.verify:
		return "; `redrive permissions --for library` prints the rights that it needs"
	case errors.Is(err, wire.ErrForbidden):
		return fmt.Sprintf("; `redrive permissions --for library --queue %s` prints the rights that it needs; or let another user declare what is needed, and set Config.Verify", s.consumer.Queue)
	case s.verify:
		return "; it is missing, and Config.Verify makes nothing: declare it, or run once without Verify as a user who may"
	case errors.Is(err, wire.ErrQueueGone):
		return "; declare the work queue first"
	case errors.Is(err, wire.ErrDiffers):
		return "; delete it when it is empty, and it is made again"
	}
	return ""
}
