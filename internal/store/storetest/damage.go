package storetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
)

var damages = []testCase{
	{"a record that cannot be read stops no other, and is reported", damaged},
}

func damaged(t *testing.T, e Engine) {
	if e.Tear == nil {
		t.Skip("engine " + e.Name + " keeps no bytes, so that none can be damaged")
	}
	s, ctx := open(t, e), context.Background()
	var torn []store.Listed
	for i, state := range []store.State{store.Waiting, store.Parked, store.Discarded} {
		for _, name := range []string{"a", "torn", "z"} {
			r := Waiting("q", time.Duration(i)*time.Minute, fmt.Sprint(name, i))
			r.Error, r.State = strings.Repeat("no stock ", 100), state
			add(t, s, r)
		}
		key := keyOf(t, s, fmt.Sprint("torn", i))
		l, err := s.Get(ctx, key)
		if err == nil {
			err = e.Tear(s, key)
		}
		must(t, err)
		torn = append(torn, l)
	}
	for _, newest := range []bool{false, true} {
		for _, body := range []bool{false, true} {
			n := 0
			err := s.Scan(ctx, store.Range{NewestFirst: newest, Body: body}, func(store.Listed) (bool, error) { n++; return true, nil })
			if err != nil || n != 6 {
				t.Errorf("a scan visits %d of the 6 others, %v", n, err)
			}
		}
	}
	for _, l := range torn {
		if _, err := s.Get(ctx, l.Key); !errors.Is(err, store.ErrUnreadable) {
			t.Errorf("Get: %v", err)
		}
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
	d, ok := s.(store.Damageable)
	if !ok || len(d.Damage()) != len(torn) {
		t.Errorf("the store reports other damage than %d records", len(torn))
	}
	want(t, "claimed", bodies(claim(t, s, "q", time.Hour, 10)), "a0 z0")
	change(t, s, func(_ store.Key, r *store.Record) store.Edit {
		if !errors.Is(r.Unreadable, store.ErrUnreadable) {
			t.Errorf("a change finds %v", r.Unreadable)
		}
		return store.Edit{Delete: true}
	}, torn[1].Key, torn[2].Key)
}
