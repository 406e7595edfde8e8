package inspect_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/policy"
)

func TestAQueueInFull(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		d.add(t, record("orders", store.Waiting, "x"), record("orders", store.Parked, "y"), record("mail", store.Parked, "z"))
		q, err := d.Queue(ctx, operator, "orders")
		if err != nil {
			t.Fatal(err)
		}
		if q.Name != "orders" || q.Waiting != 1 || q.Parked != 1 || q.Broker == nil || q.Broker.Consumers != 1 || len(q.Calendar) == 0 || q.Ledger == nil || q.Ledger.In != 2 {
			t.Errorf("%+v", q)
		}
		if len(q.Groups) != 1 || q.Groups[0].Queue != "orders" || q.InForce == nil || q.InForce.Name != "p" || q.Doctor == nil {
			t.Errorf("groups %+v, policy %+v, doctor %+v", q.Groups, q.InForce, q.Doctor)
		}
		if len(q.Health.Reasons) != 1 || q.Health.Reasons[0].Kind != "parked" || !strings.HasPrefix(q.Health.Reasons[0].Text, "1 message ") {
			t.Errorf("its health has others' reasons: %+v", q.Health)
		}
		if q, err := d.Queue(ctx, caller(auth.Viewer), "other"); err != nil || q.Doctor != nil || q.Ledger != nil {
			t.Errorf("one that RabbitMQ alone knows: %+v, %v", q, err)
		}
		for _, err := range []error{errorOf(d.Queue(ctx, operator, "nowhere")), errorOf(d.Queue(ctx, caller(auth.Admin, "mail"), "orders"))} {
			if !errors.Is(err, inspect.ErrNotFound) {
				t.Errorf("not a queue for them: %v", err)
			}
		}
	})
}

func errorOf(_ inspect.QueueDetail, err error) error { return err }

// The doctor runs once at a time; what it found is kept, and is among the reasons of health.
func TestTheDoctorRunsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		found := []inspect.Finding{{Status: "ok", What: "fine"}, {Status: "wrong", Queue: "orders", What: "no consumers"}, {Status: "warning", What: "old"}}
		var fails error
		in := inspect.New(inspect.Config{Store: memstore.New(), Examine: func(ctx context.Context) ([]inspect.Finding, error) {
			select {
			case <-time.After(20 * time.Second):
				return found, fails
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}})
		running, stop := context.WithCancel(ctx)
		ended := make(chan struct{})
		go func() { defer close(ended); in.Run(running) }()
		defer func() { stop(); <-ended }()

		for by, want := range map[*auth.Caller]error{{Role: auth.Viewer}: auth.ErrForbidden, {Role: auth.Admin, Queues: []string{"mail"}}: auth.ErrForbidden, {}: auth.ErrSignIn} {
			if err := in.StartDoctor(ctx, *by); !errors.Is(err, want) {
				t.Errorf("%+v: %v", by, err)
			}
		}
		began := time.Now()
		if err := in.StartDoctor(ctx, operator); err != nil {
			t.Fatal(err)
		}
		if err := in.StartDoctor(ctx, operator); !errors.Is(err, inspect.ErrPrecondition) {
			t.Errorf("a second run: %v", err)
		}
		if e, err := in.Doctor(ctx, operator); err != nil || e.Running == nil || !e.Running.Equal(began) || e.By != "ann" || e.At != nil {
			t.Errorf("while it runs: %+v, %v", e, err)
		}
		time.Sleep(21 * time.Second)
		e, err := in.Doctor(ctx, operator)
		if err != nil || e.Running != nil || e.At == nil || len(e.Findings) != 3 || e.By != "ann" {
			t.Errorf("after it: %+v, %v", e, err)
		}
		if e, err := in.Doctor(ctx, caller(auth.Operator, "orders")); err != nil || len(e.Findings) != 1 {
			t.Errorf("to those who see orders: %+v, %v", e, err)
		}
		h, err := in.Health(ctx, caller(auth.Viewer))
		if want := []string{"wrong : the doctor found 1 thing wrong", "attention : the doctor found 1 thing to look at"}; err != nil || strings.Join(reasonsOf(h), "\n") != strings.Join(want, "\n") {
			t.Errorf("health: %q, %v", reasonsOf(h), err)
		}
		found, fails = nil, errors.New("RabbitMQ does not answer")
		if err := in.StartDoctor(ctx, operator); err != nil {
			t.Fatal(err)
		}
		if e, _ := in.Doctor(ctx, operator); len(e.Findings) != 3 {
			t.Errorf("what it found before is gone while it runs: %+v", e)
		}
		time.Sleep(21 * time.Second)
		if e, _ := in.Doctor(ctx, operator); e.Error != "RabbitMQ does not answer" || len(e.Findings) != 0 {
			t.Errorf("after one that failed: %+v", e)
		}
	})
}

