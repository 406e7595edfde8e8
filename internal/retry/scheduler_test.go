package retry_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/storetest"
	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/memstore"
)

// play runs a scheduler in fake time over some records, and returns what it sent.
func play(t *testing.T, length time.Duration, answer func(string, int) retry.Result, records func(now time.Time) []*store.Record) (sent []string, left int, reports []string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		g := newFakeSender(answer)
		scheduler := schedulerHeard(s, g, none, func(lane store.Lane, err error) {
			reports = append(reports, lane.String()+": "+map[bool]string{true: "works", false: "fails"}[err == nil])
		})
		must(t, s.Add(t.Context(), records(time.Now())))
		run(t, scheduler, length)
		sent, left = g.sent, len(storetest.Listed(t, s, store.Range{State: store.Waiting}))
	})
	return sent, left, reports
}

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

// An obstacle of one message of a batch is not hidden by another's that is gone.
func TestAnObstacleBesideOneThatIsGoneBacksOff(t *testing.T) {
	for _, bodies := range []string{"gone full", "full gone"} {
		sent, left, reports := play(t, 1200*time.Millisecond, func(body string, _ int) retry.Result {
			return retry.Result{Err: map[string]error{"gone": retry.ErrTryAtOnce, "full": errors.New("full")}[body]}
		}, func(now time.Time) (records []*store.Record) {
			for _, body := range strings.Fields(bodies) {
				records = append(records, record("q", body, now.Add(time.Second)))
			}
			return records
		})
		if len(sent) != 2 || left != 2 || !slices.Equal(reports, []string{"q: fails"}) {
			t.Errorf("%s: sent %v, reported %v", bodies, sent, reports)
		}
	}
}

// 2,560 messages, or 32 MiB of bodies and a batch, are under way at most: that bounds what a crash can duplicate.
func TestNoMoreThanMaxClaimedAreUnfinished(t *testing.T) {
	for name, c := range map[string]struct {
		queues, each, body, most int
	}{
		"many messages": {5, 2000, 10, 2560},
		"large bodies":  {3, 50, 1 << 20, 32 + 16},
	} {
		inTime(t, name, func(t *testing.T) {
			s := memstore.New()
			g := newFakeSender(done)
			scheduler := newScheduler(s, g)
			body := strings.Repeat("b", c.body)
			var all []*store.Record
			for q := range c.queues {
				for range c.each {
					all = append(all, record(string(rune('a'+q)), body, time.Now()))
				}
			}
			stop := runs(t, scheduler)
			for _, slow := range []time.Duration{0, time.Hour} { // it answers, and then no longer
				g.mu.Lock()
				g.sent, g.slow = nil, slow
				g.mu.Unlock()
				must(t, s.Add(t.Context(), all))
				time.Sleep(5 * time.Second)               // of the fake clock
				if slow == 0 && len(g.sent) != len(all) { // what was answered is not claimed any more
					t.Errorf("%d of %d were sent", len(g.sent), len(all))
				}
			}
			synctest.Wait()
			if n := len(g.sent); n > c.most || n < c.most/2 {
				t.Errorf("%d are on their way unanswered, want at most %d, and not much less", n, c.most)
			}
			stop()
		})
	}
}

// Queues take turns also when RabbitMQ is slow, and the limit of claims is used.
func TestQueuesTakeTurnsWhenRabbitMQIsSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		g := &fakeSender{began: time.Now(), answer: done, nth: map[string]int{}, slow: 10 * time.Millisecond}
		scheduler := newScheduler(s, g)
		now := time.Now()
		all := []*store.Record{record("one", "one", now.Add(15*time.Millisecond)), record("two", "two", now.Add(15*time.Millisecond))}
		for range 6000 {
			all = append(all, record("many", "m", now))
		}
		must(t, s.Add(t.Context(), all))
		run(t, scheduler, time.Minute)
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

