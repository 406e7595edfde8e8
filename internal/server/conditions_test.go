package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
	"pgregory.net/rapid"

	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/condition"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/mask"
	"github.com/redrive-mq/redrive/internal/metrics"
	"github.com/redrive-mq/redrive/internal/notify"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/memstore"
	"github.com/redrive-mq/redrive/wire"
)

func testConditions() (*condition.Set, *metrics.Metrics) {
	m := metrics.New(memstore.New(), func() (uint64, uint64, error) { return 1 << 30, 1 << 20, nil }, "test", "")
	return newConditions(m, func() []string { return nil }), m
}

// readyConditions returns the conditions of a ready service.
func readyConditions() (*condition.Set, *metrics.Metrics) {
	h, m := testConditions()
	connected(h)
	return h, m
}

// connected puts it that all connections are there.
func connected(h *condition.Set) {
	for _, kind := range []condition.Kind{condition.Intake, condition.Parked, condition.Publish} {
		h.Put(condition.Condition{Kind: kind})
	}
}

func alarm(kind condition.Kind) condition.Condition {
	return condition.Condition{Kind: kind, Alarm: true}
}

func of(kind condition.Kind, queue string) condition.Condition {
	return condition.Condition{Kind: kind, Queue: queue}
}

// dead is a forward target of the queue orders.
var dead = ofLane(store.Lane{Queue: "orders", Forward: store.Destination{RoutingKey: "dead"}})

func scraped(m *metrics.Metrics) string {
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	return w.Body.String()
}

// gauge is a metric's value as Prometheus reads it.
func gauge(t *testing.T, m *metrics.Metrics, name string) string {
	t.Helper()
	for line := range strings.Lines(scraped(m)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	t.Fatalf("no metric %s", name)
	return ""
}

// A service is ready when each part is, and the metric agrees with /readyz.
func TestReadyOnceEveryPartHasReported(t *testing.T) {
	h, m := testConditions()
	for _, step := range []struct {
		of            condition.Condition
		text          string
		problems      []string
		ready, intake string // the metrics
	}{
		{condition.Condition{}, "", []string{"intake: connecting", "parked: connecting", "retries: connecting"}, "0", "0"},
		{of(condition.Parked, ""), "", []string{"intake: connecting", "retries: connecting"}, "0", "0"},
		{of(condition.Intake, ""), "", []string{"retries: connecting"}, "0", "0"},
		{of(condition.Publish, ""), "", []string{}, "1", "0"},
		{of(condition.Unreachable, "orders"), "no such queue", []string{"queue orders: no such queue"}, "1", "0"},
		{of(condition.NoConsumer, "mail"), "none", []string{"consumers of queue mail: none", "queue orders: no such queue"}, "1", "0"},
		{of(condition.NoConsumer, "mail"), "", []string{"queue orders: no such queue"}, "1", "0"},
		{dead, "full", []string{"forwards of queue orders to queue dead: full", "queue orders: no such queue"}, "1", "0"},
		{dead, "", []string{"queue orders: no such queue"}, "1", "0"},
		{of(condition.Store, ""), "full", []string{"queue orders: no such queue", "store: full"}, "0", "1"},
		{of(condition.Intake, ""), "not connected", []string{"intake: not connected", "queue orders: no such queue", "store: full"}, "0", "1"},
		{of(condition.Unreachable, "orders"), "", []string{"intake: not connected", "store: full"}, "0", "1"},
		{of(condition.Store, ""), "", []string{"intake: not connected"}, "0", "0"},
		{of(condition.Intake, ""), "", []string{}, "1", "0"},
	} {
		if step.of.Kind != "" {
			c := step.of
			c.Text = step.text
			h.Put(c)
			expect.Equal(t, h.Text(step.of), step.text, "%s", step.of)
		}
		if got := condition.Lines(h.List()); !slices.Equal(got, step.problems) || got == nil {
			t.Errorf("after %s %q: problems %q, want %q", step.of, step.text, got, step.problems)
		}
		if got := gauge(t, m, "redrive_ready"); got != step.ready || h.Ready() != (got == "1") {
			t.Errorf("after %s %q: redrive_ready is %s, and the service is ready: %v", step.of, step.text, got, h.Ready())
		}
		expect.Equal(t, gauge(t, m, "redrive_intake_stopped"), step.intake,
			"after %s %q: redrive_intake_stopped", step.of, step.text)
	}
}

// Each jump is logged once, and shown for as long as messages wait longer because of it.
func TestAJumpOfTheClockIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logged strings.Builder
		h, _ := readyConditions()
		s := &Service{Options: Options{Log: slog.New(slog.NewTextHandler(&logged, nil))}}
		s.vhosts = []*vhost{{conditions: h, scheduler: &retry.Scheduler{}}}
		ctx, stop := context.WithCancel(t.Context())
		var off time.Duration
		var mu sync.Mutex
		go s.watchClock(ctx, func(now time.Time) time.Time {
			mu.Lock()
			defer mu.Unlock()
			return now.Add(off)
		})
		for _, step := range []struct {
			jump, after time.Duration
			problem     string // the only one contains it; "": there is none
			lines       int
		}{
			{0, time.Hour, "", 0},
			{-2 * time.Second, time.Minute, "", 0},
			{-2 * time.Second, time.Minute, "set back by 4s", 1},
			{4 * time.Second, time.Minute, "", 2},
			{-2 * time.Hour, 2*time.Hour - time.Minute, "set back by 2h0m0s", 3},
			{0, 2 * time.Minute, "", 3},
			{time.Hour, time.Minute, "set ahead by 1h0m0s", 4},
			{-2 * time.Hour, time.Minute, "set back by 1h0m0s", 5},
		} {
			mu.Lock()
			off += step.jump
			mu.Unlock()
			time.Sleep(step.after)
			synctest.Wait()
			got := strings.Join(condition.Lines(h.List()), "\n")
			if (got == "") != (step.problem == "") || !strings.Contains(got, step.problem) {
				t.Errorf("%s, after %s: %q, want %q", step.jump, step.after, got, step.problem)
			}
			if n := strings.Count(logged.String(), "\n"); n != step.lines || !h.Ready() {
				t.Errorf("%s: %d lines, want %d; ready is %v", step.jump, n, step.lines, h.Ready())
			}
		}
		stop()
	})
}

