package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/errorgroup"
	"github.com/redrive-mq/redrive/internal/store"
)

var scans = []testCase{
	{"a scan visits a range in the order of Due", scanOrder},
	{"a scan goes on behind any record", scanAfter},
	{"a scan ends when visit returns false or an error, or ctx ends", scanEnds},
	{"a scan sees one moment, and visit may call the store", scanMoment},
	{"a scan visits once what is kept all the while", scanOnce},
	{"a scan leaves out what was added after NewestNumber", scanUpto},
	{"NewestNumber counts in what is being added, or nothing of it", uptoWhileAdding},
	{"by id and by key", byIDAndKey},
	{"what is due is counted between edges, claimed or not", countDue},
}

// scan is the bodies that a range visits.
func scan(t *testing.T, s store.Store, r store.Range) string {
	t.Helper()
	r.Body = true
	var got []string
	err := s.Scan(context.Background(), r, func(l store.Listed) (bool, error) {
		if l.BodySize != len(l.Record.Message.Body) {
			t.Errorf("%s is said to have %d bytes", l.Record.Message.Body, l.BodySize)
		}
		got = append(got, string(l.Record.Message.Body))
		return true, nil
	})
	if err != nil {
		t.Error(err)
	}
	return strings.Join(got, " ")
}

// mixed has records of two queues and of all states, two of them due at once; the
// names show when.
func mixed(t *testing.T, s store.Store) {
	p := func(r *store.Record, errText string) *store.Record {
		r.State, r.Error = store.Parked, errText
		return r
	}
	other := Waiting("r", 6*time.Second, "w6")
	other.Error = "no stock"
	add(t, s, Waiting("q", 4*time.Second, "w4"), p(Waiting("r", time.Second, "p1"), "no stock"), discarded("q", 5*time.Second, "d5"), other)
	add(t, s, p(Waiting("q", 2*time.Second, "p2"), ""), p(Waiting("r", 2*time.Second, "p2b"), "no stock"), Waiting("r", 2*time.Second, "w2c"))
}

func scanOrder(t *testing.T, e Engine) {
	s := open(t, e)
	mixed(t, s)
	noStock := []errorgroup.ID{errorgroup.Of("r", "rejected", "no stock", "").ID}
	inQ := errorgroup.Of("q", "rejected", "", "").ID
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
		{store.Range{Queues: []string{"q", "none"}}, "p2 w4 d5"},
		{store.Range{Queues: []string{"r", "q"}, State: store.Parked}, "p1 p2 p2b"},
		{store.Range{Queues: []string{}}, ""},
		{store.Range{Groups: []errorgroup.ID{}}, ""},
		{store.Range{Groups: noStock}, "p1 p2b w6"},
		{store.Range{Groups: noStock, State: store.Parked, NewestFirst: true}, "p2b p1"},
		{store.Range{Groups: append(noStock, inQ), Upto: &upto}, "p1 p2 p2b w4 d5 w6"},
		{store.Range{Groups: append(noStock, inQ), Queues: []string{"q"}, NewestFirst: true}, "d5 w4 p2"},
		{store.Range{From: at(2 * time.Second), To: at(5 * time.Second)}, "p2 p2b w2c w4"},
		{store.Range{From: at(2 * time.Second), To: at(5 * time.Second), NewestFirst: true}, "w4 w2c p2b p2"},
		{store.Range{From: at(2*time.Second + 1), To: at(5*time.Second + 1)}, "w4 d5"},
		{store.Range{From: at(5 * time.Second)}, "d5 w6"},
		{store.Range{To: at(time.Second)}, ""},
		{store.Range{From: at(5 * time.Second), To: at(time.Second)}, ""},
		{store.Range{Groups: noStock, From: at(2 * time.Second), To: at(6 * time.Second)}, "p2b"},
	} {
		want(t, fmt.Sprintf("%+v", c.r), scan(t, s, c.r), c.want)
	}
	claim(t, s, "r", time.Hour, 1)
	want(t, "with a claim", scan(t, s, store.Range{State: store.Waiting}), "w2c w4 w6")
}