// A paused queue keeps its messages' attempts and due times, and retries what is due when it is resumed.
func TestAPausedQueueWaitsUntilItIsResumed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		// Paused before this start, as after a restart.
		must(t, s.PutEntries(t.Context(), []store.Entry{{Name: store.PausePrefix + "q", Value: []byte("{}")}}))
		g := newFakeSender(done)
		scheduler := newScheduler(s, g)
		now := time.Now()
		waits := record("q", "a", now.Add(time.Second))
		waits.Failures = 3
		must(t, s.Add(t.Context(), []*store.Record{waits, record("q", "later", now.Add(time.Hour)), record("p", "other", now.Add(2*time.Second))}))
		stop := runs(t, scheduler)
		time.Sleep(time.Minute) // of the fake clock
		all := storetest.Listed(t, s, store.Range{Queues: []string{"q"}})
		if len(all) != 2 || all[0].Record.Failures != 3 || !all[0].Record.Due.Equal(waits.Due) {
			t.Errorf("still paused: %+v", all)
		}
		scheduler.Pause("q", false)
		time.Sleep(time.Second)
		scheduler.Pause("q", true)
		time.Sleep(2 * time.Hour)
		scheduler.Pause("q", false)
		time.Sleep(time.Second)
		stop()
		if want := []string{"other 2s", "a 1m0s", "later 2h1m1s"}; !slices.Equal(g.sent, want) {
			t.Errorf("sent %v, want %v", g.sent, want)
		}
	})
}

// A queue's backoff is forgotten some minutes after its last message is gone; a paused one still waits.
func TestTheBackoffOfALaneWithoutMessagesIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		g := newFakeSender(func(string, int) retry.Result { return retry.Result{Err: errors.New("full")} })
		var works []string
		scheduler := schedulerHeard(s, g, none, func(lane store.Lane, err error) {
			if err == nil {
				works = append(works, lane.String())
			}
		})
		stop := runs(t, scheduler)
		must(t, s.Add(t.Context(), []*store.Record{record("gone", "x", time.Now()), record("there", "y", time.Now()), record("paused", "z", time.Now())}))
		time.Sleep(time.Minute)
		scheduler.Pause("paused", true)
		synctest.Wait()
		gone := storetest.Listed(t, s, store.Range{State: store.Waiting, Queues: []string{"gone"}})
		if len(gone) != 1 {
			t.Fatal(gone)
		}
		for n := 0; n == 0; time.Sleep(time.Second) { // until it is not claimed
			if _, err := s.Change(t.Context(), []store.Key{gone[0].Key}, func(_ store.Key, r *store.Record) store.Edit {
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
		stop()
	})
}

// When all pauses are set at once, the queues that are no longer among them are retried at once.
func TestSettingAllPausesResumesTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, g := memstore.New(), newFakeSender(done)
		scheduler := newScheduler(s, g)
		scheduler.SetPauses(map[string]bool{"p": true, "q": true})
		must(t, s.Add(t.Context(), []*store.Record{record("q", "a", time.Now()), record("p", "b", time.Now())}))
		stop := runs(t, scheduler)
		time.Sleep(time.Minute)
		scheduler.SetPauses(map[string]bool{"p": true})
		time.Sleep(time.Second)
		if paused := scheduler.Paused(); !slices.Equal(paused, []string{"p"}) || !slices.Equal(g.sent, []string{"a 1m0s"}) {
			t.Errorf("%q are paused, sent %q; want p, and a after a minute", paused, g.sent)
		}
		stop()
	})
}

// slowEntries is a store whose entries take long to be read.
type slowEntries struct{ retry.Store }

func (s slowEntries) Entries(ctx context.Context, prefix, after string, visit func(store.Entry) (bool, error)) error {
	defer time.Sleep(5 * time.Second)
	return s.Store.Entries(ctx, prefix, after, visit)
}