// A connection's state says whether RabbitMQ is silent or refuses it.
func TestAConnectionSaysWhetherRabbitMQAnswers(t *testing.T) {
	s := opened(t, testConfig(t)).vhosts[0]
	to := s.connection(condition.Publish, "")
	for want, err := range map[string]error{
		"RabbitMQ does not answer: to x: dial tcp: refused": fmt.Errorf("to x: %w",
			&net.OpError{Op: "dial", Net: "tcp", Err: errors.New("refused")}),
		"wrong password": errors.New("wrong password"),
	} {
		to.Observe(broker.State{Err: err})
		expect.Equal(t, s.conditions.Text(condition.Condition{Kind: condition.Publish}), want, "the condition")
	}
}

// One log line says what is wrong, not one per attempt.
func TestOnlyAChangeIsNews(t *testing.T) {
	h, _ := testConditions()
	for i, step := range []struct {
		what string
		news bool
	}{{"", false}, {"full", true}, {"full", false}, {"read only", true}, {"", true}, {"", false}} {
		expect.Equal(t, h.Put(condition.Condition{Kind: condition.Store, Text: step.what}), step.news,
			"step %d, %q: news", i, step.what)
	}
}

// A ledger that is off is a problem of the whole service, until it balances again.
func TestALedgerThatIsOffIsNotReady(t *testing.T) {
	h, m := readyConditions()
	s := &vhost{conditions: h, metrics: m}
	s.recounted(map[string]int64{"orders": 3})
	if problems := condition.Lines(h.List()); h.Ready() || len(problems) != 1 || !strings.Contains(problems[0], "redrive ledger") {
		t.Errorf("the ledger is off by 3, ready: %v, problems %q", h.Ready(), problems)
	}
	s.recounted(map[string]int64{})
	if !h.Ready() || len(condition.Lines(h.List())) > 0 {
		t.Errorf("the ledger balances, ready: %v, problems %q", h.Ready(), condition.Lines(h.List()))
	}
}

// A hundred thousand queues with problems do not flood readiness, page and status.
func TestProblemsOfVeryManyQueuesAreSummedUp(t *testing.T) {
	h, _ := readyConditions()
	const n = 100_000
	for i := range n {
		h.Put(condition.Condition{Kind: condition.Unreachable, Queue: fmt.Sprintf("invented.%06d", i), Text: "no such queue"})
	}
	h.Put(condition.Condition{Kind: condition.Store, Text: "full"})
	all := condition.Lines(h.List())
	if len(all) != 200+2 || !slices.Contains(all, fmt.Sprintf("queue (others): %d more have problems", n-200)) || !slices.Contains(all, "store: full") {
		t.Errorf("%d problems, the last ones %q", len(all), all[max(0, len(all)-2):])
	}
}

