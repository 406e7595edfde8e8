package operations

import (
	"fmt"
	"slices"
	"testing"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
)

// However many there are, all of them are written once, in their order, and all chunks
// but the last are full: an operation finds its n-th message by that.
func TestTheMessagesOfAPlanAreKeptInOrder(t *testing.T) {
	for _, n := range []int{0, 1, 999, 1000, 1001, 2500, 16_000, 32_001} {
		r := &Runner{Config: Config{Store: memstore.New()}}
		f := freezer{store: r.Store, plan: "x"}
		var want []frozen
		for i := range n {
			m := frozen{store.Key(fmt.Sprintf("key %d", i)), i % 7, store.Parked}
			want = append(want, m)
			if err := f.add(t.Context(), m); err != nil {
				t.Fatal(err)
			}
		}
		if err := f.flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		var got []frozen
		for i := int64(0); ; i++ {
			some, err := r.readChunk(t.Context(), chunkName("x", i))
			if err != nil {
				t.Fatal(err)
			}
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
