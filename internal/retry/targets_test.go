package retry_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
	"github.com/redrive-mq/redrive/internal/store/storetest"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// Whether messages can be retried to a queue is known from its policy, or once RabbitMQ has
// answered; it is asked only about queues that a policy allows.
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

// The goroutine that retries never waits for RabbitMQ's word on a name that only a report
// gave. Many are looked up at once, each once, and "not there" is remembered.
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
		if time.Since(began) != 0 {
			t.Errorf("it waited for %s", time.Since(began))
		}
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
			if n != 1 {
				t.Errorf("%s was looked up %d times", name, n)
			}
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

// limitsNames returns an intake that limits how many names are kept that only reports gave, and what
// it asks: a broker, in which some queues are enrolled, by its sender.
func limitsNames(t *testing.T, c retry.Consent, latency time.Duration, enrolled ...string) (*slowBroker, *memstore.Store, *retry.Sender, *retry.Intake) {
	b, s := &slowBroker{latency: latency, there: map[string]bool{}, lookups: map[string]int{}}, memstore.New()
	for _, queue := range enrolled {
		b.there[queue] = true
	}
	g := retry.NewSender(b, anyQueue, c, impatient, nil, none)
	t.Cleanup(g.Close)
	f := retry.NewIntake(s, retry.NewInForce(retry.Rules{Policies: anyQueue()}), nil, retry.NewReportedNames(s, g), none)
	return b, s, g, f
}

func reportBy(user, queue string) []wire.Delivery {
	return []wire.Delivery{{Message: wire.Message{Exchange: wire.ExchangeFailures, RoutingKey: queue, UserID: user}}}
}

// ReportedNames that nothing vouches for share a budget; those that are enrolled, or that
// something is kept for no longer, cost nothing.
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
		page, err := storetest.List(t.Context(), s, storetest.Filter{Queue: "invented.0", State: store.Waiting})
		if err != nil || len(page.Records) != 1 {
			t.Fatal(page, err)
		}
		claims, err := s.Claim(t.Context(), store.Lane{Queue: "invented.0"}, time.Now().Add(time.Hour), 1, 1<<20)
		must(t, err)
		if _, err := s.Finish(t.Context(), []store.Outcome{{Claim: claims[0], At: time.Now()}}); err != nil {
			t.Fatal(err)
		}
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

// While the budget is full, a report for a queue that is enrolled, which is not known yet,
// is kept under its name; what is known not to be enrolled is refused.
func TestAReportForAnEnrolledQueueIsKeptWhileTheBudgetIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &consent{}
		_, s, g, f := limitsNames(t, c, 10*time.Millisecond, "honest")
		refused := func(queue string) bool {
			t.Helper()
			must(t, f.Handle(t.Context(), reportBy("shop", queue)))
			page, err := storetest.List(t.Context(), s, storetest.Filter{Queue: queue, Limit: 1})
			must(t, err)
			return len(page.Records) == 0
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
		if n := fill("more.", 400); n != 152 {
			t.Errorf("%d of 400 names beyond were refused, want 152", n)
		}
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

// A list of queues proves nothing about what was due after it began, and no list parks nothing.
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

// That RabbitMQ cannot be asked about a queue is no fault of the way its messages wait.
func TestUnknownConsentIsNoFaultOfAWay(t *testing.T) {
	b, s := &faultyBroker{}, memstore.New()
	f := newHeldFlow(t, s, b, &consent{err: errors.New("the management API is down")}, 0)
	report := wire.Delivery{Message: wire.Message{Exchange: wire.ExchangeFailures, RoutingKey: "reported", Headers: amqp.Table{}}}
	must(t, f.Handle(context.Background(), []wire.Delivery{report}))
	if all := kept(t, s); len(all) != 1 || all[0].Record.State != store.Waiting || len(b.sent) != 0 || len(f.reports) != 0 {
		t.Errorf("kept %d, sent %d, reports %v", len(all), len(b.sent), f.reports)
	}
}
