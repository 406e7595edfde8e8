package redisstore_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/storetest"
)

// What is in Redis in format 1 is upgraded when it is opened: what goes to a forward target
// is in its lane then, and nothing is lost. It is upgraded once.
func TestAStoreOfFormat1IsUpgraded(t *testing.T) {
	server := start(t, "")
	o := server.options()
	o.Shards = 3
	s := openAt(t, o)
	dead := store.Lane{Queue: "q", Forward: store.Destination{RoutingKey: "dead"}}
	var want string
	for i := range 20 {
		r := storetest.Waiting("q", time.Duration(i)*time.Second, string(rune('a'+i)))
		if i%2 == 0 {
			r.Forward = &dead.Forward
			want += string(r.Message.Body)
		}
		if err := s.Add(ctx, []*store.Record{r}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.AsFormat1(ctx, dead); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		s = openAt(t, o)
		format := server.do(t, "GET", "redrive{0}:format")
		if text, err := format.ToString(); text != "2 3" || err != nil {
			t.Errorf("its format is %q, %v", text, err)
		}
		storetest.Balances(t, s)
		var got strings.Builder
		claims, err := s.Claim(ctx, dead, late, 100, math.MaxInt)
		for _, c := range claims {
			got.Write(c.Record.Message.Body)
		}
		if got.String() != want || err != nil {
			t.Errorf("claimed of the target: %q, %v; want %q", &got, err, want)
		}
		if own, err := s.Claim(ctx, store.Lane{Queue: "q"}, late, 100, math.MaxInt); len(own) != 10 || err != nil {
			t.Errorf("claimed %d of the queue's own, %v", len(own), err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
