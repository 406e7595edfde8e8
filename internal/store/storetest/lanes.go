package storetest

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/errorgroup"
	"github.com/redrive-mq/redrive/internal/store"
)

var lanes = []testCase{
	{"a lane's claims are its own, in due order", lanesApart},
	{"the names of lanes may hold any bytes", anyLane},
	{"a change moves a record to the lane it belongs to", changeLanes},
	{"what waits for forward targets is found and counted with its queue", lanesOfAQueue},
}

var shipping = store.Lane{Queue: "q", Forward: store.Destination{Exchange: "x", RoutingKey: "k"}}

// forwarded makes a record that goes to a lane's target.
func forwarded(l store.Lane, after time.Duration, body string) *store.Record {
	r := Waiting(l.Queue, after, body)
	if l.Forwards() {
		r.Forward = &l.Forward
	}
	return r
}

func claimLane(t *testing.T, s store.Store, l store.Lane, after time.Duration, n int) []store.Claim {
	t.Helper()
	claims, err := s.Claim(context.Background(), l, epoch.Add(after), n, math.MaxInt)
	must(t, err)
	return claims
}

func finish(t *testing.T, s store.Store, claims []store.Claim) {
	t.Helper()
	var out []store.Outcome
	for _, c := range claims {
		out = append(out, store.Outcome{Claim: c, At: epoch})
	}
	if n, err := s.Finish(context.Background(), out); n != len(out) || err != nil {
		t.Errorf("finished %d of %d, %v", n, len(out), err)
	}
}

func lanesApart(t *testing.T, e Engine) {
	s := open(t, e)
	other := store.Lane{Queue: "q", Forward: store.Destination{RoutingKey: "dead"}}
	elsewhere := store.Lane{Queue: "r", Forward: shipping.Forward}
	add(t, s, forwarded(shipping, 0, "s0"), Waiting("q", 2*time.Microsecond, "q2"), forwarded(other, 0, "o0"), forwarded(shipping, time.Microsecond, "s1"),
		forwarded(elsewhere, 0, "e0"), Waiting("q", 4*time.Microsecond, "q4"), forwarded(shipping, time.Hour, "late"), parked("q", "parked"))
	want(t, "next", next(t, s), "q 2µs, q to exchange x with routing key k 0s, q to queue dead 0s, r to exchange x with routing key k 0s")
	first := claimLane(t, s, shipping, time.Minute, 1)
	want(t, "the first of a target", bodies(first), "s0")
	want(t, "the rest of it", bodies(claimLane(t, s, shipping, time.Minute, 10)), "s1")
	want(t, "the queue's own", bodies(claim(t, s, "q", time.Minute, 10)), "q2 q4")
	want(t, "next with claims", next(t, s), "q to exchange x with routing key k 1h0m0s, q to queue dead 0s, r to exchange x with routing key k 0s")
	must(t, s.Release(context.Background(), first))
	again := claimLane(t, s, shipping, time.Minute, 10)
	want(t, "what was released", bodies(again), "s0")
	finish(t, s, again)
	finish(t, s, claimLane(t, s, shipping, 2*time.Hour, 10))
	want(t, "next of what is left", next(t, s), "q to queue dead 0s, r to exchange x with routing key k 0s")
	if s = reopened(t, e, s); s == nil {
		return
	}
	want(t, "next after a crash", next(t, s), "q 2µs, q to exchange x with routing key k 1µs, q to queue dead 0s, r to exchange x with routing key k 0s")
	want(t, "of the target after a crash", bodies(claimLane(t, s, shipping, 2*time.Hour, 10)), "s1")
	Balances(t, s)
}

// No name of a queue, exchange or routing key makes a lane another one.
func anyLane(t *testing.T, e Engine) {
	s := open(t, e)
	long := strings.Repeat("n", 255)
	var all []store.Lane
	for _, queue := range []string{"", "a", "a\x00", "\x01a\x01b\x01c", "\xff", long} {
		for _, to := range []store.Destination{{}, {Exchange: "b", RoutingKey: "c"}, {Exchange: "bc"}, {RoutingKey: "bc"}, {Exchange: "\x01b", RoutingKey: "c\x00"}, {Exchange: long, RoutingKey: long}} {
			all = append(all, store.Lane{Queue: queue, Forward: to})
			add(t, s, forwarded(all[len(all)-1], 0, fmt.Sprint(len(all))))
		}
	}
	got, err := s.Next(context.Background())
	if err != nil || len(got) != len(all) {
		t.Errorf("Next returned %d lanes, %v; want %d", len(got), err, len(all))
	}
	if again := reopened(t, e, s); again != nil {
		s = again
	}
	for i, l := range all {
		want(t, fmt.Sprintf("claimed of %q", l), bodies(claimLane(t, s, l, 0, 10)), fmt.Sprint(i+1))
	}
}

