package server

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-mq/redrive/internal/retry"
)

// A listener that panics costs itself that event, and nothing else: neither the others
// nor the goroutine that told of it, which is the intake's. It is counted, and readiness
// says so for a while.
func TestAListenerThatPanicsCannotEndTheIntake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, m := testHealth()
		for _, part := range []string{partIntake, partParked, partPublish} {
			h.set(part, "")
		}
		l := &listeners{log: slog.New(slog.DiscardHandler), health: h, count: m.ListenerFailed}
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
		if heard != 4 {
			t.Errorf("the second listener heard %d of 4 events", heard)
		}
		if n := gauge(t, m, `redrive_event_failures_total{listener="first"}`); n != "2" {
			t.Errorf("%s failures are counted", n)
		}
		if p := h.problems(); h.ready() || len(p) != 1 || !strings.Contains(p[0], `queue "poison" is missing there`) || gauge(t, m, "redrive_ready") != "0" {
			t.Errorf("ready, with problems %q", p)
		}
		time.Sleep(failureShows + time.Second)
		if p := h.problems(); !h.ready() || len(p) != 0 || gauge(t, m, "redrive_ready") != "1" {
			t.Errorf("long after: problems %q", p)
		}
	})
}
