package metrics

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/redrive-mq/redrive/internal/cluster"
	"github.com/redrive-mq/redrive/internal/condition"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/memstore"
)

// undated is a store that does not know when its waiting message is due, and when it failed.
type undated struct{ store.Store }

func (undated) Counts(context.Context) ([]store.QueueCount, error) {
	return []store.QueueCount{{Queue: "orders", Waiting: 1}}, nil
}

// A message whose times are not known is not one of the year 1.
func TestATimeThatIsNotKnownIsNoAge(t *testing.T) {
	m := New(undated{memstore.New()}, func() (uint64, uint64, error) { return 1, 1, nil }, "test", "")
	for _, name := range []string{"redrive_overdue_seconds", "redrive_oldest_waiting_seconds"} {
		if text := scraped(m); !strings.Contains(text, name+`{queue="orders"} 0`+"\n") {
			t.Errorf("%s of a time that is not known is not 0:\n%s", name, text)
		}
	}
}

// scraped returns what Prometheus reads.
func scraped(m *Metrics) string {
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	return w.Body.String()
}

// Names that nothing is kept for any more do not keep their labels from queues that come
// later; those that something is kept for, or happens to, keep theirs.
func TestLabelsOfIdleQueuesAreReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		m := New(s, func() (uint64, uint64, error) { return 1, 1, nil }, "test", "")
		parked := func(queue string) string {
			return fmt.Sprintf("redrive_parked_total{queue=%q} ", queue)
		}
		scrape := func() string { return scraped(m) }
		for i := range maxQueues {
			m.Event(retry.Event{Kind: retry.Parked, Queue: fmt.Sprint("invented.", i)})
			m.Event(retry.Event{Kind: retry.Failed, Queue: fmt.Sprint("invented.", i), Reason: "rejected"})
			time.Sleep(time.Second)
		}
		expect.NoError(t, s.Add(t.Context(), []*store.Record{
			{ID: uuid.New(), Queue: "invented.0", State: store.Parked, FailedAt: time.Now()}}))
		event := func() { m.Event(retry.Event{Kind: retry.Parked, Queue: "honest"}) }
		event()
		if text := scrape(); strings.Contains(text, parked("honest")) || !strings.Contains(text, parked(otherQueues)+"1") {
			t.Error("a queue beyond the limit has a label of its own")
		}
		event()
		scrape()
		if event(); strings.Contains(scrape(), parked("honest")) {
			t.Error("a label of a queue that something happened to lately was released")
		}
		time.Sleep(idleLabel)
		m.Event(retry.Event{Kind: retry.Parked, Queue: "invented.1"})
		event() // finds none left
		scrape()
		event()
		text := scrape()
		if !strings.Contains(text, parked("honest")+"1") {
			t.Error("a new queue has no label though others are idle")
		}
		for name, want := range map[string]bool{"invented.0": true, "invented.1": true, "invented.2": false, "invented.499": true} {
			expect.Equal(t, strings.Contains(text, parked(name)), want, "%s is shown", name)
		}
		if strings.Contains(text, `queue="invented.2"`) {
			t.Error("something of a released label is left")
		}
		if n := strings.Count(text, "\nredrive_parked_total{"); n < maxQueues-maxReleased || n > maxQueues+1 {
			t.Errorf("%d labels are left", n)
		}
	})
}

// A condition is one series, however many targets it has, and so are two targets that are the same once they are
// clean. Queues beyond the limit of labels have none.
func TestConditionsAreSeries(t *testing.T) {
	m := New(memstore.New(), func() (uint64, uint64, error) { return 1, 1, nil }, "test", "")
	holds := []condition.Condition{{Kind: condition.Disk, Text: "full"}, {Kind: condition.Breaker, Queue: "orders"}, {Kind: condition.Unreachable, Queue: "orders"},
		{Kind: condition.Forward, Queue: "orders", Target: "queue a\xff"}, {Kind: condition.Forward, Queue: "orders", Target: `queue a\xff`}}
	for i := range maxQueues {
		holds = append(holds, condition.Condition{Kind: condition.NoConsumer, Queue: fmt.Sprint("invented.", i)})
	}
	m.Retries(func(func(string) bool) []QueueRetries { return nil }, func() []condition.Condition { return holds })
	text := scraped(m)
	for _, want := range []string{`redrive_condition{kind="disk",queue=""} 1`, `redrive_condition{kind="breaker",queue="orders"} 1`,
		`redrive_condition{kind="unreachable",queue="orders"} 1`, `redrive_queue_paused{queue="orders",why="unreachable"} 1`,
		`redrive_condition{kind="forward",queue="orders"} 1`, `redrive_forward_blocked{queue="orders",target="queue a`} {
		expect.Equal(t, strings.Count(text, "\n"+want), 1, "series of %s", want)
	}
	expect.Equal(t, strings.Count(text, `redrive_condition{kind="no_consumer"`), maxQueues-1, "invented queues have a series")
}

