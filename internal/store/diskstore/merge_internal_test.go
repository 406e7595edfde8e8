package diskstore

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/store"
)

// A page of many queues holds iterators of those that it shows alone: each costs memory,
// and more time than finding where a queue begins.
func TestAPageOpensTheQueuesThatItShows(t *testing.T) {
	s, err := Open(t.TempDir(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var all []*store.Record
	const queues, page = 500, 20
	for i := range 2 * queues {
		all = append(all, &store.Record{ID: uuid.Must(uuid.NewV7()), Queue: fmt.Sprint("q", i%queues), State: store.Waiting, Due: time.UnixMicro(int64(i))})
	}
	if err := s.Add(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	snap := s.db.NewSnapshot()
	defer snap.Close()
	m, err := s.merge(snap, store.Range{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.close()
	for i := range page {
		at, err := m.top()
		if err != nil || dueOf(at.it.Key()).UnixMicro() != int64(i) {
			t.Fatalf("%d: at %v, %v", i, at, err)
		}
		if err := m.next(); err != nil {
			t.Fatal(err)
		}
	}
	open := 0
	for _, s := range m.sources {
		if s.it != nil {
			open++
		}
	}
	if len(m.sources) != queues || open != page {
		t.Errorf("%d iterators are open of %d queues, after a page of %d", open, len(m.sources), page)
	}
}
