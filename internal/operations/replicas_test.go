package operations

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/memstore"
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

// A replica that reads a plan of another's, and starts it meanwhile, keeps what it
// does: the operation as it was read has no rate, or was not started.
func TestAPlanReadLateReplacesNoOperation(t *testing.T) {
	s := &between{Store: memstore.New()}
	r := New(Config{Inspect: inspect.New(inspect.Config{}), Store: s, Replica: "here"})
	r.loaded = true
	const id = "a plan"
	plan := head{Operation: Operation{Plan: Plan{ID: id}}}
	put := func(h head, p *progress) {
		entries := []store.Entry{entryOf(headPrefix+id, h)}
		if p != nil {
			entries = append(entries, entryOf(partsOf(id)+"progress", p))
		}
		must(t, s.PutEntries(t.Context(), entries))
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
	if got, err := r.byID(t.Context(), id); got != started || r.all[id] != started {
		t.Errorf("it is done at a rate of %v, not 50: %v", got.Rate, err)
	}
}

// However many there are, all of them are written once, in their order, and all chunks
// but the last are full: an operation finds its n-th message by that.
func TestTheMessagesOfAPlanAreKeptInOrder(t *testing.T) {
	for _, n := range []int{0, 1, 999, 1000, 1001, 2500, 16_000, 32_001} {
		r := &Runner{Config: Config{Store: memstore.New()}}
		f := freezer{store: r.Store, plan: "x"}
		if n%2 == 0 { // of what is retried: here the queues take turns already
			f.of, f.chunks = map[int]int{}, 1
		}
		var want []frozen
		for i := range n {
			m := frozen{store.Key(fmt.Sprintf("key %d", i)), i % 7, store.Parked}
			want = append(want, m)
			must(t, f.add(t.Context(), m))
		}
		must(t, f.end(t.Context()))
		var got []frozen
		for i := int64(0); ; i++ {
			some, err := r.readChunk(t.Context(), chunkName("x", i))
			must(t, err)
			if len(some) < chunk && i < int64(n/chunk) {
				t.Errorf("%d messages: chunk %d has %d", n, i, len(some))
			}
			if got = append(got, some...); some == nil {
				break
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%d messages: %d were written, not those", n, len(got))
		}
	}
}

var must = expect.NoError
