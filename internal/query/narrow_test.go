package query

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/redrive-mq/redrive/internal/errorgroup"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/testenv/expect"
)

// kept are records as in a store: none is due before it failed.
func kept() *rapid.Generator[*store.Listed] {
	return rapid.Custom(func(t *rapid.T) *store.Listed {
		l := parked()
		r := l.Record
		r.Queue = rapid.SampledFrom([]string{"orders.eu", "orders.us", "mail"}).Draw(t, "queue")
		r.State = rapid.SampledFrom([]store.State{store.Waiting, store.Parked, store.Discarded}).Draw(t, "state")
		r.Reason = rapid.SampledFrom([]string{"rejected", "expired"}).Draw(t, "reason")
		r.Error = rapid.SampledFrom([]string{"", "timeout", "refused"}).Draw(t, "error")
		r.FailedAt = noon.Add(time.Duration(rapid.IntRange(-100, 0).Draw(t, "failed")) * time.Hour)
		r.FirstFailed = r.FailedAt.Add(-time.Duration(rapid.IntRange(0, 3).Draw(t, "first")) * time.Hour)
		r.Due = r.FailedAt.Add(time.Duration(rapid.IntRange(0, 110).Draw(t, "due")) * time.Hour)
		return l
	})
}

// asked are queries about what indexes have, among others.
func asked(groups []store.GroupCount) *rapid.Generator[string] {
	term := rapid.SampledFrom([]string{"state:parked", "state:waiting", "-state:discarded", "state:retried", "queue:orders.*", "queue:mail", "-queue:mail", "reason:expired", "reason:rejected",
		"error:timeout", "age:>2d", "age:<50h", "age:1d..2d", "due:<5h", "due:>1h", "due:-1h..3h", "parked:2026-11-20", "parked:<2026-11-20", "parked:>=2026-11-19", "failed:>2026-11-19T03:00Z",
		"before:2026-11-20", "after:2026-11-20", "first:<2026-11-20", "attempt:8", "attempt:7", "acme", "nowhere",
		"group:" + groups[0].ID.String(), "group:" + groups[len(groups)-1].ID.String(), "id:" + anID})
	return rapid.Custom(func(t *rapid.T) string {
		q := term.Draw(t, "term")
		for range rapid.IntRange(0, 3).Draw(t, "more") {
			more := term.Draw(t, "term")
			switch rapid.IntRange(0, 3).Draw(t, "with") {
			case 0:
				q += " OR " + more
			case 1:
				q = "-(" + q + ") " + more
			default:
				q += " " + more
			}
		}
		return q
	})
}

// All messages that a query matches are in the range that is scanned, and what is counted
// without a scan is right.
func TestNothingIsOutsideOfTheRange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := rapid.SliceOfN(kept(), 1, 6).Draw(t, "records")
		var queues []string
		counts := map[errorgroup.ID]*store.GroupCount{}
		var groups []store.GroupCount
		for _, l := range all {
			if !slices.Contains(queues, l.Record.Queue) {
				queues = append(queues, l.Record.Queue)
			}
			g := l.Record.Group()
			if counts[g.ID] == nil {
				counts[g.ID] = &store.GroupCount{Group: g}
			}
			counts[g.ID].Reasons |= store.ReasonsOf(l.Record.Reason)
			switch l.Record.State {
			case store.Waiting:
				counts[g.ID].Waiting++
			case store.Parked:
				counts[g.ID].Parked++
			default:
				counts[g.ID].Discarded++
			}
		}
		for _, l := range all {
			if c := counts[l.Record.Group().ID]; c != nil {
				groups = append(groups, *c)
				delete(counts, c.ID)
			}
		}
		text := asked(groups).Draw(t, "query")
		q, err := Parse(text)
		if err != nil {
			t.Fatal(text, err)
		}
		know := groups
		if rapid.Bool().Draw(t, "without groups") {
			know = nil
		}
		n := q.Narrow(noon, queues, know)
		r := n.Range
		ids, only := q.IDs()
		for _, l := range all {
			means := q.Match(noon, l, decoded)
			if again := n.Match(l, decoded); again != means {
				t.Fatalf("%s: %v, narrowed %v", text, means, again)
			}
			i := slices.IndexFunc(groups, func(g store.GroupCount) bool { return g.ID == l.Record.Group().ID })
			for _, says := range []int{q.Says(l.Record.State, l.Record.Queue, nil), q.Says(0, l.Record.Queue, nil), q.Says(l.Record.State, "", nil), q.Says(l.Record.State, l.Record.Queue, &groups[i])} {
				if says > 0 && !means || says < 0 && means {
					t.Fatalf("%s says %d of %+v, which it means: %v", text, says, l.Record, means)
				}
			}
			if !means {
				continue
			}
			in := !n.None && r.Of(l.Record.State) && slices.Contains(r.Queues, l.Record.Queue) &&
				(r.Groups == nil || slices.Contains(r.Groups, l.Record.Group().ID)) && (span{r.From, r.To}).has(l.Record.Due)
			if !in {
				t.Fatalf("%s means %+v, which is outside of %+v (none: %v)", text, l.Record, r, n.None)
			}
			if q.OnlyRetried() || only && !slices.Contains(ids, l.Record.ID) {
				t.Fatalf("%s means %+v", text, l.Record)
			}
		}
	})
}