// While pauses are read from a slow store, asking for them does not wait, and a queue can be resumed.
func TestPausesAreReadWhileTheyAreAskedForAndChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		must(t, s.PutEntries(t.Context(), []store.Entry{{Name: store.PausePrefix + "p", Value: []byte("{}")}, {Name: store.PausePrefix + "q", Value: []byte("{}")}}))
		scheduler := newScheduler(slowEntries{s}, newFakeSender(done))
		stop := runs(t, scheduler)
		time.Sleep(time.Second)
		began := time.Now()
		if scheduler.Paused(); time.Since(began) > 0 {
			t.Errorf("they are known after %s", time.Since(began))
		}
		scheduler.Pause("q", false)
		time.Sleep(10 * time.Second)
		if paused := scheduler.Paused(); !slices.Equal(paused, []string{"p"}) {
			t.Errorf("%q are paused; want p", paused)
		}
		stop()
	})
}

// No commit is made for nothing: each costs a sync.
func TestNoCommitIsEmpty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &faultyStore{Store: memstore.New()}
		g := newFakeSender(func(_ string, nth int) retry.Result {
			if nth < 3 {
				return retry.Result{Err: errors.New("full")}
			}
			return retry.Result{Done: true}
		})
		scheduler := newScheduler(s, g)
		must(t, s.Add(t.Context(), []*store.Record{record("q", "x", time.Now())}))
		run(t, scheduler, time.Minute)
		if !slices.Equal(s.finished, []int{1}) || !slices.Equal(s.released, []int{1, 1}) {
			t.Errorf("claims were finished in commits of %v and released in commits of %v, want one, and two of one", s.finished, s.released)
		}
	})
}

// The memory of a large body is freed after its retry; for others that would cost too much.
func TestTheMemoryOfLargeBodiesIsFreed(t *testing.T) {
	const large = 8 << 20
	for name, c := range map[string]struct {
		bodies []int
		want   uint32
	}{"small": {[]int{1, 2}, 0}, "nearly": {[]int{large - 1}, 0}, "large": {[]int{large}, 1}, "large and small": {[]int{1, large, 1}, 1}} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			sent, left, _ := play(t, time.Minute, done, func(now time.Time) (all []*store.Record) {
				for _, n := range c.bodies {
					all = append(all, record("q", strings.Repeat("b", n), now.Add(time.Second)))
				}
				return all
			})
			runtime.ReadMemStats(&after)
			if n := after.NumForcedGC - before.NumForcedGC; n != c.want || len(sent) != len(c.bodies) || left != 0 {
				t.Errorf("memory was freed %d times, want %d; %d were sent, %d are left", n, c.want, len(sent), left)
			}
		})
	}
}

// A message that a person discards, or another replica claims, just before this claim, delays no other queue.
func TestAQueueWithNothingToClaimDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &faultyStore{Store: memstore.New(), empty: "first"}
		g := newFakeSender(done)
		scheduler := newScheduler(s, g)
		now := time.Now()
		must(t, s.Add(t.Context(), []*store.Record{record("first", "a", now.Add(time.Second)), record("second", "b", now.Add(time.Second+time.Millisecond))}))
		run(t, scheduler, 10*time.Second)
		if !slices.Equal(g.sent, []string{"b 1.001s"}) {
			t.Errorf("sent %q", g.sent)
		}
	})
}

// faultyStore fails at something for a while, with other words each time, and notes how many claims a commit ends.
type faultyStore struct {
	*memstore.Store
	at                 string
	from, to           time.Time
	tries              int
	empty              string
	lease              time.Duration // after which failing ends claims; 0: never
	finished, released []int
}

func (f *faultyStore) fails(at string) error {
	if now := time.Now(); at != f.at || now.Before(f.from) || !now.Before(f.to) {
		return nil
	}
	f.tries++
	return fmt.Errorf("refused for the %dth time", f.tries)
}

func (f *faultyStore) Next(ctx context.Context) ([]store.NextDue, error) {
	next, err := f.Store.Next(ctx)
	return next, errors.Join(err, f.fails("Next"))
}

