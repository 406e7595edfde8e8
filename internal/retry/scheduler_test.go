package retry_test

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
	"github.com/redrive-mq/redrive/internal/store/storetest"
	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeSender notes when each message was sent, and answers as the test chooses.
type fakeSender struct {
	mu     sync.Mutex
	began  time.Time
	sent   []string // body and time since began
	answer func(body string, nth int) retry.Result
	nth    map[string]int
	slow   time.Duration // how long a batch waits for its answer
}

func (*fakeSender) IsBinding(string) bool { return false }

func (g *fakeSender) Send(_ context.Context, _ string, claims []store.Claim) func(context.Context) []retry.Result {
	g.mu.Lock()
	defer g.mu.Unlock()
	var results []retry.Result
	for _, c := range claims {
		body := string(c.Record.Message.Body)
		g.sent = append(g.sent, body+" "+time.Since(g.began).String())
		g.nth[body]++
		results = append(results, g.answer(body, g.nth[body]))
	}
	slow := g.slow
	return func(context.Context) []retry.Result { time.Sleep(slow); return results }
}

func record(queue, body string, due time.Time) *store.Record {
	return &store.Record{ID: uuid.New(), Queue: queue, State: store.Waiting, Due: due, Message: wire.Message{Body: []byte(body)}}
}

// play runs a scheduler in fake time over some records, and returns what it sent.
func play(t *testing.T, length time.Duration, answer func(string, int) retry.Result, records func(now time.Time) []*store.Record) (sent []string, left int, reports []string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		g := &fakeSender{began: time.Now(), answer: answer, nth: map[string]int{}}
		scheduler := retry.NewScheduler(s, g, open(), func(retry.Event) {}, slog.New(slog.DiscardHandler), func(lane store.Lane, err error) {
			reports = append(reports, lane.String()+": "+map[bool]string{true: "works", false: "fails"}[err == nil])
		})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { scheduler.Run(ctx, time.Second) })
		if err := s.Add(ctx, records(time.Now())); err != nil {
			t.Fatal(err)
		}
		time.Sleep(length) // of the fake clock
		cancel()
		running.Wait()
		page, err := storetest.List(context.Background(), s, storetest.Filter{State: store.Waiting, Limit: 1000})
		if err != nil {
			t.Fatal(err)
		}
		sent, left = g.sent, len(page.Records)
	})
	return sent, left, reports
}

// open is a throttle without limits.
func open() *throttle.Throttle {
	return throttle.New(func(string) throttle.Rules { return throttle.Rules{} }, rand.Float64, func(throttle.Transition) {})
}

func done(string, int) retry.Result { return retry.Result{Done: true} }

func TestMessagesAreRetriedWhenDueAndInOrder(t *testing.T) {
	sent, left, _ := play(t, time.Hour, done, func(now time.Time) []*store.Record {
		return []*store.Record{record("q", "c", now.Add(time.Minute)), record("q", "a", now.Add(time.Second)), record("q", "soon after", now.Add(1100*time.Millisecond)), record("p", "b", now.Add(2*time.Second)), record("q", "later", now.Add(2*time.Hour))}
	})
	if want := []string{"a 1s", "soon after 1.1s", "b 2s", "c 1m0s"}; !slices.Equal(sent, want) || left != 1 {
		t.Errorf("sent %v, %d left; want %v and 1", sent, left, want)
	}
}

// A queue whose retries fail backs off, longer each time, and delays no other.
func TestALaneThatFailsBacksOff(t *testing.T) {
	full := errors.New("full")
	sent, left, reports := play(t, time.Minute, func(body string, nth int) retry.Result {
		if body == "bad" && nth < 4 {
			return retry.Result{Err: full}
		}
		return retry.Result{Done: true}
	}, func(now time.Time) []*store.Record {
		return []*store.Record{record("bad", "bad", now.Add(time.Second)), record("good", "good", now.Add(1100*time.Millisecond))}
	})
	want := []string{"bad 1s", "good 1.1s", "bad 1.25s", "bad 1.75s", "bad 2.75s"}
	if !slices.Equal(sent, want) || left != 0 {
		t.Errorf("sent %v, %d left; want %v", sent, left, want)
	}
	if len(reports) == 0 || reports[0] != "bad: fails" || reports[len(reports)-1] != "bad: works" {
		t.Errorf("reported %v", reports)
	}
}

// A queue that is bound again is tried at once, but one that stays unroutable
// does not make the scheduler spin.
func TestAQueueBoundAgainIsTriedAtOnceOnlyOnce(t *testing.T) {
	sent, left, _ := play(t, 10*time.Second, func(string, int) retry.Result { return retry.Result{Err: retry.ErrTryAtOnce} }, func(now time.Time) []*store.Record {
		return []*store.Record{record("q", "x", now)}
	})
	if len(sent) < 3 || len(sent) > 12 || left != 1 {
		t.Errorf("sent %d times in 10 s: %v", len(sent), sent)
	}
}

