package metrics

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
)

// Names that nothing is kept for any more do not keep their labels from queues that come
// later; those that something is kept for, or happens to, keep theirs.
func TestLabelsOfIdleQueuesAreReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		m := New(s, func() (uint64, uint64, error) { return 1, 1, nil }, "test", "")
		parked := func(queue string) string {
			return fmt.Sprintf("redrive_parked_total{queue=%q} ", queue)
		}
		scrape := func() string {
			w := httptest.NewRecorder()
			m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
			return w.Body.String()
		}
		for i := range MostQueues {
			m.Event(retry.Event{Kind: retry.Parked, Queue: fmt.Sprint("invented.", i)})
			m.Event(retry.Event{Kind: retry.Failed, Queue: fmt.Sprint("invented.", i), Reason: "rejected"})
			time.Sleep(time.Second)
		}
		if err := s.Add(t.Context(), []*store.Record{{ID: uuid.New(), Queue: "invented.0", State: store.Parked, FailedAt: time.Now()}}); err != nil {
			t.Fatal(err)
		}
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
			if got := strings.Contains(text, parked(name)); got != want {
				t.Errorf("%s is shown: %t", name, got)
			}
		}
		if strings.Contains(text, `queue="invented.2"`) {
			t.Error("something of a released label is left")
		}
		if n := strings.Count(text, "\nredrive_parked_total{"); n < MostQueues-mostReleased || n > MostQueues+1 {
			t.Errorf("%d labels are left", n)
		}
	})
}