// What is parked because of the setup is a condition of its queue, until nothing was for an hour.
func TestWhatTheSetupHasParkedIsSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _ := readyConditions()
		f := &setupFaults{conditions: h, put: map[string]time.Time{}}
		decided := func(p policy.Policy, reason string) string {
			return p.Decide(policy.Failure{Queue: "orders", Reason: reason, Attempt: 9}).Why
		}
		p := policy.Default()
		for _, c := range []struct{ reason, why, want string }{
			{"rejected", decided(p, "rejected"), ""}, {"reported", "its consumer parked it: its reason is expired", ""},
			{"expired", decided(p, "expired"), "its messages expire before a consumer takes them"},
			{"maxlen", decided(p, "maxlen"), "it is full, and drops messages"},
			{"rejected", `no policy allows the queue "orders"`, "no policy names it"},
			{"rejected", `no policy allows the queue "orders.old"`, ""},
			{"rejected", `the queue "orders" does not exist any more`, "RabbitMQ has no such queue any more"},
		} {
			e := retry.Event{Kind: retry.Parked, Queue: "orders", Reason: c.reason, Why: c.why}
			f.event(e)
			if got := h.Text(of(condition.Setup, "orders")); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
				t.Errorf("%s, %s: the condition is %q, want %q", c.reason, c.why, got, c.want)
			}
			time.Sleep(59 * time.Minute)
			f.event(e)
			time.Sleep(2 * time.Minute)
			expect.Equal(t, len(h.All()) > 0, c.want != "", "%s: it holds, an hour after the first", c.why)
			time.Sleep(setupShows)
			expect.Equal(t, len(h.All()), 0, "conditions an hour after the last")
		}
		for i := range 2 * maxSetupFaults {
			f.event(retry.Event{Kind: retry.Parked, Queue: fmt.Sprint(i), Why: fmt.Sprintf(`no policy allows the queue "%d"`, i)})
		}
		expect.Equal(t, len(h.All()), maxSetupFaults, "conditions of very many queues")
	})
}

// A lane whose error changes is logged once, as it began, and once as it ends; its problem is
// always the latest.
func TestALaneThatFailsIsLoggedOnce(t *testing.T) {
	var log strings.Builder
	h, _ := testConditions()
	s := &vhost{conditions: h, Options: Options{Log: slog.New(slog.NewTextHandler(&log, nil))}}
	lane := store.Lane{Queue: "orders", Forward: store.Destination{RoutingKey: "dead"}}
	for _, err := range []error{errors.New("not confirmed"), errors.New("refused"), errors.New("not confirmed")} {
		s.laneChanged(lane, err)
		if got := h.Text(ofLane(lane)); got != err.Error() {
			t.Errorf("its problem is %q, want %q", got, err)
		}
	}
	s.laneChanged(lane, nil)
	if n := strings.Count(log.String(), "\n"); n != 2 || h.Text(ofLane(lane)) != "" {
		t.Errorf("logged %d lines, want 2:\n%s", n, log.String())
	}
}

// A listener that panics misses that event, and harms neither the others nor the goroutine of the event, the intake's.
// The panic is counted, and shown by readiness for a while.
func TestAListenerThatPanicsCannotEndTheIntake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, m := readyConditions()
		l := &listeners{log: slog.New(slog.DiscardHandler), conditions: h, count: m.ListenerFailed}
		heard := 0
		l.add("first", func(e retry.Event) {
			if e.Queue == "poison" {
				panic("cannot count it")
			}
		})
		l.add("second", func(retry.Event) { heard++ })
		for _, queue := range []string{"a", "poison", "b", "poison"} {
			l.event(retry.Event{Kind: retry.Failed, Queue: queue})
		}
		expect.Equal(t, heard, 4, "the second listener heard … of 4 events")
		expect.Equal(t, gauge(t, m, `redrive_event_failures_total{listener="first"}`), "2", "failures are counted")
		if p := condition.Lines(h.List()); h.Ready() || len(p) != 1 || !strings.Contains(p[0], `queue "poison" is missing there`) || gauge(t, m, "redrive_ready") != "0" {
			t.Errorf("ready, with problems %q", p)
		}
		time.Sleep(failureShows + time.Second)
		if p := condition.Lines(h.List()); !h.Ready() || len(p) != 0 || gauge(t, m, "redrive_ready") != "1" {
			t.Errorf("long after: problems %q", p)
		}
	})
}