func (f *faultyStore) Claim(ctx context.Context, lane store.Lane, upTo time.Time, n, maxBytes int) ([]store.Claim, error) {
	if err := f.fails("Claim"); err != nil || lane.Queue == f.empty {
		return nil, err
	}
	return f.Store.Claim(ctx, lane, upTo, n, maxBytes)
}

func (f *faultyStore) Finish(ctx context.Context, outcomes []store.Outcome) (int, error) {
	if err := f.fails("Finish"); err != nil {
		return 0, err
	}
	f.finished = append(f.finished, len(outcomes))
	if f.lease > 0 && f.tries > 0 && f.to.Sub(f.from) > f.lease {
		f.tries = 0
		for _, o := range outcomes {
			if err := f.Store.Release(ctx, []store.Claim{o.Claim}); err != nil {
				return 0, err
			}
		}
	}
	return f.Store.Finish(ctx, outcomes)
}

func (f *faultyStore) Release(ctx context.Context, claims []store.Claim) error {
	f.released = append(f.released, len(claims))
	return f.Store.Release(ctx, claims)
}

// A store's failure is logged when it begins and when it ends. It is tried ever less often, and what was due is retried
// within a second of its end.
func TestAFailingStoreIsLoggedOnce(t *testing.T) {
	const away = 20 * time.Second
	for _, at := range []string{"Next", "Claim", "Finish"} {
		inTime(t, at, func(t *testing.T) {
			began := time.Now()
			s := &faultyStore{Store: memstore.New(), at: at, from: began.Add(time.Second), to: began.Add(time.Second + away)}
			g := newFakeSender(done)
			var log bytes.Buffer
			scheduler := retry.NewScheduler(s, g, open(), retry.NewWakeup(), none, slog.New(slog.NewTextHandler(&log, nil)), func(store.Lane, error) {})
			must(t, s.Add(t.Context(), []*store.Record{record("q", "a", began.Add(5*time.Second)), record("q", "b", s.to)}))
			stop := runs(t, scheduler)
			time.Sleep(2 * time.Second)
			for time.Now().Before(s.to) {
				scheduler.Wake()
				time.Sleep(10 * time.Millisecond)
			}
			time.Sleep(time.Second)
			left := storetest.Listed(t, s, store.Range{State: store.Waiting})
			if len(left) > 0 || len(g.sent) != 2 {
				t.Errorf("a second after it is back %d are left, sent were %v", len(left), g.sent)
			}
			stop()
			lines := strings.Split(strings.TrimSpace(log.String()), "\n")
			if len(lines) != 2 || !strings.Contains(lines[0], "ERROR") || !strings.Contains(lines[0], "the 1th time") ||
				!strings.Contains(lines[1], "INFO") || !strings.Contains(lines[1], "works again\" after=1") && !strings.Contains(lines[1], "works again\" after=2") {
				t.Errorf("the log is %q; want one error and one \"works again\"", lines)
			}
			if s.tries < 15 || s.tries > 25 {
				t.Errorf("it was tried %d times in %s; want 15 to 25", s.tries, away)
			}
		})
	}
}

// The log has the cause of a message that is retried twice without a crash.
func TestALeaseThatEndsWhileTheStoreIsAwayIsLogged(t *testing.T) {
	for lease, want := range map[time.Duration]int{time.Minute: 1, 10 * time.Second: 2} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			s := &faultyStore{Store: memstore.New(), at: "Finish", from: began, to: began.Add(30 * time.Second), lease: lease}
			g := newFakeSender(done)
			var log bytes.Buffer
			scheduler := retry.NewScheduler(s, g, open(), retry.NewWakeup(), none, slog.New(slog.NewTextHandler(&log, nil)), func(store.Lane, error) {})
			must(t, s.Add(t.Context(), []*store.Record{record("q", "a", began)}))
			run(t, scheduler, time.Minute)
			said := strings.Contains(log.String(), "level=WARN") && strings.Contains(log.String(), " messages=1 hint=")
			if len(g.sent) != want || said != (want == 2) {
				t.Errorf("with a lease of %s it was sent %d times, want %d; the log is %s", lease, len(g.sent), want, log.String())
			}
		})
	}
}

