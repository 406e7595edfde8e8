package operations

import (
	"context"
	"strings"
	"testing"

	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
)

// between does something once, after the head of an operation was read and before its
// progress is.
type between struct {
	Store
	do func()
}

func (b *between) Entry(ctx context.Context, name string) ([]byte, error) {
	if do := b.do; do != nil && strings.HasSuffix(name, "/progress") {
		b.do = nil
		do()
	}
	return b.Store.Entry(ctx, name)
}

// A leader that reads a plan of another replica's, and starts it meanwhile, keeps what it
// does: the operation as it was read has no rate, or was not started.
func TestAPlanReadLateReplacesNoOperation(t *testing.T) {
	s := &between{Store: memstore.New()}
	r := New(Config{Inspect: inspect.New(inspect.Config{}), Store: s})
	r.loaded, r.leads = true, true
	const id = "a plan"
	plan := head{Operation: Operation{Plan: Plan{ID: id}}}
	put := func(h head, p *progress) {
		entries := []store.Entry{entryOf(headPrefix+id, h)}
		if p != nil {
			entries = append(entries, entryOf(partsOf(id)+"progress", p))
		}
		if err := s.PutEntries(t.Context(), entries); err != nil {
			t.Fatal(err)
		}
	}
	put(plan, nil)
	started := &operation{head: plan, progress: progress{State: Running}}
	started.Rate = 50
	s.do = func() {
		put(started.head, &started.progress)
		r.lock()
		defer r.mu.Release(1)
		r.all[id] = started
	}
	r.ChangedElsewhere(t.Context(), id)
	if got := r.all[id]; got != started {
		t.Errorf("the leader does it at a rate of %v, not 50", got.Rate)
	}
}
