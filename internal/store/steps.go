package store

import (
	"context"
	"slices"
	"time"
)

type scanChanger interface {
	Scanner
	Changer
}

// stepSize is how many messages one step of what follows changes: few enough that
// others, who wait meanwhile, do not wait long.
const stepSize = 256

// steps gives keys to Change, as many at a time as it takes, and tells done after
// each step how many of them edit changed.
func steps(ctx context.Context, s Changer, keys []Key, edit func(*Record) Edit, done func(n int)) error {
	for len(keys) > 0 {
		n := 0
		taken, err := s.Change(ctx, keys[:min(len(keys), stepSize)], func(_ Key, r *Record) (e Edit) {
			if r != nil {
				e = edit(r)
			}
			if e.Keep || e.Delete {
				n++
			}
			return e
		}, nil)
		if err != nil {
			return err
		}
		if n > 0 {
			done(n)
		}
		keys = keys[taken:]
	}
	return nil
}

// stepsOver does so with all of a range.
func stepsOver(ctx context.Context, s scanChanger, r Range, edit func(*Record) Edit, done func(n int)) error {
	var keys []Key
	err := s.Scan(ctx, r, func(l Listed) (bool, error) {
		if keys = append(keys, l.Key); len(keys) < stepSize {
			return true, nil
		}
		err := steps(ctx, s, keys, edit, done)
		keys = keys[:0]
		return true, err
	})
	if err != nil {
		return err
	}
	return steps(ctx, s, keys, edit, done)
}

// Replay is what engines implement Store.Replay with.
func Replay(ctx context.Context, s scanChanger, sel Selection, due time.Time, progress func(int)) (moved int, err error) {
	edit := func(r *Record) (e Edit) {
		if e.Keep = r.State == Parked; e.Keep {
			r.Replay(due)
		}
		return e
	}
	done := func(n int) {
		if moved += n; progress != nil {
			progress(moved)
		}
	}
	if len(sel.IDs) == 0 {
		err = stepsOver(ctx, s, Range{State: Parked, Queues: []string{sel.Queue}}, edit, done)
		return moved, err
	}
	var keys []Key
	for _, id := range sel.IDs {
		found, err := s.Find(ctx, id)
		if err != nil {
			return moved, err
		}
		for _, l := range found {
			if l.Record.State == Parked {
				keys = append(keys, l.Key)
			}
		}
	}
	slices.Sort(keys)
	err = steps(ctx, s, slices.Compact(keys), edit, done)
	return moved, err
}

// Forget is what engines implement Changer.Forget with.
func Forget(ctx context.Context, s scanChanger, now time.Time) (n int, err error) {
	edit := func(r *Record) Edit { return Edit{Delete: r.State == Discarded && !r.Due.After(now)} }
	err = stepsOver(ctx, s, Range{State: Discarded, To: now.Add(time.Microsecond)}, edit, func(m int) { n += m })
	return n, err
}