// What can never be retried is parked with the reason, and counted then, if need be after the next start.
func TestMessagesThatCanNeverBeRetriedAreParked(t *testing.T) {
	for at, want := range map[string]int{"": 1, "Finish": 0} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			s := &faultyStore{Store: memstore.New(), at: at, from: began, to: began.Add(time.Hour)}
			g := newFakeSender(func(string, int) retry.Result { return retry.Result{Park: "gone"} })
			var events []retry.Event
			scheduler := schedulerHeard(s, g, func(e retry.Event) { events = append(events, e) }, func(store.Lane, error) {})
			must(t, s.Add(t.Context(), []*store.Record{record("q", "x", began)}))
			run(t, scheduler, time.Minute)
			parked := storetest.Listed(t, s, store.Range{State: store.Parked})
			if len(g.sent) != 1 || len(parked) != want || len(events) != want {
				t.Errorf("the store fails at %q: sent %v, parked %d, events %+v", at, g.sent, len(parked), events)
			} else if want > 0 && (parked[0].Record.ParkedFor != "gone" ||
				events[0].Kind != retry.Parked || events[0].Why != "gone") {
				t.Errorf("parked %+v, events %+v", parked[0].Record, events)
			}
		})
	}
}

// counting is a throttle that opens at a time, allows a few at once, and counts.
type counting struct {
	mu      sync.Mutex
	opens   time.Time
	few     int
	allowed int
	unsent  int
	retried []uuid.UUID
}

func (g *counting) Allow(_ string, most int, now time.Time) (n int, retryAt time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if now.Before(g.opens) {
		return 0, g.opens
	}
	n = min(most, g.few)
	g.allowed += n
	return n, time.Time{}
}

func (g *counting) SetCatchUp(time.Duration) {}

func (g *counting) NotRetried(_ string, n int, _ time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.unsent += n
}

func (g *counting) Retried(_ string, ids []uuid.UUID, _ time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.retried = append(g.retried, ids...)
}

// The scheduler sends what the throttle allows, and reports whether each message was retried.
func TestTheThrottleIsObeyedAndReceivesEachResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		began := time.Now()
		g := newFakeSender(func(body string, nth int) retry.Result {
			switch {
			case body == "parked":
				return retry.Result{Park: "gone"}
			case body == "failed" && nth == 1:
				return retry.Result{Err: errors.New("full")}
			}
			return retry.Result{Done: true}
		})
		throttled := &counting{opens: began.Add(67500 * time.Millisecond), few: 3}
		scheduler := retry.NewScheduler(s, g, throttled, retry.NewWakeup(), none, slog.New(slog.DiscardHandler), func(store.Lane, error) {})
		var all []*store.Record
		var want []uuid.UUID
		for i, body := range []string{"a", "failed", "parked", "b", "c", "d"} {
			r := record("q", body, began.Add(time.Duration(i)*time.Millisecond))
			if body != "parked" {
				want = append(want, r.ID)
			}
			all = append(all, r)
		}
		must(t, s.Add(t.Context(), all))
		run(t, scheduler, time.Hour)
		if len(g.sent) != 7 || slices.Max(g.sizes) > throttled.few || g.sent[0] != "a 1m7.5s" {
			t.Errorf("sent %v in batches of %v", g.sent, g.sizes)
		}
		byID := func(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) }
		slices.SortFunc(want, byID)
		slices.SortFunc(throttled.retried, byID)
		if !slices.Equal(throttled.retried, want) || throttled.allowed != len(want)+throttled.unsent {
			t.Errorf("of %d that it allowed, %d were reported to the throttle as not sent and %d as retried; want %d retried", throttled.allowed, throttled.unsent, len(throttled.retried), len(want))
		}
	})
}

