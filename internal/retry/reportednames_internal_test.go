package retry

import (
	"context"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"golang.org/x/sync/semaphore"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// countedStore counts how often its messages are counted.
type countedStore struct {
	*memstore.Store
	counts int
}

func (s *countedStore) Counts(ctx context.Context) ([]store.QueueCount, error) {
	s.counts++
	return s.Store.Counts(ctx)
}

// names returns reported names of which is known what targets says, and nothing of others.
func names(s store.Store, targets map[string]bool) *ReportedNames {
	answer := func(queue string) (yes, known bool) { yes, known = targets[queue]; return yes, known }
	return &ReportedNames{turn: semaphore.NewWeighted(1), store: s, lookUpIfUnknown: answer, cached: answer, reporterOf: map[string]string{}, perUser: map[string]int{}, recounted: time.Now(), loaded: true}
}

// While there is no place for another name, messages are kept for targets, which need none, and
// for names that have theirs.
func TestNamesThatNeedNoPlaceAreAdmitted(t *testing.T) {
	n := names(memstore.New(), map[string]bool{"target": true, "counted": false, "missing": false})
	n.count("counted", "ann")
	n.perUser["ann"] = maxNamesEach
	for queue, want := range map[string]bool{"target": true, "counted": true, "missing": false, "unknown": true, "": true} {
		if got := n.admits(t.Context(), queue, "ann"); got != want {
			t.Errorf("%q is admitted: %v", queue, got)
		}
	}
	if !maps.Equal(n.reporterOf, map[string]string{"counted": "ann", "unknown": "ann"}) {
		t.Errorf("%v are counted", n.reporterOf)
	}
}

// Names are counted again from the store not more often than every 10 s, and not before RabbitMQ
// has had a minute to answer which of them are targets.
func TestWhenNamesAreCountedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &countedStore{Store: memstore.New()}
		sender := NewSender(silentBroker{&binding{}}, func() policy.Set { return policy.Set{{Name: "p", Queues: []string{"*"}}} }, func(Event) {})
		defer sender.Close()
		n := NewReportedNames(s, sender)
		for _, c := range []struct {
			after time.Duration
			full  bool
			want  int
		}{{time.Minute, false, 0}, {1, false, 1}, {time.Hour, false, 1}, {time.Hour, true, 2}, {10 * time.Second, true, 2}, {1, true, 3}} {
			time.Sleep(c.after)
			if n.perUser["ann"] = 0; c.full {
				n.perUser["ann"] = maxNamesEach
			}
			if n.admits(t.Context(), uuid.NewString(), "ann"); s.counts != c.want {
				t.Errorf("%s later they were counted %d times, want %d", c.after, s.counts, c.want)
			}
			synctest.Wait()
		}
	})
}

// silentBroker is a connection on which nothing is published.
type silentBroker struct{ *binding }

func (silentBroker) Send(context.Context, []wire.Outgoing) func(context.Context) []error { return nil }

// Names have a place after they were counted again if a message is kept for them, and they are
// known to be no targets, or had a place before.
func TestWhichNamesAreCountedAgain(t *testing.T) {
	s := memstore.New()
	for _, queue := range []string{"missing", "counted", "new", "target", ""} {
		if err := s.Add(t.Context(), []*store.Record{{ID: uuid.New(), Queue: queue, State: store.Parked}}); err != nil {
			t.Fatal(err)
		}
	}
	n := names(s, map[string]bool{"target": true, "missing": false})
	n.lookUpIfUnknown = func(queue string) (yes, known bool) {
		if queue == "" {
			t.Error("the retry exchange of a message without a queue is looked up")
		}
		return n.cached(queue)
	}
	n.count("counted", "ann")
	n.count("gone", "ann")
	n.count("target", "ann")
	n.recount(t.Context())
	if !maps.Equal(n.reporterOf, map[string]string{"counted": "ann", "missing": ""}) || !maps.Equal(n.perUser, map[string]int{"ann": 1, "": 1}) {
		t.Errorf("%v are counted, %v", n.reporterOf, n.perUser)
	}
}
