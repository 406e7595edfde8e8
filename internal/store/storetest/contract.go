package storetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/redrive-mq/redrive/internal/errorgroup"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/testenv/expect"
)

func dueOrder(t *testing.T, s *subject) {
	add(t, s, Waiting("q", 3, "c"), Waiting("q", micro, "a"), Waiting("other", 0, "x"))
	add(t, s, Waiting("q", 2*micro, "b"), Waiting("q", hour, "d"))
	want(t, "two of three", bodies(claim(t, s, "q", minute, 2)), "c a")
	want(t, "the third", bodies(claim(t, s, "q", minute, 10)), "b")
	add(t, s, Waiting("q", -hour, "first"))
	want(t, "one that is due earlier than what was claimed", bodies(claim(t, s, "q", minute, 10)), "first")
	big := strings.Repeat("x", 1000)
	add(t, s, Waiting("big", 0, big), Waiting("big", 1, big), Waiting("big", 2, big))
	for _, n := range []int{2, 1} {
		got, err := s.Claim(ctx, store.Lane{Queue: "big"}, epoch.Add(minute), 10, 2500)
		if err != nil || len(got) != n {
			t.Errorf("claimed %d of 1,000 bytes each within 2,500 bytes, %v; want %d", len(got), err, n)
		}
	}
}

func finished(t *testing.T, s *subject) {
	add(t, s, Waiting("q", 0, "gone"), Waiting("q", micro, "parked"), Waiting("q", 2*micro, "released"))
	c := claim(t, s, "q", second, 3)
	at := epoch.Add(minute)
	finishes(t, s, 2, done(c[0]), store.Outcome{Claim: c[1], Park: "why", At: at})
	finishes(t, s, 0, done(c[0]), done(c[1])) // a claim that ended is left alone
	must(t, s.Release(ctx, c[2:]))
	want(t, "waiting", bodies(claim(t, s, "q", second, 3)), "released")
	all := Listed(t, s, store.Range{State: store.Parked, Body: true})
	if len(all) != 1 {
		t.Fatalf("parked: %d", len(all))
	}
	r := all[0].Record
	if string(r.Message.Body) != "parked" || r.ParkedFor != "why" || !r.Due.Equal(at) || r.ID != c[1].Record.ID {
		t.Errorf("parked as %+v", r)
	}
}

func notYet(t *testing.T, s *subject) {
	add(t, s, Waiting("q", second, "a"), Waiting("p", minute, "b"), Waiting("p", hour, "c"), parked("r", "x"))
	select {
	case <-s.Changed():
	default:
		t.Error("Changed has no value after Add")
	}
	want(t, "before it is due", bodies(claim(t, s, "q", second-micro, 10)), "")
	want(t, "next", next(t, s), "p 1m0s, q 1s")
	c := claim(t, s, "p", minute, 10)
	want(t, "next without what is claimed", next(t, s), "p 1h0m0s, q 1s")
	must(t, s.Release(ctx, c))
	want(t, "next with what was released", next(t, s), "p 1m0s, q 1s")
}

func crash(t *testing.T, s *subject) {
	add(t, s, Waiting("q", 0, "claimed"), Waiting("q", 1, "finished"), Waiting("q", hour, "later"),
		parked("q", "parked"))
	finishes(t, s, 1, done(claim(t, s, "q", second, 10)[1]))
	before := countsOf(t, s)
	if !s.ended(t) {
		t.Skip("engine " + s.engine.Name + " keeps nothing, and declares that")
	}
	same(t, "counts after the crash", countsOf(t, s), before)
	want(t, "due again", bodies(claim(t, s, "q", second, 10)), "claimed")
	add(t, s, Waiting("q", 0, "new"))
	want(t, "and new ones", bodies(claim(t, s, "q", hour, 10)), "new later")
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
	claims, err := s.Claim(ctx, l, epoch.Add(after), n, math.MaxInt)
	must(t, err)
	return claims
}

func finish(t *testing.T, s store.Store, claims []store.Claim) {
	t.Helper()
	finishes(t, s, len(claims), Ended(claims, epoch)...)
}

// Ended are the outcomes of claims whose messages were retried.
func Ended(claims []store.Claim, at time.Time) (out []store.Outcome) {
	for _, c := range claims {
		out = append(out, store.Outcome{Claim: c, At: at})
	}
	return out
}

func lanesApart(t *testing.T, s *subject) {
	other := store.Lane{Queue: "q", Forward: store.Destination{RoutingKey: "dead"}}
	elsewhere := store.Lane{Queue: "r", Forward: shipping.Forward}
	add(t, s, forwarded(shipping, 0, "s0"), Waiting("q", 2*micro, "q2"), forwarded(other, 0, "o0"),
		forwarded(shipping, micro, "s1"),
		forwarded(elsewhere, 0, "e0"), Waiting("q", 4*micro, "q4"), forwarded(shipping, hour, "late"),
		parked("q", "parked"))
	want(t, "next", next(t, s), "q 2µs, q to /dead 0s, q to x/k 0s, r to x/k 0s")
	first := claimLane(t, s, shipping, minute, 1)
	want(t, "the first of a target", bodies(first), "s0")
	want(t, "the rest of it", bodies(claimLane(t, s, shipping, minute, 10)), "s1")
	want(t, "the queue's own", bodies(claim(t, s, "q", minute, 10)), "q2 q4")
	want(t, "next with claims", next(t, s), "q to /dead 0s, q to x/k 1h0m0s, r to x/k 0s")
	must(t, s.Release(ctx, first))
	again := claimLane(t, s, shipping, minute, 10)
	want(t, "what was released", bodies(again), "s0")
	finish(t, s, again)
	finish(t, s, claimLane(t, s, shipping, 2*hour, 10))
	want(t, "next of what is left", next(t, s), "q to /dead 0s, r to x/k 0s")
	if !s.ended(t) {
		return
	}
	want(t, "next after a crash", next(t, s), "q 2µs, q to /dead 0s, q to x/k 1µs, r to x/k 0s")
	want(t, "of the target after a crash", bodies(claimLane(t, s, shipping, 2*hour, 10)), "s1")
	Balances(t, s)
}

// No name of a queue, exchange or routing key makes a lane another one.
func anyLane(t *testing.T, s *subject) {
	long := strings.Repeat("n", 255)
	var all []store.Lane
	queues := []string{"", "a", "a\x00", "a\x00\xff", "\x01a\x01b\x01c", "\xff", "ü ?*", long}
	for _, queue := range queues {
		add(t, s, parked(queue, "parked for "+queue))
		for _, to := range []store.Destination{{}, {Exchange: "b", RoutingKey: "c"}, {Exchange: "bc"},
			{RoutingKey: "bc"}, {Exchange: "\x01b", RoutingKey: "c\x00"}, {Exchange: long, RoutingKey: long}} {
			all = append(all, store.Lane{Queue: queue, Forward: to})
			add(t, s, forwarded(all[len(all)-1], 0, fmt.Sprint(len(all))))
		}
	}
	got, err := s.Next(ctx)
	must(t, err)
	same(t, "lanes of Next", len(got), len(all))
	s.reopen(t)
	for i, l := range all {
		want(t, fmt.Sprintf("claimed of %q", l), bodies(claimLane(t, s, l, 0, 10)), fmt.Sprint(i+1))
	}
	same(t, "queues", len(countsOf(t, s)), len(queues))
	for _, queue := range queues {
		of := store.Range{State: store.Parked, Queues: []string{queue}}
		want(t, fmt.Sprintf("parked of %q", queue), scan(t, s, of), "parked for "+queue)
	}
}

func changeLanes(t *testing.T, s *subject) {
	dead := &store.Destination{RoutingKey: "dead"}
	for _, body := range []string{"replayed", "bound", "moved", "hastened", "deleted", "claimed"} {
		add(t, s, forwarded(shipping, minute, body))
	}
	parkedOne := parked("q", "parked")
	parkedOne.Forward = dead
	add(t, s, parkedOne, Waiting("q", minute, "back"))
	edit(t, s, "replayed", func(r *store.Record) { r.Replay(epoch) })
	edit(t, s, "parked", func(r *store.Record) { r.Replay(epoch.Add(micro)) })
	want(t, "what was replayed is in its queue's lane", bodies(claim(t, s, "q", second, 10)), "replayed parked")
	edit(t, s, "back", func(r *store.Record) { r.Forward = &shipping.Forward })
	edit(t, s, "bound", func(r *store.Record) { r.Forward = dead })
	edit(t, s, "moved", func(r *store.Record) { r.Queue = "r" })
	edit(t, s, "hastened", func(r *store.Record) { r.Due = epoch })
	want(t, "next", next(t, s), "q to /dead 1m0s, q to x/k 0s, r to x/k 1m0s")
	want(t, "hastened", bodies(claimLane(t, s, shipping, 0, 10)), "hastened")
	edit(t, s, "bound", func(r *store.Record) { r.State, r.Due = store.Discarded, epoch.Add(hour) })
	want(t, "next without what was discarded", next(t, s), "q to x/k 1m0s, r to x/k 1m0s")
	edit(t, s, "bound", func(r *store.Record) { r.State, r.Due = store.Waiting, epoch.Add(2*minute) })
	edit(t, s, "deleted", nil)
	held := claimLane(t, s, shipping, minute, 1)
	want(t, "claimed", bodies(held), "claimed")
	change(t, s, func(_ store.Key, r *store.Record) store.Edit {
		if r != nil {
			t.Error("what is claimed of a target is given to edit")
		}
		return store.Edit{}
	}, held[0].Key)
	want(t, "the rest of the target", bodies(claimLane(t, s, shipping, hour, 10)), "back")
	want(t, "restored", bodies(claimLane(t, s, store.Lane{Queue: "q", Forward: *dead}, hour, 10)), "bound")
	want(t, "moved", bodies(claimLane(t, s, store.Lane{Queue: "r", Forward: shipping.Forward}, hour, 10)), "moved")
	want(t, "next when all is claimed", next(t, s), "")
	Balances(t, s)
}

