package redrive

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/wire"
)

// start connects, and makes or finds what the way and the parking lot need, for as
// long as it takes. stop ends the connection.
func (s *settler) start(ctx context.Context) (stop func(), err error) {
	publishing, end := context.WithCancel(context.WithoutCancel(ctx))
	preparing, refuse := context.WithCancelCause(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		if err := s.publish.Run(publishing); err != nil {
			refuse(fmt.Errorf("redrive: %w", err))
		}
	})
	running.Go(func() { s.sender.run(publishing) })
	stop = func() {
		end()
		running.Wait()
		refuse(nil)
	}
	if err := s.prepare(preparing); err != nil {
		stop()
		return nil, err
	}
	return stop, nil
}

// prepare is done when what is needed is there. Its error is ctx's, or one that
// a person must mend.
func (s *settler) prepare(ctx context.Context) error {
	version, err := s.publish.Version(ctx)
	if err != nil {
		return context.Cause(ctx)
	}
	if err := s.limits.Suits(version); err != nil {
		return fmt.Errorf("redrive: %w", err)
	}
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		err := s.declare(ctx)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case broker.Mendable(err) || s.verify && errors.Is(err, wire.ErrUnroutable):
			return fmt.Errorf("redrive: %s for queue %q: %w%s", s.limits.Name, s.queue, err, s.advice(err))
		}
		s.log.Warn("what failed messages need cannot be made yet; trying again", "queue", s.queue, "error", err)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}

func (s *settler) declare(ctx context.Context) error {
	if s.verify {
		err := s.publish.Verify(ctx, s.way.Topology(s.queue))
		if err != nil || !s.limits.Decides {
			return err
		}
		// The service makes this exchange, and may not have started yet.
		if err = s.publish.MayPublish(ctx, wire.ExchangeFailures, s.queue); errors.Is(err, wire.ErrUnroutable) {
			return nil
		}
		return err
	}
	return s.publish.Declare(ctx, s.way.Topology(s.queue))
}

// advice says what to do about an error.
func (s *settler) advice(err error) string {
	switch {
	case errors.Is(err, wire.ErrForbidden) && s.verify:
		return "; `redrive permissions --for library` prints the rights that it needs"
	case errors.Is(err, wire.ErrForbidden):
		return fmt.Sprintf("; `redrive permissions --for library --queue %s` prints the rights that it needs; or have somebody else declare what is needed, and set Config.Verify", s.queue)
	case s.verify:
		return "; it is missing, and Config.Verify makes nothing: declare it, or run once without Verify as a user who may"
	case errors.Is(err, wire.ErrQueueGone):
		return "; declare the work queue first"
	case errors.Is(err, wire.ErrDiffers):
		return "; delete it when it is empty, and it is made anew"
	}
	return ""
}