// People are notified of an open breaker while messages wait behind it. Once these are discarded, say, nothing probes,
// and it stays open.
func TestAnOpenBreakerWithNothingWaitingIsNotNotified(t *testing.T) {
	s := opened(t, testConfig(t))
	s.vhosts[0].force("orders", string(throttle.Open), "anna", "the bank is down")
	if is := told(t, s); len(is) > 0 {
		t.Errorf("with nothing behind it: %v", is)
	}
	must(t, s.vhosts[0].store.Add(t.Context(), []*store.Record{{ID: uuid.New(), Queue: "orders", State: store.Waiting, Due: time.Now(), FirstFailed: time.Now(), FailedAt: time.Now()}}))
	if is := told(t, s); !slices.Equal(is, []notify.Kind{notify.BreakerOpen}) {
		t.Errorf("with a message behind it: %v", is)
	}
}

// An open breaker is a condition, until it is closed. The service stays ready.
func TestAnOpenBreakerIsACondition(t *testing.T) {
	v := opened(t, testConfig(t)).vhosts[0]
	connected(v.conditions)
	const open, paused = "breaker of queue orders: open: the bank is down", "; no probe is sent while it is paused"
	for _, step := range []struct{ to, want string }{
		{"open", open}, {"closed", ""}, {"open", open}, {"pause", open + paused}, {"open", open + paused}, {"resume", open}, {"auto", ""},
	} {
		if pause := step.to == "pause"; pause || step.to == "resume" {
			v.scheduler.Pause("orders", pause)
		} else {
			v.force("orders", step.to, "anna", "the bank is down")
		}
		text := v.conditions.Text(of(condition.Breaker, "orders"))
		expect.Equal(t, text, strings.TrimPrefix(step.want, "breaker of queue orders: "), "its text")
		expect.Equal(t, strings.Join(condition.Lines(v.conditions.List()), "; "), step.want, "set to %s, the conditions", step.to)
		named := strings.Contains(scraped(v.metrics), `redrive_condition{kind="breaker",queue="orders"} 1`)
		expect.Equal(t, named, step.want != "", "set to %s, the metric names it", step.to)
		expect.Equal(t, v.conditions.Ready(), true, "set to %s, the service is ready", step.to)
	}
}

// told returns the conditions of the queue orders.
func told(t *testing.T, s *Service) (kinds []notify.Kind) {
	t.Helper()
	settings := notify.DefaultSettings()
	all, err := s.vhosts[0].told(t.Context(), &settings)
	must(t, err)
	for _, c := range all {
		if c.Queue == "orders" {
			kinds = append(kinds, c.Kind)
		}
	}
	return kinds
}

// A group that people know of raises no notice for each message, and one that reopens by itself raises one, masked.
func TestTheStateOfAGroupDecidesAboutItsNotices(t *testing.T) {
	c := testConfig(t)
	c.Mask = []mask.Entry{{Patterns: []string{"/secret/"}}}
	s := opened(t, c)
	v := s.vhosts[0]
	fail := func() {
		must(t, v.intake.Handle(t.Context(), []wire.Delivery{{Message: wire.Message{Exchange: wire.ExchangeFailures,
			RoutingKey: "orders",
			Headers:    amqp.Table{wire.HeaderError: "boom for secret-7", wire.HeaderPark: "bad"}}}}))
	}
	set := func(state string) {
		groups, err := v.store.Groups(t.Context())
		must(t, err)
		must(t, v.actions.SetGroupState(t.Context(), boss, groups[0].ID.String(), state, ""))
		v.readKnown(t.Context())
	}
	notified := func(quietly, reopened int) {
		t.Helper()
		lines, err := v.store.Ledger(t.Context())
		must(t, err)
		expect.Equal(t, lines[0].Sums[store.EverParkedQuietly], int64(quietly), "messages parked without a notice")
		settings, n := notify.DefaultSettings(), 0
		all, err := v.told(t.Context(), &settings)
		must(t, err)
		for _, c := range all {
			if c.Kind == notify.GroupReopened {
				n++
				expect.Contains(t, c.Text, "the notice", "resolved: boom for ")
				expect.Equal(t, strings.Contains(c.Text, "secret"), false, "it has what is masked")
			}
		}
		expect.Equal(t, n, reopened, "notices of a reopened group")
	}
	fail()
	notified(0, 0)
	set(inspect.Acknowledged)
	fail()
	notified(1, 0)
	set(inspect.Ignored)
	fail()
	notified(2, 0)
	set(inspect.Resolved)
	notified(2, 0)
	fail()
	notified(2, 1)
	set(inspect.Open)
	notified(2, 0)
}

