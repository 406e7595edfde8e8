package notify

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
)

// heard are the notifications sent, where no socket may be.
type heard struct {
	mu  sync.Mutex
	all []string
}

func (h *heard) target(r *Route) (*target, error) {
	to, err := open(r)
	if err == nil {
		to.send = func(_ context.Context, _ *client, m *Message) error {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.all = append(h.all, fmt.Sprintf("%s %d", m.Kind, m.Items[0].N))
			return nil
		}
	}
	return to, err
}

// What is parked at any replica is reported once, by the leader; what was sent
// before a leader died is not told again by the next.
func TestReplicasAreToldOfOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fleet, out := memstore.NewReplicas(), &heard{}
		var relaying sync.WaitGroup
		ctx, stop := context.WithCancel(context.Background())
		replica := func(id string) (*Engine, *memstore.Member) {
			m := fleet.Join()
			s, r := DefaultSettings(), DefaultRoute()
			r.Name, r.URL, r.GroupWait, r.Repeat = "hook", "generic+http://hook.example/", 5*time.Second, time.Hour // longer than two relays take
			s.Routes = []Route{r}
			e, err := New(s, Options{Store: m, Replica: id, Count: func(string, string) {}, Log: slog.New(slog.DiscardHandler), open: out.target,
				Conditions: func(context.Context, *Settings) ([]Condition, error) {
					return []Condition{{Kind: BreakerOpen, Queue: "q"}}, nil
				}})
			if err != nil {
				t.Fatal(err)
			}
			relaying.Go(func() { e.Relay(ctx) })
			return e, m
		}
		a, am := replica("a")
		b, _ := replica("b")
		lead := func(e *Engine, m *memstore.Member, id string) (end func()) {
			term, leads, err := m.Lead(ctx, "service", id, 5*time.Second)
			if err != nil || !leads {
				t.Fatal(leads, err)
			}
			ctx, cancel := context.WithCancel(store.WithTerm(ctx, "service", term))
			var running sync.WaitGroup
			running.Go(func() { e.Run(ctx) })
			return func() { cancel(); running.Wait() }
		}
		park := func(e *Engine, n int) {
			for range n {
				e.Event(retry.Event{Kind: retry.Parked, Queue: "q", Error: "refused", At: time.Now()})
			}
		}
		end := lead(a, am, "a")
		park(a, 30)
		park(b, 12)
		time.Sleep(10 * time.Second)
		out.are(t, "breaker_open 0", "parked 42")
		am.Kill()
		end()
		park(b, 5)
		time.Sleep(10 * time.Second)
		end = lead(b, fleet.Join(), "b")
		time.Sleep(2 * time.Minute)
		out.are(t, "breaker_open 0", "parked 42") // within the hour it is not told again
		time.Sleep(time.Hour)
		out.are(t, "breaker_open 0", "parked 42", "breaker_open 0", "parked 5")
		end()
		stop()
		relaying.Wait()
	})
}

// deaf is a store that loses every second answer to a write of relayed counts.
type deaf struct {
	store.SideTable
	n atomic.Int64
}

func (d *deaf) PutEntries(ctx context.Context, entries []store.Entry) error {
	err := d.SideTable.PutEntries(ctx, entries)
	if err == nil && strings.HasPrefix(entries[0].Name, relayPrefix) && d.n.Add(1)%2 == 1 {
		return errors.New("the answer was lost")
	}
	return err
}

// A count whose write, or whose removal, had no answer is reported once.
func TestARelayedCountIsReportedOnceThoughAnswersAreLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fleet, out := memstore.NewReplicas(), &heard{}
		s, r := DefaultSettings(), DefaultRoute()
		r.Name, r.URL, r.GroupWait, r.Repeat = "hook", "generic+http://hook.example/", time.Minute, time.Hour
		s.Routes = []Route{r}
		ctx, stop := context.WithCancel(t.Context())
		var all []*Engine
		var running sync.WaitGroup
		for _, id := range []string{"a", "b"} {
			e, err := New(s, Options{Store: &deaf{SideTable: fleet.Join()}, Replica: id, Count: func(string, string) {}, Log: slog.New(slog.DiscardHandler), open: out.target,
				Conditions: func(context.Context, *Settings) ([]Condition, error) { return nil, nil }})
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, e)
			running.Go(func() { e.Relay(ctx) })
		}
		running.Go(func() { all[0].Run(ctx) })
		for i := range 20 {
			all[i%2].Event(retry.Event{Kind: retry.Parked, Queue: "q", Error: "refused", At: time.Now()})
			time.Sleep(1500 * time.Millisecond)
		}
		time.Sleep(2 * time.Minute)
		out.are(t, "parked 20")
		stop()
		running.Wait()
	})
}

// The entries of replicas come by their names, so an earlier count may come later.
func TestCountsOfReplicasSpanAllTheirTimes(t *testing.T) {
	at := func(minute int) time.Time { return time.Date(2026, 11, 21, 10, minute, 0, 0, time.UTC) }
	early, late := tally{N: 1, First: at(0), Last: at(2)}, tally{N: 1, First: at(5), Last: at(6)}
	for _, order := range [][]*tally{{&early, &late}, {&late, &early}} {
		var all tally
		for _, u := range order {
			all.join(u)
		}
		if all.N != 2 || all.First != at(0) || all.Last != at(6) {
			t.Errorf("%d from %s to %s", all.N, all.First, all.Last)
		}
	}
}

func (h *heard) are(t *testing.T, want ...string) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	slices.Sort(h.all)
	slices.Sort(want)
	if !slices.Equal(h.all, want) {
		t.Errorf("it was told %q, want %q", h.all, want)
	}
}