func countDue(t *testing.T, e Engine) {
	s := open(t, e)
	mixed(t, s)
	add(t, s, Waiting("q", time.Second, "w1"), Waiting("q", 2*time.Second, "w2"), Waiting("q", 2500*time.Millisecond, "w2h"), Waiting("q", 9*time.Second, "w9"))
	edges := []time.Time{epoch.Add(2 * time.Second), epoch.Add(3 * time.Second), epoch.Add(3 * time.Second), epoch.Add(7 * time.Second)}
	count := func(what, wanted string, most int64, queues ...string) {
		t.Helper()
		counts, err := s.CountDue(context.Background(), queues, edges, most)
		must(t, err)
		want(t, what, fmt.Sprint(counts), wanted)
	}
	count("of one queue", "[1 2 0 1]", 10, "q")
	count("of two", "[1 3 0 2]", 10, "q", "r", "none")
	count("as far as it counts", "[1 2 0 2]", 2, "q", "r")
	claims := claim(t, s, "q", 2*time.Second, 2)
	count("with two claimed", "[1 2 0 1]", 10, "q")
	if _, err := s.Finish(context.Background(), []store.Outcome{{Claim: claims[0], At: epoch}}); err != nil {
		t.Fatal(err)
	}
	count("with one retried", "[0 2 0 1]", 10, "q")
	if s = reopened(t, e, s); s != nil {
		count("after a restart", "[0 2 0 1]", 10, "q")
	}
}

// Behind each record of each order comes what comes after it, also when that
// record is gone meanwhile; pages meet.
func scanAfter(t *testing.T, e Engine) {
	s := open(t, e)
	mixed(t, s)
	groups := []errorgroup.ID{errorgroup.Of("r", "rejected", "no stock", "").ID, errorgroup.Of("q", "rejected", "", "").ID}
	for _, r := range []store.Range{{}, {State: store.Parked}, {Queues: []string{"r"}}, {Groups: groups}, {From: epoch.Add(2 * time.Second), To: epoch.Add(6 * time.Second)}} {
		for _, r.NewestFirst = range []bool{false, true} {
			r.After = ""
			all := strings.Fields(scan(t, s, r))
			for i := range all {
				err := s.Scan(context.Background(), r, func(l store.Listed) (bool, error) {
					if l.Record.Message.Body != nil || l.BodySize == 0 {
						t.Error("a body that was not asked for, or no size")
					}
					r.After = l.Cursor
					return false, nil
				})
				must(t, err)
				want(t, fmt.Sprintf("%+v", r), scan(t, s, r), strings.Join(all[i+1:], " "))
			}
		}
	}
	var at store.Listed
	err := s.Scan(context.Background(), store.Range{State: store.Parked}, func(l store.Listed) (bool, error) {
		at = l
		return false, nil
	})
	must(t, err)
	change(t, s, func(store.Key, *store.Record) store.Edit { return store.Edit{Delete: true} }, at.Key)
	want(t, "behind one that is gone", scan(t, s, store.Range{After: at.Cursor}), "p2 p2b w2c w4 d5 w6")
	if err := s.Scan(context.Background(), store.Range{After: "x'"}, nil); err == nil || !strings.Contains(err.Error(), "x'") {
		t.Errorf("after what is no cursor: %v", err)
	}
}

func scanEnds(t *testing.T, e Engine) {
	s := open(t, e)
	mixed(t, s)
	ctx, cancel := context.WithCancel(context.Background())
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
		err := s.Scan(ctx, store.Range{}, func(store.Listed) (bool, error) { n++; return c.visit() })
		if n != 1 || err != c.want {
			t.Errorf("%s: %d visits, %v", c.name, n, err)
		}
	}
}