func lanesOfAQueue(t *testing.T, s *subject) {
	dead := store.Lane{Queue: "q", Forward: store.Destination{RoutingKey: "dead"}}
	add(t, s, Waiting("q", 2*second, "q2"), forwarded(shipping, second, "s1"), forwarded(dead, 3*second, "d3"),
		forwarded(shipping, 4*second, "s4"),
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
			{store.Range{Queues: []string{"q"}, State: store.Waiting,
				From: epoch.Add(2 * second), To: epoch.Add(4 * second)}, "q2 d3"},
			{store.Range{Groups: []errorgroup.ID{errorgroup.Of("r", "rejected", "", "").ID}}, "r0"},
		} {
			want(t, fmt.Sprintf("%+v", c.of), scan(t, s, c.of), c.want)
		}
		for _, c := range countsOf(t, s) {
			if c.Queue == "q" && (c.Waiting != 4 || c.Parked != 1 || !c.NextDue.Equal(epoch.Add(second))) {
				t.Errorf("counted %+v", c)
			}
		}
		due, err := s.CountDue(ctx, []string{"q"}, []time.Time{epoch.Add(2 * second), epoch.Add(hour)}, 100)
		want(t, "counted by when they are due", fmt.Sprint(due, err), "[1 3] <nil>")
		Balances(t, s)
	}
	check()
	claimLane(t, s, shipping, minute, 1)
	claimLane(t, s, dead, minute, 1)
	check()
	if !s.ended(t) {
		return
	}
	check()
	for _, l := range []store.Lane{shipping, dead, {Queue: "q"}} {
		finish(t, s, claimLane(t, s, l, minute, 10))
	}
	want(t, "left of the queue", scan(t, s, store.Range{Queues: []string{"q"}}), "p0")
	Balances(t, s)
}

// Listed is what a range visits.
func Listed(t expect.T, s store.Scanner, r store.Range) (all []store.Listed) {
	t.Helper()
	must(t, s.Scan(ctx, r, func(l store.Listed) (bool, error) {
		all = append(all, l)
		return true, nil
	}))
	return all
}

// scan is the bodies that a range visits.
func scan(t *testing.T, s store.Store, r store.Range) string {
	t.Helper()
	r.Body = true
	var got []string
	for _, l := range Listed(t, s, r) {
		if l.BodySize != len(l.Record.Message.Body) {
			t.Errorf("%s is said to have %d bytes", l.Record.Message.Body, l.BodySize)
		}
		got = append(got, string(l.Record.Message.Body))
	}
	return strings.Join(got, " ")
}

// noStock and inQ are groups of mixed.
var (
	noStock = []errorgroup.ID{errorgroup.Of("r", "rejected", "no stock", "").ID}
	inQ     = errorgroup.Of("q", "rejected", "", "").ID
)

// mixed has records of two queues and of all states, two of them due at once; the
// names show when.
func mixed(t *testing.T, s store.Store) {
	p := func(r *store.Record, errText string) *store.Record {
		r.State, r.Error = store.Parked, errText
		return r
	}
	other := Waiting("r", 6*second, "w6")
	other.Error = "no stock"
	add(t, s, Waiting("q", 4*second, "w4"), p(Waiting("r", second, "p1"), "no stock"),
		discarded("q", 5*second, "d5"), other)
	add(t, s, p(Waiting("q", 2*second, "p2"), ""), p(Waiting("r", 2*second, "p2b"), "no stock"),
		Waiting("r", 2*second, "w2c"))
}

func scanOrder(t *testing.T, s *subject) {
	mixed(t, s)
	upto := newest(t, s)
	at := func(d time.Duration) time.Time { return epoch.Add(d) }
	for _, c := range []struct {
		r    store.Range
		want string
	}{
		{store.Range{}, "p1 p2 p2b w2c w4 d5 w6"},
		{store.Range{NewestFirst: true}, "w6 d5 w4 w2c p2b p2 p1"},
		{store.Range{State: store.Waiting}, "w2c w4 w6"},
		{store.Range{State: store.Parked}, "p1 p2 p2b"},
		{store.Range{State: store.Discarded}, "d5"},
		{store.Range{Without: store.Discarded, NewestFirst: true}, "w6 w4 w2c p2b p2 p1"},
		{store.Range{Without: store.Waiting, Queues: []string{"q"}}, "p2 d5"},
		{store.Range{Without: store.Parked, Groups: append(noStock, inQ)}, "w4 d5 w6"},
		{store.Range{Queues: []string{"q", "none"}}, "p2 w4 d5"},
		{store.Range{Queues: []string{"r", "q"}, State: store.Parked}, "p1 p2 p2b"},
		{store.Range{Queues: []string{}}, ""},
		{store.Range{Groups: []errorgroup.ID{}}, ""},
		{store.Range{Groups: noStock}, "p1 p2b w6"},
		{store.Range{Groups: noStock, State: store.Parked, NewestFirst: true}, "p2b p1"},
		{store.Range{Groups: append(noStock, inQ), Upto: &upto}, "p1 p2 p2b w4 d5 w6"},
		{store.Range{Groups: append(noStock, inQ), Queues: []string{"q"}, NewestFirst: true}, "d5 w4 p2"},
		{store.Range{From: at(2 * second), To: at(5 * second)}, "p2 p2b w2c w4"},
		{store.Range{From: at(2 * second), To: at(5 * second), NewestFirst: true}, "w4 w2c p2b p2"},
		{store.Range{From: at(2*second + 1), To: at(5*second + 1)}, "w4 d5"},
		{store.Range{From: at(5 * second)}, "d5 w6"},
		{store.Range{To: at(second)}, ""},
		{store.Range{From: at(5 * second), To: at(second)}, ""},
		{store.Range{Groups: noStock, From: at(2 * second), To: at(6 * second)}, "p2b"},
	} {
		want(t, fmt.Sprintf("%+v", c.r), scan(t, s, c.r), c.want)
	}
	claim(t, s, "r", hour, 1)
	want(t, "with a claim", scan(t, s, store.Range{State: store.Waiting}), "w2c w4 w6")
}

func countDue(t *testing.T, s *subject) {
	mixed(t, s)
	add(t, s, Waiting("q", second, "w1"), Waiting("q", 2*second, "w2"), Waiting("q", 2500*time.Millisecond, "w2h"),
		Waiting("q", 9*second, "w9"))
	edges := []time.Time{epoch.Add(2 * second), epoch.Add(3 * second), epoch.Add(3 * second), epoch.Add(7 * second)}
	count := func(what, wanted string, most int64, queues ...string) {
		t.Helper()
		counts, err := s.CountDue(ctx, queues, edges, most)
		must(t, err)
		want(t, what, fmt.Sprint(counts), wanted)
	}
	count("of one queue", "[1 2 0 1]", 10, "q")
	count("of two", "[1 3 0 2]", 10, "q", "r", "none")
	count("as far as it counts", "[1 2 0 2]", 2, "q", "r")
	claims := claim(t, s, "q", 2*second, 2)
	count("with two claimed", "[1 2 0 1]", 10, "q")
	finishes(t, s, 1, done(claims[0]))
	count("with one retried", "[0 2 0 1]", 10, "q")
	s.reopen(t)
	count("after a restart", "[0 2 0 1]", 10, "q")
}

// Behind each record of each order comes what comes after it, also when that
// record is gone meanwhile; pages meet.
func scanAfter(t *testing.T, s *subject) {
	mixed(t, s)
	for _, r := range []store.Range{{}, {State: store.Parked}, {Queues: []string{"r"}},
		{Groups: append(noStock, inQ)}, {From: epoch.Add(2 * second), To: epoch.Add(6 * second)}} {
		for _, r.NewestFirst = range []bool{false, true} {
			r.After = ""
			all := strings.Fields(scan(t, s, r))
			for i := range all {
				l := Listed(t, s, r)[0]
				if l.Record.Message.Body != nil || l.BodySize == 0 {
					t.Error("a body that was not asked for, or no size")
				}
				r.After = l.Cursor
				want(t, fmt.Sprintf("%+v", r), scan(t, s, r), strings.Join(all[i+1:], " "))
			}
		}
	}
	at := Listed(t, s, store.Range{State: store.Parked})[0]
	change(t, s, Remove, at.Key)
	want(t, "behind one that is gone", scan(t, s, store.Range{After: at.Cursor}), "p2 p2b w2c w4 d5 w6")
	if err := s.Scan(ctx, store.Range{After: "x'"}, nil); err == nil || !strings.Contains(err.Error(), "x'") {
		t.Errorf("after what is no cursor: %v", err)
	}
}

