package actions

import (
	"context"
	"time"
)

// Forget deletes the discarded messages whose time to be restored is over at now.
func (a *Actions) Forget(ctx context.Context, now time.Time) error {
	n, err := a.Store.Forget(ctx, now)
	if err == nil && n > 0 {
		a.Inspect.Log.Info("discarded messages are gone for good: their time to be restored is over", "messages", n)
	}
	return err
}
