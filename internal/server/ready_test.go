package server

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/redisnode"
)

func get(t *testing.T, s *Service, path string) (int, string) {
	t.Helper()
	r, err := http.Get("http://" + s.Addr() + path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(text)
}

// saysReady is what all places say of the readiness of a service, as 200 and 503 say it.
func saysReady(t *testing.T, s *Service) (all map[string]bool, o inspect.Overview) {
	t.Helper()
	status, _ := get(t, s, "/readyz")
	code, metrics := get(t, s, "/metrics")
	if code != 200 {
		t.Errorf("/metrics answers %d: %s", code, metrics)
	}
	_, page := get(t, s, "/health")
	o, err := s.vhosts[0].inspect.Overview(context.Background(), boss)
	if err != nil {
		t.Error(err)
	}
	all = map[string]bool{
		"/readyz":       status == 200,
		"redrive_ready": strings.Contains(metrics, "\nredrive_ready 1\n"),
		"page":          strings.Contains(page, "<b>Ready.</b>") && !strings.Contains(page, "Not ready."),
		"overview":      o.Ready,
		"vhosts":        s.vhostLinks(0)[0].Ready,
		"nothing wrong": isReady(s.vhosts[0].health.byPart()),
	}
	for _, r := range o.Replicas {
		if r.Self {
			all["replica"] = r.Ready
		}
	}
	return all, o
}

// agree waits until all places say the same, and that they do. The replicas' table is of
// the last beat.
func agree(t *testing.T, s *Service, what string, ready bool) inspect.Overview {
	t.Helper()
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		all, o := saysReady(t, s)
		differ := ""
		for place, says := range all {
			if says != ready {
				differ += fmt.Sprintf(" %s: %v", place, says)
			}
		}
		if differ == "" {
			return o
		}
		if time.Since(began) > 3*time.Minute {
			t.Fatalf("%s: ready is %v, but%s; wrong is %q", what, ready, differ, s.Problems())
		}
	}
}

// One judgement says whether a service is ready, in all places, whatever is wrong.
func TestReadinessIsOneJudgementEverywhere(t *testing.T) {
	redisnode.Each(t, func(t *testing.T, o redisnode.Options) {
		v := brokertest.NewVHost(t, brokertest.All(t)[0])
		o.Config = "maxmemory 1gb"
		server := redisnode.New(t, o)
		c, err := config.Parse("test.yaml", []byte("policies: [{name: p, queues: [orders], attempts: 3, backoff: {fixed: 1s}}]\nbroker: {}\n"))
		if err != nil {
			t.Fatal(err)
		}
		c.Broker.URL, c.Store.Disk, c.Listen = v.URL(), t.TempDir(), "127.0.0.1:0"
		c.Store.Redis.URL, c.Store.Redis.Timeout = server.URL(), 3*time.Second
		s, err := New(c, Options{Version: "test", Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		defer func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}()
		agree(t, s, "nothing", true)
		h := s.vhosts[0].health
		for _, trouble := range []struct {
			parts []string
			ready bool
		}{
			{[]string{partQueue + "orders"}, true},
			{[]string{partConsumers + "orders", partQueue + "mail"}, true},
			{[]string{partOf(store.Lane{Queue: "orders", Forward: store.Destination{RoutingKey: "dead"}})}, true},
			{[]string{partStore}, false},
			{[]string{partParkedStore}, false},
			{[]string{partIntake}, false},
			{[]string{partPublish, partQueue + "orders"}, false},
			{[]string{partDelays}, false},
		} {
			for _, part := range trouble.parts {
				h.set(part, "wrong")
			}
			if got := agree(t, s, fmt.Sprint(trouble.parts), trouble.ready); len(got.Problems) != len(trouble.parts) {
				t.Errorf("%q: problems %q", trouble.parts, got.Problems)
			}
			for _, part := range trouble.parts {
				h.set(part, "")
			}
			agree(t, s, "nothing any more", true)
		}
		// Redis stands still, and nothing fails.
		if err := server.Pause(); err != nil {
			t.Fatal(err)
		}
		notReady(t, s)
		if err := server.Continue(); err != nil {
			t.Fatal(err)
		}
		agree(t, s, "Redis goes on", true)
		if _, err := server.Do(ctx, "FLUSHALL"); err != nil {
			t.Fatal(err)
		}
		notReady(t, s)
	})
}

// notReady waits until a service whose Redis is away says so, in all places but the
// replicas' table, which no one knows then.
func notReady(t *testing.T, s *Service) {
	t.Helper()
	began := time.Now()
	for isReady(s.vhosts[0].health.byPart()) {
		if time.Since(began) > 3*time.Minute {
			t.Fatal("it stays ready")
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Logf("not ready after %s", time.Since(began).Round(time.Millisecond))
	all, o := saysReady(t, s)
	for place, says := range all {
		if says && place != "replica" {
			t.Errorf("%s says that it is ready", place)
		}
	}
	if !strings.Contains(strings.Join(o.Problems, "\n"), "redis: ") {
		t.Errorf("problems: %q", o.Problems)
	}
	if code, text := get(t, s, "/metrics"); code != 200 || !strings.Contains(text, "\nredrive_store_up 0\n") || !strings.Contains(text, "\nredrive_intake_stopped 1\n") {
		t.Errorf("/metrics: %d, and says nothing of the store", code)
	}
}
