package httpapi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/metrics"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
	"github.com/redrive-mq/redrive/internal/webui"
	"github.com/redrive-mq/redrive/internal/webui/webtest"
)

// asked counts what is asked of a store about all queues, or about each of many.
type asked struct {
	*memstore.Store
	counts, due int
}

func (a *asked) Counts(ctx context.Context) ([]store.QueueCount, error) {
	a.counts++
	time.Sleep(time.Second) // of the bubble's time, in which nothing else takes any
	return a.Store.Counts(ctx)
}

func (a *asked) CountDue(ctx context.Context, queues []string, edges []time.Time, most int64) ([]int64, error) {
	a.due += len(queues)
	return a.Store.CountDue(ctx, queues, edges, most)
}

// However many queues there are, a look shows a page of them, with sums of all, and the
// store counts them once for several looks.
func TestLooksArePaged(t *testing.T) { synctest.Test(t, testLooksArePaged) }

func testLooksArePaged(t *testing.T) {
	const queues, most = 5000, 256 << 10
	s := &asked{Store: memstore.New()}
	fillQueues(t, s.Store, queues, store.Waiting)
	service := looking(t, s)
	for _, path := range looks {
		body := lookAt(t, service, path)
		if path != "/metrics" && len(body) > most {
			t.Errorf("%s: %d bytes", path, len(body))
		}
		if rows := strings.Count(body, "<tr"); rows > 101+61 { // the overview's chart has 61
			t.Errorf("%s: %d rows", path, rows)
		}
	}
	// Searches and scrapes count for themselves, each look besides shares one count.
	if want := 1 + 3; s.counts > want {
		t.Errorf("the store counted all queues %d times for %d looks, want %d", s.counts, len(looks), want)
	}
	if s.due > 500 {
		t.Errorf("what is due was counted of %d queues", s.due)
	}
	var o inspect.Overview
	decodeInto(t, lookAt(t, service, "/api/v1/overview"), &o)
	var due int64
	for _, slot := range o.Calendar {
		due += slot.Count
	}
	if len(o.Queues) != 100 || o.MoreQueues != queues-100 || o.Waiting != queues || due != queues {
		t.Errorf("the overview shows %d queues and %d more, %d waiting, %d due", len(o.Queues), o.MoreQueues, o.Waiting, due)
	}
	var g inspect.GroupPage
	decodeInto(t, lookAt(t, service, "/api/v1/groups"), &g)
	if len(g.Groups) != 100 || g.After == "" {
		t.Errorf("%d groups of %d, and then %q", len(g.Groups), g.Total, g.After)
	}
	var l inspect.Ledger
	decodeInto(t, lookAt(t, service, "/api/v1/ledger"), &l)
	if len(l.Queues) != 100 || l.After == "" || l.Total.In != queues || l.Total.Waiting != queues {
		t.Errorf("%d lines of the ledger, and then %q; in all %+v", len(l.Queues), l.After, l.Total)
	}
}

// Each group and each line of the ledger is on one page. (Queues: see package inspect.)
func TestPagesHaveEachOnce(t *testing.T) {
	const queues = 250
	s := memstore.New()
	fillQueues(t, s, queues, store.Parked)
	service := looking(t, s)
	for _, path := range []string{"/api/v1/groups", "/api/v1/ledger"} {
		seen, after, pages := map[string]int{}, "", 0
		for first := true; first || after != ""; first = false {
			var p struct {
				After          string
				Total          json.RawMessage
				Groups, Queues []struct{ Queue string }
			}
			decodeInto(t, lookAt(t, service, path+"?limit=100&after="+after), &p)
			if p.Groups != nil && string(p.Total) != fmt.Sprint(queues) {
				t.Errorf("%s groups in all", p.Total)
			}
			for _, row := range append(p.Groups, p.Queues...) {
				if seen[row.Queue]++; seen[row.Queue] > 1 {
					t.Errorf("%s has %s %d times", path, row.Queue, seen[row.Queue])
				}
			}
			after = p.After
			pages++
		}
		if len(seen) != queues || pages != 3 {
			t.Errorf("%s has %d on %d pages", path, len(seen), pages)
		}
	}
}

// A queue with blocked retries is in the overview, however many others there are.
func TestTheOverviewShowsStoppedQueuesFirst(t *testing.T) {
	const queues = 3000
	s := memstore.New()
	fillQueues(t, s, queues, store.Parked)
	last := "tenant.002999.orders"
	c := webtest.New(s, &webtest.Told{Returns: map[string]string{last: "it does not exist"}}, inspect.Config{})
	o, err := c.Overview(t.Context(), auth.Caller{Name: "ann", Role: auth.Viewer})
	if err != nil || len(o.Queues) != 100 || o.Queues[99].Name != last || o.Queues[99].Unreachable == "" {
		t.Errorf("the overview shows %d queues: %v", len(o.Queues), err)
	}
}

func decodeInto(t *testing.T, body string, v any) {
	t.Helper()
	must(t, json.Unmarshal([]byte(body), v))
}

// looks are what people, Prometheus and health checks ask for.
var looks = []string{"/api/v1/overview", "/api/v1/queues", "/api/v1/groups", "/api/v1/ledger", "/api/v1/messages", "/metrics", "/readyz", "/", "/queues", "/groups", "/health", "/messages"}

// fillQueues keeps a message for each of n queues.
func fillQueues(t *testing.T, s store.Store, n int, state store.State) {
	t.Helper()
	for at := 0; at < n; at += 1000 {
		var all []*store.Record
		for i := at; i < min(n, at+1000); i++ {
			now := time.Now()
			r := &store.Record{ID: uuid.Must(uuid.NewV7()), Queue: fmt.Sprintf("tenant.%06d.orders", i), State: state, Due: now.Add(time.Hour), Failures: 1, Reason: "rejected",
				Error: "timeout", FirstFailed: now, FailedAt: now, Policy: "default"}
			r.Message.Body = []byte(`{"n":1}`)
			all = append(all, r)
		}
		must(t, s.Add(context.Background(), all))
	}
}

// looking is page, API and metrics over a store.
func looking(t *testing.T, s store.Store) http.Handler {
	m := metrics.New(s, func() (uint64, uint64, error) { return 1, 1, nil }, "test", "")
	mux := http.NewServeMux()
	mux.Handle("/", webtest.New(s, nil, inspect.Config{}).API(webui.Options{}, auth.Config{}))
	mux.Handle("/metrics", m.Handler())
	return mux
}

func lookAt(t *testing.T, service http.Handler, path string) string {
	t.Helper()
	w := httptest.NewRecorder()
	r := httptest.NewRequest("GET", "http://localhost"+path, nil)
	r.RemoteAddr, r.Host = "127.0.0.1:1", "localhost"
	service.ServeHTTP(w, r)
	if w.Code != 200 {
		t.Fatalf("%s: %d %s", path, w.Code, strings.TrimSpace(w.Body.String()))
	}
	return w.Body.String()
}
