package retry_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
	"github.com/redrive-mq/redrive/internal/throttle"
)

// fakeTargets is a fakeSender whose forward targets can be stuck: full, so that RabbitMQ nacks, or
// unavailable, so that it does not answer. What goes to work queues is confirmed.
type fakeTargets struct {
	fakeSender
	full, unavailable bool
	answers           chan struct{} // when not nil: they confirm, but not before it is closed
}

func (*fakeTargets) IsBinding(string) bool { return false }

func (g *fakeTargets) Send(ctx context.Context, queue string, claims []store.Claim) func(context.Context) []retry.Result {
	wait := g.fakeSender.Send(ctx, queue, claims)
	forwards := claims[0].Record.Forward != nil
	for _, c := range claims {
		if (c.Record.Forward != nil) != forwards {
			panic("a batch of two lanes")
		}
	}
	if !forwards || !g.full && !g.unavailable && g.answers == nil {
		return wait
	}
	return func(ctx context.Context) []retry.Result {
		results := wait(ctx)
		if g.answers != nil {
			select {
			case <-g.answers:
				return results
			case <-ctx.Done():
			}
		}
		if g.unavailable {
			<-ctx.Done()
		}
		for i := range results {
			results[i] = retry.Result{Err: errors.New("not confirmed")}
		}
		return results
	}
}

// sentOf counts what was sent whose body begins with a text.
func (g *fakeTargets) sentOf(body string) (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, s := range g.sent {
		if strings.HasPrefix(s, body) {
			n++
		}
	}
	return n
}

// scene is a scheduler over a throttle with some rules.
type scene struct {
	store     *memstore.Store
	sender    *fakeTargets
	throttle  *throttle.Throttle
	scheduler *retry.Scheduler
	mu        sync.Mutex
	reports   []string
}

// reported returns what was reported of lanes.
func (s *scene) reported() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.reports, "; ")
}

// inScene runs a scheduler in fake time while do runs.
func inScene(t *testing.T, rules throttle.Rules, sender *fakeTargets, do func(t *testing.T, s *scene)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		sender.fakeSender = fakeSender{began: time.Now(), answer: done, nth: map[string]int{}}
		s := &scene{store: memstore.New(), sender: sender}
		s.throttle = throttle.New(func(string) throttle.Rules { return rules }, rand.Float64, func(throttle.Transition) {})
		s.scheduler = retry.NewScheduler(s.store, sender, s.throttle, retry.NewWakeup(), none, slog.New(slog.DiscardHandler), func(lane store.Lane, err error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.reports = append(s.reports, fmt.Sprintf("%s: %v", lane, err))
		})
		stop := runs(t, s.scheduler)
		do(t, s)
		stop()
	})
}

// add adds n messages of a queue that are due; those that are forwarded go to a queue.
func (s *scene) add(t *testing.T, n int, queue, body, to string) {
	t.Helper()
	var all []*store.Record
	for range n {
		r := record(queue, body, time.Now())
		if to != "" {
			r.Forward = &store.Destination{RoutingKey: to}
		}
		all = append(all, r)
	}
	must(t, s.store.Add(t.Context(), all))
}

