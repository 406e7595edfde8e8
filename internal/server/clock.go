package server

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/redrive-mq/redrive/internal/condition"
)

const (
	clockEvery = 5 * time.Second
	// clockJump is the least jump that is reported; what is smaller adds up.
	clockJump = 3 * time.Second
	// clockShows is the least time that a jump is shown.
	clockShows = time.Hour
)

// watchClock reports when this machine's clock is set while the service runs: due times are times of
// the clock. It compares the clock with the monotonic one, which no one can set. wall is what the
// clock shows at a time.
func (s *Service) watchClock(ctx context.Context, wall func(time.Time) time.Time) {
	last := time.Now()
	shown, off, until := wall(last).Round(0), time.Duration(0), last
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(clockEvery):
		}
		now := time.Now()
		jump := wall(now).Round(0).Sub(shown) - now.Sub(last)
		if jump.Abs() < clockJump {
			continue
		}
		last, shown = now, wall(now).Round(0)
		if now.After(until) {
			off = 0
		}
		off += jump
		by, what := off.Abs().Round(time.Second), ""
		switch {
		case off >= clockJump:
			what = fmt.Sprintf("this machine's clock was set ahead by %s, or the machine was suspended: "+
				"what waited then is retried that much sooner than its delay says", by)
		case off <= -clockJump:
			what = fmt.Sprintf("this machine's clock was set back by %s: "+
				"what waited then is retried that much later than its delay says (`redrive replay` retries it now)", by)
		}
		s.Log.Warn(cmp.Or(what, "this machine's clock was set right again"))
		shows := max(by, clockShows)
		until = now.Add(shows)
		for _, v := range s.vhosts {
			v.conditions.PutFor(shows, condition.Condition{Kind: condition.Clock, Text: what})
			v.scheduler.Wake()
		}
	}
}
