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
	"github.com/redrive-mq/redrive/internal/store/storetest"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/memstore"
	"github.com/redrive-mq/redrive/wire"
)

// due is a claim of a message that is to be retried in q.
func due(body string) store.Claim {
	return store.Claim{Record: &store.Record{ID: uuid.New(), Queue: "q", State: store.Waiting, Proven: true, Failures: 2, Replays: 3, Reason: wire.ReasonRejected, Error: "no stock",
		FirstFailed: time.Unix(1_700_000_000, 0), Due: time.Now(), Message: wire.Message{Exchange: "shop", RoutingKey: "eu.order", Body: []byte(body), MessageID: "m-" + body}}}
}

// publishClaims publishes claims, and returns the results and the events.
func publishClaims(a *faultyBroker, claims ...store.Claim) (results []retry.Result, events []string) {
	ctx := context.Background()
	policies := policy.Set{{Name: "p", Queues: []string{"q"}}}
	g := retry.NewSender(a, func() policy.Set { return policies }, nil, impatient, nil, func(e retry.Event) { events = append(events, string(e.Kind)+" "+e.ID.String()) })
	return g.Send(ctx, "q", claims)(ctx), events
}

// Only what RabbitMQ confirmed, and did not return, is done; the rest is tried again.
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
	expect.Equal(t, len(a.bound), 2, "the queue was bound … times")
}

// The messages of a deleted queue are parked, with that reason.
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

// A client's report does not declare a deleted retry exchange again, though this process had bound it.
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
		expect.Equal(t, len(a.bound), 1, "it was bound … times")
	})
}

// A forward that is unroutable is parked; its own queue is neither looked up nor bound.
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

// Each claim is published once, in order, to its queue's exchange, with its first routing key and its history.
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
			wire.HeaderFirstFailed: time.Unix(1_700_000_000, 0), wire.HeaderReason: wire.ReasonRejected, wire.HeaderError: "no stock", wire.HeaderReplays: int64(3), wire.HeaderUserID: "shop"}
		if !reflect.DeepEqual(m.Headers, want) {
			t.Errorf("number %d has the headers %v, want %v", i, m.Headers, want)
		}
	}
}

// Nothing is published to a queue that no policy allows, that is Redrive's own, or that only a client named.
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

// A message that cannot return to its queue is not published, and does not get its neighbours' answers.
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
	f := retry.NewIntake(memstore.New(), retry.NewInForce(retry.Rules{Policies: anyQueue()}), nil, retry.NewReportedNames(memstore.New(), g), nil, none)
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
	faultyBroker
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
		var reports laneReports
		report := func(lane store.Lane, err error) {
			if err != nil {
				reports.add(lane, err)
			}
		}
		stop := runs(t, retry.NewScheduler(s, g, open(), wake, none, slog.New(slog.DiscardHandler), report))
		test(s, reports.String)
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

// Thousands of queues that must be bound after a start do not delay another one's retries.
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

// A queue whose binding hangs stops no other. One that cannot be bound is reported with the reason.
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

// A policy or RabbitMQ says whether a queue is a target; RabbitMQ is asked only about those that a policy allows.
func TestWhetherAQueueIsATargetIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &slowBroker{latency: time.Second, there: map[string]bool{"enrolled": true}, lookups: map[string]int{}}
		g := retry.NewSender(b, func() policy.Set {
			return policy.Set{{Name: "p", Queues: []string{"exact", "enrolled*", "missing*", "redrive*"}}}
		}, nil, impatient, nil, none)
		defer g.Close()
		for _, c := range []struct {
			queue              string
			yes, known         bool // at once
			yesLater, knowLate bool // when RabbitMQ has answered
			lookups            int
		}{
			{"exact", true, true, true, true, 0},
			{"no policy", false, true, false, true, 0},
			{wire.QueueIntake, false, true, false, true, 0},
			{"enrolled", false, false, true, true, 1},
			{"missing", false, false, false, true, 1},
		} {
			if yes, known := g.MayRetryTo(c.queue); yes != c.yes || known != c.known {
				t.Errorf("%s: %v, known: %v", c.queue, yes, known)
			}
			time.Sleep(time.Second)
			synctest.Wait()
			if yes, known := g.MayRetryTo(c.queue); yes != c.yesLater || known != c.knowLate || b.lookups[c.queue] != c.lookups {
				t.Errorf("%s, later: %v, known: %v; looked up %d times", c.queue, yes, known, b.lookups[c.queue])
			}
		}
	})
}

