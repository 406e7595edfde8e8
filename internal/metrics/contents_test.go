package metrics

import (
	"context"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
)

// undated is a store that does not know when its waiting message is due, and when it failed.
type undated struct{ store.Store }

func (undated) Counts(context.Context) ([]store.QueueCount, error) {
	return []store.QueueCount{{Queue: "orders", Waiting: 1}}, nil
}

// A message whose times are not known is not one of the year 1.
func TestATimeThatIsNotKnownIsNoAge(t *testing.T) {
	m := New(undated{memstore.New()}, func() (uint64, uint64, error) { return 1, 1, nil }, "test", "")
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for _, name := range []string{"redrive_overdue_seconds", "redrive_oldest_waiting_seconds"} {
		if !strings.Contains(w.Body.String(), name+`{queue="orders"} 0`+"\n") {
			t.Errorf("%s of a time that is not known is not 0:\n%s", name, w.Body)
		}
	}
}