// slowStore is a store on a busy machine: Next answers late.
type slowStore struct {
	*memstore.Member
	late func() time.Duration
}

func (b slowStore) Next(ctx context.Context) ([]store.NextDue, error) {
	time.Sleep(b.late())
	return b.Member.Next(ctx)
}

// sentAt runs schedulers over one store in fake time, each with its part of a rate, and returns when they sent.
func sentAt(t *testing.T, replicas int, rate float64, late time.Duration, length time.Duration) (began time.Time, at []time.Time) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		together, rules := memstore.NewReplicas(), throttle.Rules{Rate: rate, NoConsumer: throttle.RetryWithoutConsumers}
		g := newFakeSender(done)
		began = g.began
		var first *memstore.Member
		for i := range replicas {
			random := rand.New(rand.NewPCG(uint64(i), uint64(rate)))
			member := together.Join()
			first = member
			throttled := throttle.New(func(string) throttle.Rules { return rules }, random.Float64, func(throttle.Transition) {})
			throttled.SetShare(throttle.Share{N: replicas, I: i}, time.Now())
			scheduler := retry.NewScheduler(slowStore{member, func() time.Duration { return time.Duration(random.Int64N(int64(late) + 1)) }}, g, throttled, retry.NewWakeup(),
				none, slog.New(slog.DiscardHandler), func(store.Lane, error) {})
			defer runs(t, scheduler)()
		}
		var all []*store.Record
		for range int(1.2 * rate * length.Seconds()) {
			all = append(all, record("q", "m", g.began))
		}
		must(t, first.Add(t.Context(), all))
		time.Sleep(length) // of the fake clock
		for _, s := range g.sent {
			var after string
			must(t, errOf(fmt.Sscan(s, new(string), &after)))
			d, err := time.ParseDuration(after)
			must(t, err)
			at = append(at, began.Add(d))
		}
	})
	return began, at
}

// A scheduler that is woken up to half a second late keeps the rate within 5 % over any ten seconds, and catches up
// with no more than a burst of 0.55 s and two messages per replica.
func TestASchedulerThatIsWokenLateKeepsTheRate(t *testing.T) {
	const late, length = 500 * time.Millisecond, 30 * time.Second
	for _, replicas := range []int{1, 2, 3} {
		for _, rate := range []float64{5, 80} {
			t.Run(fmt.Sprintf("%d replicas, %v a second", replicas, rate), func(t *testing.T) {
				began, at := sentAt(t, replicas, rate, late, length)
				least, most := 1<<30, 0
				for from := began.Add(time.Second); !from.Add(10 * time.Second).After(began.Add(length)); from = from.Add(100 * time.Millisecond) {
					n := 0
					for _, a := range at {
						if !a.Before(from) && a.Before(from.Add(10*time.Second)) {
							n++
						}
					}
					least, most = min(least, n), max(most, n)
				}
				t.Logf("over ten seconds from %d to %d were sent, at a rate of %v", least, most, 10*rate)
				if float64(least) < 0.95*10*rate || float64(most) > 1.05*10*rate {
					t.Errorf("over ten seconds from %d to %d were sent; want %v, within 5 %%", least, most, 10*rate)
				}
				slices.SortFunc(at, time.Time.Compare)
				for i, from := range at {
					for j := i; j < len(at) && at[j].Sub(from) <= time.Second; j++ {
						if n, may := float64(j-i+1), rate*at[j].Sub(from).Seconds()+0.55*rate+float64(2*replicas); n > may {
							t.Fatalf("%v were sent within %s; want at most %.1f", n, at[j].Sub(from), may)
						}
					}
				}
			})
		}
	}
}

// fakeTargets is a fakeSender whose forward targets can be full (RabbitMQ nacks) or unavailable (it does not answer).
type fakeTargets struct {
	fakeSender
	full, unavailable bool
	answers           chan struct{} // when not nil: they confirm, but not before it is closed
}

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
	reports   laneReports
}

