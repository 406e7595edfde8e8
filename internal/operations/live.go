package operations

import (
	"context"
	"reflect"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
)

// Tick is sent to watchers once a second, when something changed.
type Tick struct {
	inspect.Totals
	Failed     int64       `json:"failed" doc:"Messages that failed since the tick before."`
	Operations []Operation `json:"operations,omitempty" doc:"Those that changed; in the first event, those that run."`
}

// Watch sends what has changed, at most once a second, until ctx ends or the store is closed;
// then its channel is closed. A slow watcher misses ticks, never a change.
func (r *Runner) Watch(ctx context.Context, by auth.Caller) <-chan Tick {
	ticks := make(chan Tick)
	if by.May(auth.Viewer, "") != nil {
		close(ticks)
		return ticks
	}
	go func() {
		defer close(ticks)
		w := watcher{Runner: r, by: by, ops: map[string]Operation{}}
		w.failedBefore = r.Inspect.Failures(by)
		for ctx.Err() == nil {
			t, news, err := w.next(ctx)
			if err != nil {
				return
			}
			if news {
				select {
				case ticks <- t:
					w.remember(t)
				case <-ctx.Done():
				}
			}
			sleep(ctx, time.Second)
		}
	}()
	return ticks
}

type watcher struct {
	*Runner
	by                      auth.Caller
	last                    Tick // sent
	failedBefore, failedNow int64
	ops                     map[string]Operation
}

// next returns the current state, and whether it differs from what was sent last.
func (w *watcher) next(ctx context.Context) (t Tick, news bool, err error) {
	if t.Totals, err = w.Inspect.Totals(ctx, w.by); err != nil {
		return t, false, err
	}
	w.failedNow = w.Inspect.Failures(w.by)
	t.Failed = w.failedNow - w.failedBefore
	ops, err := w.Operations(ctx, w.by)
	if err != nil {
		return t, false, err
	}
	for _, o := range ops {
		switch was, ok := w.ops[o.ID]; {
		case !ok && w.last.At.IsZero() && o.Ended != nil: // there may be a thousand such
			w.ops[o.ID] = o
		case !reflect.DeepEqual(was, o):
			t.Operations = append(t.Operations, o)
		}
	}
	is, was := t.Totals, w.last.Totals
	is.At, was.At = time.Time{}, time.Time{}
	return t, t.Failed > 0 || t.Operations != nil || !reflect.DeepEqual(is, was), nil
}

func (w *watcher) remember(t Tick) {
	w.last, w.failedBefore = t, w.failedNow
	for _, o := range t.Operations {
		w.ops[o.ID] = o
	}
}
