package actions

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/store"
)

// SnapshotMade is a snapshot of the store.
type SnapshotMade struct {
	Folder   string  `json:"folder" doc:"On the service's machine."`
	Messages int64   `json:"messages" doc:"How many are in it: waiting, parked and discarded."`
	Seconds  float64 `json:"seconds" doc:"How long it took."`
}

// Snapshot writes the store to a folder of this machine, while it is used. Everything in
// it is copied, so only an administrator of all queues may.
func (a *Actions) Snapshot(ctx context.Context, by auth.Caller, folder string) (made SnapshotMade, err error) {
	if err := a.Permit(by, auth.Admin, "snapshot", folder); err != nil {
		return made, err
	}
	if by.Queues != nil {
		return made, fmt.Errorf("%w: a snapshot has all queues in it, and %s is limited to some", auth.ErrForbidden, by.Name)
	}
	disk, ok := a.Store.(store.Snapshotter)
	if !ok {
		return made, fmt.Errorf("%w: messages are kept on Redis, so Redis' own backup is the way: docs/how-to/backup.md", inspect.ErrPrecondition)
	}
	end, err := a.Begin(by, "snapshot", folder, 0, "")
	if err != nil {
		return made, err
	}
	defer func() { end(err, made.Messages) }()
	began := time.Now()
	n, err := disk.Snapshot(ctx, folder)
	if errors.Is(err, store.ErrSnapshotFolder) {
		err = fmt.Errorf("%w: %w", inspect.ErrPrecondition, err)
	}
	if err != nil {
		return made, err
	}
	a.Inspect.Log.Info("a snapshot of the store was written", "folder", folder, "messages", n, "took", time.Since(began).Round(time.Millisecond))
	return SnapshotMade{folder, n, time.Since(began).Seconds()}, nil
}