// inScene runs a scheduler in fake time while do runs.
func inScene(t *testing.T, rules throttle.Rules, sender *fakeTargets, do func(t *testing.T, s *scene)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		sender.fakeSender = fakeSender{began: time.Now(), answer: done, nth: map[string]int{}}
		s := &scene{store: memstore.New(), sender: sender}
		s.throttle = throttle.New(func(string) throttle.Rules { return rules }, rand.Float64, func(throttle.Transition) {})
		s.scheduler = retry.NewScheduler(s.store, sender, s.throttle, retry.NewWakeup(), none,
			slog.New(slog.DiscardHandler), s.reports.add)
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

// A forward target that accepts nothing stops no retry of its work queue, however few may be retried.
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
					if lanes := s.scheduler.Unreachable(); sender.full && (strings.Trim(strings.ReplaceAll(s.reports.String(), named, ""), "; ") != "" ||
						!strings.HasPrefix(s.reports.String(), named) || len(lanes) != 1 || lanes[0].String() != "q to queue dead") {
						t.Errorf("reported %q, and backing off are %v; want only %q", s.reports.String(), lanes, named)
					}
				})
			})
		}
	}
}

// What is forwarded waits for no limit of its work queue, and for no pause.
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
				expect.Equal(t, sender.sentOf("forward"), 50, "were forwarded")
				if n := sender.sentOf("retry"); n > 1 {
					t.Errorf("%d were retried", n)
				}
			})
		})
	}
}

// Targets that do not answer leave the others their part of what may be claimed: each has a small one until it
// confirms.
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

// So do targets that confirmed much, so that much is claimed for each, before they all hang at once.
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
		expect.Equal(t, sender.sentOf("retry"), 500, "were retried, with %d claimed and stuck", sender.sentOf("stuck"))
		if n := sender.sentOf("stuck"); n < retry.MaxClaimed*3/4 || n >= retry.MaxClaimed {
			t.Errorf("%d messages are claimed for stuck targets; want from %d to %d", n, retry.MaxClaimed*3/4, retry.MaxClaimed-1)
		}
	})
}

// A destination is reported while its messages are unanswered, and nothing is sent to it twice.
func TestALaneThatHangsIsNamed(t *testing.T) {
	sender := &fakeTargets{}
	inScene(t, throttle.Rules{}, sender, func(t *testing.T, s *scene) {
		sender.answers = make(chan struct{}) // made in the bubble: fake time advances only while what waits for it is in the bubble too
		s.add(t, 3, "q", "stuck", "dead")
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if got := s.reports.String(); got != "" {
			t.Fatalf("after 20 s it is reported: %s", got)
		}
		time.Sleep(10 * time.Minute)
		s.add(t, 1, "others", "retry", "") // the scheduler looks at all lanes again
		synctest.Wait()
		if got, want := s.reports.String(), "q to queue dead: "+retry.ErrUnanswered.Error(); got != want {
			t.Fatalf("reported: %q, want %q", got, want)
		}
		if lanes := s.scheduler.Unreachable(); len(lanes) != 1 || lanes[0].String() != "q to queue dead" {
			t.Errorf("%v are backing off; want only \"q to queue dead\"", lanes)
		}
		close(sender.answers)
		time.Sleep(time.Second)
		synctest.Wait()
		if got := s.reports.String(); !strings.HasSuffix(got, "; q to queue dead: <nil>") || len(s.scheduler.Unreachable()) != 0 || sender.sentOf("stuck") != 3 {
			t.Errorf("after it answered: reported %q, want \"…; q to queue dead: <nil>\" at the end; %v are backing off, want none; %d were sent, want 3", got, s.scheduler.Unreachable(), sender.sentOf("stuck"))
		}
	})
}

// A round that one queue's large bodies end early continues with the queues that had no turn.
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
		expect.Equal(t, fmt.Sprint(sender.queues), "[large small large large large]", "sent in the order")
	})
}