func scanEnds(t *testing.T, s *subject) {
	mixed(t, s)
	visitsEnd(t, func(ctx context.Context, visit func() (bool, error)) error {
		return s.Scan(ctx, store.Range{}, func(store.Listed) (bool, error) { return visit() })
	})
}

// visitsEnd visits something that has more than one.
func visitsEnd(t *testing.T, each func(context.Context, func() (bool, error)) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	own := errors.New("visit's own")
	for _, c := range []struct {
		name  string
		visit func() (bool, error)
		want  error
	}{
		{"enough", func() (bool, error) { return false, nil }, nil},
		{"fails", func() (bool, error) { return true, own }, own},
		{"ctx ends", func() (bool, error) { cancel(); return true, nil }, context.Canceled},
	} {
		n := 0
		if err := each(ctx, func() (bool, error) { n++; return c.visit() }); n != 1 || !errors.Is(err, c.want) {
			t.Errorf("%s: %d visits, %v", c.name, n, err)
		}
	}
}

func scanMoment(t *testing.T, s *subject) {
	if s.engine.Shared {
		t.Skip("engine " + s.engine.Name + " is shared, and reads a page at a time, see scanOnce")
	}
	mixed(t, s)
	for _, r := range []store.Range{{}, {Groups: noStock}} {
		before := scan(t, s, r)
		var seen []string
		r.Body = true
		err := s.Scan(ctx, r, func(l store.Listed) (bool, error) {
			seen = append(seen, string(l.Record.Message.Body))
			add(t, s, Waiting("new", hour, "new"))
			change(t, s, func(_ store.Key, r *store.Record) store.Edit {
				r.State, r.Due = 4-r.State, r.Due.Add(minute) // waiting ones are discarded, and the other way round
				return store.Edit{Keep: true}
			}, l.Key)
			return true, nil
		})
		must(t, err)
		want(t, "while all was moved", strings.Join(seen, " "), before)
	}
}

// Whatever is added, changed or taken away meanwhile: what is left alone is visited
// once, in order, and nothing twice.
func scanOnce(t *testing.T, first *subject) {
	for _, newest := range []bool{false, true} {
		s := open(t, first.engine)
		var steady []string
		by := map[bool]time.Duration{false: hour, true: -hour}[newest] // to where the scan comes later
		for i := range 1200 {                                          // more than a page of a shared engine has
			name := fmt.Sprint("s", i)
			steady = append(steady, name)
			stays, moves := parked(fmt.Sprint("q", i%3), name), parked("moves", fmt.Sprint("m", i))
			stays.Due = epoch.Add(time.Duration(i) * time.Millisecond)
			moves.Due = stays.Due
			add(t, s, stays, moves)
		}
		if newest {
			slices.Reverse(steady)
		}
		seen := map[string]int{}
		var got []string
		r := store.Range{State: store.Parked, Body: true, NewestFirst: newest}
		must(t, s.Scan(ctx, r, func(l store.Listed) (bool, error) {
			body := string(l.Record.Message.Body)
			if seen[body]++; body[0] == 's' {
				got = append(got, body)
			}
			if body[0] == 'm' && len(seen)%7 == 0 {
				change(t, s, func(_ store.Key, r *store.Record) store.Edit {
					r.State, r.Due = []store.State{store.Waiting, store.Parked}[len(seen)%4/2], r.Due.Add(by)
					return store.Edit{Keep: len(seen)%2 == 0, Delete: true}
				}, l.Key)
				add(t, s, parked("q1", fmt.Sprint("new", len(seen))))
			}
			return true, nil
		}))
		want(t, "what was left alone", strings.Join(got, " "), strings.Join(steady, " "))
		for body, n := range seen {
			if n > 1 {
				t.Errorf("newest first %t: %s was visited %d times", newest, body, n)
			}
		}
	}
}

func scanUpto(t *testing.T, s *subject) {
	if n := newest(t, s); scan(t, s, store.Range{Upto: &n}) != "" {
		t.Error("something is in an empty store")
	}
	mixed(t, s)
	upto := newest(t, s)
	r := store.Range{Upto: &upto, NewestFirst: true}
	add(t, s, parked("q", "new"), Waiting("r", hour, "new"))
	key := keyOf(t, s, "p1")
	change(t, s, func(_ store.Key, r *store.Record) store.Edit {
		r.State, r.Due = store.Waiting, epoch.Add(hour)
		return store.Edit{Keep: true, Add: []*store.Record{parked("q", "also new")}}
	}, key)
	want(t, "what was there", scan(t, s, r), "p1 w6 d5 w4 w2c p2b p2")
	s.reopen(t)
	want(t, "after a crash", scan(t, s, r), "p1 w6 d5 w4 w2c p2b p2")
	if newest(t, s) < *r.Upto {
		t.Error("NewestNumber went back")
	}
}

// A set that was bounded while others add is the same ever after.
func uptoWhileAdding(t *testing.T, s *subject) {
	count := func(upto uint64) string {
		return fmt.Sprint(len(strings.Fields(scan(t, s, store.Range{Upto: &upto}))))
	}
	var bounds []uint64
	var were []string
	batch := slices.Repeat([]*store.Record{Waiting("q", 0, "a"), parked("q", "b")}, 50)
	while(t, func() error {
		var adding errgroup.Group
		for range 3 {
			adding.Go(func() (err error) {
				for i := 0; i < 10 && err == nil; i++ {
					err = s.Add(ctx, batch)
				}
				return err
			})
		}
		return adding.Wait()
	}, func() {
		if len(bounds) < 20 {
			bounds = append(bounds, newest(t, s))
			were = append(were, count(bounds[len(bounds)-1]))
		}
	})
	for i, b := range bounds {
		want(t, fmt.Sprintf("how many there are up to %d", b), count(b), were[i])
	}
}

func newest(t *testing.T, s store.Store) uint64 {
	t.Helper()
	b, err := s.NewestNumber(ctx)
	must(t, err)
	return b
}

// keyOf is the key of the one record with a body.
func keyOf(t *testing.T, s store.Store, body string) store.Key {
	t.Helper()
	all := Listed(t, s, store.Range{Body: true})
	i := slices.IndexFunc(all, func(l store.Listed) bool { return string(l.Record.Message.Body) == body })
	if i < 0 {
		t.Fatalf("%s is not there", body)
	}
	return all[i].Key
}

// A key stays the same in all states, and names one record of several that share
// an id.
func byIDAndKey(t *testing.T, s *subject) {
	a, b := Everything(), Everything()
	b.ID, b.State, b.Queue, b.Due = a.ID, store.Parked, "a queue", epoch.Add(-hour)
	add(t, s, a, b, Waiting("q", 0, "other"))
	check := func(wanted ...*store.Record) (found []store.Listed) {
		t.Helper()
		found, err := s.Find(ctx, a.ID)
		must(t, err)
		var got []*store.Record
		for _, l := range found {
			got = append(got, l.Record)
			one, err := s.Get(ctx, l.Key)
			must(t, err)
			same(t, "Get beside Find", one, l)
			if strings.ContainsFunc(string(l.Key)+l.Cursor, func(r rune) bool { return r <= ' ' || r > '~' }) {
				t.Errorf("key %q, cursor %q", l.Key, l.Cursor)
			}
		}
		same(t, "Find", got, wanted)
		return found
	}
	keys := check(a, b)
	if keys[0].Key == keys[1].Key {
		t.Error("two records have one key")
	}
	for _, state := range []store.State{store.Discarded, store.Waiting, store.Parked} {
		b.State, b.Due = state, b.Due.Add(second)
		change(t, s, Keep(func(r *store.Record) { r.State, r.Due = b.State, b.Due }), keys[1].Key)
		same(t, "its key", check(a, b)[1].Key, keys[1].Key)
	}
	change(t, s, Remove, keys[1].Key)
	check(a)
	if found, err := s.Find(ctx, uuid.New()); err != nil || len(found) != 0 {
		t.Errorf("an unknown id: %v, %v", found, err)
	}
	for _, key := range slices.Concat([]store.Key{keys[1].Key}, noKeys) {
		_, err := s.Get(ctx, key)
		expect.Equal(t, err, store.ErrNotFound, "Get(%q)", key)
	}
}

var noKeys = []store.Key{"", "1", "x.1", store.MakeKey(uuid.Nil, 1), store.Key(uuid.Nil.String() + ".01"),
	store.Key(uuid.Nil.String() + ".-1")}

// change changes records, and expects all of them to be taken.
func change(t *testing.T, s store.Store, edit func(store.Key, *store.Record) store.Edit, keys ...store.Key) {
	t.Helper()
	if n, err := s.Change(ctx, keys, edit, nil); err != nil || n != len(keys) {
		t.Fatalf("changed %d of %d, %v", n, len(keys), err)
	}
}

