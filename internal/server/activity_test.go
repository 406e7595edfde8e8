package server

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/retry"
)

var kinds = []retry.Kind{retry.Failed, retry.Retried, retry.Parked, retry.Discarded}

// The ring counts what a list of all events would, for whatever second is asked.
// Events come from several goroutines, so a little out of order.
func TestActivityOfTheLastMinute(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type event struct {
			queue string
			kind  int
			at    int64
		}
		var r activity
		var all []event
		latest := rapid.Int64Range(0, 2_000_000_000).Draw(t, "start")
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			latest += rapid.OneOf(rapid.Int64Range(0, 3), rapid.Int64Range(0, 200)).Draw(t, "seconds")
			e := event{rapid.SampledFrom([]string{"", "orders", "mail"}).Draw(t, "queue"), rapid.IntRange(0, 3).Draw(t, "kind"),
				latest - rapid.Int64Range(0, min(2, latest)).Draw(t, "late by")}
			all = append(all, e)
			r.event(retry.Event{Kind: kinds[e.kind], Queue: e.queue, At: time.Unix(e.at, 999)})
			if !rapid.Bool().Draw(t, "ask") {
				continue
			}
			latest += rapid.Int64Range(0, 70).Draw(t, "asked after")
			want, hour := map[string]inspect.Flow{}, make([]inspect.Flow, 60)
			for _, e := range all {
				if e.at > latest-60 {
					n := want[e.queue]
					*flowFields(&n)[e.kind]++
					want[e.queue] = n
				}
				if ago := latest/60 - e.at/60; ago < 60 && e.queue != "mail" {
					*flowFields(&hour[59-ago])[e.kind]++
				}
			}
			now := time.Unix(latest, 0)
			for _, q := range []string{"", "orders", "mail", "never"} {
				if got := r.Minute(q, now); got != want[q] {
					t.Fatalf("queue %q at %d: %v, want %v", q, latest, got, want[q])
				}
			}
			if got := r.Hour(now, func(q string) bool { return q != "mail" }); !slices.Equal(got, hour) {
				t.Fatalf("the hour at %d: %v, want %v", latest, got, hour)
			}
		}
	})
}

func TestActivityIsOnlyWhatPeopleAskFor(t *testing.T) {
	var r activity
	at := time.Unix(1_700_000_000, 0)
	for _, k := range []retry.Kind{retry.Waiting, retry.Forwarded, retry.Replayed} {
		r.event(retry.Event{Kind: k, Queue: "orders", At: at})
	}
	if names := r.Queues(); len(names) != 0 {
		t.Errorf("queues %q are counted", names)
	}
	r.event(retry.Event{Kind: retry.Parked, Queue: "mail", At: at})
	if names := r.Queues(); !slices.Equal(names, []string{"mail"}) {
		t.Errorf("the queues are %q", names)
	}
}

// Events come from the intake and the scheduler, questions from HTTP.
func TestActivityIsCountedAtOnce(t *testing.T) {
	var r activity
	at := time.Unix(1_700_000_000, 0)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 500 {
				r.event(retry.Event{Kind: kinds[i%3], Queue: fmt.Sprint(g % 2), At: at})
				r.Minute("0", at)
				r.Queues()
			}
		})
	}
	wg.Wait()
	got := r.Minute("0", at)
	if got.Failed+got.Retried+got.Parked != 4*500 {
		t.Errorf("4 times 500 events count as %v", got)
	}
}

func TestManyAtOnceCountAsMany(t *testing.T) {
	var r activity
	at := time.Unix(1_700_000_000, 0)
	r.event(retry.Event{Kind: retry.Discarded, Queue: "orders", At: at, N: 7})
	r.event(retry.Event{Kind: retry.Failed, Queue: "orders", At: at})
	r.event(retry.Event{Kind: retry.Failed, Queue: "mail", At: at.Add(time.Hour)})
	if got := r.Minute("orders", at); got != (inspect.Flow{Failed: 1, Discarded: 7}) {
		t.Errorf("%+v", got)
	}
	if got := r.Failed(func(q string) bool { return q == "orders" }); got != 1 {
		t.Errorf("%d failed in all", got)
	}
}

// Names that somebody makes up are forgotten an hour after the last that happened to
// them, and do not keep others from being counted.
func TestIdleQueuesAreNotCountedForEver(t *testing.T) {
	var r activity
	at := time.Unix(1_700_000_000, 0)
	for i := range maxActiveQueues + 10 {
		r.event(retry.Event{Kind: retry.Failed, Queue: fmt.Sprintf("invented.%d", i), At: at})
	}
	if n := len(r.Queues()); n != maxActiveQueues {
		t.Fatalf("%d queues are counted", n)
	}
	r.event(retry.Event{Kind: retry.Failed, Queue: "invented.7", At: at.Add(50 * time.Minute)})
	r.event(retry.Event{Kind: retry.Failed, Queue: "orders", At: at.Add(61 * time.Minute)})
	names := r.Queues()
	slices.Sort(names)
	if !slices.Equal(names, []string{"invented.7", "orders"}) {
		t.Errorf("%d queues are left: %.10q", len(names), names)
	}
}
