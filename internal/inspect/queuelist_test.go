package inspect_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/inspect/inspecttest"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
	"github.com/redrive-mq/redrive/policy"
)

// byName is as if of each queue as many failed as its name is long.
type byName struct{ activity }

func (byName) Queues() []string { return nil }
func (byName) Minute(queue string, _ time.Time) inspect.Flow {
	return inspect.Flow{Failed: int64(len(queue))}
}

func newList(t *testing.T) *inspect.Inspector {
	t.Helper()
	s := memstore.New()
	for queue, n := range map[string]int{"orders": 3, "Orders.eu": 1, "mail": 2} {
		for range n {
			if err := s.Add(ctx, []*store.Record{record(queue, store.Waiting, "x")}); err != nil {
				t.Fatal(err)
			}
		}
	}
	broker := inspecttest.NewQueues()
	broker.Set("mail", inspect.AtBroker{Exists: true, Consumers: 5, Ready: 1})
	broker.Set("orders", inspect.AtBroker{Exists: true, Consumers: 2, Ready: 9})
	return inspect.New(inspect.Config{Store: s, Broker: broker, Activity: &byName{},
		Enrolled: func() ([]string, error) { return []string{"idle", "mail"}, errors.New("an old list") },
		Policies: func() policy.Set {
			return policy.Set{{Name: "post", Queues: []string{"mail"}}, {Name: "rest", Queues: []string{"*"}}}
		}})
}

// A list is filtered by name and policy, and ordered by what is known of all queues.
func TestQueuesAreFilteredAndSorted(t *testing.T) {
	in := newList(t)
	for _, c := range []struct {
		q    inspect.QueueQuery
		want []string
	}{
		{inspect.QueueQuery{}, []string{"Orders.eu", "idle", "mail", "orders"}},
		{inspect.QueueQuery{Descending: true}, []string{"orders", "mail", "idle", "Orders.eu"}},
		{inspect.QueueQuery{Name: "ORDERS"}, []string{"Orders.eu", "orders"}},
		{inspect.QueueQuery{Name: "order*"}, []string{"orders"}},
		{inspect.QueueQuery{Policy: "post"}, []string{"mail"}},
		{inspect.QueueQuery{Sort: "waiting", Descending: true}, []string{"orders", "mail", "Orders.eu", "idle"}},
		{inspect.QueueQuery{Sort: "failed"}, []string{"idle", "mail", "orders", "Orders.eu"}},
		{inspect.QueueQuery{Sort: "consumers", Descending: true, Limit: 4}, []string{"mail", "orders", "Orders.eu", "idle"}},
	} {
		page, err := in.Queues(ctx, caller(auth.Viewer), c.q)
		var names []string
		for _, q := range page.Queues {
			names = append(names, q.Name)
			if q.Enrolled != (q.Name == "idle" || q.Name == "mail") {
				t.Errorf("%s: enrolled is %v", q.Name, q.Enrolled)
			}
		}
		if err != nil || !slices.Equal(names, c.want) || page.Total != len(c.want) {
			t.Errorf("%+v gives %q of %d, want %q: %v", c.q, names, page.Total, c.want, err)
		}
		var paged []string
		for after, n := "", 0; n == 0 || after != ""; n++ {
			c.q.After, c.q.Limit = after, 3
			if c.q.Sort == "consumers" {
				break
			}
			page, err := in.Queues(ctx, caller(auth.Viewer), c.q)
			if err != nil || n > 3 {
				t.Fatal(n, err)
			}
			for _, q := range page.Queues {
				paged = append(paged, q.Name)
			}
			after = page.After
		}
		if c.q.Sort != "consumers" && !slices.Equal(paged, c.want) {
			t.Errorf("page by page %+v gives %q, want %q", c.q, paged, c.want)
		}
	}
	for _, wrong := range []inspect.QueueQuery{{Sort: "luck"}, {Sort: "waiting", After: "!"}, {Sort: "ready", Limit: 2}} {
		if _, err := in.Queues(ctx, caller(auth.Viewer), wrong); !errors.Is(err, inspect.ErrInvalid) {
			t.Errorf("%+v: %v", wrong, err)
		}
	}
	if page, err := in.Queues(ctx, caller(auth.Viewer, "mail"), inspect.QueueQuery{}); err != nil || page.Total != 1 {
		t.Errorf("to others: %+v, %v", page, err)
	}
}

// The overview has the queues that something is of, and not the thousands that are enrolled.
func TestTheOverviewLeavesOutIdleQueues(t *testing.T) {
	o, err := newList(t).Overview(ctx, caller(auth.Viewer))
	if err != nil || len(o.Queues) != 3 {
		t.Errorf("%+v, %v", o.Queues, err)
	}
}