// edit changes the one record with a body; nil deletes it.
func edit(t *testing.T, s store.Store, body string, with func(*store.Record)) {
	t.Helper()
	if with == nil {
		change(t, s, Remove, keyOf(t, s, body))
		return
	}
	change(t, s, Keep(with), keyOf(t, s, body))
}

// next returns what Next returns, in the order of lanes.
func next(t *testing.T, s store.Store) string {
	t.Helper()
	all, err := s.Next(ctx)
	must(t, err)
	var out []string
	for _, n := range all {
		lane := n.Lane.Queue
		if n.Lane.Forwards() {
			lane += " to " + n.Lane.Forward.Exchange + "/" + n.Lane.Forward.RoutingKey
		}
		out = append(out, lane+" "+n.Due.Sub(epoch).String())
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// total is Counts of all queues together.
func total(t *testing.T, s store.Store) string {
	t.Helper()
	var w, p, d int64
	for _, c := range countsOf(t, s) {
		w, p, d = w+c.Waiting, p+c.Parked, d+c.Discarded
	}
	return fmt.Sprintf("%d waiting, %d parked, %d discarded", w, p, d)
}

func changeStates(t *testing.T, first *subject) {
	states := []store.State{store.Waiting, store.Parked, store.Discarded}
	for _, from := range states {
		for _, to := range states {
			s := open(t, first.engine)
			r := Everything()
			r.State = from
			add(t, s, r)
			key := keyOf(t, s, string(r.Message.Body))
			for len(s.Changed()) > 0 {
				<-s.Changed()
			}
			change(t, s, func(k store.Key, got *store.Record) store.Edit {
				same(t, "edit is given", got, r)
				same(t, "edit is given for", k, key)
				got.State, got.Due, got.Failures, got.MadeInto, got.Forward = to, epoch.Add(minute), 7, got.ID, nil
				got.Message.Body, got.Message.Headers = []byte("new"), nil
				return store.Edit{Keep: true}
			}, key)
			r.State, r.Due, r.Failures, r.MadeInto, r.Forward = to, epoch.Add(minute), 7, r.ID, nil
			r.Message.Body, r.Message.Headers = []byte("new"), nil
			check := func() {
				t.Helper()
				l, err := s.Get(ctx, key)
				must(t, err)
				same(t, fmt.Sprintf("from %d to %d", from, to), l.Record, r)
				for _, state := range states {
					want(t, "scanned", scan(t, s, store.Range{State: state}), map[bool]string{true: "new"}[state == to])
				}
				n := map[store.State]int{to: 1}
				want(t, "counted", total(t, s), fmt.Sprintf("%d waiting, %d parked, %d discarded",
					n[store.Waiting], n[store.Parked], n[store.Discarded]))
				want(t, "next", next(t, s), map[bool]string{true: r.Queue + " 1m0s"}[to == store.Waiting])
			}
			check()
			if to == store.Waiting && len(s.Changed()) == 0 {
				t.Error("Changed has no value when something began to wait")
			}
			s.reopen(t)
			check()
		}
	}
}

func changeDue(t *testing.T, s *subject) {
	add(t, s, Waiting("q", minute, "a"), Waiting("q", hour, "b"), Waiting("p", minute, "c"))
	to := func(due time.Duration, body string) {
		edit(t, s, body, func(r *store.Record) { r.Due = epoch.Add(due) })
	}
	to(2*hour, "a")
	want(t, "next when the first was put off", next(t, s), "p 1m0s, q 1h0m0s")
	to(second, "b")
	want(t, "next when one was hastened", next(t, s), "p 1m0s, q 1s")
	want(t, "too early", bodies(claim(t, s, "q", second-micro, 10)), "")
	want(t, "in time", bodies(claim(t, s, "q", second, 10)), "b")
	want(t, "not yet", bodies(claim(t, s, "q", 2*hour-micro, 10)), "")
	to(-hour, "a")
	want(t, "hastened to before what was claimed", bodies(claim(t, s, "q", 0, 10)), "a")
	to(hour, "c")
	want(t, "next when the only one was put off", next(t, s), "p 1h0m0s")
}

func changeNil(t *testing.T, s *subject) {
	add(t, s, Waiting("q", 0, "claimed"), Waiting("q", hour, "free"), parked("q", "parked"))
	free, claimed, twice := keyOf(t, s, "free"), keyOf(t, s, "claimed"), keyOf(t, s, "parked")
	claims := claim(t, s, "q", 0, 10)
	var got []string
	edit := func(k store.Key, r *store.Record) store.Edit {
		text := "nil"
		if r != nil {
			text = string(r.Message.Body)
			r.Failures++
		}
		got = append(got, text)
		return store.Edit{Keep: true, Delete: r == nil}
	}
	change(t, s, edit, slices.Concat([]store.Key{claimed, free, free, twice, twice}, noKeys)...)
	want(t, "given to edit", strings.Join(got, " "), "nil free nil parked nil"+strings.Repeat(" nil", len(noKeys)))
	if l, err := s.Get(ctx, free); err != nil || l.Record.Failures != 2 {
		t.Errorf("named twice: %+v, %v", l.Record, err)
	}
	finishes(t, s, 1, done(claims[0]))
	got = nil
	change(t, s, edit, claimed)
	want(t, "given to edit when it was retried", strings.Join(got, " "), "nil")
	claims = claim(t, s, "q", hour, 10)
	must(t, s.Release(ctx, claims))
	got = nil
	change(t, s, edit, free)
	want(t, "given to edit when it was released", strings.Join(got, " "), "free")
}

func changeOneStep(t *testing.T, s *subject) {
	add(t, s, parked("q", "keep"), parked("q", "delete"), parked("q", "leave"))
	var keys []store.Key
	for _, body := range []string{"keep", "delete", "leave"} {
		keys = append(keys, keyOf(t, s, body))
	}
	must(t, s.PutEntries(ctx, []store.Entry{{Name: "old", Value: []byte("x")}}))
	receipts, _ := s.Receipts(ctx)
	n, err := s.Change(ctx, keys, func(_ store.Key, r *store.Record) store.Edit {
		r.Failures = 9
		r.State = store.Waiting
		body := string(r.Message.Body)
		copied := *r
		copied.Message.Body, copied.Fingerprint = []byte("copy of "+body), [16]byte{1}
		return store.Edit{Keep: body == "keep", Delete: body == "delete", Add: []*store.Record{&copied}}
	}, func(n int) []store.Entry {
		return []store.Entry{{Name: "n", Value: fmt.Append(nil, n)}, {Name: "old"}}
	})
	if n != 3 || err != nil {
		t.Fatal(n, err)
	}
	for range 2 {
		want(t, "all", scan(t, s, store.Range{}), "keep leave copy of keep copy of delete copy of leave")
		want(t, "left alone", scan(t, s, store.Range{State: store.Parked}), "leave")
		if l, err := s.Get(ctx, keys[2]); err != nil || l.Record.Failures != 1 {
			t.Errorf("left alone, and yet %+v, %v", l.Record, err)
		}
		want(t, "entries", entries(t, s, "", ""), "n=3")
		want(t, "counts", total(t, s), "4 waiting, 1 parked, 0 discarded")
		if now, _ := s.Receipts(ctx); !slices.Equal(now, receipts) {
			t.Error("what a person adds was never delivered, and has no receipt")
		}
		s.reopen(t)
	}
	want(t, "added ones are claimed", bodies(claim(t, s, "q", 0, 10)), "keep copy of keep copy of delete copy of leave")
	n, err = s.Change(ctx, nil, nil, func(int) []store.Entry { return []store.Entry{{Name: "n"}} })
	if n != 0 || err != nil {
		t.Errorf("no keys: %d, %v", n, err)
	}
	want(t, "entries of a change of nothing", entries(t, s, "", ""), "")
}

func changeNothing(t *testing.T, s *subject) {
	add(t, s, Waiting("q", 0, "a"), parked("q", "b"))
	keys := []store.Key{keyOf(t, s, "a"), keyOf(t, s, "b")}
	long := strings.Repeat("q", 256)
	for name, spoil := range map[string]func(*store.Record) store.Edit{
		"another id":      func(r *store.Record) store.Edit { r.ID[0]++; return store.Edit{Keep: true} },
		"no state":        func(r *store.Record) store.Edit { r.State = 0; return store.Edit{Keep: true} },
		"a state unknown": func(r *store.Record) store.Edit { r.State = 4; return store.Edit{Keep: true} },
		"added with none": func(r *store.Record) store.Edit { return store.Edit{Add: []*store.Record{{Queue: "q"}}} },
		"a name too long": func(r *store.Record) store.Edit { r.Queue = long; return store.Edit{Keep: true} },
		"added to such": func(r *store.Record) store.Edit {
			return store.Edit{Add: []*store.Record{Waiting(long, 0, "")}}
		},
	} {
		_, err := s.Change(ctx, keys, func(k store.Key, r *store.Record) store.Edit {
			if k == keys[1] {
				return spoil(r)
			}
			return store.Edit{Delete: true}
		}, func(int) []store.Entry { return []store.Entry{{Name: "x", Value: []byte("y")}} })
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	want(t, "all", scan(t, s, store.Range{}), "a b")
	want(t, "entries", entries(t, s, "", ""), "")
	want(t, "counts", total(t, s), "1 waiting, 1 parked, 0 discarded")
	want(t, "next", next(t, s), "q 0s")
	want(t, "claimed", bodies(claim(t, s, "q", 0, 10)), "a")
}

func changeBounds(t *testing.T, s *subject) {
	big := make([]byte, store.MaxChangeBytes/2)
	for range 3 {
		add(t, s, parked("big", string(big)))
	}
	for range 5 {
		var many []*store.Record
		for i := range 201 {
			many = append(many, Waiting("many", time.Duration(i)*second, "x"))
		}
		add(t, s, many...)
	}
	for queue, most := range map[string]int{"big": 2, "many": store.MaxChange} {
		keys := Keys(t, s, store.Range{Queues: []string{queue}})
		edits, entered := 0, 0
		n, err := s.Change(ctx, keys, func(store.Key, *store.Record) store.Edit {
			edits++
			return store.Edit{Delete: true}
		}, func(n int) []store.Entry { entered = n; return nil })
		if n != most || edits != most || entered != most || err != nil {
			t.Errorf("%s: took %d of %d, %d edits, entered %d, %v; want %d", queue, n, len(keys), edits,
				entered, err, most)
		}
	}
	want(t, "left", total(t, s), "5 waiting, 1 parked, 0 discarded")
	same(t, "claimed of those that were left", len(claim(t, s, "many", hour, 10)), 5)
}

func forget(t *testing.T, s *subject) {
	const n = 600 // more than a step
	var all []*store.Record
	for i := range n {
		all = append(all, discarded("q", time.Duration(i)*micro, "x"))
	}
	add(t, s, all...)
	add(t, s, parked("q", "parked"), Waiting("q", 0, "waiting"), discarded("p", -hour, "p"),
		discarded("p", hour, "later"))
	const now = (n - 2) * micro
	forgets(t, s, now, n)
	want(t, "left", scan(t, s, store.Range{}), "parked waiting x later")
	want(t, "counts", total(t, s), "1 waiting, 1 parked, 2 discarded")
	forgets(t, s, now, 0)
	s.reopen(t)
	want(t, "after a crash", scan(t, s, store.Range{}), "parked waiting x later")
}

func carriedOver(t *testing.T, s *subject) {
	made, other, gone := parked("q", "made"), parked("q", "other"), parked("q", "gone")
	made.MadeFrom, gone.MadeFrom = other.ID, other.ID
	add(t, s, made, other, gone)
	var all []store.Entry
	for _, l := range Listed(t, s, store.Range{State: store.Parked}) {
		expect.Err(t, expect.ErrOf(s.Change(ctx, []store.Key{l.Key}, Keep(func(r *store.Record) {
			r.Replay(epoch)
			all = store.Carry(r, r.ID != other.ID, epoch)
		}), func(int) []store.Entry { return all })), nil, "replaying")
	}
	finish(t, s, claim(t, s, "q", 0, 3))
	s.reopen(t)
	back := func(r *store.Record, queue string) *store.Record {
		again := Waiting(queue, 0, "again")
		again.ID = r.ID
		return again
	}
	known := func(when string, r *store.Record, from uuid.UUID, noted ...errorgroup.ID) {
		t.Helper()
		got, err := store.CarriedMadeFrom(ctx, s, r)
		must(t, err)
		same(t, when+" made from", got, from)
		groups, err := store.NotedGroups(ctx, s, r)
		must(t, err)
		same(t, when+" noted", groups, noted)
	}
	group := made.Group().ID
	known("retried,", back(made, "q"), other.ID, group)
	known("of another queue,", back(made, "p"), uuid.Nil)
	known("another,", back(other, "q"), uuid.Nil)
	again := back(made, "q")
	add(t, s, again)
	must(t, store.ForgetCarried(ctx, s, epoch.Add(29*24*hour)))
	known("for 29 days,", back(gone, "q"), other.ID, group)
	must(t, store.ForgetCarried(ctx, s, epoch.Add(31*24*hour)))
	known("later,", back(gone, "q"), uuid.Nil)
	known("kept,", again, other.ID, group)
	finish(t, s, claim(t, s, "q", 0, 3))
	must(t, store.ForgetCarried(ctx, s, epoch.Add(60*24*hour)))
	known("kept until then,", again, other.ID, group)
	must(t, store.ForgetCarried(ctx, s, epoch.Add(62*24*hour)))
	known("gone,", again, uuid.Nil)
}

// entries is the side table as text.
func entries(t *testing.T, s store.Store, prefix, after string) string {
	t.Helper()
	var got []string
	must(t, s.Entries(ctx, prefix, after, func(e store.Entry) (bool, error) {
		got = append(got, e.Name+"="+string(e.Value))
		return true, nil
	}))
	return strings.Join(got, " ")
}

func sideTable(t *testing.T, s *subject) {
	put := func(all ...store.Entry) {
		t.Helper()
		must(t, s.PutEntries(ctx, all))
	}
	put(store.Entry{Name: "a/2", Value: []byte("two")}, store.Entry{Name: "b", Value: []byte{}},
		store.Entry{Name: "a/10", Value: []byte("ten")})
	put(store.Entry{Name: "a/2", Value: []byte("zwei")}, store.Entry{Name: "a", Value: []byte("x")},
		store.Entry{Name: "none"})
	put(store.Entry{Name: "a/\xff", Value: []byte("f")}, store.Entry{Name: "a0", Value: []byte("0")})
	s.reopen(t)
	for _, c := range []struct{ prefix, after, want string }{
		{"", "", "a=x a/10=ten a/2=zwei a/\xff=f a0=0 b="},
		{"a/", "", "a/10=ten a/2=zwei a/\xff=f"},
		{"a/", "a/10", "a/2=zwei a/\xff=f"},
		{"a/", "a/11", "a/2=zwei a/\xff=f"},
		{"a/", "a", "a/10=ten a/2=zwei a/\xff=f"},
		{"a/", "b", ""},
		{"", "a0", "b="},
		{"c", "", ""},
	} {
		want(t, fmt.Sprintf("prefix %q after %q", c.prefix, c.after), entries(t, s, c.prefix, c.after), c.want)
	}
	for name, wanted := range map[string][]byte{"a/2": []byte("zwei"), "b": {}, "none": nil, "a/": nil} {
		if v, err := s.Entry(ctx, name); err != nil || !slices.Equal(v, wanted) || (v == nil) != (wanted == nil) {
			t.Errorf("entry %q: %q, %v", name, v, err)
		}
	}
	add(t, s, parked("a", "not in the table"))
	for _, c := range []struct{ prefix, left string }{{"c", "a=x a/10=ten a/2=zwei a/\xff=f a0=0 b="},
		{"a/", "a=x a0=0 b="}, {"", ""}} {
		must(t, s.DeleteEntries(ctx, c.prefix))
		want(t, "left after deleting "+c.prefix, entries(t, s, "", ""), c.left)
	}
	want(t, "records", scan(t, s, store.Range{}), "not in the table")
}

// Groups returns what a store counts of its groups at one hour, in the order of IDs.
func Groups(t expect.T, s store.Store) []store.GroupCount {
	for {
		clock := time.Now().Unix() / 3600
		all, err := s.Groups(ctx)
		must(t, err)
		if clock == time.Now().Unix()/3600 {
			slices.SortFunc(all, func(a, b store.GroupCount) int { return cmp.Compare(a.ID.String(), b.ID.String()) })
			return all
		}
	}
}

// wantGroups compares queue, pattern or reason, and counts, in the order of these.
func wantGroups(t *testing.T, s store.Store, when string, wanted ...string) {
	t.Helper()
	var got []string
	for _, g := range Groups(t, s) {
		got = append(got, fmt.Sprintf("%s/%s%s%s %d %d %d", g.Queue, g.Pattern, g.Reason, g.Type,
			g.Waiting, g.Parked, g.Discarded))
	}
	slices.Sort(got)
	same(t, when, got, wanted)
}

// failing makes a record of an error.
func failing(queue string, state store.State, errText string) *store.Record {
	r := Waiting(queue, 0, errText)
	r.State, r.Error = state, errText
	return r
}

func groupCounts(t *testing.T, s *subject) {
	add(t, s, failing("q", store.Waiting, "order 1 not found"), failing("q", store.Waiting, "order 22 not found"),
		failing("q", store.Waiting, ""),
		failing("q", store.Parked, "order 3 not found"), failing("p", store.Parked, "order 4 not found"),
		failing("q", store.Discarded, "no stock"))
	first := []string{"p/order # not found 0 1 0", "q/no stock 0 0 1", "q/order # not found 2 1 0", "q/rejected 1 0 0"}
	wantGroups(t, s, "at first", first...)

	late := failing("q", store.Parked, "order 9 not found")
	late.Reason = "reported"
	add(t, s, late)
	for _, g := range Groups(t, s) {
		want := []string{"rejected"}
		if g.Queue == "q" && g.Pattern == "order # not found" {
			want = append(want, "reported")
		}
		same(t, "why "+g.Pattern+" of "+g.Queue+" failed", g.Reasons.Names(), want)
	}
	edit(t, s, "order 9 not found", nil)

	c := claim(t, s, "q", second, 3)
	wantGroups(t, s, "with claims", first...)
	finishes(t, s, 3, done(c[0]), park(c[1], "why"), done(c[2]), done(c[2]))
	wantGroups(t, s, "finished", "p/order # not found 0 1 0", "q/no stock 0 0 1", "q/order # not found 0 2 0",
		"q/rejected 0 0 0")
	_, err := Replay(ctx, s, "q", epoch)
	must(t, err)
	wantGroups(t, s, "replayed", "p/order # not found 0 1 0", "q/no stock 0 0 1", "q/order # not found 2 0 0",
		"q/rejected 0 0 0")

	// A person makes one of them another, adds one, and deletes one.
	change(t, s, func(_ store.Key, r *store.Record) store.Edit {
		switch r.Error {
		case "no stock":
			r.State, r.Error = store.Waiting, "order 5 not found"
			return store.Edit{Keep: true, Add: []*store.Record{failing("p", store.Parked, "no stock")}}
		case "order 4 not found":
			return store.Edit{Delete: true}
		}
		return store.Edit{}
	}, Keys(t, s, store.Range{})...)
	wantGroups(t, s, "changed", "p/no stock 0 1 0", "p/order # not found 0 0 0", "q/no stock 0 0 0",
		"q/order # not found 3 0 0", "q/rejected 0 0 0")
	for _, g := range Groups(t, s) {
		if g.Pattern == "no stock" && g.Queue == "p" && g.Hours != [24]int64{} {
			t.Error("what a person added is counted as a failure")
		}
	}
}

func groupTimes(t *testing.T, s *subject) {
	now := time.Now()
	for _, ago := range []time.Duration{0, 0, 90 * minute, 30 * hour, -hour} {
		r := failing("q", store.Waiting, "e")
		r.FailedAt = now.Add(-ago)
		add(t, s, r)
	}
	unknown := failing("q", store.Waiting, "e")
	unknown.FailedAt = time.Time{}
	add(t, s, unknown)
	var g store.GroupCount
	var shown int64
	for shown = now.Unix() / 3600; ; shown = time.Now().Unix() / 3600 {
		if g = Groups(t, s)[0]; shown == time.Now().Unix()/3600 {
			break
		}
	}
	total := int64(0)
	for _, n := range g.Hours {
		total += n
	}
	// One that failed in the future failed now: some clock was wrong.
	if at := 23 - (shown - now.Unix()/3600); g.Hours[at] < 2 || total != 4 {
		t.Errorf("hours %v", g.Hours)
	}
	if at := 23 - (shown - now.Add(-90*minute).Unix()/3600); g.Hours[at] < 1 {
		t.Errorf("hours %v", g.Hours)
	}
	if first := g.First.Sub(now.Add(-30 * hour)); first > 0 || first <= -second {
		t.Errorf("first %s", g.First)
	}
	if g.Last.Before(now.Add(-second)) || g.Last.After(time.Now()) {
		t.Errorf("last %s", g.Last)
	}
}

func groupForADay(t *testing.T, s *subject) {
	old, recent := failing("q", store.Waiting, "old"), failing("q", store.Waiting, "recent")
	kept := failing("p", store.Parked, "kept")
	old.FailedAt, recent.FailedAt, kept.FailedAt = time.Now().Add(-25*hour), time.Now().Add(-hour), old.FailedAt
	add(t, s, old, recent, kept)
	wantGroups(t, s, "kept", "p/kept 0 1 0", "q/old 1 0 0", "q/recent 1 0 0")
	finish(t, s, claim(t, s, "q", 0, 2))
	wantGroups(t, s, "retried", "p/kept 0 1 0", "q/recent 0 0 0")
}

func groupNote(t *testing.T, s *subject) {
	add(t, s, failing("q", store.Parked, "noted"), failing("q", store.Parked, "not"))
	id := errorgroup.Of("q", "", "noted", "").ID
	must(t, s.PutEntries(ctx, []store.Entry{{Name: "group/" + id.String() + "/note", Value: []byte("call Ann")}}))
	for _, g := range Groups(t, s) {
		want(t, "note of "+g.Pattern, g.Note, map[string]string{"noted": "call Ann"}[g.Pattern])
	}
}

// word is the nth word of letters only.
func word(n int) string {
	var b []byte
	for range 5 {
		b = append(b, byte('a'+n%26))
		n /= 26
	}
	return string(b)
}

func groupBound(t *testing.T, s *subject) {
	for from := 0; from < store.GroupsKept; from += 1000 {
		var batch []*store.Record
		for i := range 1000 {
			batch = append(batch, failing("many", store.Parked, "no "+word(from+i)))
		}
		add(t, s, batch...)
	}
	beyond := func(text string) *store.Record { return failing("q", store.Parked, text) }
	add(t, s, beyond("a"), beyond("b"), failing("many", store.Parked, "no "+word(7)))
	others := func() (found []store.GroupCount) {
		all := Groups(t, s)
		if len(all) > store.GroupsKept+1 {
			t.Fatalf("%d groups", len(all))
		}
		for _, g := range all {
			if g.Queue == "q" {
				found = append(found, g)
			}
			if g.Pattern == "no "+word(7) && g.Parked != 2 {
				t.Errorf("one of those known has %d", g.Parked)
			}
		}
		return found
	}
	found := others()
	if len(found) != 1 || found[0].Parked != 2 || !strings.Contains(found[0].Pattern, "other errors") {
		t.Fatalf("beyond the bound: %+v", found)
	}
	id := found[0].ID
	want(t, "looked for by that group", scan(t, s, store.Range{Groups: []errorgroup.ID{id}}), "a b")
	same(t, "the group it counts in", s.GroupOf(beyond("a")), id)
	// Where there is room again, those that were beyond are still counted together.
	forget := func(r store.Range) { change(t, s, Remove, Keys(t, s, r)...) }
	s.reopen(t)
	forget(store.Range{Groups: []errorgroup.ID{errorgroup.Of("many", "", "no "+word(8), "").ID}})
	add(t, s, beyond("b"), beyond("c"))
	if found = others(); len(found) != 1 || found[0].Parked != 4 {
		t.Errorf("with two more: %+v", found)
	}
	forget(store.Range{Groups: []errorgroup.ID{id}})
	if found = others(); len(found) != 1 || found[0].Parked != 0 {
		t.Errorf("all gone: %+v", found)
	}
}

func groupCrash(t *testing.T, s *subject) {
	now := time.Now()
	for i := range 100 {
		r := failing("q", store.Waiting, []string{"", "no stock", "order 7 not found"}[i%3])
		r.FailedAt = now.Add(-time.Duration(i) * 20 * minute)
		add(t, s, r)
	}
	var out []store.Outcome
	for i, c := range claim(t, s, "q", 0, 50) {
		out = append(out, store.Outcome{Claim: c, Park: []string{"", "why"}[i%2], At: epoch})
	}
	finishes(t, s, len(out), out...)
	for range 2 {
		before, clock := Groups(t, s), time.Now().Unix()/3600
		s.reopen(t)
		after := Groups(t, s)
		if d := gocmp.Diff(before, after); d != "" && clock == time.Now().Unix()/3600 {
			t.Errorf("after the crash (-before +after):\n%s", d)
		}
	}
}

// end finishes what is due as done, in batches.
func end(t *testing.T, s store.Store, queue string, at time.Time, batch int) {
	t.Helper()
	for claims := claim(t, s, queue, hour, batch); len(claims) > 0; claims = claim(t, s, queue, hour, batch) {
		finishes(t, s, len(claims), Ended(claims, at)...)
	}
}

func pastOf(t *testing.T, s store.Store, id uuid.UUID) []store.PastFailure {
	t.Helper()
	all, err := s.PastFailures(ctx, id)
	must(t, err)
	return all
}

func pastWithoutGap(t *testing.T, s *subject) {
	var all []*store.Record
	for range 200 {
		all = append(all, Waiting("q", 0, "x"))
	}
	add(t, s, all...)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		end(t, s, "q", epoch, 1)
	}()
	for _, r := range all { // as they are ended
		for kept := 1; kept > 0; {
			found, err := s.Find(ctx, r.ID)
			must(t, err)
			if kept = len(found); kept == 0 && len(pastOf(t, s, r.ID)) == 0 {
				t.Errorf("%s is nowhere", r.ID)
			}
		}
	}
	<-ended
}

func pastByID(t *testing.T, s *subject) {
	r := Waiting("q", second, "")
	r.Policy, r.Error = "p", strings.Repeat("ü", 150)
	wanted := store.PastFailure{ID: r.ID, Queue: "q", Failures: 1, Reason: "rejected",
		Error: strings.Repeat("ü", 100), Policy: "p",
		FailedAt: epoch, Due: r.Due, Ended: epoch.Add(minute), Ending: store.EndedRetried}
	add(t, s, Waiting("q", 0, ""), r, Waiting("q", 2*second, ""))
	end(t, s, "q", wanted.Ended, 10)
	same(t, "retried", pastOf(t, s, r.ID), []store.PastFailure{wanted})

	again := *r
	again.Failures, again.Error, again.Forward, again.FailedAt = 2, "", &store.Destination{Exchange: "x"}, time.Time{}
	add(t, s, &again)
	finishes(t, s, 1, Ended(claimLane(t, s, again.Lane(), hour, 1), epoch.Add(hour))...)
	next := wanted
	next.Failures, next.Error, next.FailedAt = 2, "", time.Time{}
	next.Ended, next.Ending = epoch.Add(hour), store.EndedForwarded
	same(t, "forwarded", pastOf(t, s, r.ID), []store.PastFailure{wanted, next})

	// What is parked or discarded has not ended; what is forgotten has.
	sent := parked("q", "sent")
	add(t, s, sent)
	change(t, s, func(store.Key, *store.Record) store.Edit {
		return store.Edit{Delete: true, Forwarded: epoch.Add(hour)}
	}, keyOf(t, s, "sent"))
	if p := pastOf(t, s, sent.ID); len(p) != 1 || p[0].Ending != store.EndedForwarded || !p[0].Ended.Equal(epoch.Add(hour)) {
		t.Errorf("forwarded by a change: %+v", p)
	}
	gone, still, kept := discarded("q", second, ""), discarded("q", hour, ""), Waiting("q", 0, "")
	add(t, s, gone, still, kept)
	finishes(t, s, 1, park(claim(t, s, "q", 0, 1)[0], "why"))
	forgets(t, s, minute, 1)
	if p := pastOf(t, s, gone.ID); len(p) != 1 || p[0].Ending != store.EndedDiscarded || !p[0].Ended.Equal(gone.Due) {
		t.Errorf("forgotten: %+v", p)
	}
	for _, id := range []uuid.UUID{still.ID, kept.ID, uuid.New(), {}} {
		if p := pastOf(t, s, id); len(p) != 0 {
			t.Errorf("%+v has not ended", p)
		}
	}
}

func pastNewest(t *testing.T, s *subject) {
	var ids []uuid.UUID
	for i := range 1500 {
		r := Waiting("q", time.Duration(i), "")
		r.Failures = i
		ids = append(ids, r.ID)
		add(t, s, r)
		if i == 3 || i == 4 || i == 999 {
			end(t, s, "q", epoch, 2+i)
			s.reopen(t)
		}
	}
	end(t, s, "q", epoch, 1000)
	s.reopen(t)
	next := len(ids)
	err := s.EachPastFailure(ctx, func(p store.PastFailure) (bool, error) {
		if next--; next < 0 || p.ID != ids[next] || p.Failures != next {
			return false, fmt.Errorf("number %d is %+v", next, p)
		}
		if next < 7 || next%100 == 0 {
			if all := pastOf(t, s, p.ID); len(all) != 1 || all[0] != p {
				t.Errorf("%+v by its id: %+v", p, all)
			}
		}
		return true, nil
	})
	if err != nil || next != 0 {
		t.Errorf("%d were left out, %v", next, err)
	}
	visitsEnd(t, func(ctx context.Context, visit func() (bool, error)) error {
		return s.EachPastFailure(ctx, func(store.PastFailure) (bool, error) { return visit() })
	})
}

func receipts(t *testing.T, s *subject) {
	var last []store.Receipt
	const n = store.ReceiptsKept + 3000
	for i := 0; i < n; i += 1000 {
		var batch []*store.Record
		for j := range 1000 {
			r := Waiting("q", hour, "")
			r.Fingerprint = [16]byte{byte(i / 1000), byte(j >> 8), byte(j), 1}
			batch = append(batch, r)
			last = append(last, r.Receipt())
		}
		if i/1000%2 == 0 {
			add(t, s, batch...)
		} else {
			must(t, s.Remember(ctx, last[len(last)-1000:]))
		}
	}
	last = last[len(last)-store.ReceiptsKept:]
	for range 2 {
		got, err := s.Receipts(ctx)
		if err != nil || !slices.Equal(got, last) {
			t.Errorf("%d receipts, %v; want the newest %d in order", len(got), err, len(last))
		}
		s.reopen(t)
	}
}

// Balances checks that a store's ledger balances, and that it says of what is kept
// what a recount finds.
func Balances(t *testing.T, s store.Store) map[string]store.Sums {
	t.Helper()
	counted, err := s.Ledger(ctx)
	must(t, err)
	found, err := s.Recount(ctx)
	must(t, err)
	same(t, "what is there, beside what was counted", found, counted)
	lines := map[string]store.Sums{}
	for _, l := range found {
		if lines[l.Queue] = l.Sums; l.Off() != 0 {
			t.Errorf("queue %q is off by %d: %v", l.Queue, l.Off(), l.Sums)
		}
	}
	return lines
}

func ledger(t *testing.T, s *subject) {
	forwarded := Waiting("q", 0, "forwarded")
	forwarded.Forward = &store.Destination{RoutingKey: "elsewhere"}
	add(t, s, Waiting("q", 0, "retried"), forwarded, Waiting("q", second, "parked"), Waiting("q", hour, "waiting"),
		parked("q", "moved"), parked("q", "let go"), parked("q", "sent"), discarded("q", -hour, "forgotten"))
	add(t, s, parked("other", "deleted"))
	again := parked("imported", "was parked before")
	again.Imported = true
	add(t, s, again)
	for _, notify := range []store.Notify{store.Urgent, store.Urgent, store.Never} {
		at, later := parked("important", ""), Waiting("important", 0, "")
		at.Notify, later.Notify = notify, notify
		add(t, s, at, later)
	}
	for _, c := range claim(t, s, "important", 0, 3) {
		finishes(t, s, 1, park(c, "why"))
	}
	claims := claim(t, s, "q", second, 3)
	away := claimLane(t, s, forwarded.Lane(), 0, 1)
	outcomes := []store.Outcome{done(claims[0]), done(away[0]), park(claims[1], "why")}
	finishes(t, s, 3, outcomes...)
	finishes(t, s, 0, outcomes...) // and is counted once
	change(t, s, func(_ store.Key, r *store.Record) store.Edit {
		r.Queue = "other"
		copied := *r
		copied.Queue = "copies"
		return store.Edit{Keep: true, Add: []*store.Record{&copied}}
	}, keyOf(t, s, "moved"))
	edit(t, s, "let go", func(r *store.Record) { r.State, r.Due = store.Discarded, epoch.Add(hour) })
	edit(t, s, "deleted", nil)
	change(t, s, func(store.Key, *store.Record) store.Edit {
		return store.Edit{Delete: true, Forwarded: epoch}
	}, keyOf(t, s, "sent"))
	forgets(t, s, 0, 1)
	s.CountUnstored("q", store.Delayed, 4)
	s.CountUnstored("passed", store.DiscardedAtOnce, 2)
	want := map[string]store.Sums{
		"q": {store.In: 12, store.Waiting: 1, store.Parked: 1, store.Discarded: 1, store.Retried: 1,
			store.Forwarded: 2, store.Forgotten: 1, store.Moved: 1, store.Delayed: 4, store.EverParked: 4},
		"other":     {store.In: 2, store.Parked: 1, store.Forgotten: 1, store.EverParked: 1},
		"imported":  {store.In: 1, store.Parked: 1},
		"important": {store.In: 6, store.Parked: 6, store.EverParkedUrgent: 4, store.EverParkedQuietly: 2},
		"copies":    {store.In: 1, store.Parked: 1},
		"passed":    {store.In: 2, store.DiscardedAtOnce: 2},
	}
	wantSums(t, s, want)
	s.reopen(t)
	wantSums(t, s, want)
	Balances(t, s)
	// From there it goes on.
	add(t, s, Waiting("copies", 0, "x"))
	want["copies"] = store.Sums{store.In: 2, store.Waiting: 1, store.Parked: 1}
	wantSums(t, s, want)
	Balances(t, s)
}

// wantSums checks the ledger of each queue.
func wantSums(t *testing.T, s store.Store, want map[string]store.Sums) {
	t.Helper()
	lines, err := s.Ledger(ctx)
	must(t, err)
	got := map[string]store.Sums{}
	for _, l := range lines {
		got[l.Queue] = l.Sums
	}
	same(t, "the ledger", got, want)
}

// Whatever is asked while others write, each line balances.
func ledgerAlways(t *testing.T, s *subject) {
	const batches = 40
	while(t, func() error {
		for range batches {
			batch := []*store.Record{Waiting("q", 0, "a"), Waiting("q", 0, "b"), parked("p", "c")}
			if err := s.Add(ctx, batch); err != nil {
				return err
			}
			s.CountUnstored("q", store.DiscardedAtOnce, 1)
			claims, err := s.Claim(ctx, store.Lane{Queue: "q"}, epoch, 2, math.MaxInt)
			if err != nil {
				return err
			}
			if _, err := s.Finish(ctx, []store.Outcome{done(claims[0]), park(claims[1], "why")}); err != nil {
				return err
			}
		}
		return nil
	}, func() {
		for _, ask := range []func(context.Context) ([]store.LedgerLine, error){s.Ledger, s.Recount} {
			lines, err := ask(ctx)
			must(t, err)
			for _, l := range lines {
				if l.Off() != 0 {
					t.Fatalf("queue %q is off by %d: %v", l.Queue, l.Off(), l.Sums)
				}
			}
		}
	})
	wantSums(t, s, map[string]store.Sums{
		"p": {store.In: batches, store.Parked: batches, store.EverParked: batches},
		"q": {store.In: 3 * batches, store.Parked: batches, store.Retried: batches, store.DiscardedAtOnce: batches, store.EverParked: batches},
	})
}

// while asks for as long as something is done, and once more.
func while(t *testing.T, do func() error, ask func()) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- do() }()
	for {
		select {
		case err := <-done:
			must(t, err)
			ask()
			return
		default:
			ask()
		}
	}
}

