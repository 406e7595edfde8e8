package audit

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/memstore"
)

// table can be full, and have no room for more than a few bytes.
type table struct {
	store.SideTable
	room int
}

func (s *table) PutEntries(ctx context.Context, all []store.Entry) error {
	for _, e := range all {
		if len(e.Value) > s.room {
			return store.ErrFull
		}
	}
	return s.SideTable.PutEntries(ctx, all)
}

func newLog(t *testing.T) (*Log, *table, *strings.Builder) {
	t.Helper()
	said, s := &strings.Builder{}, &table{memstore.New(), math.MaxInt}
	return New(s, slog.New(slog.NewTextHandler(said, nil))), s, said
}

func begin(t *testing.T, l *Log, e Entry) func(string, int64) {
	t.Helper()
	done, err := l.Begin(e)
	expect.NoError(t, err)
	return done
}

// before is what a log shows, newest first: as many entries as are asked for.
func before(t *testing.T, l *Log, n int64, most int) (all []Entry) {
	t.Helper()
	err := l.Before(t.Context(), n, func(e Entry) (bool, error) {
		all = append(all, e)
		return len(all) < most, nil
	})
	expect.NoError(t, err)
	return all
}

func shown(all []Entry) (s []string) {
	for _, e := range all {
		s = append(s, fmt.Sprintf("%s %s %d", e.Did, e.Outcome, e.Count))
	}
	return s
}

// An action has one entry, written before it begins. Two services share the log.
func TestAnActionHasOneEntry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // so that all begin in one microsecond
		one, kept, said := newLog(t)
		other := New(kept, slog.New(slog.DiscardHandler))
		e := Entry{Who: "ann", Did: "replay", On: "queue:orders", Why: "<fixed> & \u2028"}
		done := begin(t, one, e)
		if all := before(t, one, math.MaxInt64, 9); len(all) != 1 || all[0].Outcome != "begun" || all[0].Ended != nil || said.Len() > 0 {
			t.Errorf("while it is under way: %+v, and the log says %s", all, said)
		}
		time.Sleep(time.Minute)
		done("done", 7)
		begin(t, other, Entry{Did: "edit"})("failed: no", 0)
		begin(t, one, Entry{Did: "pause"})
		all := before(t, other, math.MaxInt64, 9)
		if got := shown(all); !slices.Contains(got[:2], "edit failed: no 0") || !slices.Contains(got[:2], "pause begun 0") || got[2] != "replay done 7" {
			t.Errorf("the log has, newest first: %q", got)
		}
		if e := all[2]; e.Who != "ann" || e.On != "queue:orders" || e.Why != "<fixed> & \u2028" || e.Ended.Sub(e.At) != time.Minute {
			t.Errorf("%+v", e)
		}
		if first := before(t, one, all[1].N, 1); len(first) != 1 || first[0].Did != "replay" {
			t.Errorf("the next page has %+v", first)
		}
		if !strings.Contains(said.String(), `msg=action did=replay by=ann`) || !strings.Contains(said.String(), "outcome=done") {
			t.Errorf("the log says %s", said)
		}
	})
}

// Without room for its entry nothing may be done, but what makes room may be with a short one. An
// outcome without room is in the service's log alone.
func TestAFullStore(t *testing.T) {
	l, kept, said := newLog(t)
	kept.room = 2000
	done := begin(t, l, Entry{Did: "discard", On: strings.Repeat("x", 5000)})
	kept.room = 100
	expect.Err(t, expect.ErrOf(l.Begin(Entry{Did: "replay"})), store.ErrFull, "without room")
	done("done", 3)
	if got := shown(before(t, l, math.MaxInt64, 9)); !slices.Equal(got, []string{"discard begun 0"}) {
		t.Errorf("the log has %q", got)
	}
	if !strings.Contains(said.String(), "level=ERROR") || !strings.Contains(said.String(), "outcome=done") {
		t.Errorf("the log says %s", said)
	}
}

// Texts of any length and content make an entry that can be read again.
func TestHostileTexts(t *testing.T) {
	l, _, _ := newLog(t)
	begin(t, l, Entry{Who: "\x00\"}\n{\"n\":1}", On: strings.Repeat("\x01", maxOn+1), Why: strings.Repeat("é", maxText), Did: "\xff\u2028"})(strings.Repeat("no", maxText), 1)
	all := before(t, l, math.MaxInt64, 9)
	if len(all) != 1 || all[0].Who != "\x00\"}\n{\"n\":1}" || len(all[0].On) > maxOn+40 || len(all[0].Why) > maxText+40 || len(all[0].Outcome) > maxText+40 {
		t.Errorf("%.500v", all)
	}
}

// Entries older than 90 days are deleted, and the oldest when the log is too large.
func TestOldEntriesAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _, _ := newLog(t)
		l.most = 100_000
		forget := func(want ...string) {
			t.Helper()
			expect.NoError(t, l.Forget(t.Context(), time.Now()))
			if got := shown(before(t, l, math.MaxInt64, 9)); !slices.Equal(got, want) {
				t.Errorf("it has %q, want %q", got, want)
			}
		}
		begin(t, l, Entry{Did: "first"})
		time.Sleep(kept)
		begin(t, l, Entry{Did: "second"})
		forget("second begun 0", "first begun 0")
		time.Sleep(time.Minute) // it does not look so often
		forget("second begun 0", "first begun 0")
		begin(t, l, Entry{Did: "large", On: strings.Repeat("x", 10_000)}) // but when so much is written
		forget("large begun 0", "second begun 0")
		begin(t, l, Entry{Did: "larger", On: strings.Repeat("x", 99_500)})
		forget("larger begun 0")
	})
}
