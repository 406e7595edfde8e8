package retry

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/policy"
)

// Queues that come and go, each with a name of its own, are not remembered for ever; and
// one that was forgotten is enrolled again.
func TestEnrolledQueuesAreNotRememberedForEver(t *testing.T) {
	broker := &binding{}
	e := newRetryTargets(broker, func() policy.Set {
		return policy.Set{{Name: "p", Queues: []string{"*"}, Attempts: 3, Backoff: policy.Fixed(time.Second)}}
	})
	t.Cleanup(e.lookup.close)
	const n = 3*maxTargets + 5
	for i := range n {
		name := fmt.Sprintf("reply.%d", i)
		e.proven.add(name)
		if f := e.route(t.Context(), name, true, time.Time{}); f.Park != "" || f.Err != nil {
			t.Fatal(f)
		}
		if yes, known := e.lookUpIfUnknown(name); !yes || !known {
			t.Fatalf("%s is enrolled: %v, known: %v", name, yes, known)
		}
	}
	if len(e.bound.queues) > maxTargets || len(e.proven.queues) > maxTargets {
		t.Errorf("%d are remembered as bound and %d as proven", len(e.bound.queues), len(e.proven.queues))
	}
	if f := e.route(t.Context(), "reply.0", true, time.Time{}); f.Park != "" || f.Err != nil || broker.bound != n+1 {
		t.Errorf("%v; %d were bound, want %d", f, broker.bound, n+1)
	}
}

// binding is a broker that counts what is bound.
type binding struct{ bound int }

func (b *binding) BindRetryExchange(context.Context, string) error { b.bound++; return nil }

func (b *binding) RetryExchangeExists(context.Context, string) (bool, error) { return false, nil }
