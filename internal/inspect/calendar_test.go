package inspect_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
)

// The slots are as long as what is due needs them: seconds after an outage of a minute, days for
// backoff of weeks. What is due already, and a few far later, are apart.
func TestTheCalendarFitsWhatIsDue(t *testing.T) {
	for name, c := range map[string]struct {
		from, to time.Duration
		length   time.Duration
	}{
		"a minute": {0, time.Minute, 5 * time.Second}, "ten minutes": {0, 10 * time.Minute, time.Minute}, "hours": {time.Hour, 11 * time.Hour, time.Hour},
		"weeks": {0, 20 * 24 * time.Hour, 2 * 24 * time.Hour}, "years": {300 * 24 * time.Hour, 3000 * 24 * time.Hour, 365 * 24 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := memstore.New()
				now := time.Now()
				add := func(at time.Time) {
					t.Helper()
					if err := s.Add(ctx, []*store.Record{due("orders", at)}); err != nil {
						t.Fatal(err)
					}
				}
				const many = 100
				for i := range many {
					add(now.Add(c.from + (c.to-c.from)/many*time.Duration(i) + time.Millisecond))
				}
				add(now.Add(-time.Hour))
				add(now.Add(-2 * time.Hour))
				add(now.Add(3400 * 24 * time.Hour))
				o, err := inspect.New(inspect.Config{Store: s}).Overview(ctx, caller(auth.Viewer))
				if err != nil || len(o.Calendar) < 3 {
					t.Fatal(o.Calendar, err)
				}
				all := o.Calendar
				if first := all[0]; !first.Overdue || first.Count != 2 || !first.From.Equal(now.Add(-2*time.Hour)) || !first.To.Equal(now) {
					t.Errorf("overdue: %+v", first)
				}
				held := int64(0)
				for i, slot := range all[1:] {
					if i > 0 && !slot.Later && slot.To.Sub(slot.From) != c.length {
						t.Errorf("slot %d is of %v", i, slot.To.Sub(slot.From))
					}
					if !slot.From.Equal(all[i].To) {
						t.Errorf("slot %d begins at %v", i, slot.From)
					}
					held += slot.Count
				}
				if last := all[len(all)-1]; held != many+1 || name != "years" && (!last.Later || last.Count > many/10) {
					t.Errorf("%d of %d are in slots, and later are %+v", held, many+1, last)
				}
			})
		})
	}
}

// What cannot be counted in time does not make the slots coarse.
func TestTheCalendarOfVeryMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, now := memstore.New(), time.Now()
		var all []*store.Record
		for range 7000 { // more than are counted in a slot
			all = append(all, due("orders", now.Add(20*time.Second)))
		}
		for range 500 {
			all = append(all, due("orders", now.Add(8*time.Hour)))
		}
		if err := s.Add(ctx, all); err != nil {
			t.Fatal(err)
		}
		o, err := inspect.New(inspect.Config{Store: s}).Overview(ctx, caller(auth.Viewer))
		if err != nil || o.Calendar[1].To.Sub(o.Calendar[1].From) != 5*time.Second {
			t.Errorf("%+v, %v", o.Calendar, err)
		}
		if last := o.Calendar[len(o.Calendar)-1]; !last.Later || last.Count != 500 {
			t.Errorf("later: %+v", last)
		}
	})
}