// Beyond EmptyLinesKept the queues that nothing is kept for are forgotten, the one that was
// idle longest first: their lines become one, and the sums of the ledger stay, also of a
// name that messages come for meanwhile.
func forgotten(t *testing.T, s *subject) {
	const old, over = 10, 40
	add(t, s, append(expired("z.old", old), parked("kept", "x"))...)
	forgets(t, s, 0, old)
	add(t, s, expired("new", store.EmptyLinesKept)...)
	forgets(t, s, 0, store.EmptyLinesKept)
	lines := Balances(t, s)
	if len(lines) != store.EmptyLinesKept+2 || names(lines, "new.") != store.EmptyLinesKept {
		t.Errorf("%d lines are left, %d of them of queues that were used last", len(lines), names(lines, "new."))
	}
	same(t, "of other queues it says", lines[store.OtherQueues], store.Sums{store.In: old, store.Forgotten: old})

	add(t, s, expired("a.more", over)...)
	forgets(t, s, 0, over)
	s.CountUnstored("passed", store.DiscardedAtOnce, 3)
	while(t, func() (err error) { // for queues that are being forgotten
		for i := 0; i < over && err == nil; i++ {
			err = s.Add(ctx, []*store.Record{Waiting(fmt.Sprintf("new.%04d", i), 0, "x")})
		}
		return err
	}, func() { forgets(t, s, 0, 0) })
	for range 2 {
		var sum store.Sums
		lines := Balances(t, s)
		for _, sums := range lines {
			sum.Add(&sums)
		}
		gone := int64(old + store.EmptyLinesKept + over)
		want := store.Sums{store.In: gone + over + 1 + 3, store.Waiting: over, store.Parked: 1, store.Forgotten: gone,
			store.DiscardedAtOnce: 3, store.EverParked: 1}
		same(t, "the ledger's sums", sum, want)
		if most := store.EmptyLinesKept + over + 2; len(lines) > most || names(lines, "z.old") != 0 {
			t.Errorf("%d lines are left, want %d at most", len(lines), most)
		}
		same(t, "queues for which something is kept", len(countsOf(t, s)), over+1)
		s.reopen(t)
	}
}