// Watched queues are shown up to the limit of labels, and leave those that are free to queues of which messages fail.
func TestWatchedQueuesAreSeries(t *testing.T) {
	m := New(memstore.New(), func() (uint64, uint64, error) { return 1, 1, nil }, "test", "")
	all := []WatchedQueue{{"a\xff", 1, 2, 3}, {`a\xff`, 4, 5, 6}}
	for i := range 2 * maxQueues {
		all = append(all, WatchedQueue{Queue: fmt.Sprint("q", i)})
	}
	m.Watched(func() []WatchedQueue { return all })
	fails := func(queue string) { m.Event(retry.Event{Kind: retry.Parked, Queue: queue}) }
	fails("orders")
	text := scraped(m)
	expect.Equal(t, strings.Count(text, "\nredrive_queue_ready{"), maxQueues-1, "queues are shown")
	for _, want := range []string{"redrive_queue_ready{%s} 1\n", "redrive_queue_unacked{%s} 2\n",
		"redrive_watched_consumers{%s} 3\n"} {
		want = fmt.Sprintf(want, `queue="a\\xff"`)
		expect.Equal(t, strings.Contains(text, want), true, "%s is shown", want)
	}
	for i := range maxQueues {
		fails(fmt.Sprint("failing", i))
	}
	text = scraped(m)
	expect.Equal(t, strings.Count(text, "\nredrive_queue_ready{"), 0, "queues are shown beside the failing ones")
	expect.Equal(t, strings.Count(text, `redrive_parked_total{queue="failing`), maxQueues-1, "failing queues")
}

var update = flag.Bool("update", false, "write the metrics of docs/how-to/alerts.md")

// The reference has each metric that is registered.
func TestTheReference(t *testing.T) {
	const file, begin = "../../docs/how-to/alerts.md", "<!-- go test ./internal/metrics -run TestTheReference -update writes what follows -->\n"
	m := New(memstore.New(), func() (uint64, uint64, error) { return 1, 1, nil }, "1.0.0", "")
	m.Retries(func(func(string) bool) []QueueRetries { return nil }, func() []condition.Condition { return nil })
	m.Watched(func() []WatchedQueue { return nil })
	m.Store("id")
	m.Replicas(func() []cluster.Replica { return nil })

	kinds := map[string]string{}
	families, err := m.registry.Gather()
	expect.NoError(t, err)
	for _, f := range families {
		kinds[f.GetName()] = strings.ToLower(f.GetType().String())
	}
	described := regexp.MustCompile(`fqName: "([^"]+)", help: ("(?:[^"\\]|\\.)*"), constLabels: {[^}]*}, variableLabels: {([^}]*)}`)
	descs := make(chan *prometheus.Desc, 1000)
	m.registry.Describe(descs)
	close(descs)
	rows := map[string]string{}
	for d := range descs {
		x := described.FindStringSubmatch(d.String())
		if x == nil {
			t.Fatalf("this is not as expected: %s", d)
		}
		kind := kinds[x[1]]
		switch {
		case kind != "":
		case strings.HasSuffix(x[1], "_total"): // without a series yet
			kind = "counter"
		default:
			kind = "gauge"
		}
		labels := "–"
		if x[3] != "" {
			labels = "`" + strings.ReplaceAll(x[3], ",", "`, `") + "`"
		}
		rows[x[1]] = fmt.Sprintf("| `%s` | %s | %s | %s |\n", x[1], kind, labels, strings.Trim(x[2], `"`))
	}
	want := "\n| metric | type | labels | |\n|---|---|---|---|\n"
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		want += rows[name]
	}
	text, err := os.ReadFile(file)
	expect.NoError(t, err)
	before, is, ok := strings.Cut(string(text), begin)
	switch {
	case !ok:
		t.Fatalf("%s has no place for the reference", file)
	case is == want:
	case *update:
		expect.NoError(t, os.WriteFile(file, []byte(before+begin+want), 0o644))
	default:
		t.Errorf("%s differs from the metrics: go test ./internal/metrics -run TestTheReference -update writes it", file)
	}
}
