package store

import (
	"context"
	"time"
)

// forgetStep is how many messages Forget deletes at a time: few enough that others,
// who wait meanwhile, do not wait long.
const forgetStep = 256

// Forget is what engines implement Changer.Forget with.
func Forget(ctx context.Context, s interface {
	Scanner
	Changer
}, now time.Time) (n int, err error) {
	var keys []Key
	forget := func() error {
		for len(keys) > 0 {
			gone := 0
			taken, err := s.Change(ctx, keys, func(_ Key, r *Record) Edit {
				over := r != nil && r.State == Discarded && !r.Due.After(now)
				if over {
					gone++
				}
				return Edit{Delete: over}
			}, nil)
			if err != nil {
				return err
			}
			n, keys = n+gone, keys[taken:]
		}
		return nil
	}
	err = s.Scan(ctx, Range{State: Discarded, To: now.Add(time.Microsecond)}, func(l Listed) (bool, error) {
		if keys = append(keys, l.Key); len(keys) < forgetStep {
			return true, nil
		}
		return true, forget()
	})
	if err != nil {
		return n, err
	}
	return n, forget()
}