// expired are messages that Forget deletes, one for each of n queues.
func expired(prefix string, n int) (all []*store.Record) {
	for i := range n {
		all = append(all, discarded(fmt.Sprintf("%s.%04d", prefix, i), -hour, ""))
	}
	return all
}

// forgets expects so many messages to be forgotten at a time after epoch.
func forgets(t *testing.T, s store.Store, after time.Duration, n int) {
	t.Helper()
	if got, err := s.Forget(ctx, epoch.Add(after)); got != n || err != nil {
		t.Fatalf("%d messages were forgotten, want %d: %v", got, n, err)
	}
}

// names counts the queues in the ledger whose name begins so.
func names(lines map[string]store.Sums, prefix string) (n int) {
	for name := range lines {
		if strings.HasPrefix(name, prefix) {
			n++
		}
	}
	return n
}

// Lived gives a store something of everything: records of all kinds, of which some
// came and went, and an operation's outcomes.
func Lived(t *testing.T, s store.Store) {
	t.Helper()
	mixed(t, s)
	twin := Everything()
	again := *twin
	add(t, s, twin, &again, failing("q", store.Parked, "order 3 not found"),
		failing("p", store.Waiting, "order 4 not found"))
	for range 30 {
		add(t, s, Waiting("gone", 0, "gone"), Waiting("q", hour, "later"))
	}
	end(t, s, "gone", epoch, 7)
	edit(t, s, "p1", func(r *store.Record) { r.Queue = "elsewhere" })
	s.CountUnstored("never kept", store.Delayed, 3)
	must(t, s.PutEntries(ctx, []store.Entry{{Name: "pause/q", Value: []byte("x")},
		{Name: "operation/1", Value: []byte{0, 255}}}))
	must(t, s.Remember(ctx, []store.Receipt{{Fingerprint: [16]byte{1}, ID: twin.ID},
		{Fingerprint: [16]byte{2}, ID: twin.ID}}))
}