func TestPoliciesInWords(t *testing.T) {
	breaker, five := throttle.DefaultBreaker(), uint8(5)
	for _, c := range []struct {
		p    policy.Policy
		r    throttle.Rules
		want string
	}{
		{policy.Policy{Attempts: 1}, throttle.Rules{}, "A message is parked at its first failure."},
		{policy.Policy{Attempts: 2, Backoff: policy.Fixed(time.Minute), Reasons: []string{"rejected"}}, throttle.Rules{},
			"A failed message is retried once, after 1m (jitter ±20%). When attempt 2 fails, it is parked. This is for messages with the reason rejected, and for reports; others are parked at once."},
		{policy.Policy{Attempts: 4, Backoff: policy.Fixed(time.Minute), Exhausted: policy.Exhausted{Action: policy.Discard}}, throttle.Rules{Rate: 5, InFlight: 20},
			"A failed message is retried up to 3 times, after 1m each (jitter ±20%). When attempt 4 fails, it is discarded. This is for messages with the reason rejected or delivery_limit, and for reports; others are parked at once. Each queue gets at most 5/s and 20 in flight."},
		{policy.Default(), throttle.Rules{Breaker: &breaker},
			"A failed message is retried up to 7 times, after 1s, 2s, 4s, 8s, … and at last 1m 4s (jitter ±20%). When attempt 8 fails, it is parked. This is for messages with the reason rejected or delivery_limit, and for reports; others are parked at once."},
		{policy.Policy{Attempts: 2, Backoff: policy.Fixed(time.Minute), Jitter: policy.None, MaxAge: 6 * time.Hour, Retention: 720 * time.Hour, RetryPriority: &five, Rules: make([]policy.Rule, 2)}, throttle.Rules{},
			"Its 2 rules decide first, where one applies. A failed message is retried once, after 1m. When attempt 2 fails, or the next would be later than 6h after the first failure, it is parked. This is for messages with the reason rejected or delivery_limit, and for reports; others are parked at once. Retries have the priority 5. What is parked is discarded after 30d."},
		{policy.Policy{Attempts: 1, Retention: time.Hour, Rules: make([]policy.Rule, 1)}, throttle.Rules{},
			"Its rule decides first, where it applies. A message is parked at its first failure. What is parked is discarded after 1h."},
	} {
		c.p.Name, c.p.Queues = "p", []string{"*"}
		in := inspect.New(inspect.Config{Store: memstore.New(), Policies: func() policy.Set { return policy.Set{c.p} }, Rules: func(string) throttle.Rules { return c.r }})
		all, err := in.Policies(ctx, caller(auth.Viewer))
		if err != nil || all[0].Words != c.want {
			t.Errorf("it says\n%s, want\n%s: %v", all[0].Words, c.want, err)
		}
		const opens = "It opens when 50 % of at least 20 retries within 1m fail again. After 10s, later up to 2m, it probes with 3, and once these do not fail it retries more and more for 1m."
		if c.r.Breaker != nil && all[0].Breaker != opens {
			t.Errorf("of its breaker it says %s", all[0].Breaker)
		}
	}
}

// A redirect is of the policy that its messages are retried by, and shown to callers who see both of
// its queues.
func TestRedirectsOfAPolicy(t *testing.T) {
	in := inspect.New(inspect.Config{Store: memstore.New(), Enrolled: func() ([]string, error) { return []string{"orders", "mail"}, nil },
		Policies: func() policy.Set {
			return policy.Set{{Name: "orders", Queues: []string{"orders"}, Attempts: 1}, {Name: "all", Queues: []string{"*"}, Attempts: 1}}
		}, Redirects: func() map[string]string { return map[string]string{"orders.old": "orders", "bills": "mail"} }})
	all, err := in.Policies(ctx, caller(auth.Viewer))
	if err != nil || len(all) != 2 || !slices.Equal(all[0].Redirects, []inspect.Redirect{{From: "orders.old", To: "orders"}}) || !slices.Equal(all[1].Redirects, []inspect.Redirect{{From: "bills", To: "mail"}}) {
		t.Fatalf("%+v, %v", all, err)
	}
	if want := `A message is parked at its first failure. What fails in queue "orders.old" is retried to "orders".`; all[0].Words != want {
		t.Errorf("it says\n%s, want\n%s", all[0].Words, want)
	}
	for _, c := range []struct {
		sees  []string
		shown int
	}{{[]string{"orders"}, 0}, {[]string{"orders", "orders.old"}, 1}} {
		mine, err := in.Policies(ctx, caller(auth.Viewer, c.sees...))
		if err != nil || mine[0].Name != "orders" || len(mine[0].Redirects) != c.shown || strings.Contains(mine[0].Words, "orders.old") != (c.shown == 1) {
			t.Errorf("to one who sees %q: %+v, %v", c.sees, mine, err)
		}
	}
}

// Each policy says which queues it is for: the first that matches decides.
func TestWhichQueuesAPolicyIsFor(t *testing.T) {
	in := newList(t)
	all, err := in.Policies(ctx, caller(auth.Viewer))
	if err != nil || all[0].Matches.Count != 1 || all[0].Matches.Queues[0] != "mail" || all[1].Matches.Count != 3 {
		t.Errorf("%+v %+v, %v", all[0].Matches, all[1].Matches, err)
	}
	if mine, err := in.Policies(ctx, caller(auth.Viewer, "mail")); err != nil || mine[0].YAML != "" || mine[0].Matches.Count != 1 {
		t.Errorf("to others: %+v, %v", mine, err)
	}
}
