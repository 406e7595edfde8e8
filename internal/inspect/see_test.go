package inspect_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/audit"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/delay/ttlqueue"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
	"github.com/redrive-mq/redrive/policy"
)

func TestPolicies(t *testing.T) {
	mail := policy.Policy{Name: "mail", Queues: []string{"mail"}, Attempts: 3, Backoff: policy.List(time.Second, time.Hour), Jitter: policy.None, Exhausted: policy.Exhausted{Action: policy.Forward, Destination: policy.Destination{RoutingKey: "dead"}}}
	s := memstore.New()
	levels, err := ttlqueue.NewLevels(ttlqueue.Quorum)
	if err != nil {
		t.Fatal(err)
	}
	c := inspect.New(inspect.Config{Store: s, Policies: func() policy.Set { return policy.Set{orders(), mail} },
		Way: func(name string) delay.Way {
			if name == "mail" {
				return levels
			}
			return nil
		}})
	all, err := c.Policies(ctx, caller(auth.Viewer))
	if err != nil || len(all) != 2 {
		t.Fatal(all, err)
	}
	o, m := all[0], all[1]
	if want := []inspect.Wait{{1, "8s", "12s"}, {2, "16s", "24s"}, {3, "32s", "48s"}}; !slices.Equal(o.Waits, want) || o.Way != retry.InStore || o.Jitter != "±20%" || !slices.Equal(o.Reasons, policy.DefaultReasons) {
		t.Errorf("orders: %+v", o)
	}
	if m.Way != "levels" || m.Exhausted != `forward to queue "dead"` || m.Waits[0].Least != "1s" || m.Waits[1].Most != "1h" {
		t.Errorf("mail: %+v", m)
	}
	if err := s.Add(ctx, []*store.Record{record("mail", store.Parked, "x")}); err != nil {
		t.Fatal(err)
	}
	if all, err = c.Policies(ctx, caller(auth.Viewer, "mail", "orders.secret")); err != nil || len(all) != 1 || all[0].Name != "mail" {
		t.Errorf("limited: %+v, %v", all, err)
	}
}

// book is an audit log of five lines.
type book struct{}

func (book) Before(_ context.Context, n int64, visit func(audit.Entry) (bool, error)) error {
	for i := min(n-1, 5); i >= 1; i-- {
		if more, err := visit(audit.Entry{N: i}); err != nil || !more {
			return err
		}
	}
	return nil
}

func TestTheAuditLogAPageAtATime(t *testing.T) {
	c := inspect.New(inspect.Config{Store: memstore.New(), Audit: book{}})
	by := caller(auth.Admin)
	by.ReadOnly = true
	var got []int64
	for after := ""; ; {
		page, next, err := c.AuditLog(ctx, by, after, 2)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range page {
			got = append(got, e.N)
		}
		if after = next; after == "" {
			break
		}
	}
	if !slices.Equal(got, []int64{5, 4, 3, 2, 1}) {
		t.Errorf("the lines are %d", got)
	}
}