// A forward target that accepts nothing, whether RabbitMQ nacks or does not answer, stops
// no retry of its work queue: not where a rate leaves room for few, nor where the breaker
// tries a few, nor where all are stuck that may be claimed.
func TestAStuckForwardStopsItsOwnLaneOnly(t *testing.T) {
	for name, c := range map[string]struct {
		rules          throttle.Rules
		stuck, retries int
		half           bool
		within         time.Duration
	}{
		"at a rate":              {throttle.Rules{Rate: 10}, 3, 100, false, 12 * time.Second},
		"while a breaker probes": {throttle.Rules{Breaker: &throttle.Breaker{FailureRatio: 0.5, MinRetries: 5, Window: time.Minute, Wait: time.Second, MaxWait: time.Second, Probes: 3, Ramp: time.Second}}, 3, 100, true, 2 * time.Minute},
		"without either":         {throttle.Rules{}, 2*retry.MaxClaimed + 100, 3000, false, time.Second},
	} {
		for how, sender := range map[string]*fakeTargets{"full": {full: true}, "unavailable": {unavailable: true}} {
			t.Run(name+", "+how, func(t *testing.T) {
				inScene(t, c.rules, sender, func(t *testing.T, s *scene) {
					if c.half {
						for _, to := range []string{"open", "auto"} {
							must(t, s.throttle.Force("q", to, "a test", "", time.Now()))
						}
					}
					s.add(t, c.stuck, "q", "stuck", "dead")
					time.Sleep(time.Millisecond)
					s.add(t, c.retries, "q", "retry", "")
					time.Sleep(c.within)
					if n := sender.sentOf("retry"); n != c.retries {
						t.Errorf("%d of %d were retried within %s", n, c.retries, c.within)
					}
					if c.half && s.throttle.View("q", time.Now()).State != throttle.Closed {
						t.Errorf("the breaker is %s", s.throttle.View("q", time.Now()).State)
					}
					if sender.sentOf("stuck") == 0 {
						t.Error("the target was never tried")
					}
					const named = "q to queue dead: not confirmed"
					synctest.Wait()
					if lanes := s.scheduler.Unreachable(); sender.full && (strings.Trim(strings.ReplaceAll(s.reported(), named, ""), "; ") != "" ||
						!strings.HasPrefix(s.reported(), named) || len(lanes) != 1 || lanes[0].String() != "q to queue dead") {
						t.Errorf("reported %q, and backing off are %v; want only %q", s.reported(), lanes, named)
					}
				})
			})
		}
	}
}

// What is forwarded waits for nothing of its work queue: no breaker, rate, messages in
// flight or consumers, and not for a person who has paused its retries.
func TestForwardsWaitForNothingOfTheirWorkQueue(t *testing.T) {
	for name, c := range map[string]struct {
		rules throttle.Rules
		stop  func(s *scene) error
	}{
		"an open breaker":  {throttle.Rules{}, func(s *scene) error { return s.throttle.Force("q", "open", "a test", "", time.Now()) }},
		"a rate":           {throttle.Rules{Rate: 1e-6}, func(*scene) error { return nil }},
		"in flight":        {throttle.Rules{InFlight: 1, Settle: 24 * time.Hour}, func(*scene) error { return nil }},
		"no consumers":     {throttle.Rules{NoConsumer: throttle.PauseWithoutConsumers}, func(s *scene) error { s.throttle.Consumers("q", 0, 1, true, time.Now()); return nil }},
		"a person's pause": {throttle.Rules{}, func(s *scene) error { s.scheduler.Pause("q", true); return nil }},
	} {
		t.Run(name, func(t *testing.T) {
			sender := &fakeTargets{}
			inScene(t, c.rules, sender, func(t *testing.T, s *scene) {
				must(t, c.stop(s))
				s.add(t, 50, "q", "retry", "")
				s.add(t, 50, "q", "forward", "dead")
				time.Sleep(time.Minute)
				if n := sender.sentOf("forward"); n != 50 {
					t.Errorf("%d of 50 were forwarded", n)
				}
				if n := sender.sentOf("retry"); n > 1 {
					t.Errorf("%d were retried", n)
				}
			})
		})
	}
}

// Many targets and queues that do not answer leave the others their part of what may be claimed.
// Targets that have never confirmed anything have only a small part each of what is free: 250 that
// hang leave something to the next one.
func TestManyStuckLanesLeaveTheOthersTheirPart(t *testing.T) {
	for _, c := range []struct{ targets, queues, each, works, least, most int }{{100, 100, 100, 3000, 100, retry.MaxClaimed - 1}, {250, 0, 20, 100, 250, retry.MaxClaimed}} {
		sender := &fakeTargets{unavailable: true}
		inScene(t, throttle.Rules{}, sender, func(t *testing.T, s *scene) {
			for i := range c.targets {
				s.add(t, c.each, "q", "stuck", fmt.Sprint("dead", i))
			}
			for i := range c.queues {
				s.add(t, c.each, fmt.Sprint("q", i), "stuck", "dead")
			}
			time.Sleep(time.Second)
			s.add(t, c.works, "works", "retry", "")
			time.Sleep(time.Second)
			if n := sender.sentOf("retry"); n != c.works {
				t.Errorf("%d of %d were retried, with %d claimed and stuck", n, c.works, sender.sentOf("stuck"))
			}
			if n := sender.sentOf("stuck"); n < c.least || n > c.most {
				t.Errorf("%d messages are claimed for stuck targets; want from %d to %d", n, c.least, c.most)
			}
		})
	}
}

