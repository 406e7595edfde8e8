package notify

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store/memstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}

// hook is a webhook's server, which hands on what it gets.
func hook(t *testing.T, answer func(w http.ResponseWriter, r *http.Request)) (url string, got chan map[string]any) {
	got = make(chan map[string]any, 100)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body map[string]any
		data, _ := io.ReadAll(r.Body)
		if err := json.Unmarshal(data, &body); err != nil {
			t.Errorf("it is sent %q: %v", data, err)
		}
		if answer != nil {
			answer(w, r)
		}
		got <- body
	}))
	t.Cleanup(server.Close)
	return strings.Replace(server.URL, "http://", "generic+http://", 1), got
}

func options(t *testing.T) Options {
	return Options{Store: memstore.New(), Count: func(string, string) {}, Log: slog.New(slog.DiscardHandler),
		Conditions: func(context.Context, *Settings) ([]Condition, error) { return nil, nil }}
}

// start runs an engine until the returned function, or the test's end.
func start(t *testing.T, e *Engine) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { e.Run(ctx) })
	stop = func() { cancel(); running.Wait() }
	t.Cleanup(stop)
	return stop
}

func TestAThousandParkedMessagesAreOneCall(t *testing.T) {
	url, got := hook(t, nil)
	s := DefaultSettings()
	r := DefaultRoute()
	r.Name, r.URL, r.GroupWait = "hook", Secret(url+"/x?$team=shop"), time.Second
	s.Page, s.AllowPrivate, s.Routes = "https://redrive.example.com/", loopback, []Route{r}
	e, err := New(s, options(t))
	if err != nil {
		t.Fatal(err)
	}
	stop := start(t, e)
	at := time.Now()
	for i := range 1000 {
		text := "connection refused"
		if i%4 == 0 {
			text = "<!channel> @here *bold*\nhttp://evil.example/"
		}
		e.Event(retry.Event{Kind: retry.Parked, Queue: "orders.in", Reason: "rejected", Error: text, At: at})
	}
	e.Event(retry.Event{Kind: retry.Failed, Queue: "orders.in", At: at})
	m := <-got
	if m["count"] != 1000.0 || m["queue"] != "orders.in" || m["event"] != "parked" || m["team"] != "shop" || m["severity"] != "warning" {
		t.Errorf("it is told %v", m)
	}
	if want := "https://redrive.example.com/messages?q=state%3Aparked+queue%3A%22orders.in%22+parked%3A%3E%3D" + strings.ReplaceAll(at.UTC().Format("2006-01-02T15:04Z"), ":", "%3A"); m["link"] != want {
		t.Errorf("the link is %s", m["link"])
	}
	if text := m["message"].(string); !strings.Contains(text, "750× connection refused") || !strings.Contains(text, "250×") || strings.ContainsAny(text, "@<>") || strings.Contains(text, "://evil") {
		t.Errorf("it says %s", text)
	}
	stop()
	if len(got) != 0 {
		t.Errorf("it is told again: %v", <-got)
	}
}

// What a parked message costs the intake: it is on its way.
func BenchmarkEvent(b *testing.B) {
	s, r := DefaultSettings(), DefaultRoute()
	r.Name, r.URL, r.Queues = "hook", "generic+https://hook.example/", []string{"orders.*"}
	s.Routes = []Route{r}
	e, err := New(s, Options{})
	if err != nil {
		b.Fatal(err)
	}
	ev := retry.Event{Kind: retry.Parked, Queue: "orders.in", Reason: "rejected", Error: "order 4711: connection to 10.1.2.3:5432 refused after 3s", At: time.Now()}
	for b.Loop() {
		e.Event(ev)
	}
}

// A rule's severity is that of the notification: routes choose by it, and the kind stays parked.
func TestTheSeverityOfARule(t *testing.T) {
	all, gotAll := hook(t, nil)
	critical, gotCritical := hook(t, nil)
	s := DefaultSettings()
	r := DefaultRoute()
	r.GroupWait, r.Kinds = time.Second, []Kind{Parked}
	r.Name, r.URL = "all", Secret(all)
	one := r
	one.Name, one.URL, one.Least = "critical", Secret(critical), Critical
	s.AllowPrivate, s.Routes = loopback, []Route{r, one}
	e, err := New(s, options(t))
	if err != nil {
		t.Fatal(err)
	}
	start(t, e)
	for n, severity := range []string{"info", "", "warning", "critical"} {
		for range n + 1 {
			e.Event(retry.Event{Kind: retry.Parked, Queue: "q", Error: "x", Severity: severity, At: time.Now()})
		}
	}
	m := <-gotAll
	if m["event"] != "parked" || m["severity"] != "critical" || m["count"] != 10.0 {
		t.Errorf("notified of %v", m)
	}
	counts := map[any]any{}
	for _, i := range m["items"].([]any) {
		item := i.(map[string]any)
		counts[item["severity"]] = item["count"]
	}
	if counts["info"] != 1.0 || counts["warning"] != 5.0 || counts["critical"] != 4.0 {
		t.Errorf("notified of %v", counts)
	}
	if m := <-gotCritical; m["severity"] != "critical" || m["count"] != 4.0 || len(gotCritical) > 0 {
		t.Errorf("the route for critical ones has %v", m)
	}
}
