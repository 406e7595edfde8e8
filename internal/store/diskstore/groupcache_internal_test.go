package diskstore

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/wire"
)

// A group that is known is the one that would be found again, and no more are kept
// than should be, none of them of an error that came once.
func TestWhatIsAlikeIsInItsOwnGroup(t *testing.T) {
	var a groupCache
	pick := rand.New(rand.NewPCG(1, 1))
	one := func(texts ...string) string { return texts[pick.IntN(len(texts))] }
	for i := range 20_000 {
		r := &store.Record{Queue: one("p", "q"), Reason: one("rejected", "expired"), Message: wire.Message{Type: one("", "t")}}
		r.Error = one("", "no stock", "order 7 not found", fmt.Sprintf("only once %d", i), fmt.Sprintf("order %d", pick.IntN(3000)), strings.Repeat("long ", 200))
		if got := a.of(r, i%3 > 0); got != r.Group() {
			t.Fatalf("%+v: %+v, want %+v", r, got, r.Group())
		}
		if len(a.own) > groupsCached {
			t.Fatalf("%d are kept", len(a.own))
		}
	}
	if len(a.own) == 0 {
		t.Error("none is kept, so this shows nothing")
	}
	for l := range a.own {
		if len(l.error) > longestCached || strings.HasPrefix(l.error, "only once") {
			t.Errorf("%.40q is kept", l.error)
		}
	}
}
