package retry_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// due is a claim of a message that is to be retried in q.
func due(body string) store.Claim {
	return store.Claim{Record: &store.Record{ID: uuid.New(), Queue: "q", State: store.Waiting, Proven: true, Failures: 2, Reason: wire.ReasonRejected, Error: "no stock",
		FirstFailed: time.Unix(1_700_000_000, 0), Due: time.Now(), Message: wire.Message{Exchange: "shop", RoutingKey: "eu.order", Body: []byte(body), MessageID: "m-" + body}}}
}

// publishClaims publishes claims, and returns the results and the events.
func publishClaims(a *faultyBroker, claims ...store.Claim) (results []retry.Result, events []string) {
	ctx := context.Background()
	policies := policy.Set{{Name: "p", Queues: []string{"q"}}}
	g := retry.NewSender(a, func() policy.Set { return policies }, nil, impatient, nil, func(e retry.Event) { events = append(events, string(e.Kind)+" "+e.ID.String()) })
	return g.Send(ctx, "q", claims)(ctx), events
}

// Only what RabbitMQ confirmed, and did not return as unroutable, is done and deleted.
// What it nacked, or did not answer, waits and is tried again.
func TestOnlyAConfirmedMessageIsDone(t *testing.T) {
	a := &faultyBroker{of: map[string]error{"nacked": wire.ErrNacked, "unanswered": fmt.Errorf("%w: EOF", wire.ErrNoAnswer), "forbidden": wire.ErrForbidden,
		"too large": fmt.Errorf("%w: PRECONDITION_FAILED", wire.ErrUnacceptable), "unroutable": wire.ErrUnroutable, "unknown": errors.New("what is this")}}
	bodies := []string{"nacked", "confirmed", "unanswered", "too large", "unroutable", "unknown", "forbidden", "confirmed too"}
	var claims []store.Claim
	for _, b := range bodies {
		claims = append(claims, due(b))
	}
	results, events := publishClaims(a, claims...)
	for i, body := range bodies {
		f := results[i]
		var right bool
		switch body {
		case "confirmed", "confirmed too":
			right = f == retry.Result{Done: true}
		case "too large":
			right = !f.Done && f.Err == nil && strings.Contains(f.Park, "PRECONDITION_FAILED")
		case "unroutable": // the queue is there: it is bound again
			right = f == retry.Result{Err: retry.ErrTryAtOnce}
		default:
			right = !f.Done && f.Park == "" && errors.Is(f.Err, a.of[body])
		}
		if !right {
			t.Errorf("%s: %+v", body, f)
		}
	}
	if want := []string{string(retry.Retried) + " " + claims[1].Record.ID.String(), string(retry.Retried) + " " + claims[7].Record.ID.String()}; !reflect.DeepEqual(events, want) {
		t.Errorf("events %v, want %v", events, want)
	}
	if len(a.bound) != 2 {
		t.Errorf("the queue was bound %d times; want once at first, and once since it was unroutable", len(a.bound))
	}
}

// A queue that is gone has its messages parked, with that reason.
func TestUnroutableIsParkedWhenTheQueueIsGone(t *testing.T) {
	a := &faultyBroker{of: map[string]error{"x": wire.ErrUnroutable}}
	g := retry.NewSender(a, func() policy.Set { return policy.Set{{Name: "p", Queues: []string{"q"}}} }, nil, impatient, nil, none)
	ctx := context.Background()
	wait := g.Send(ctx, "q", []store.Claim{due("x"), due("confirmed")})
	a.gone = true
	results := wait(ctx)
	if f := results[0]; f.Done || f.Err != nil || !strings.Contains(f.Park, `"q" does not exist`) || results[1] != (retry.Result{Done: true}) {
		t.Errorf("results %+v", results)
	}
}

// A retry exchange that somebody deleted is not made again for a client's report, which
// proves nothing, though this process had bound it before.
func TestAReportDoesNotDeclareADeletedRetryExchangeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &faultyBroker{of: map[string]error{"reported": wire.ErrUnroutable}}
		g := retry.NewSender(a, func() policy.Set { return policy.Set{{Name: "p", Queues: []string{"*"}}} }, nil, impatient, nil, none)
		defer g.Close()
		reported := due("reported")
		reported.Record.Proven = false
		g.Send(t.Context(), "q", []store.Claim{due("proven")})(t.Context())
		for try := range 5 {
			if f := g.Send(t.Context(), "q", []store.Claim{reported})(t.Context())[0]; f.Park != "" {
				break
			} else if f.Done || f.Err == nil || try == 4 {
				t.Errorf("try %d: %+v", try, f)
			}
			time.Sleep(time.Minute)
		}
		if len(a.bound) != 1 {
			t.Errorf("it was bound %d times; want once, for the dead letter", len(a.bound))
		}
	})
}