// undated is a store that does not know when its waiting message failed.
type undated struct{ engine }

func (undated) Counts(context.Context) ([]store.QueueCount, error) {
	return []store.QueueCount{{Queue: "orders", Waiting: 1}}, nil
}

// A message of unknown age has not waited since the year 1.
func TestAMessageOfAnUnknownTimeIsNotNotified(t *testing.T) {
	s := opened(t, testConfig(t))
	v := s.vhosts[0]
	v.store = undated{v.store}
	if is := told(t, s); slices.Contains(is, notify.OldestWaiting) {
		t.Errorf("it is told of %v", is)
	}
}

// What is wrong with a part is reported as what it means to people.
func TestWhatHealthTellsPeople(t *testing.T) {
	h, _ := readyConditions()
	for _, step := range []struct {
		of         condition.Condition
		text, want string
	}{
		{of(condition.Intake, ""), "not connected", "intake_stopped after 2m0s: not connected"},
		{of(condition.Disk, ""), "full", "intake_stopped: full"}, // which is so at once
		{of(condition.Disk, ""), "", "intake_stopped after 2m0s: not connected"},
		{alarm(condition.Intake), "blocked by an alarm of RabbitMQ: " + "memory", "broker_blocked: blocked by an alarm of RabbitMQ: memory"},
		{of(condition.Store, ""), "full", "broker_blocked: blocked by an alarm of RabbitMQ: memory; intake_stopped: full"},
		{of(condition.Intake, ""), "", "intake_stopped: full"},
		{of(condition.Store, ""), "", ""},
		{of(condition.ParkedStore, ""), "full", "intake_stopped: full"},
		{of(condition.ParkedStore, ""), "", ""},
		{alarm(condition.Publish), "blocked by an alarm of RabbitMQ: " + "disk", "broker_blocked: blocked by an alarm of RabbitMQ: disk"},
		{of(condition.Publish, ""), "", ""},
		{of(condition.Unreachable, "orders"), "no such queue", "queue_paused orders: they fail: no such queue"},
		{of(condition.NoConsumer, "orders"), "none", "no_consumer orders after 15m0s: none; queue_paused orders: they fail: no such queue"},
		{of(condition.NoConsumer, "orders"), "", "queue_paused orders: they fail: no such queue"},
		{of(condition.Breaker, "orders"), "open", "breaker_open orders: open; queue_paused orders: they fail: no such queue"},
		{of(condition.Breaker, "orders"), "", "queue_paused orders: they fail: no such queue"},
		{condition.Condition{Kind: condition.Forward, Queue: "orders", Target: "exchange dead"}, "full", "forward_stopped orders > exchange dead: full; queue_paused orders: they fail: no such queue"},
		{of(condition.Unreachable, "orders"), "", "forward_stopped orders > exchange dead: full"},
		{of(condition.Long, "orders"), "9", "forward_stopped orders > exchange dead: full; queue_long orders: 9"},
		{of(condition.Long, "orders"), "", "forward_stopped orders > exchange dead: full"},
		{condition.Condition{Kind: condition.Long, Queue: "orders", Grew: time.Now()}, "9",
			"forward_stopped orders > exchange dead: full; queue_long orders that grew: 9"},
		{of(condition.Long, "orders"), "", "forward_stopped orders > exchange dead: full"},
		{of(condition.Unacked, "orders"), "9",
			"forward_stopped orders > exchange dead: full; queue_unacked orders: 9"},
		{of(condition.Unacked, "orders"), "", "forward_stopped orders > exchange dead: full"},
		{of(condition.Followed, "orders_error"), "it has other consumers",
			"follow_stopped orders_error after 2m0s: it has other consumers; forward_stopped orders > exchange dead: full"},
	} {
		c := step.of
		c.Text = step.text
		h.Put(c)
		var got []string
		settings := notify.DefaultSettings()
		for _, c := range toldOf([][]condition.Condition{h.All()}, &settings) {
			s := string(c.Kind)
			if c.Queue != "" {
				s += " " + c.Queue
			}
			if c.Target != "" {
				s += " > " + c.Target
			}
			if c.After > 0 {
				s += " after " + c.After.String()
			}
			if !c.Grew.IsZero() {
				s += " that grew"
			}
			got = append(got, s+": "+c.Text)
			if !slices.Contains(notify.KindNames(), string(c.Kind)) {
				t.Errorf("there is no event %s", c.Kind)
			}
		}
		slices.Sort(got)
		expect.Equal(t, strings.Join(got, "; "), step.want, "after %s %q", step.of, step.text)
	}
}