// That goes too for targets that did well, so that much is claimed for each, before they all
// hang at once.
func TestManyLanesThatGetStuckLeaveTheOthersTheirPart(t *testing.T) {
	sender := &fakeTargets{}
	inScene(t, throttle.Rules{}, sender, func(t *testing.T, s *scene) {
		const lanes, large = 40, 4
		fill := func(body string) (n int) {
			for i := range lanes {
				each := 40
				if i < large {
					each = 1000
				}
				s.add(t, each, "q", body, fmt.Sprint("dead", i))
				n += each
			}
			time.Sleep(time.Second)
			synctest.Wait()
			return n
		}
		if all := fill("before"); sender.sentOf("before") != all {
			t.Fatalf("%d of %d were forwarded before", sender.sentOf("before"), all)
		}
		sender.unavailable = true
		fill("stuck")
		s.add(t, 500, "works", "retry", "")
		time.Sleep(time.Second)
		if n := sender.sentOf("retry"); n != 500 {
			t.Errorf("%d of 500 were retried, with %d claimed and stuck", n, sender.sentOf("stuck"))
		}
		if n := sender.sentOf("stuck"); n < retry.MaxClaimed*3/4 || n >= retry.MaxClaimed {
			t.Errorf("%d messages are claimed for stuck targets; want from %d to %d", n, retry.MaxClaimed*3/4, retry.MaxClaimed-1)
		}
	})
}

// A destination that does not answer is named too, for as long as it has messages that it
// did not confirm, and nothing is sent to it twice.
func TestALaneThatHangsIsNamed(t *testing.T) {
	sender := &fakeTargets{}
	inScene(t, throttle.Rules{}, sender, func(t *testing.T, s *scene) {
		sender.answers = make(chan struct{}) // made in the bubble: fake time advances only while what waits for it is in the bubble too
		s.add(t, 3, "q", "stuck", "dead")
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if got := s.reported(); got != "" {
			t.Fatalf("after 20 s it is reported: %s", got)
		}
		time.Sleep(10 * time.Minute)
		s.add(t, 1, "others", "retry", "") // the scheduler looks at all lanes again
		synctest.Wait()
		if got, want := s.reported(), "q to queue dead: "+retry.ErrUnanswered.Error(); got != want {
			t.Fatalf("reported: %q, want %q", got, want)
		}
		if lanes := s.scheduler.Unreachable(); len(lanes) != 1 || lanes[0].String() != "q to queue dead" {
			t.Errorf("%v are backing off; want only \"q to queue dead\"", lanes)
		}
		close(sender.answers)
		time.Sleep(time.Second)
		synctest.Wait()
		if got := s.reported(); !strings.HasSuffix(got, "; q to queue dead: <nil>") || len(s.scheduler.Unreachable()) != 0 || sender.sentOf("stuck") != 3 {
			t.Errorf("after it answered: reported %q, want \"…; q to queue dead: <nil>\" at the end; %v are backing off, want none; %d were sent, want 3", got, s.scheduler.Unreachable(), sender.sentOf("stuck"))
		}
	})
}

// A queue whose bodies are so large that one fills all that may be claimed ends each round
// early. The next round begins with the queues that had no turn, though its messages were due
// before theirs.
func TestARoundThatIsCutShortContinuesWithTheOtherQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, sender := memstore.New(), newFakeSender(done)
		sender.slow = 10 * time.Millisecond
		large := record("large", "", time.Now())
		large.Message.Body = make([]byte, 32<<20)
		all := []*store.Record{record("small", "x", time.Now())}
		for range 4 {
			r := *large
			r.ID, r.Due = record("", "", r.Due).ID, time.Now().Add(-time.Minute)
			all = append(all, &r)
		}
		must(t, s.Add(t.Context(), all))
		run(t, newScheduler(s, sender), time.Second)
		if got := fmt.Sprint(sender.queues); got != "[large small large large large]" {
			t.Errorf("sent in the order %s; want the small one second", got)
		}
	})
}
