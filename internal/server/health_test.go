package server

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/redrive-mq/redrive/internal/metrics"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
)

func testHealth() (*health, *metrics.Metrics) {
	m := metrics.New(memstore.New(), func() (uint64, uint64, error) { return 1 << 30, 1 << 20, nil }, "test", "")
	return newHealth(slog.New(slog.DiscardHandler), m), m
}

// gauge is a metric's value as Prometheus reads it.
func gauge(t *testing.T, m *metrics.Metrics, name string) string {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for line := range strings.Lines(w.Body.String()) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	t.Fatalf("no metric %s", name)
	return ""
}

// Ready means that every part said so, and the metric says what /readyz says.
func TestReadyOnceEveryPartHasReported(t *testing.T) {
	h, m := testHealth()
	for _, step := range []struct {
		part, what    string
		problems      []string
		ready, intake string // the metrics
	}{
		{"", "", []string{"intake: connecting", "parked: connecting", "retries: connecting"}, "0", "0"},
		{partParked, "", []string{"intake: connecting", "retries: connecting"}, "0", "0"},
		{partIntake, "", []string{"retries: connecting"}, "0", "0"},
		{partPublish, "", []string{}, "1", "0"},
		{partQueue + "orders", "no such queue", []string{"queue orders: no such queue"}, "1", "0"},
		{partConsumers + "mail", "none", []string{"consumers of queue mail: none", "queue orders: no such queue"}, "1", "0"},
		{partConsumers + "mail", "", []string{"queue orders: no such queue"}, "1", "0"},
		{partOf(store.Lane{Queue: "orders", Forward: store.Destination{RoutingKey: "dead"}}), "full", []string{"forwards of queue orders to queue dead: full", "queue orders: no such queue"}, "1", "0"},
		{partForward + "orders to queue dead", "", []string{"queue orders: no such queue"}, "1", "0"},
		{partStore, "full", []string{"queue orders: no such queue", "store: full"}, "0", "1"},
		{partIntake, "not connected", []string{"intake: not connected", "queue orders: no such queue", "store: full"}, "0", "1"},
		{partQueue + "orders", "", []string{"intake: not connected", "store: full"}, "0", "1"},
		{partStore, "", []string{"intake: not connected"}, "0", "0"},
		{partIntake, "", []string{}, "1", "0"},
	} {
		if step.part != "" {
			h.set(step.part, step.what)
			if got := h.problemOf(step.part); got != step.what {
				t.Errorf("%s is %q, want %q", step.part, got, step.what)
			}
		}
		if got := h.problems(); !slices.Equal(got, step.problems) || got == nil {
			t.Errorf("after %s %q: problems %q, want %q", step.part, step.what, got, step.problems)
		}
		if got := gauge(t, m, "redrive_ready"); got != step.ready || h.ready() != (got == "1") {
			t.Errorf("after %s %q: redrive_ready is %s, and the service is ready: %v", step.part, step.what, got, h.ready())
		}
		if got := gauge(t, m, "redrive_intake_stopped"); got != step.intake {
			t.Errorf("after %s %q: redrive_intake_stopped is %s", step.part, step.what, got)
		}
	}
}

// One log line says what is wrong, not one per attempt.
func TestOnlyAChangeIsNews(t *testing.T) {
	h, _ := testHealth()
	for i, step := range []struct {
		what string
		news bool
	}{{"", false}, {"full", true}, {"full", false}, {"read only", true}, {"", true}, {"", false}} {
		if news := h.set(partStore, step.what); news != step.news {
			t.Errorf("step %d, %q: news is %v", i, step.what, news)
		}
	}
}

// A ledger that is off is a problem of the whole service, until it balances again.
func TestALedgerThatIsOffIsNotReady(t *testing.T) {
	h, m := testHealth()
	s := &vhost{health: h, metrics: m}
	for _, part := range []string{partIntake, partParked, partPublish} {
		h.set(part, "")
	}
	s.recounted(map[string]int64{"orders": 3})
	if problems := h.problems(); h.ready() || len(problems) != 1 || !strings.Contains(problems[0], "redrive ledger") {
		t.Errorf("the ledger is off by 3, ready: %v, problems %q", h.ready(), problems)
	}
	s.recounted(map[string]int64{})
	if !h.ready() || len(h.problems()) > 0 {
		t.Errorf("the ledger balances, ready: %v, problems %q", h.ready(), h.problems())
	}
}

// A hundred thousand queues with a problem each do not fill readiness, page and status.
func TestProblemsOfVeryManyQueuesAreSummedUp(t *testing.T) {
	h, _ := testHealth()
	for _, part := range []string{partIntake, partParked, partPublish} {
		h.set(part, "")
	}
	const n = 100_000
	for i := range n {
		h.set(fmt.Sprintf("%sinvented.%06d", partQueue, i), "no such queue")
	}
	h.set(partStore, "full")
	all := h.problems()
	if len(all) != mostProblems+2 || !slices.Contains(all, fmt.Sprintf("queue (others): %d more have problems", n-mostProblems)) || !slices.Contains(all, "store: full") {
		t.Errorf("%d problems, the last ones %q", len(all), all[max(0, len(all)-2):])
	}
}

// A lane whose error changes is logged once, as it began, and once as it ends; its problem is
// always the latest.
func TestALaneThatFailsIsLoggedOnce(t *testing.T) {
	var log strings.Builder
	h, _ := testHealth()
	s := &vhost{health: h, Options: Options{Log: slog.New(slog.NewTextHandler(&log, nil))}}
	lane := store.Lane{Queue: "orders", Forward: store.Destination{RoutingKey: "dead"}}
	for _, err := range []error{errors.New("not confirmed"), errors.New("refused"), errors.New("not confirmed")} {
		s.laneChanged(lane, err)
		if got := h.problemOf(partOf(lane)); got != err.Error() {
			t.Errorf("its problem is %q, want %q", got, err)
		}
	}
	s.laneChanged(lane, nil)
	if n := strings.Count(log.String(), "\n"); n != 2 || h.problemOf(partOf(lane)) != "" {
		t.Errorf("logged %d lines, want 2:\n%s", n, log.String())
	}
}