func changeLanes(t *testing.T, e Engine) {
	s := open(t, e)
	dead := &store.Destination{RoutingKey: "dead"}
	for _, body := range []string{"replayed", "bound", "moved", "hastened", "deleted", "claimed"} {
		add(t, s, forwarded(shipping, time.Minute, body))
	}
	parkedOne := parked("q", "parked")
	parkedOne.Forward = dead
	add(t, s, parkedOne, Waiting("q", time.Minute, "back"))
	edit := func(body string, with func(*store.Record)) {
		t.Helper()
		change(t, s, func(_ store.Key, r *store.Record) store.Edit {
			with(r)
			return store.Edit{Keep: true}
		}, keyOf(t, s, body))
	}
	edit("replayed", func(r *store.Record) { r.Replay(epoch) })
	edit("parked", func(r *store.Record) { r.Replay(epoch.Add(time.Microsecond)) })
	want(t, "what was replayed is in its queue's lane", bodies(claim(t, s, "q", time.Second, 10)), "replayed parked")
	edit("back", func(r *store.Record) { r.Forward = &shipping.Forward })
	edit("bound", func(r *store.Record) { r.Forward = dead })
	edit("moved", func(r *store.Record) { r.Queue = "r" })
	edit("hastened", func(r *store.Record) { r.Due = epoch })
	want(t, "next", next(t, s), "q to exchange x with routing key k 0s, q to queue dead 1m0s, r to exchange x with routing key k 1m0s")
	want(t, "hastened", bodies(claimLane(t, s, shipping, 0, 10)), "hastened")
	edit("bound", func(r *store.Record) { r.State, r.Due = store.Discarded, epoch.Add(time.Hour) })
	want(t, "next without what was discarded", next(t, s), "q to exchange x with routing key k 1m0s, r to exchange x with routing key k 1m0s")
	edit("bound", func(r *store.Record) { r.State, r.Due = store.Waiting, epoch.Add(2*time.Minute) })
	change(t, s, func(store.Key, *store.Record) store.Edit { return store.Edit{Delete: true} }, keyOf(t, s, "deleted"))
	held := claimLane(t, s, shipping, time.Minute, 1)
	want(t, "claimed", bodies(held), "claimed")
	change(t, s, func(_ store.Key, r *store.Record) store.Edit {
		if r != nil {
			t.Error("what is claimed of a target is given to edit")
		}
		return store.Edit{}
	}, held[0].Key)
	want(t, "the rest of the target", bodies(claimLane(t, s, shipping, time.Hour, 10)), "back")
	want(t, "restored", bodies(claimLane(t, s, store.Lane{Queue: "q", Forward: *dead}, time.Hour, 10)), "bound")
	want(t, "moved", bodies(claimLane(t, s, store.Lane{Queue: "r", Forward: shipping.Forward}, time.Hour, 10)), "moved")
	want(t, "next when all is claimed", next(t, s), "")
	Balances(t, s)
}

func lanesOfAQueue(t *testing.T, e Engine) {
	s := open(t, e)
	dead := store.Lane{Queue: "q", Forward: store.Destination{RoutingKey: "dead"}}
	add(t, s, Waiting("q", 2*time.Second, "q2"), forwarded(shipping, time.Second, "s1"), forwarded(dead, 3*time.Second, "d3"), forwarded(shipping, 4*time.Second, "s4"),
		forwarded(store.Lane{Queue: "r", Forward: shipping.Forward}, 0, "r0"), parked("q", "p0"))
	check := func() {
		t.Helper()
		for _, c := range []struct {
			of   store.Range
			want string
		}{
			{store.Range{State: store.Waiting}, "r0 s1 q2 d3 s4"},
			{store.Range{Queues: []string{"q"}}, "p0 s1 q2 d3 s4"},
			{store.Range{Queues: []string{"q"}, NewestFirst: true}, "s4 d3 q2 s1 p0"},
			{store.Range{Queues: []string{"q"}, State: store.Waiting, From: epoch.Add(2 * time.Second), To: epoch.Add(4 * time.Second)}, "q2 d3"},
			{store.Range{Groups: []errorgroup.ID{errorgroup.Of("r", "rejected", "", "").ID}}, "r0"},
		} {
			want(t, fmt.Sprintf("%+v", c.of), scan(t, s, c.of), c.want)
		}
		counts, err := s.Counts(context.Background())
		must(t, err)
		for _, c := range counts {
			if c.Queue == "q" && (c.Waiting != 4 || c.Parked != 1 || !c.NextDue.Equal(epoch.Add(time.Second))) {
				t.Errorf("counted %+v", c)
			}
		}
		due, err := s.CountDue(context.Background(), []string{"q"}, []time.Time{epoch.Add(2 * time.Second), epoch.Add(time.Hour)}, 100)
		want(t, "counted by when they are due", fmt.Sprint(due, err), "[1 3] <nil>")
		Balances(t, s)
	}
	check()
	claimLane(t, s, shipping, time.Minute, 1)
	claimLane(t, s, dead, time.Minute, 1)
	check()
	if s = reopened(t, e, s); s == nil {
		return
	}
	check()
	for _, l := range []store.Lane{shipping, dead, {Queue: "q"}} {
		finish(t, s, claimLane(t, s, l, time.Minute, 10))
	}
	want(t, "left of the queue", scan(t, s, store.Range{Queues: []string{"q"}}), "p0")
	Balances(t, s)
}