// That a queue has no retry exchange counts for a minute; that it has one counts for ever.
func TestHowLongAnAnswerCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &slowBroker{there: map[string]bool{"enrolled": true}, lookups: map[string]int{}}
		g := retry.NewSender(b, anyQueue, nil, impatient, nil, none)
		defer g.Close()
		for _, c := range []struct {
			after   time.Duration
			missing int // lookups of a missing one
		}{{0, 1}, {30 * time.Second, 1}, {30 * time.Second, 1}, {1, 2}, {time.Hour, 3}} {
			time.Sleep(c.after)
			g.MayRetryTo("enrolled")
			g.MayRetryTo("missing")
			synctest.Wait()
			if b.lookups["missing"] != c.missing || b.lookups["enrolled"] != 1 {
				t.Errorf("%s later: looked up %v; want %d times what is missing", c.after, b.lookups, c.missing)
			}
		}
	})
}

// Names that only reports gave are looked up many at once, each once, and no retry waits for that.
func TestNamesThatOnlyReportsGaveAreLookedUpBesideTheScheduler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &slowBroker{latency: time.Second, there: map[string]bool{"enrolled": true}, lookups: map[string]int{}}
		woken := 0
		g := retry.NewSender(b, anyQueue, nil, impatient, func() { b.mu.Lock(); woken++; b.mu.Unlock() }, none)
		began := time.Now()
		send := func(queue string, proven bool) retry.Result {
			return g.Send(t.Context(), queue, claim(queue, proven))(t.Context())[0]
		}
		for range 3 {
			for i := range 100 {
				if f := send(fmt.Sprint("invented.", i), false); !errors.Is(f.Err, retry.ErrLookupPending) {
					t.Fatalf("before RabbitMQ's answer: %+v", f)
				}
			}
		}
		if f := send("work", true); !errors.Is(f.Err, retry.ErrTryAtOnce) {
			t.Errorf("a dead letter's queue: %+v", f)
		}
		if f := send("work", true); !f.Done {
			t.Errorf("a dead letter's queue, bound: %+v", f)
		}
		expect.Equal(t, time.Since(began), 0, "it waited for")
		due := claim("invented.1", false)
		send("enrolled", false)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if b.top < 10 || b.top > 16 || woken != 102 {
			t.Errorf("%d questions at once, %d answers", b.top, woken)
		}
		if f := g.Send(t.Context(), "invented.1", due)(t.Context())[0]; f.Park == "" {
			t.Errorf("a name that is not there: %+v", f)
		}
		if f := send("enrolled", false); !f.Done {
			t.Errorf("a name that is enrolled: %+v", f)
		}
		for name, n := range b.lookups {
			expect.Equal(t, n, 1, "%s was looked up … times", name)
		}
		// It was enrolled since: what is replayed now must find that out.
		b.there["invented.1"] = true
		if f := send("invented.1", false); !errors.Is(f.Err, retry.ErrLookupPending) {
			t.Errorf("with an answer of before: %+v", f)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if f := send("invented.1", false); f.Park != "" || f.Err != nil && !errors.Is(f.Err, retry.ErrTryAtOnce) {
			t.Errorf("once it is enrolled: %+v", f)
		}
		g.Close()
	})
}

// limitsNames returns an intake that limits names that only reports gave, and the broker and sender that it asks.
func limitsNames(t *testing.T, c retry.Consent, latency time.Duration, enrolled ...string) (*slowBroker, *memstore.Store, *retry.Sender, *retry.Intake) {
	b, s := &slowBroker{latency: latency, there: map[string]bool{}, lookups: map[string]int{}}, memstore.New()
	for _, queue := range enrolled {
		b.there[queue] = true
	}
	g := retry.NewSender(b, anyQueue, c, impatient, nil, none)
	t.Cleanup(g.Close)
	f := retry.NewIntake(s, retry.NewInForce(retry.Rules{Policies: anyQueue()}), nil, retry.NewReportedNames(s, g), nil, none)
	return b, s, g, f
}

func reportBy(user, queue string) []wire.Delivery {
	return []wire.Delivery{{Message: wire.Message{Exchange: wire.ExchangeFailures, RoutingKey: queue, UserID: user}}}
}

