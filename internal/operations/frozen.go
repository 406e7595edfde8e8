package operations

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/redrive-mq/redrive/internal/store"
)

const (
	// chunk is how many messages one entry names. All entries but the last are full.
	chunk = 1000
	// chunksAtOnce is how many entries are written in one step of the store.
	chunksAtOnce = 16
)

// frozen is one message of a plan, as it was when the plan was made.
type frozen struct {
	Key   store.Key   `json:"k"`
	Queue int         `json:"q"` // index in Plan.Queues
	State store.State `json:"s"`
}

// freezer writes the messages of a plan in the order in which the store has them: by
// when they were parked or are due. A cursor and a bound over that order would not do:
// a message that is retried, and parked again, changes its place, what the query found
// (age, state, group) changes with it, and the plan has promised an exact count.
type freezer struct {
	store  Store
	plan   string
	batch  []frozen
	chunks int64
}

func chunkName(plan string, n int64) string { return fmt.Sprintf("%skeys/%09d", partsOf(plan), n) }

func (f *freezer) add(ctx context.Context, m frozen) error {
	if f.batch = append(f.batch, m); len(f.batch) < chunk*chunksAtOnce {
		return nil
	}
	return f.flush(ctx)
}

// flush writes what is in memory; a chunk that is not full ends the plan.
func (f *freezer) flush(ctx context.Context) error {
	var entries []store.Entry
	for part := range slices.Chunk(f.batch, chunk) {
		entries = append(entries, entryOf(chunkName(f.plan, f.chunks), part))
		f.chunks++
	}
	f.batch = f.batch[:0]
	if entries == nil {
		return ctx.Err()
	}
	return f.store.PutEntries(ctx, entries)
}

// readChunk is nil where there is none.
func (r *Runner) readChunk(ctx context.Context, name string) (all []frozen, err error) {
	value, err := r.Store.Entry(ctx, name)
	if err != nil || value == nil {
		return nil, err
	}
	if err := json.Unmarshal(value, &all); err != nil {
		return nil, fmt.Errorf("%s is damaged: %w", name, err)
	}
	return all, nil
}