// What is forwarded goes where the policy says, and is parked when that leads nowhere:
// its own queue is not looked up, and not bound.
func TestAnUnroutableForwardIsParked(t *testing.T) {
	a := &faultyBroker{of: map[string]error{"lost": wire.ErrUnroutable, "nacked": wire.ErrNacked}}
	var claims []store.Claim
	for _, body := range []string{"arrives", "lost", "nacked"} {
		c := due(body)
		c.Record.Forward = &store.Destination{Exchange: "audit", RoutingKey: "failed"}
		claims = append(claims, c)
	}
	results, events := publishClaims(a, claims...)
	if results[0] != (retry.Result{Done: true}) || !strings.Contains(results[1].Park, `"audit"`) || results[1].Done || !errors.Is(results[2].Err, wire.ErrNacked) || results[2].Done {
		t.Errorf("results %+v", results)
	}
	if len(events) != 1 || events[0] != string(retry.Forwarded)+" "+claims[0].Record.ID.String() || len(a.bound) != 0 {
		t.Errorf("events %v, bound %v", events, a.bound)
	}
	for _, o := range a.sent {
		if o.Exchange != "audit" || o.RoutingKey != "failed" {
			t.Errorf("it went to exchange %q with key %q", o.Exchange, o.RoutingKey)
		}
	}
}

// Each claim is published once, in order, mandatory, to its queue's exchange with the key
// it was first published with, and its history.
func TestEachClaimIsPublishedOnce(t *testing.T) {
	a := &faultyBroker{}
	var claims []store.Claim
	for i := range 20 {
		c := due(fmt.Sprint(i))
		c.Record.Message.Headers = amqp.Table{"n": int32(i), "CC": []any{"elsewhere"}, "x-death": []any{}, "x-delivery-count": int64(3), wire.HeaderFirstFailed: time.Now()}
		c.Record.Message.UserID, c.Record.Message.Expiration = "shop", "1000"
		claims = append(claims, c)
	}
	publishClaims(a, claims...)
	if len(a.sent) != len(claims) {
		t.Fatalf("%d messages were published %d times", len(claims), len(a.sent))
	}
	for i, o := range a.sent {
		r, m := claims[i].Record, o.Message
		if o.Exchange != wire.RetryExchange("q") || o.RoutingKey != "eu.order" || o.ID != r.ID.String() || o.Unchecked || string(m.Body) != fmt.Sprint(i) || m.MessageID != "m-"+fmt.Sprint(i) || m.UserID != "" || m.Expiration != "" {
			t.Errorf("number %d was published as %+v, %+v", i, o, m)
		}
		want := amqp.Table{"n": int32(i), wire.HeaderID: r.ID.String(), wire.HeaderAttempt: int64(2), wire.HeaderQueue: "q", wire.HeaderExchange: "shop", wire.HeaderRoutingKey: "eu.order",
			wire.HeaderFirstFailed: time.Unix(1_700_000_000, 0), wire.HeaderReason: wire.ReasonRejected, wire.HeaderError: "no stock", wire.HeaderUserID: "shop"}
		if !reflect.DeepEqual(m.Headers, want) {
			t.Errorf("number %d has the headers %v, want %v", i, m.Headers, want)
		}
	}
}

// Nothing is published to a queue that no policy allows, that is Redrive's own, or that
// only a client named.
func TestNothingIsPublishedToAQueueThatNoPolicyAllows(t *testing.T) {
	for name, c := range map[string]struct {
		queue    string
		proven   bool
		policies policy.Set
	}{
		"no policy":        {"q", true, policy.Set{{Name: "p", Queues: []string{"others"}}}},
		"our own":          {wire.QueueIntake, true, policy.Set{{Name: "p", Queues: []string{"*"}}}},
		"named by reports": {"q", false, policy.Set{{Name: "p", Queues: []string{"*"}}}},
	} {
		a := &faultyBroker{}
		answered := make(chan struct{}, 1)
		g := retry.NewSender(a, func() policy.Set { return c.policies }, nil, impatient, func() { answered <- struct{}{} }, none)
		t.Cleanup(g.Close)
		d := due("x")
		d.Record.Queue, d.Record.Proven = c.queue, c.proven
		send := func() []retry.Result {
			return g.Send(context.Background(), c.queue, []store.Claim{d})(context.Background())
		}
		results := send()
		if errors.Is(results[0].Err, retry.ErrLookupPending) {
			<-answered
			results = send()
		}
		if len(a.sent) != 0 || len(a.bound) != 0 || results[0].Done || results[0].Park == "" {
			t.Errorf("%s: published %d, bound %v, %+v", name, len(a.sent), a.bound, results[0])
		}
	}
}