var kinds = []retry.Kind{retry.Failed, retry.Retried, retry.Parked, retry.Discarded}

// The ring counts as a list of all events would, for any second. Events come from several goroutines, so a little out
// of order.
func TestActivityOfTheLastMinute(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type event struct {
			queue string
			kind  int
			at    int64
		}
		var r activity
		var all []event
		latest := rapid.Int64Range(0, 2_000_000_000).Draw(t, "start")
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			latest += rapid.OneOf(rapid.Int64Range(0, 3), rapid.Int64Range(0, 200),
				rapid.Int64Range(0, 20_000)).Draw(t, "seconds")
			e := event{rapid.SampledFrom([]string{"", "orders", "mail"}).Draw(t, "queue"), rapid.IntRange(0, 3).Draw(t, "kind"),
				latest - rapid.Int64Range(0, min(2, latest)).Draw(t, "late by")}
			all = append(all, e)
			r.event(retry.Event{Kind: kinds[e.kind], Queue: e.queue, At: time.Unix(e.at, 999)})
			if !rapid.Bool().Draw(t, "ask") {
				continue
			}
			latest += rapid.Int64Range(0, 70).Draw(t, "asked after")
			want, hour, day := map[string]inspect.Flow{}, make([]inspect.Flow, 60), make([]inspect.Flow, 48)
			for _, e := range all {
				if e.at > latest-60 {
					n := want[e.queue]
					*flowFields(&n)[e.kind]++
					want[e.queue] = n
				}
				if ago := latest/60 - e.at/60; ago < 60 && e.queue != "mail" {
					*flowFields(&hour[59-ago])[e.kind]++
				}
				if ago := latest/1800 - e.at/1800; ago < 48 && e.queue == "orders" {
					*flowFields(&day[47-ago])[e.kind]++
				}
			}
			now := time.Unix(latest, 0)
			for _, q := range []string{"", "orders", "mail", "never"} {
				if got := r.Minute(q, now); got != want[q] {
					t.Fatalf("queue %q at %d: %v, want %v", q, latest, got, want[q])
				}
			}
			if got := r.Hour(now, func(q string) bool { return q != "mail" }); !slices.Equal(got, hour) {
				t.Fatalf("the hour at %d: %v, want %v", latest, got, hour)
			}
			if got := r.Day(now, "orders"); !slices.Equal(got, day) {
				t.Fatalf("the day at %d: %v, want %v", latest, got, day)
			}
		}
	})
}

func TestActivityIsOnlyWhatPeopleAskFor(t *testing.T) {
	var r activity
	at := time.Unix(1_700_000_000, 0)
	for _, k := range []retry.Kind{retry.Waiting, retry.Forwarded, retry.Replayed} {
		r.event(retry.Event{Kind: k, Queue: "orders", At: at})
	}
	if names := r.Queues(); len(names) != 0 {
		t.Errorf("queues %q are counted", names)
	}
	r.event(retry.Event{Kind: retry.Discarded, Queue: "mail", At: at, N: 7})
	r.event(retry.Event{Kind: retry.Failed, Queue: "mail", At: at})
	if names := r.Queues(); !slices.Equal(names, []string{"mail"}) {
		t.Errorf("the queues are %q", names)
	}
	if got := r.Minute("mail", at); got != (inspect.Flow{Failed: 1, Discarded: 7}) {
		t.Errorf("%+v", got)
	}
	r.event(retry.Event{Kind: retry.Failed, Queue: "orders", At: at.Add(time.Hour)})
	expect.Equal(t, r.Failed(func(q string) bool { return q == "mail" }), 1, "failed in all")
}

