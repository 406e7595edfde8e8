package notify

import (
	"context"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
)

func zone(t *testing.T, name string) *time.Location {
	z, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return z
}

func entries(t *testing.T, s store.SideTable) (n int) {
	if err := s.Entries(context.Background(), prefix, "", func(store.Entry) (bool, error) { n++; return true, nil }); err != nil {
		t.Fatal(err)
	}
	return n
}

// Quiet hours are those of the clock on the wall, also when it is moved: in Berlin at
// 02:00 on 2026-03-29 to 03:00, and at 03:00 on 2026-10-25 to 02:00.
func TestQuietHours(t *testing.T) {
	const layout = "2006-01-02 15:04 -0700"
	berlin := zone(t, "Europe/Berlin")
	for _, c := range []struct{ from, to, at, end string }{
		{"22:00", "07:00", "2026-11-21 21:59 +0100", ""},
		{"22:00", "07:00", "2026-11-21 22:00 +0100", "2026-11-22 07:00 +0100"},
		{"22:00", "07:00", "2026-11-21 06:59 +0100", "2026-11-21 07:00 +0100"},
		{"22:00", "07:00", "2026-11-21 07:00 +0100", ""},
		{"22:00", "07:00", "2026-12-31 23:30 +0100", "2027-01-01 07:00 +0100"},
		{"22:00", "07:00", "2026-11-21 21:30 +0000", "2026-11-22 07:00 +0100"}, // 22:30 there
		{"22:00", "07:00", "2026-03-28 23:00 +0100", "2026-03-29 07:00 +0200"}, // an hour less
		{"22:00", "07:00", "2026-10-24 23:00 +0200", "2026-10-25 07:00 +0100"}, // an hour more
		{"22:00", "02:30", "2026-03-29 01:59 +0100", "2026-03-29 03:00 +0200"}, // 02:30 does not come
		{"01:00", "02:30", "2026-10-25 01:30 +0200", "2026-10-25 02:30 +0100"}, // 02:30 comes twice
		{"01:00", "02:30", "2026-10-25 02:10 +0100", "2026-10-25 02:30 +0100"}, // between them it is quiet again
		{"12:00", "13:00", "2026-11-21 12:30 +0100", "2026-11-21 13:00 +0100"},
		{"12:00", "13:00", "2026-11-21 13:00 +0100", ""},
	} {
		q := Quiet{Zone: berlin}
		for _, v := range []struct {
			s  string
			to *int
		}{{c.from, &q.From}, {c.to, &q.To}} {
			clock, err := time.Parse("15:04", v.s)
			if err != nil {
				t.Fatal(err)
			}
			*v.to = 60*clock.Hour() + clock.Minute()
		}
		at, err := time.Parse(layout, c.at)
		if err != nil {
			t.Fatal(err)
		}
		end, quiet := q.until(at)
		got := ""
		if quiet {
			got = end.In(berlin).Format(layout)
		}
		if got != c.end {
			t.Errorf("quiet from %s to %s: at %s until %q, want %q", c.from, c.to, c.at, got, c.end)
		}
	}
}

// West of Greenwich Go takes an hour that the clock has twice for the first of them: in New
// York 01:00 to 02:00 on 2026-11-01 comes twice.
func TestQuietHoursEndAtTheSecondOfTwoHoursInAllZones(t *testing.T) {
	const layout = "15:04 -0700"
	z := zone(t, "America/New_York")
	for _, c := range []struct {
		from, to int
		at, end  string
	}{
		{60, 90, "01:10 -0400", "01:30 -0500"},
		{60, 90, "01:05 -0500", "01:30 -0500"}, // between them it is quiet again
		{22 * 60, 90, "00:10 -0400", "01:30 -0500"},
		{22 * 60, 60, "00:10 -0400", "01:00 -0400"}, // the hour after it is not quiet
		{22 * 60, 120, "00:10 -0400", "02:00 -0500"},
		{60, 45, "00:10 -0400", "00:45 -0400"},
	} {
		at, err := time.Parse("2006-01-02 "+layout, "2026-11-01 "+c.at)
		if err != nil {
			t.Fatal(err)
		}
		end, quiet := Quiet{c.from, c.to, z}.until(at)
		if got := end.In(z).Format(layout); !quiet || got != c.end {
			t.Errorf("quiet from minute %d to %d: at %s until %s, %v; want %s", c.from, c.to, c.at, got, quiet, c.end)
		}
	}
}

func TestQuietHoursAlwaysEnd(t *testing.T) {
	for _, name := range []string{"Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia", "Asia/Kathmandu", "UTC"} {
		z := zone(t, name)
		for from := 0; from < 24*60; from += 37 {
			for to := 0; to < 24*60; to += 41 {
				q := Quiet{from, to, z}
				for _, day := range []string{"2026-03-07T23:00:00Z", "2026-03-28T23:40:00Z", "2026-10-24T22:10:00Z", "2026-11-01T05:00:00Z", "2011-12-29T12:00:00Z"} {
					at, err := time.Parse(time.RFC3339, day)
					if err != nil {
						t.Fatal(err)
					}
					if end, quiet := q.until(at); quiet && (!end.After(at) || q.in(end) || end.Sub(at) > 49*time.Hour) {
						t.Fatalf("%s %v at %s ends at %s", name, q, at, end)
					}
				}
			}
		}
	}
}
