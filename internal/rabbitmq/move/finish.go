package move

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/rabbitmq/enroll"
	"github.com/redrive-mq/redrive/wire"
)

const (
	// nearEmpty is how many messages may be left in the old queue at the switch: newer ones
	// may overtake those.
	nearEmpty = 8 * maxUnconfirmed
	// stagnant is how long the number may not fall before drain gives up, since publishers are
	// faster.
	stagnant = 10 * time.Second
)

// drain moves messages while the old queue still gets new ones, so that few are
// left to be overtaken at the switch.
func (m *Move) drain(ctx context.Context, c *broker.Mover) error {
	least, since := -1, time.Now()
	return m.moveMessages(ctx, c, time.Second, func() bool {
		ready, _, err := c.Depth(m.From)
		if err != nil || ready <= nearEmpty {
			return false
		}
		if least < 0 || ready < least {
			least, since = ready, time.Now()
		}
		return time.Since(since) < stagnant
	})
}

// moveMessages moves messages until none has arrived for idle, or more returns false.
func (m *Move) moveMessages(ctx context.Context, c *broker.Mover, idle time.Duration, more func() bool) error {
	at := maxUnconfirmed
	if m.rejects {
		at = 1 // or the next would overtake one that was refused
	}
	return c.Move(ctx, m.From, wire.RetryExchange(m.To), at, idle, func(n int) bool {
		m.count(n)
		return more()
	})
}

func (m *Move) count(moved int) {
	if moved > 0 {
		m.moved += moved
		m.Progress(m.moved)
	}
}

// finish moves the rest, and deletes the old queue when it has been quiet.
func (m *Move) finish(ctx context.Context, c *broker.Mover, s *State) error {
	for last := false; ; {
		if err := m.moveMessages(ctx, c, m.Quiet, func() bool { return true }); err != nil {
			return err
		}
		q, _, err := enroll.ReadQueue(ctx, m.API, m.From)
		if err != nil {
			return err
		}
		_, used, err := c.Depth(m.From)
		if err != nil {
			return err
		}
		if used > 0 && !m.Keep {
			if q.Counted() && len(q.ConsumerDetails) == 0 {
				return unnamed(m.From)
			}
			var who strings.Builder
			consumers(&who, &q)
			return fmt.Errorf("queue %q is still consumed:\n%sstop them; %w", m.From, who.String(), ErrConsumers)
		}
		if q.Messages > 0 { // unacknowledged, or counted some seconds ago
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(retryEvery):
			}
			continue
		}
		if m.Keep {
			m.Report(fmt.Sprintf("queue %q is empty, and is kept", m.From))
			return nil
		}
		exhausted, err := m.exhausted(ctx, c)
		if err != nil {
			return err
		}
		if !exhausted || !last && len(m.sources) > 0 { // their last messages may be on the way
			last = exhausted
			continue
		}
		if s.Old.Type == "quorum" {
			var moved int
			moved, err = c.DeleteQuorum(ctx, m.From, wire.RetryExchange(m.To))
			m.count(moved)
		} else {
			err = c.DeleteClassic(m.From)
		}
		switch {
		case errors.Is(err, broker.ErrNotEmpty), errors.Is(err, broker.ErrInUse):
			continue
		case err == nil:
			m.Report(fmt.Sprintf("queue %q is deleted", m.From))
			for _, name := range slices.Sorted(maps.Keys(m.sources)) {
				m.Report(fmt.Sprintf("queue %q dead-letters to it: delete that, too, or what is published there is lost when it expires", name))
			}
		}
		return err
	}
}