// After a restart the last hour and day are still there, and what is older is not.
func TestTheLastHourAndDayOutliveARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, began := memstore.New(), time.Now()
		run := func(d time.Duration, queues ...string) (r *activity) {
			r = &activity{}
			must(t, r.load(t.Context(), s))
			ctx, stop := context.WithCancel(t.Context())
			var kept sync.WaitGroup
			kept.Go(func() { r.keep(ctx, s) })
			for _, q := range queues {
				r.event(retry.Event{Kind: retry.Parked, Queue: q, At: time.Now(), N: 3})
			}
			time.Sleep(d)
			stop()
			kept.Wait()
			return r
		}
		parked := func(r *activity) (text string) {
			for i, f := range r.Hour(time.Now(), func(q string) bool { return q != "secret" }) {
				if f.Parked > 0 {
					text += fmt.Sprintf("%d %d min ago; ", f.Parked, 59-i)
				}
			}
			return text
		}
		run(10*time.Second, "orders", "secret")
		run(20*time.Minute, "mail", "orders")
		time.Sleep(5 * time.Minute)
		r := run(time.Second)
		expect.Equal(t, parked(r), "9 25 min ago; ", "parked %s after the first start", time.Since(began))
		expect.Equal(t, r.Failed(func(string) bool { return true })+r.Minute("orders", time.Now()).Parked, 0,
			"since the last start")
		r = run(40 * time.Minute)
		expect.Equal(t, parked(r), "", "parked in the last hour")
		inDay := func(r *activity) (n int64) {
			for _, f := range r.Day(time.Now(), "orders") {
				n += f.Parked
			}
			return n
		}
		time.Sleep(20 * time.Hour)
		expect.Equal(t, inDay(run(time.Second)), 6, "parked in the last day, after a restart")
		run(3 * time.Hour)
		expect.Equal(t, inDay(run(6*time.Hour)), 0, "parked in the last day, a day later")
		left := 0
		must(t, s.Entries(t.Context(), flowPrefix, "", func(store.Entry) (bool, error) { left++; return true, nil }))
		expect.Equal(t, left, 0, "entries of idle queues")
	})
}

// Events come from the intake and the scheduler, questions from HTTP.
func TestActivityIsCountedAtOnce(t *testing.T) {
	var r activity
	at := time.Unix(1_700_000_000, 0)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 500 {
				r.event(retry.Event{Kind: kinds[i%3], Queue: fmt.Sprint(g % 2), At: at})
				r.Minute("0", at)
				r.Queues()
			}
		})
	}
	wg.Wait()
	got := r.Minute("0", at)
	if got.Failed+got.Retried+got.Parked != 4*500 {
		t.Errorf("4 times 500 events count as %v", got)
	}
}

// Invented names are forgotten an hour after their last event, and do not keep others from being counted.
func TestIdleQueuesAreNotCountedForEver(t *testing.T) {
	var r activity
	at := time.Unix(1_700_000_000, 0)
	for i := range maxActiveQueues + 10 {
		r.event(retry.Event{Kind: retry.Failed, Queue: fmt.Sprintf("invented.%d", i), At: at})
	}
	if n := len(r.Queues()); n != maxActiveQueues {
		t.Fatalf("%d queues are counted", n)
	}
	r.event(retry.Event{Kind: retry.Failed, Queue: "invented.7", At: at.Add(50 * time.Minute)})
	r.event(retry.Event{Kind: retry.Failed, Queue: "orders", At: at.Add(61 * time.Minute)})
	names := r.Queues()
	slices.Sort(names)
	if !slices.Equal(names, []string{"invented.7", "orders"}) {
		t.Errorf("%d queues are left: %.10q", len(names), names)
	}
}

// consumerCounts is a RabbitMQ that answers what the test has set.
type consumerCounts struct {
	mu   sync.Mutex
	n    map[string]int
	due  []string
	held map[string]int // ready messages
	mute bool
	asks int
}

func (a *consumerCounts) set(change func()) { a.mu.Lock(); change(); a.mu.Unlock() }

// watching runs a consumerThrottle in fake time until f ends.
func watching(t *testing.T, a *consumerCounts, rules throttle.Rules, f func(c *consumerThrottle, allowed func() int)) {
	synctest.Test(t, func(t *testing.T) {
		var c *consumerThrottle
		plain := throttle.New(func(string) throttle.Rules { return rules }, func() float64 { return 0 }, func(now throttle.Transition) {
			c.mu.Lock()
			defer c.mu.Unlock()
			if now.To == throttle.NoConsumer && c.queues["q"].consumers == 0 {
				t.Error("retries do not wait for the answer any more, and the throttle does not have it")
			}
		})
		c = &consumerThrottle{Throttle: plain, rules: func(string) throttle.Rules { return rules }, ready: func() bool { return true }, wake: func() {},
			pollNow: make(chan struct{}, 1), queues: map[string]*watchedQueue{}, unknownSince: map[string]time.Time{},
			mayRetryTo: func(string) (yes, known bool) { return true, true },
			due: func(context.Context) (all []store.NextDue, err error) {
				a.mu.Lock()
				defer a.mu.Unlock()
				for _, q := range a.due {
					all = append(all, store.NextDue{Lane: store.Lane{Queue: q}, Due: time.Now()})
				}
				return all, nil
			},
			ask: func(ctx context.Context, queues []string, answer func(queue string, consumers, ready int)) error {
				for _, q := range queues {
					a.mu.Lock()
					a.asks++
					n, held, mute := a.n[q], a.held[q], a.mute
					a.mu.Unlock()
					if mute {
						return context.DeadlineExceeded
					}
					answer(q, n, held)
				}
				return nil
			}}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { c.run(ctx) })
		f(c, func() int {
			n, _ := c.Allow("q", 5, time.Now())
			c.NotRetried("q", n, time.Now())
			return n
		})
		cancel()
		running.Wait()
	})
}