// Unproven reported names share a budget; enrolled ones, and those without messages, cost nothing.
func TestInventedNamesShareABudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, s, _, f := limitsNames(t, nil, 0)
		report := func(user, queue string) { t.Helper(); must(t, f.Handle(t.Context(), reportBy(user, queue))) }
		names := func() (n int, nameless int64) {
			counts, err := s.Counts(t.Context())
			must(t, err)
			for _, c := range counts {
				if c.Queue == "" {
					nameless = c.Parked
				} else {
					n++
				}
			}
			return n, nameless
		}
		for i := range 1500 {
			report("mallory", fmt.Sprint("invented.", i))
		}
		if n, nameless := names(); n != 1250 || nameless != 250 {
			t.Errorf("%d names, %d messages under none; want 1000, 250 that are not known yet, and 250", n, nameless)
		}
		// A name that gets no place costs RabbitMQ no question, and one that has its place costs one.
		if synctest.Wait(); len(b.lookups) < 1000 || len(b.lookups) > 1300 {
			t.Errorf("%d names were looked up", len(b.lookups))
		}
		for user := range 9 {
			for i := range 500 {
				report(fmt.Sprint("user ", user), fmt.Sprint("of ", user, " ", i))
			}
		}
		if n, _ := names(); n != 5000 {
			t.Errorf("%d names in all, want 4000 and 1000 that are not known yet", n)
		}
		must(t, f.Handle(t.Context(), []wire.Delivery{deadLetter("proven", "x")}))
		report("mallory", "proven")
		if n, _ := names(); n != 5001 {
			t.Errorf("%d names, want that of a dead letter besides", n)
		}
		// What was kept is gone, or was enrolled: there is room again.
		all := storetest.Listed(t, s, store.Range{Queues: []string{"invented.0"}, State: store.Waiting})
		if len(all) != 1 {
			t.Fatal(all)
		}
		claims, err := s.Claim(t.Context(), store.Lane{Queue: "invented.0"}, time.Now().Add(time.Hour), 1, 1<<20)
		must(t, err)
		must(t, errOf(s.Finish(t.Context(), []store.Outcome{{Claim: claims[0], At: time.Now()}})))
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		before, _ := names()
		report("mallory", "invented.new")
		report("mallory", "invented.newer")
		if n, _ := names(); n != before+1 {
			t.Errorf("%d names after %d, want one more", n, before)
		}
	})
}

// While the budget is full, a report is kept under its name until that is known not to be enrolled.
func TestAReportForAnEnrolledQueueIsKeptWhileTheBudgetIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &consent{}
		_, s, g, f := limitsNames(t, c, 10*time.Millisecond, "honest")
		refused := func(queue string) bool {
			t.Helper()
			must(t, f.Handle(t.Context(), reportBy("shop", queue)))
			return len(storetest.Listed(t, s, store.Range{Queues: []string{queue}})) == 0
		}
		fill := func(prefix string, n int) (none int) {
			for i := range n {
				if refused(fmt.Sprint(prefix, i)) {
					none++
				}
			}
			return none
		}
		if n := fill("invented.", 1000); n != 0 {
			t.Fatalf("%d of the first 1000 names were refused", n)
		}
		time.Sleep(2 * time.Minute)
		g.MayRetryTo("no")
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if refused("honest") || refused("no") {
			t.Error("before RabbitMQ's answer, or that about consent, a report was parked without its queue")
		}
		time.Sleep(5 * time.Second) // the questions of the sweep
		synctest.Wait()
		g.MayRetryTo("not either")
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if c.asOf = time.Now(); !refused("not either") {
			t.Error("what is known not to be enrolled got a place while the budget is full")
		}
		expect.Equal(t, fill("more.", 400), 152, "names beyond were refused")
		// The one that turned out to be enrolled gives its place back, the others do not.
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		g.MayRetryTo("honest")
		time.Sleep(time.Second)
		synctest.Wait()
		if refused("new") || !refused("newer") {
			t.Error("after the next sweep there is not one place")
		}
	})
}

// consent is what is known of all queues.
type consent struct {
	yes  bool
	asOf time.Time
	err  error
}

func (c *consent) Consented(string) (bool, time.Time, error) { return c.yes, c.asOf, c.err }

// A list of queues decides nothing about messages due after it began, and without a list nothing is parked.
func TestAReportIsParkedOnlyByAnAnswerNewerThanItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now, down := time.Now(), errors.New("the management API is down")
		claims := []store.Claim{
			{Record: &store.Record{Queue: "q", Due: now.Add(-time.Second)}},
			{Record: &store.Record{Queue: "q", Due: now.Add(time.Second)}},
		}
		const parked, asked, unknown, sent = "parked", "asked", "unknown", "sent"
		for i, c := range []struct {
			consent
			want [2]string
		}{
			{consent{}, [2]string{asked, asked}},
			{consent{err: down}, [2]string{unknown, unknown}},
			{consent{asOf: now}, [2]string{parked, asked}},
			{consent{asOf: now, err: down}, [2]string{parked, unknown}},
			{consent{yes: true, asOf: now}, [2]string{sent, sent}},
		} {
			g := retry.NewSender(&faultyBroker{}, anyQueue, &c.consent, impatient, nil, none)
			send := func() []retry.Result { return g.Send(t.Context(), "q", claims)(t.Context()) }
			if f := send()[0]; !errors.Is(f.Err, retry.ErrLookupPending) {
				t.Errorf("%d: before RabbitMQ's answer: %+v", i, f)
			}
			synctest.Wait()
			defer g.Close()
			for n, f := range send() {
				got := sent
				switch {
				case f.Park != "":
					got = parked
				case errors.Is(f.Err, retry.ErrConsentUnknown):
					got = unknown
				case f.Err != nil:
					got = asked
				}
				if got != c.want[n] {
					t.Errorf("%d, message %d: %s, want %s (%+v)", i, n, got, c.want[n], f)
				}
			}
		}
	})
}