// Messages that failed for a rare reason are searched only in groups that have failed for
// that reason.
func TestARareReason(t *testing.T) {
	l := parked()
	errors := store.GroupCount{Group: l.Record.Group(), Parked: 1_000_000, Reasons: store.ReasonsOf("reported")}
	l.Record.Error = ""
	rare := store.GroupCount{Group: l.Record.Group(), Parked: 1, Reasons: store.ReasonsOf("rejected")}
	q := parse(t, "reason:rejected")
	narrow := func() *Narrowed { return q.Narrow(noon, []string{l.Record.Queue}, []store.GroupCount{errors, rare}) }
	if n := narrow(); !n.Sure || !slices.Equal(n.Range.Groups, []errorgroup.ID{rare.ID}) {
		t.Errorf("%+v", n)
	}
	for _, more := range []store.Reasons{store.ReasonsOf("rejected"), store.ReasonsOf("a new one")} {
		errors.Reasons |= more
		if n := narrow(); n.Sure || n.Range.Groups != nil || n.None {
			t.Errorf("with %08b: %+v", errors.Reasons, n)
		}
	}
}

func TestWhatIndexesAnswer(t *testing.T) {
	l := parked()
	g := store.GroupCount{Group: l.Record.Group(), Parked: 1}
	r := *l.Record
	r.Error = ""
	byReason := store.GroupCount{Group: r.Group(), Parked: 1}
	for text, want := range map[string]bool{
		"": true, "queue:orders.*": true, "state:parked queue:orders.eu": true, "group:" + g.ID.String(): true, "parked:<2026-11-21": true, "due:<1h": true,
		"-state:parked": true, "reason:rejected": false, "reason:rejected queue:mail": true, "attempt:>1": false, "acme": false, "age:>2h": false, "state:parked error:x": false,
	} {
		q := parse(t, text)
		groups := []store.GroupCount{g, byReason}
		if text == "reason:rejected queue:mail" {
			groups[0].Queue, groups[1].Queue = "orders", "mail"
		}
		expect.Equal(t, q.Narrow(noon, []string{"orders.eu", "mail"}, groups).Sure, want,
			"%q is answered by indexes", text)
	}
}

// A list has discarded messages only if its query names a state or ids; otherwise they are not read either.
func TestTheQueryOfAList(t *testing.T) {
	for text, want := range map[string]string{
		"": "-state:discarded", "a": "a -state:discarded", "a OR b": "(a OR b) -state:discarded", "-a": "-a -state:discarded", "a (": "a (",
		"state:discarded": "state:discarded", "a -(b state:*)": "a -(b state:*)", "id:" + anID: "id:" + anID, "id:0193*": "id:0193* -state:discarded",
	} {
		expect.Equal(t, Listed(text), want, "of %q", text)
		expect.Equal(t, InAllStates(text), strings.Replace(want, "-state:discarded", "state:*", 1), "of all states, %q", text)
	}
	r := parse(t, Listed("")).Narrow(noon, []string{"orders"}, nil).Range
	expect.Equal(t, r.Without, store.Discarded, "it is without")
}

// What either side of an OR matches is in the range.
func TestTheRangeOfAnORHasBothSides(t *testing.T) {
	day := func(n int) time.Time { return time.Date(2026, 11, n, 0, 0, 0, 0, time.UTC) }
	for text, want := range map[string]span{
		"parked:2026-11-03 OR parked:2026-11-08":  {day(3), day(9)},
		"parked:2026-11-08 OR parked:2026-11-03":  {day(3), day(9)},
		"parked:2026-11-08 OR parked:<2026-11-03": {time.Time{}, day(9)},
		"parked:2026-11-03 OR queue:orders":       {},
		"queue:orders OR parked:2026-11-03":       {},
	} {
		q := parse(t, text)
		if r := q.Narrow(noon, []string{"orders"}, nil).Range; !r.From.Equal(want.from) || !r.To.Equal(want.to) {
			t.Errorf("%s: from %s to %s, want from %s to %s", text, r.From, r.To, want.from, want.to)
		}
	}
}