// Nothing is retried before it is known that the queue has consumers. That stays known, and
// consumers that are back are noticed within a second.
func TestRetriesWaitUntilTheQueueIsKnownToHaveConsumers(t *testing.T) {
	a := &consumerCounts{n: map[string]int{"q": 1}}
	watching(t, a, throttle.Rules{}, func(c *consumerThrottle, allowed func() int) {
		var got []int
		step := func(d time.Duration) {
			time.Sleep(d)
			synctest.Wait()
			got = append(got, allowed())
		}
		step(0) // asks
		step(time.Millisecond)
		a.set(func() { a.due = []string{"q"} })
		for range 10 {
			step(10 * time.Second)
		}
		a.set(func() { a.n, a.held = map[string]int{}, map[string]int{"q": 1} })
		step(6 * time.Second)
		a.set(func() { a.n["q"] = 1 })
		step(1100 * time.Millisecond)
		if want := "[0 5 5 5 5 5 5 5 5 5 5 5 0 5]"; fmt.Sprint(got) != want {
			t.Errorf("allowed %v, want %s", got, want)
		}
		if a.asks < 20 || a.asks > 45 {
			t.Errorf("asked %d times in two minutes", a.asks)
		}
	})
}

// A RabbitMQ that does not answer delays the retries, and does not stop them.
func TestRetriesContinueWhenRabbitMQDoesNotAnswer(t *testing.T) {
	a := &consumerCounts{mute: true, due: []string{"q"}}
	watching(t, a, throttle.Rules{}, func(c *consumerThrottle, allowed func() int) {
		n, retryAt := c.Allow("q", 5, time.Now())
		if n != 0 || time.Until(retryAt) != maxAnswerWait {
			t.Errorf("%d, again in %s", n, time.Until(retryAt))
		}
		time.Sleep(maxAnswerWait)
		synctest.Wait()
		expect.Equal(t, allowed(), 5, "after %s", maxAnswerWait)
	})
}

// A queue without due messages is no longer reported as paused, and soon no longer watched: no outdated number of
// consumers is shown.
func TestAQueueWithNothingDueIsForgotten(t *testing.T) {
	a := &consumerCounts{n: map[string]int{}, held: map[string]int{"q": 1}, due: []string{"q"}}
	watching(t, a, throttle.Rules{}, func(c *consumerThrottle, allowed func() int) {
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := allowed(); n != 0 || c.View("q", time.Now()).WaitReason != throttle.WhyNoConsumer {
			t.Errorf("%d, %+v", n, c.View("q", time.Now()))
		}
		a.set(func() { a.due = nil })
		time.Sleep(2 * askNone)
		synctest.Wait()
		if v := c.View("q", time.Now()); v.WaitReason != "" || !v.NoConsumersSince.IsZero() || v.Consumers != 0 {
			t.Errorf("nothing waits: %+v", v)
		}
		a.set(func() { a.due, a.n["q"] = []string{"q"}, 1 })
		time.Sleep(2 * askSome)
		a.set(func() { a.due = nil })
		time.Sleep(2 * watchedFor)
		synctest.Wait()
		asks := 0
		a.set(func() { asks = a.asks })
		time.Sleep(time.Hour)
		if v := c.View("q", time.Now()); v.Consumers != -1 {
			t.Errorf("an hour later: %+v", v)
		}
		if a.set(func() {}); a.asks != asks {
			t.Errorf("asked %d times for a queue without due messages", a.asks-asks)
		}
	})
}

func TestQueuesThatAreReadWithBasicGetAreNotAskedFor(t *testing.T) {
	a := &consumerCounts{n: map[string]int{}, due: []string{"q"}}
	watching(t, a, throttle.Rules{NoConsumer: throttle.RetryWithoutConsumers}, func(c *consumerThrottle, allowed func() int) {
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := allowed(); n != 5 || a.asks != 0 {
			t.Errorf("%d, asked %d times", n, a.asks)
		}
	})
}
