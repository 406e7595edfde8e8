package console

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
)

// counting counts what is read of the side table.
type counting struct {
	Store
	reads int
}

func (c *counting) Entry(ctx context.Context, name string) ([]byte, error) {
	c.reads++
	return c.Store.Entry(ctx, name)
}

// Those that are newest by one time are the oldest by the other: each piece is read
// once, and not asked for again when it has ended.
func TestPiecesAreReadOnce(t *testing.T) {
	s := &counting{Store: memstore.New()}
	f := freezer{c: &Console{Config: Config{Store: s}}, parts: partsOf("x"), most: 1000}
	const n = 10_000
	for i := range n {
		if err := f.add(t.Context(), frozen{time.UnixMicro(int64(n - i)), "id", 0, store.Parked, "key"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.end(t.Context()); err != nil || s.reads > 30 {
		t.Errorf("%d pieces, of which no more than 11 are read twice, took %d reads, %v", f.runs, s.reads, err)
	}
}

// However many there are, and however little memory, all of them are written once,
// those that failed first first.
func TestFrozenMessagesAreInOrder(t *testing.T) {
	for _, n := range []int{0, 1, 999, 1000, 1001, 2500, 16_000, 20_001} {
		for _, most := range []int{700, 5000, 100_000} {
			c := &Console{Config: Config{Store: memstore.New()}}
			f := freezer{c: c, parts: partsOf("x"), most: most}
			var want []frozen
			for i := range n {
				m := frozen{time.UnixMicro(rand.Int64N(1000)), "id", i % 7, store.Parked, store.Key(fmt.Sprintf("key %d", i))}
				want = append(want, m)
				if err := f.add(t.Context(), m); err != nil {
					t.Fatal(err)
				}
			}
			if err := f.end(t.Context()); err != nil {
				t.Fatal(err)
			}
			slices.SortFunc(want, compareFrozen)
			var got []frozen
			for i := int64(0); ; i++ {
				some, err := c.readChunk(t.Context(), partsOf("x")+"keys/"+chunkName(i))
				if err != nil {
					t.Fatal(err)
				}
				if len(some) < chunk && i < int64(n/chunk) {
					t.Errorf("%d, %d in memory: chunk %d has %d", n, most, i, len(some))
				}
				if got = append(got, some...); some == nil {
					break
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("%d, %d in memory: %d were written, not those", n, most, len(got))
			}
			left := 0
			if err := c.Store.Entries(t.Context(), partsOf("x")+"run/", "", func(store.Entry) (bool, error) { left++; return true, nil }); err != nil || left > 0 {
				t.Errorf("%d pieces are left, %v", left, err)
			}
		}
	}
}