// all are a store's records, by key.
func all(t *testing.T, s store.Store) []store.Listed {
	t.Helper()
	found := Listed(t, s, store.Range{Body: true})
	for i := range found {
		found[i].Cursor = ""
	}
	slices.SortFunc(found, func(a, b store.Listed) int { return cmp.Compare(a.Key, b.Key) })
	return found
}

// Same compares all that two stores return.
func Same(t *testing.T, want, got store.Store) {
	t.Helper()
	same(t, "records", all(t, got), all(t, want))
	SameCounts(t, want, got)
}

// SameCounts compares what two stores return of what came and went, and what else they keep: all
// but the records, which differ by their keys where they were not copied.
func SameCounts(t expect.T, want, got store.Store) {
	t.Helper()
	compare := func(what string, read func(store.Store) (any, error)) {
		t.Helper()
		a, errA := read(want)
		b, errB := read(got)
		must(t, errors.Join(errA, errB))
		same(t, what, b, a)
	}
	compare("ledger", func(s store.Store) (any, error) { return s.Ledger(ctx) })
	compare("recount", func(s store.Store) (any, error) { return s.Recount(ctx) })
	var groups [2][]store.GroupCount
	for began := int64(0); began != time.Now().Unix()/3600; { // what they count is of hours
		began = time.Now().Unix() / 3600
		groups = [2][]store.GroupCount{Groups(t, want), Groups(t, got)}
	}
	same(t, "groups", groups[1], groups[0])
	compare("receipts", func(s store.Store) (any, error) { return s.Receipts(ctx) })
	compare("side table", func(s store.Store) (any, error) {
		entries := map[string]string{}
		return entries, s.Entries(ctx, "", "", func(e store.Entry) (bool, error) {
			entries[e.Name] = string(e.Value)
			return true, nil
		})
	})
	same(t, "history", Past(t, got), Past(t, want))
}

