package httpapi_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/metrics"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
	"github.com/redrive-mq/redrive/internal/store/memstore"
	"github.com/redrive-mq/redrive/internal/webui"
)

// looks are what people, Prometheus and health checks ask for.
var looks = []string{"/api/v1/overview", "/api/v1/queues", "/api/v1/groups", "/api/v1/ledger", "/api/v1/messages", "/metrics", "/readyz", "/", "/queues", "/errors", "/health", "/messages"}

// BenchmarkLooks is how long each look takes, and how large it is, on a store on disk
// with messages of 100,000 queues.
func BenchmarkLooks(b *testing.B) {
	for _, state := range []store.State{store.Waiting, store.Parked} {
		s, err := diskstore.Open(b.TempDir(), diskstore.Options{})
		if err != nil {
			b.Fatal(err)
		}
		defer s.Close()
		fillQueues(b, s, 100_000, state)
		service := looking(b, s)
		for _, path := range looks {
			b.Run(fmt.Sprint(state, " ", path), func(b *testing.B) {
				size := 0
				for b.Loop() {
					size = len(lookAt(b, service, path))
				}
				b.ReportMetric(float64(size)/1024, "KiB")
			})
		}
	}
}

// fillQueues keeps a message for each of n queues.
func fillQueues(t testing.TB, s store.Store, n int, state store.State) {
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
		if err := s.Add(context.Background(), all); err != nil {
			t.Fatal(err)
		}
	}
}

// looking is page, API and metrics over a store.
func looking(t testing.TB, s store.Store) http.Handler {
	t.Helper()
	c, none := newLookingConsole(t, s, func(string) string { return "" }), func() []string { return nil }
	log := slog.New(slog.DiscardHandler)
	guard := auth.NewGuard(auth.Config{Log: log, Tokens: auth.NewTokens(memstore.New(), &book{})})
	m := metrics.New(s, func() (uint64, uint64, error) { return 1, 1, nil }, "test", "")
	a := httpapi.New(httpapi.Config{Console: c, Decoder: c.Decoder, Entries: s, Problems: none, Notices: none, Ready: func() bool { return true }, Guard: guard, Log: log, Metrics: m.Handler()})
	for pattern, h := range webui.Routes(c, webui.Options{Caller: func(r *http.Request) auth.Caller { return auth.From(r.Context()) }}) {
		a.Handle(pattern, h)
	}
	return a
}

func newLookingConsole(t testing.TB, s store.Store, returns func(string) string) console {
	t.Helper()
	decoder, err := decode.New(decode.Options{})
	if err != nil {
		t.Fatal(err)
	}
	none := func() []string { return nil }
	return newConsole(s, &book{}, inspect.Config{Log: slog.New(slog.DiscardHandler), Problems: none, Notices: none, Decoder: decoder, Unreachable: returns})
}

func lookAt(t testing.TB, service http.Handler, path string) string {
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
