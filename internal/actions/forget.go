package actions

import (
	"context"
	"errors"
	"time"
)

// Forget deletes the discarded messages whose time to be restored is over at now, and old entries of
// the audit log.
func (a *Actions) Forget(ctx context.Context, now time.Time) error {
	n, err := a.Store.Forget(ctx, now)
	if err == nil && n > 0 {
		a.Inspect.Log.Info("discarded messages are gone for good: their time to be restored is over", "messages", n)
	}
	if a.Audit != nil {
		err = errors.Join(err, a.Audit.Forget(ctx, now))
	}
	return err
}