func scanMoment(t *testing.T, e Engine) {
	s := open(t, e)
	if e.Shared {
		t.Skip("engine " + e.Name + " is shared, and reads a page at a time: see a scan visits once what is kept all the while")
	}
	mixed(t, s)
	for _, r := range []store.Range{{}, {Groups: []errorgroup.ID{errorgroup.Of("r", "rejected", "no stock", "").ID}}} {
		before := scan(t, s, r)
		var seen []string
		r.Body = true
		err := s.Scan(context.Background(), r, func(l store.Listed) (bool, error) {
			seen = append(seen, string(l.Record.Message.Body))
			add(t, s, Waiting("new", time.Hour, "new"))
			change(t, s, func(_ store.Key, r *store.Record) store.Edit {
				r.State, r.Due = 4-r.State, r.Due.Add(time.Minute) // waiting ones are discarded, and the other way round
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
func scanOnce(t *testing.T, e Engine) {
	s := open(t, e)
	var steady []string
	for i := range 1200 { // more than a page of a shared engine has
		name := fmt.Sprint("s", i)
		steady = append(steady, name)
		stays, moves := parked(fmt.Sprint("q", i%3), name), parked("moves", fmt.Sprint("m", i))
		stays.Due = epoch.Add(time.Duration(i) * time.Millisecond)
		moves.Due = stays.Due
		add(t, s, stays, moves)
	}
	seen := map[string]int{}
	var got []string
	err := s.Scan(context.Background(), store.Range{State: store.Parked, Body: true}, func(l store.Listed) (bool, error) {
		body := string(l.Record.Message.Body)
		if seen[body]++; body[0] == 's' {
			got = append(got, body)
		}
		if body[0] == 'm' && len(seen)%7 == 0 {
			change(t, s, func(_ store.Key, r *store.Record) store.Edit {
				r.State = store.Waiting
				return store.Edit{Keep: len(seen)%2 == 0, Delete: true}
			}, l.Key)
			add(t, s, parked("q1", fmt.Sprint("new", len(seen))))
		}
		return true, nil
	})
	must(t, err)
	want(t, "what was left alone", strings.Join(got, " "), strings.Join(steady, " "))
	for body, n := range seen {
		if n > 1 {
			t.Errorf("%s was visited %d times", body, n)
		}
	}
}

func scanUpto(t *testing.T, e Engine) {
	s := open(t, e)
	if n := newest(t, s); scan(t, s, store.Range{Upto: &n}) != "" {
		t.Error("something is in an empty store")
	}
	mixed(t, s)
	upto := newest(t, s)
	r := store.Range{Upto: &upto, NewestFirst: true}
	add(t, s, parked("q", "new"), Waiting("r", time.Hour, "new"))
	key := keyOf(t, s, "p1")
	change(t, s, func(_ store.Key, r *store.Record) store.Edit {
		r.State, r.Due = store.Waiting, epoch.Add(time.Hour)
		return store.Edit{Keep: true, Add: []*store.Record{parked("q", "also new")}}
	}, key)
	want(t, "what was there", scan(t, s, r), "p1 w6 d5 w4 w2c p2b p2")
	if s = reopened(t, e, s); s != nil {
		want(t, "after a crash", scan(t, s, r), "p1 w6 d5 w4 w2c p2b p2")
		if newest(t, s) < *r.Upto {
			t.Error("NewestNumber went back")
		}
	}
}

// A set that was bounded while others add is the same ever after.
func uptoWhileAdding(t *testing.T, e Engine) {
	s := open(t, e)
	count := func(upto uint64) string {
		return fmt.Sprint(len(strings.Fields(scan(t, s, store.Range{Upto: &upto}))))
	}
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			batch := slices.Repeat([]*store.Record{Waiting("q", 0, "a"), parked("q", "b")}, 50)
			for range 10 {
				if err := s.Add(context.Background(), batch); err != nil {
					t.Error(err)
				}
			}
		})
	}
	var bounds []uint64
	var were []string
	for range 20 {
		bounds = append(bounds, newest(t, s))
		were = append(were, count(bounds[len(bounds)-1]))
	}
	wg.Wait()
	for i, b := range bounds {
		if now := count(b); now != were[i] {
			t.Errorf("up to %d there were %s, and now %s", b, were[i], now)
		}
	}
}

func newest(t *testing.T, s store.Store) uint64 {
	t.Helper()
	b, err := s.NewestNumber(context.Background())
	must(t, err)
	return b
}

// reopened is s after a crash; nil when the engine keeps nothing.
func reopened(t *testing.T, e Engine, s store.Store) store.Store {
	if e.Reopen == nil {
		return nil
	}
	return e.Reopen(t, s)
}

// keyOf is the key of the one record with a body.
func keyOf(t *testing.T, s store.Store, body string) (key store.Key) {
	t.Helper()
	err := s.Scan(context.Background(), store.Range{Body: true}, func(l store.Listed) (bool, error) {
		if string(l.Record.Message.Body) == body {
			key = l.Key
		}
		return key == "", nil
	})
	if err != nil || key == "" {
		t.Fatalf("%s is not there: %v", body, err)
	}
	return key
}

// A key stays the same in all states, and names one record of several that share
// an id.
func byIDAndKey(t *testing.T, e Engine) {
	s, ctx := open(t, e), context.Background()
	a, b := Everything(), Everything()
	b.ID, b.State, b.Queue, b.Due = a.ID, store.Parked, "a queue", epoch.Add(-time.Hour)
	add(t, s, a, b, Waiting("q", 0, "other"))
	check := func(wanted ...*store.Record) (found []store.Listed) {
		t.Helper()
		found, err := s.Find(ctx, a.ID)
		must(t, err)
		var got []*store.Record
		for _, l := range found {
			got = append(got, l.Record)
			one, err := s.Get(ctx, l.Key)
			if d := cmp.Diff(l, one); err != nil || d != "" {
				t.Errorf("Get: %v (-Find +Get):\n%s", err, d)
			}
			if strings.ContainsFunc(string(l.Key)+l.Cursor, func(r rune) bool { return r <= ' ' || r > '~' }) {
				t.Errorf("key %q, cursor %q", l.Key, l.Cursor)
			}
		}
		if d := cmp.Diff(wanted, got); d != "" {
			t.Errorf("Find (-want +got):\n%s", d)
		}
		return found
	}
	keys := check(a, b)
	if keys[0].Key == keys[1].Key {
		t.Error("two records have one key")
	}
	for _, state := range []store.State{store.Discarded, store.Waiting, store.Parked} {
		b.State, b.Due = state, b.Due.Add(time.Second)
		change(t, s, func(_ store.Key, r *store.Record) store.Edit {
			r.State, r.Due = b.State, b.Due
			return store.Edit{Keep: true}
		}, keys[1].Key)
		if now := check(a, b); now[1].Key != keys[1].Key {
			t.Errorf("the key changed from %s to %s", keys[1].Key, now[1].Key)
		}
	}
	change(t, s, func(store.Key, *store.Record) store.Edit { return store.Edit{Delete: true} }, keys[1].Key)
	check(a)
	if found, err := s.Find(ctx, uuid.New()); err != nil || len(found) != 0 {
		t.Errorf("an unknown id: %v, %v", found, err)
	}
	for _, key := range slices.Concat([]store.Key{keys[1].Key}, noKeys) {
		if _, err := s.Get(ctx, key); err != store.ErrNotFound {
			t.Errorf("Get(%q): %v", key, err)
		}
	}
}

var noKeys = []store.Key{"", "1", "x.1", store.MakeKey(uuid.Nil, 1), store.Key(uuid.Nil.String() + ".01"), store.Key(uuid.Nil.String() + ".-1")}