// It is kept, with the reason, and the operator hears of it.
func TestMessagesThatCanNeverBeRetriedAreParked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		g := &fakeSender{began: time.Now(), answer: func(string, int) retry.Result { return retry.Result{Park: "gone"} }, nth: map[string]int{}}
		var events []retry.Event
		scheduler := retry.NewScheduler(s, g, open(), func(e retry.Event) { events = append(events, e) }, slog.New(slog.DiscardHandler), func(store.Lane, error) {})
		must(t, s.Add(t.Context(), []*store.Record{record("q", "x", time.Now())}))
		run(t, scheduler, time.Minute)
		page, err := storetest.List(t.Context(), s, storetest.Filter{State: store.Parked, Limit: 10})
		must(t, err)
		if len(g.sent) != 1 || len(page.Records) != 1 || page.Records[0].Record.ParkedFor != "gone" {
			t.Errorf("sent %v, parked %+v", g.sent, page.Records)
		}
		if len(events) != 1 || events[0].Kind != retry.Parked || events[0].Why != "gone" {
			t.Errorf("events %+v", events)
		}
	})
}

// run runs a loop for so long, of the fake clock.
func run(t *testing.T, scheduler *retry.Scheduler, length time.Duration) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { scheduler.Run(ctx, time.Second) })
	time.Sleep(length)
	cancel()
	running.Wait()
}

// One queue's many due messages hold another's up by no more than a batch.
func TestQueuesTakeTurns(t *testing.T) {
	sent, _, _ := play(t, time.Minute, done, func(now time.Time) (all []*store.Record) {
		for range 3000 {
			all = append(all, record("many", "m", now))
		}
		return append(all, record("one", "one", now))
	})
	if at := slices.IndexFunc(sent, func(s string) bool { return s[:3] == "one" }); at < 0 || at > 1024 {
		t.Errorf("the other queue's message was number %d", at)
	}
}

// When RabbitMQ does not answer, no more is on its way than a crash may double, and no more
// memory is used: 2,560 messages, or 32 MiB of bodies and a batch, of all queues together.
func TestNoMoreThanMaxClaimedAreUnfinished(t *testing.T) {
	for name, c := range map[string]struct {
		queues, each, body, most int
	}{
		"many messages": {5, 2000, 10, 2560},
		"large bodies":  {3, 50, 1 << 20, 32 + 16},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := memstore.New()
				g := &fakeSender{began: time.Now(), answer: done, nth: map[string]int{}}
				scheduler := retry.NewScheduler(s, g, open(), func(retry.Event) {}, slog.New(slog.DiscardHandler), func(store.Lane, error) {})
				body := strings.Repeat("b", c.body)
				var all []*store.Record
				for q := range c.queues {
					for range c.each {
						all = append(all, record(string(rune('a'+q)), body, time.Now()))
					}
				}
				ctx, cancel := context.WithCancel(t.Context())
				var running sync.WaitGroup
				running.Go(func() { scheduler.Run(ctx, time.Second) })
				for _, slow := range []time.Duration{0, time.Hour} { // it answers, and then no longer
					g.mu.Lock()
					g.sent, g.slow = nil, slow
					g.mu.Unlock()
					if err := s.Add(t.Context(), all); err != nil {
						t.Fatal(err)
					}
					time.Sleep(5 * time.Second) // of the fake clock
				}
				synctest.Wait()
				if n := len(g.sent); n > c.most || n < c.most/2 {
					t.Errorf("%d are on their way unanswered, want at most %d, and not much less", n, c.most)
				}
				cancel()
				running.Wait()
			})
		})
	}
}

// What has been answered is not claimed any more: more than may be at once is retried.
func TestMoreThanMaxClaimedAreRetried(t *testing.T) {
	for name, c := range map[string]struct{ messages, body int }{"many messages": {6000, 10}, "large bodies": {100, 1 << 20}} {
		t.Run(name, func(t *testing.T) {
			body := strings.Repeat("b", c.body)
			sent, left, _ := play(t, 10*time.Second, done, func(now time.Time) (all []*store.Record) {
				for range c.messages {
					all = append(all, record("q", body, now))
				}
				return all
			})
			if len(sent) != c.messages || left != 0 {
				t.Errorf("%d of %d were sent, %d are left", len(sent), c.messages, left)
			}
		})
	}
}

