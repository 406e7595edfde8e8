package storetest

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
)

// endings are how each record ended, which is once.
type endings struct {
	t   *testing.T
	mu  sync.Mutex
	how map[store.Key]string
}

func (e *endings) note(how string, keys ...store.Key) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, key := range keys {
		if was := e.how[key]; was != "" {
			e.t.Errorf("%s was %s, and then %s", key, was, how)
		}
		e.how[key] = how
	}
}

func (e *endings) count() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.how)
}

// finish claims up to three records that are due, finishes so many of them, and releases
// the others.
func (e *endings) finish(s store.Store, upTo time.Time, most int) {
	ctx := context.Background()
	claims, err := s.Claim(ctx, store.Lane{Queue: "q"}, upTo, 3, math.MaxInt)
	if err != nil {
		e.t.Error(err)
	}
	var out []store.Outcome
	for i, c := range claims {
		if c.Record.Due.After(upTo) {
			e.t.Errorf("claimed %s early", c.Key)
		}
		if i == most {
			if err := s.Release(ctx, claims[i:]); err != nil {
				e.t.Error(err)
			}
			break
		}
		e.note("finished", c.Key)
		out = append(out, store.Outcome{Claim: c, At: epoch})
	}
	if finished, err := s.Finish(ctx, out); err != nil || finished != len(out) {
		e.t.Errorf("finished %d of %d, %v", finished, len(out), err)
	}
}

// change changes records, and notes how as the ending of those that edit names.
func (e *endings) change(s store.Store, keys []store.Key, how string, edit func(*store.Record) (_ store.Edit, ends bool)) {
	var ended []store.Key
	_, err := s.Change(context.Background(), keys, func(k store.Key, r *store.Record) store.Edit {
		if r == nil {
			return store.Edit{}
		}
		edited, ends := edit(r)
		if ends {
			ended = append(ended, k)
		}
		return edited
	}, nil)
	if err != nil {
		e.t.Error(err)
	}
	e.note(how, ended...)
}

// Many claim while others put off, hasten and delete: no message is claimed by
// one and changed by another, none before it is due, and none is lost.
func changeOrClaim(t *testing.T, e Engine) {
	s := open(t, e)
	const n = 300
	for i := range n {
		add(t, s, Waiting("q", time.Duration(i%7)*time.Second, fmt.Sprint(i)))
	}
	keys := keysIn(t, s, store.Range{})
	ended := endings{t: t, how: map[store.Key]string{}}
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for range 60 {
				ended.finish(s, epoch.Add(3*time.Second), 2)
			}
		})
	}
	for w := range 2 {
		wg.Go(func() {
			for i := 0; i+10 <= len(keys); i += 5 {
				ended.change(s, keys[i:i+10], "deleted", func(r *store.Record) (store.Edit, bool) {
					if r.Due.Second()%3 == w {
						return store.Edit{Delete: true}, true
					}
					r.Due = r.Due.Add(time.Duration(1-2*w) * 2 * time.Second)
					return store.Edit{Keep: true}, false
				})
			}
		})
	}
	wg.Wait()
	rest := claim(t, s, "q", time.Hour, n)
	for _, c := range rest {
		ended.note("left", c.Key)
	}
	if ended.count() != n || len(rest) == n {
		t.Errorf("%d of %d are accounted for, %d were left", ended.count(), n, len(rest))
	}
}

// changeElsewhere changes by one store what another claims: each record is had by one
// of them at a time.
func changeElsewhere(t *testing.T, e Engine) {
	all := replicas(t, e, 2, longLease)
	const n = 200
	for i := range n {
		add(t, all[0], Waiting("q", time.Duration(i), fmt.Sprint(i)))
	}
	keys := keysIn(t, all[1], store.Range{})
	mine := claim(t, all[0], "q", time.Hour, 1)
	change(t, all[1], func(k store.Key, r *store.Record) store.Edit {
		if r != nil {
			t.Errorf("%s, which another store claimed, is given to edit", k)
		}
		return store.Edit{Keep: true}
	}, mine[0].Key)

	ended := endings{t: t, how: map[store.Key]string{mine[0].Key: "claimed at first"}}
	var wg sync.WaitGroup
	wg.Go(func() {
		for ended.count() < n && !t.Failed() {
			ended.finish(all[0], epoch.Add(time.Hour), 1)
		}
	})
	wg.Go(func() {
		slices.Reverse(keys) // they meet in the middle
		for some := range slices.Chunk(keys, 10) {
			ended.change(all[1], some, "changed", func(r *store.Record) (store.Edit, bool) {
				r.State = store.Parked
				return store.Edit{Keep: true}, true
			})
		}
	})
	wg.Wait()
	if ended.count() != n {
		t.Errorf("%d of %d were claimed by any", ended.count(), n)
	}
	parks := 0
	for _, how := range ended.how {
		if how == "changed" {
			parks++
		}
	}
	want(t, "kept", total(t, all[1]), fmt.Sprintf("1 waiting, %d parked, 0 discarded", parks))
	Balances(t, all[0])
}

// keysIn are the keys of what is in a range.
func keysIn(t *testing.T, s store.Store, r store.Range) (keys []store.Key) {
	t.Helper()
	must(t, s.Scan(context.Background(), r, func(l store.Listed) (bool, error) {
		keys = append(keys, l.Key)
		return true, nil
	}))
	return keys
}