// Past are all past failures, the newest first.
func Past(t expect.T, s store.Store) (all []store.PastFailure) {
	t.Helper()
	must(t, s.EachPastFailure(ctx, func(p store.PastFailure) (bool, error) {
		all = append(all, p)
		return true, nil
	}))
	return all
}

func damaged(t *testing.T, s *subject) {
	if s.engine.Damage == nil {
		t.Skip("engine " + s.engine.Name + " keeps no bytes, so that none can be damaged")
	}
	var torn []store.Listed
	cut := func(record []byte) []byte { return record[:300] }
	laterVersion := func(record []byte) []byte { record[0] = 200; return record }
	for i, c := range []struct {
		state  store.State
		damage func([]byte) []byte
	}{{store.Waiting, cut}, {store.Parked, cut}, {store.Discarded, cut}, {store.Waiting, laterVersion}, {store.Parked, laterVersion}} {
		for _, name := range []string{"a", "torn", "z"} {
			r := Waiting("q", time.Duration(i)*minute, fmt.Sprint(name, i))
			r.Error, r.State = strings.Repeat("no stock ", 100), c.state
			add(t, s, r)
		}
		key := keyOf(t, s, fmt.Sprint("torn", i))
		l, err := s.Get(ctx, key)
		if err == nil {
			err = s.engine.Damage(s.Store, key, c.damage)
		}
		must(t, err)
		torn = append(torn, l)
	}
	for _, newest := range []bool{false, true} {
		for _, body := range []bool{false, true} {
			same(t, "visited of the others", len(Listed(t, s, store.Range{NewestFirst: newest, Body: body})), 10)
		}
	}
	for _, l := range torn {
		expect.Err(t, expect.ErrOf(s.Get(ctx, l.Key)), store.ErrUnreadable, "Get")
		if found, err := s.Find(ctx, l.Record.ID); !errors.Is(err, store.ErrUnreadable) || len(found) > 0 {
			t.Errorf("Find: %d records, %v", len(found), err)
		}
		copied := *l.Record
		copied.State, copied.Queue = store.Parked, "same id"
		add(t, s, &copied)
		if found, err := s.Find(ctx, l.Record.ID); err != nil || len(found) != 1 || found[0].Record.Queue != "same id" {
			t.Errorf("Find of one that can be read, and has the same id: %d records, %v", len(found), err)
		}
	}
	d, ok := s.Store.(store.Damageable)
	if !ok || len(d.Damage()) != len(torn) {
		t.Errorf("the store reports other damage than %d records", len(torn))
	}
	want(t, "claimed", bodies(claim(t, s, "q", hour, 10)), "a0 z0 a3 z3")
	change(t, s, func(_ store.Key, r *store.Record) store.Edit {
		expect.Err(t, r.Unreadable, store.ErrUnreadable, "a change finds")
		return store.Edit{Delete: true}
	}, torn[1].Key, torn[2].Key)
}