// Queues take turns also when RabbitMQ is slow, and as much is claimed as may be.
func TestQueuesTakeTurnsWhenRabbitMQIsSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		g := &fakeSender{began: time.Now(), answer: done, nth: map[string]int{}, slow: 10 * time.Millisecond}
		scheduler := retry.NewScheduler(s, g, open(), func(retry.Event) {}, slog.New(slog.DiscardHandler), func(store.Lane, error) {})
		now := time.Now()
		all := []*store.Record{record("one", "one", now.Add(15*time.Millisecond)), record("two", "two", now.Add(15*time.Millisecond))}
		for range 6000 {
			all = append(all, record("many", "m", now))
		}
		if err := s.Add(t.Context(), all); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { scheduler.Run(ctx, time.Second) })
		time.Sleep(time.Minute) // of the fake clock
		cancel()
		running.Wait()
		two := slices.IndexFunc(g.sent, func(s string) bool { return strings.HasPrefix(s, "two") })
		if two < 0 {
			t.Fatal("it was not sent")
		}
		meanwhile := 0
		for _, s := range g.sent[:two] {
			if strings.HasPrefix(s, "m ") && !slices.Contains([]string{"m 0s", "m 10ms"}, s) {
				meanwhile++
			}
		}
		if meanwhile > 512 {
			t.Errorf("%d of the many went between its due time and %s", meanwhile, g.sent[two])
		}
	})
}

// A paused queue retries nothing while another does, keeps its messages' attempts and
// due times, and returns them at once when it is resumed, those that are due.
func TestAPausedQueueWaitsUntilItIsResumed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		// Paused before this start, as after a restart.
		if err := s.PutEntries(t.Context(), []store.Entry{{Name: store.PausePrefix + "q", Value: []byte("{}")}}); err != nil {
			t.Fatal(err)
		}
		g := &fakeSender{began: time.Now(), answer: done, nth: map[string]int{}}
		scheduler := retry.NewScheduler(s, g, open(), func(retry.Event) {}, slog.New(slog.DiscardHandler), func(store.Lane, error) {})
		now := time.Now()
		waits := record("q", "a", now.Add(time.Second))
		waits.Failures = 3
		if err := s.Add(t.Context(), []*store.Record{waits, record("q", "later", now.Add(time.Hour)), record("p", "other", now.Add(2*time.Second))}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { scheduler.Run(ctx, time.Second) })
		time.Sleep(time.Minute) // of the fake clock
		page, err := storetest.List(ctx, s, storetest.Filter{Queue: "q"})
		if err != nil || len(page.Records) != 2 || page.Records[0].Record.Failures != 3 || !page.Records[0].Record.Due.Equal(waits.Due) {
			t.Errorf("still paused: %+v, %v", page.Records, err)
		}
		scheduler.Pause("q", false)
		time.Sleep(time.Second)
		scheduler.Pause("q", true)
		time.Sleep(2 * time.Hour)
		scheduler.Pause("q", false)
		time.Sleep(time.Second)
		cancel()
		running.Wait()
		if want := []string{"other 2s", "a 1m0s", "later 2h1m1s"}; !slices.Equal(g.sent, want) {
			t.Errorf("sent %v, want %v", g.sent, want)
		}
	})
}

// The backoff of a queue is forgotten, and the queue is reported to work, some minutes after
// nothing waits for it any more; not while a message waits, though a person has paused it.
func TestTheBackoffOfALaneWithoutMessagesIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		g := &fakeSender{began: time.Now(), answer: func(string, int) retry.Result { return retry.Result{Err: errors.New("full")} }, nth: map[string]int{}}
		var works []string
		scheduler := retry.NewScheduler(s, g, open(), func(retry.Event) {}, slog.New(slog.DiscardHandler), func(lane store.Lane, err error) {
			if err == nil {
				works = append(works, lane.String())
			}
		})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { scheduler.Run(ctx, time.Second) })
		if err := s.Add(ctx, []*store.Record{record("gone", "x", time.Now()), record("there", "y", time.Now()), record("paused", "z", time.Now())}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		scheduler.Pause("paused", true)
		synctest.Wait()
		gone, err := storetest.List(ctx, s, storetest.Filter{State: store.Waiting, Queue: "gone", Limit: 1})
		if err != nil || len(gone.Records) != 1 {
			t.Fatal(gone, err)
		}
		for n := 0; n == 0; time.Sleep(time.Second) { // until it is not claimed
			if _, err := s.Change(ctx, []store.Key{gone.Records[0].Key}, func(_ store.Key, r *store.Record) store.Edit {
				if r != nil {
					n++
				}
				return store.Edit{Delete: r != nil}
			}, nil); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(10 * time.Minute)
		var backingOff []string
		for _, lane := range scheduler.Unreachable() {
			backingOff = append(backingOff, lane.String())
		}
		slices.Sort(backingOff)
		if !slices.Equal(backingOff, []string{"paused", "there"}) || !slices.Equal(works, []string{"gone"}) {
			t.Errorf("%q are backing off, want paused and there; %q were reported to work, want gone", backingOff, works)
		}
		cancel()
		running.Wait()
	})
}