// What cannot return to its queue is not published; what its neighbours in a batch are
// answered is not its answer.
func TestAMessageThatIsNotPublishedIsNotDone(t *testing.T) {
	a := &faultyBroker{gone: true, of: map[string]error{"refused": wire.ErrNacked}}
	var claims []store.Claim
	for _, body := range []string{"gone", "forwarded", "gone too", "refused"} {
		c := due(body)
		if !strings.HasPrefix(body, "gone") {
			c.Record.Forward = &store.Destination{Exchange: "audit"}
		}
		claims = append(claims, c)
	}
	results, _ := publishClaims(a, claims...)
	if results[0].Done || results[0].Park == "" || results[1] != (retry.Result{Done: true}) || results[2].Done || results[2].Park == "" || !errors.Is(results[3].Err, wire.ErrNacked) {
		t.Errorf("results %+v", results)
	}
}

// A queue that RabbitMQ has dead-lettered from is enrolled until it is gone.
func TestADeletedQueueIsNotEnrolled(t *testing.T) {
	a := &faultyBroker{}
	g := retry.NewSender(a, anyQueue, nil, impatient, nil, none)
	defer g.Close()
	f := retry.NewIntake(memstore.New(), retry.NewInForce(retry.Rules{Policies: anyQueue()}), nil, retry.NewReportedNames(memstore.New(), g), none)
	must(t, f.Handle(t.Context(), []wire.Delivery{deadLetter("q", "x")}))
	if yes, _ := g.MayRetryTo("q"); !yes {
		t.Fatal("a dead letter's queue is not enrolled")
	}
	a.gone = true
	if fate := g.Send(t.Context(), "q", []store.Claim{due("x")})(t.Context())[0]; fate.Park == "" {
		t.Errorf("%+v", fate)
	}
	if yes, _ := g.MayRetryTo("q"); yes {
		t.Error("a queue that is gone is enrolled")
	}
}

// slowBinder is a broker that takes long to bind a queue.
type slowBinder struct {
	latency time.Duration
	refuses error // to bind any queue

	mu       sync.Mutex
	noQueue  time.Duration // of the sender
	removed  []string      // retry exchanges
	bound    map[string]int
	now, top int // bindings at once
	late     map[string]time.Duration
}

func (b *slowBinder) RemoveRetryExchange(_ context.Context, queue string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.removed = append(b.removed, queue)
	return nil
}

func (b *slowBinder) RetryExchangeExists(context.Context, string) (bool, error) { return false, nil }

func (b *slowBinder) BindRetryExchange(ctx context.Context, queue string) error {
	b.mu.Lock()
	b.bound[queue]++
	b.now++
	b.top = max(b.top, b.now)
	latency := b.latency
	b.mu.Unlock()
	defer func() { b.mu.Lock(); b.now--; b.mu.Unlock() }()
	select {
	case <-time.After(latency):
		return b.refuses
	case <-ctx.Done():
		return wire.ErrNoAnswer
	}
}

func (b *slowBinder) Send(_ context.Context, out []wire.Outgoing) func(context.Context) []error {
	return func(context.Context) []error { return make([]error, len(out)) }
}

// binding runs a scheduler with that broker over what a test adds.
func binding(t *testing.T, b *slowBinder, test func(s *memstore.Store, reports func() string)) {
	t.Helper()
	b.bound, b.late = map[string]int{}, map[string]time.Duration{}
	synctest.Test(t, func(t *testing.T) {
		s, wake := memstore.New(), retry.NewWakeup()
		g := retry.NewSender(b, anyQueue, nil, func(string) time.Duration { return b.noQueue }, wake.Wake, func(e retry.Event) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.late[e.Queue] = max(b.late[e.Queue], e.Late)
		})
		var mu sync.Mutex
		var reports []string
		scheduler := retry.NewScheduler(s, g, open(), wake, none, slog.New(slog.DiscardHandler), func(lane store.Lane, err error) {
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				reports = append(reports, fmt.Sprint(lane, ": ", err))
			}
		})
		stop := runs(t, scheduler)
		test(s, func() string {
			mu.Lock()
			defer mu.Unlock()
			return strings.Join(reports, "; ")
		})
		stop()
		g.Close()
	})
}

// proven is a due message that RabbitMQ has dead-lettered from its queue.
func proven(queue string) *store.Record {
	r := record(queue, "x", time.Now())
	r.Proven = true
	return r
}

