package operations_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/redisstore"
	"github.com/redrive-mq/redrive/testenv/proxy"
	"github.com/redrive-mq/redrive/testenv/redisnode"
)

// losing is a store on Redis whose answers to the first few changes do not arrive.
type losing struct {
	*redisstore.Store
	between *proxy.Proxy
	lose    atomic.Int64
}

func (l *losing) Change(ctx context.Context, keys []store.Key, edit func(store.Key, *store.Record) store.Edit, entries func(int) []store.Entry) (int, error) {
	if l.lose.Add(-1) < 0 {
		return l.Store.Change(ctx, keys, edit, entries)
	}
	release := func() {}
	defer func() { release() }()
	return l.Store.Change(ctx, keys, edit, func(n int) []store.Entry {
		_, _, _ = l.Free() // how much room there is is known now, so nothing but the change is asked
		release = l.between.HoldAnswers()
		return entries(n)
	})
}

// An operation whose steps Redis executes, but whose answers are lost, copies each message
// once, and skips none as one that no longer exists.
func TestAStepWhoseAnswerWasLostIsDoneOnce(t *testing.T) {
	const n, lost = 1500, 1
	redisnode.Each(t, func(t *testing.T, o redisnode.Options) {
		o.Config = "maxmemory 1gb"
		server := redisnode.New(t, o)
		for _, verb := range []actions.Verb{actions.Copy, actions.Discard} {
			t.Run(string(verb), func(t *testing.T) {
				between := proxy.New(t, server.Addr())
				ro := redisstore.Options{URL: "redis://" + between.Addr(), Prefix: string(verb), Timeout: 4 * time.Second}
				s, err := redisstore.Open(ctx, ro)
				must(t, err)
				defer s.Close()
				l := &losing{Store: s, between: between}
				d := newDesk(l)
				d.parked(t, "orders", n)
				request := operations.PlanRequest{Verb: verb, Query: "queue:orders"}
				if verb == actions.Copy {
					request.To = "other"
				}
				p, err := d.Plan(ctx, caller(auth.Editor), request)
				must(t, err)
				l.lose.Store(lost)
				if _, err := d.Start(ctx, caller(auth.Editor), p.ID, operations.Start{}); err != nil {
					t.Fatal(err)
				}
				stop := d.run(t)
				defer stop()
				for began := time.Now(); d.look(t, p.ID).State != operations.Finished; time.Sleep(10 * time.Millisecond) {
					if time.Since(began) > 2*time.Minute {
						t.Fatalf("it does not end: %+v", d.look(t, p.ID))
					}
				}
				d.is(t, p.ID, operations.Finished, n)
				counts, err := s.Counts(ctx)
				must(t, err)
				got := map[string]int64{}
				for _, c := range counts {
					got[c.Queue] = c.Waiting + c.Discarded
				}
				if want := map[actions.Verb]int64{actions.Copy: got["other"], actions.Discard: got["orders"]}[verb]; want != n {
					t.Errorf("%s of %d messages did %v", verb, n, got)
				}
				all := d.outcomes(t, p.ID)
				seen := map[string]bool{}
				for _, o := range all {
					seen[o.ID] = true
				}
				if len(all) != n || len(seen) != n {
					t.Errorf("%d outcomes, of %d messages", len(all), len(seen))
				}
			})
		}
	})
}
