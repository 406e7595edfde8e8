package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
)

// recountEvery is how often the ledger is compared with what is stored; where that takes long, less
// often, so that it takes one part in recountShare of the time.
const (
	recountEvery = 10 * time.Minute
	recountShare = 20
)

// recounts has the result of the last recount.
type recounts struct {
	running sync.Mutex // one at a time

	mu  sync.Mutex
	at  time.Time
	off map[string]int64 // by queue; those that are right are left out
}

// recount compares the ledger with all stored messages. A call that waited for another one uses
// its result, if that one began after the call.
func (in *Inspector) recount(ctx context.Context) error {
	asked := in.Now()
	in.recounts.running.Lock()
	defer in.recounts.running.Unlock()
	in.recounts.mu.Lock()
	fresh := in.recounts.at.After(asked)
	in.recounts.mu.Unlock()
	if fresh {
		return nil
	}
	began := in.Now()
	lines, err := in.Store.Recount(ctx)
	if err != nil {
		return err
	}
	off := map[string]int64{}
	for i := range lines {
		if n := lines[i].Off(); n != 0 {
			off[lines[i].Queue] = n
		}
	}
	if in.Changed != nil {
		value, err := json.Marshal(recountResult{began, off})
		if err != nil {
			return err
		}
		if err := in.Store.PutEntries(ctx, []store.Entry{{Name: recountEntry, Value: value}}); err != nil {
			return err
		}
		in.Changed()
	}
	was := in.recounts.set(began, off)
	for queue, n := range off {
		if was[queue] != n {
			in.Log.Error("the ledger does not balance: so many more messages arrived than are accounted for "+
				"(negative: fewer)", "queue", queue, "off", n)
		}
	}
	if in.Recounted != nil {
		in.Recounted(off)
	}
	return nil
}

// set stores a result, and returns the one before.
func (r *recounts) set(at time.Time, off map[string]int64) (was map[string]int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	was = r.off
	r.at, r.off = at, off
	return was
}

// Lead recounts now and then until ctx ends, at one replica for all.
func (in *Inspector) Lead(ctx context.Context) {
	for {
		began := time.Now()
		if err := in.recount(ctx); err != nil && ctx.Err() == nil && !errors.Is(err, store.ErrDeposed) {
			in.Log.Error("stored messages cannot be counted; trying again", "error", err)
		}
		timer := time.NewTimer(max(recountEvery, recountShare*time.Since(began)))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// recountEntry is where replicas find what the last recount has found.
const recountEntry = "recounted"

type recountResult struct {
	At  time.Time
	Off map[string]int64
}

// ReadRecount reads what a recount at another replica has found.
func (in *Inspector) ReadRecount(ctx context.Context) error {
	value, err := in.Store.Entry(ctx, recountEntry)
	if err != nil || value == nil {
		return err
	}
	var r recountResult
	if err := json.Unmarshal(value, &r); err != nil {
		return fmt.Errorf("%s: %w", recountEntry, err)
	}
	in.recounts.mu.Lock()
	news := !in.recounts.at.Equal(r.At)
	in.recounts.mu.Unlock()
	if news {
		in.recounts.set(r.At, r.Off)
		if in.Recounted != nil {
			in.Recounted(r.Off)
		}
	}
	return nil
}