// After a start each queue must be bound once before its first retry. Thousands of them make the
// retries of another one no later.
func TestQueuesThatAreBoundDelayNoOther(t *testing.T) {
	const queues = 1000
	b := &slowBinder{latency: 10 * time.Millisecond}
	binding(t, b, func(s *memstore.Store, reports func() string) {
		must(t, s.Add(t.Context(), []*store.Record{proven("one")}))
		time.Sleep(2 * time.Second)
		var all []*store.Record
		for i := range queues {
			all = append(all, proven(fmt.Sprint("work-", i)))
		}
		must(t, s.Add(t.Context(), all))
		b.mu.Lock()
		clear(b.late)
		b.mu.Unlock()
		for range 100 {
			must(t, s.Add(t.Context(), []*store.Record{proven("one")}))
			time.Sleep(20 * time.Millisecond)
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if len(b.late) != queues+1 || b.late["one"] > 150*time.Millisecond {
			t.Errorf("%d queues were retried to, the other one up to %s late", len(b.late), b.late["one"])
		}
		for queue, late := range b.late {
			if late > 1500*time.Millisecond || b.bound[queue] != 1 {
				t.Errorf("%s was bound %d times, and retried %s late", queue, b.bound[queue], late)
			}
		}
		if b.top != 16 || reports() != "" {
			t.Errorf("%d were bound at once; reported: %s", b.top, reports())
		}
	})
}

// A queue whose binding hangs, as it may in RabbitMQ, stops no other. One that cannot be bound is
// reported with the reason.
func TestABindingThatFailsStopsNoOther(t *testing.T) {
	b := &slowBinder{latency: time.Hour}
	binding(t, b, func(s *memstore.Store, reports func() string) {
		must(t, s.Add(t.Context(), []*store.Record{proven("hangs")}))
		time.Sleep(time.Second)
		b.mu.Lock()
		b.latency = time.Millisecond
		b.mu.Unlock()
		must(t, s.Add(t.Context(), []*store.Record{proven("one")}))
		time.Sleep(time.Second)
		b.mu.Lock()
		if late, ok := b.late["one"]; !ok || late > 300*time.Millisecond {
			t.Errorf("another queue was retried: %v, %s late", ok, late)
		}
		b.mu.Unlock()
	})
	b = &slowBinder{latency: 200 * time.Millisecond, refuses: errors.New("RabbitMQ refuses it")}
	binding(t, b, func(s *memstore.Store, reports func() string) {
		must(t, s.Add(t.Context(), []*store.Record{proven("refused")}))
		time.Sleep(3 * time.Second)
		if r := reports(); !strings.Contains(r, "refused: ") || !strings.Contains(r, "RabbitMQ refuses it") {
			t.Errorf("reported: %s", r)
		}
	})
}

// A queue that is gone may be declared again: its messages wait for it, with its retry exchange, and
// are parked with that reason when it stays away. Those of a queue that only another connection may
// use are parked at once.
func TestMessagesWaitForAQueueThatIsAway(t *testing.T) {
	parked := func(t *testing.T, s *memstore.Store) string {
		if k := kept(t, s); len(k) == 1 {
			return k[0].Record.ParkedFor
		}
		return "retried"
	}
	for name, c := range map[string]struct {
		refuses error
		noQueue time.Duration
		back    time.Duration // when it is declared again; 0: never
		waits   time.Duration
		then    string
		removed int
	}{
		"for ever":             {wire.ErrQueueGone, 5 * time.Minute, 0, 5*time.Minute - time.Second, `the queue "q" does not exist any more`, 1},
		"for a moment":         {wire.ErrQueueGone, 5 * time.Minute, 4 * time.Minute, 4 * time.Minute, "retried", 0},
		"for ever, impatient":  {wire.ErrQueueGone, 0, 0, 0, `the queue "q" does not exist any more`, 1},
		"exclusive to another": {wire.ErrExclusive, 5 * time.Minute, 0, 0, `the queue "q" is exclusive to another connection`, 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := &slowBinder{latency: 20 * time.Millisecond, refuses: c.refuses, noQueue: c.noQueue}
			binding(t, b, func(s *memstore.Store, reports func() string) {
				must(t, s.Add(t.Context(), []*store.Record{proven("q")}))
				time.Sleep(c.waits)
				if is := parked(t, s); c.waits > 0 && (is != "" || !strings.Contains(reports(), "its messages wait for it")) {
					t.Errorf("after %s: %q, reported: %s", c.waits, is, reports())
				}
				if c.back > 0 {
					b.mu.Lock()
					b.refuses = nil
					b.mu.Unlock()
				}
				time.Sleep(30 * time.Second)
				if is := parked(t, s); !strings.HasPrefix(is, c.then) || len(b.removed) != c.removed {
					t.Errorf("then it is %q, and %d retry exchanges are removed", is, len(b.removed))
				}
				if c.then == "retried" {
					return
				}
				// Of what is known to be gone, nothing waits again.
				must(t, s.Add(t.Context(), []*store.Record{proven("q")}))
				time.Sleep(time.Second)
				for _, k := range kept(t, s) {
					if k.Record.ParkedFor == "" {
						t.Errorf("%+v waits", k.Record)
					}
				}
				if b.bound["q"] > 30 {
					t.Errorf("it was tried %d times", b.bound["q"])
				}
			})
		})
	}
}
