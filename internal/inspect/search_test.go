package inspect_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/background"
	"github.com/redrive-mq/redrive/internal/condition"
	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/headers"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/inspect/inspecttest"
	"github.com/redrive-mq/redrive/internal/mask"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/memstore"
	"github.com/redrive-mq/redrive/wire"
)

// shelf is a desk with a few messages on it, each known by its body.
func shelf(t *testing.T, d *desk) {
	t.Helper()
	add := func(queue string, state store.State, minute int, body string, change func(*store.Record)) {
		r := record(queue, state, body)
		r.FailedAt = long.Add(time.Duration(minute) * time.Minute)
		if state == store.Parked {
			r.Due = r.FailedAt
		}
		r.Forward = nil
		if change != nil {
			change(r)
		}
		d.add(t, r)
	}
	add("orders", store.Parked, 1, `{"order":{"total":99}}`, nil)
	add("orders", store.Parked, 2, `{"order":{"total":101}}`, func(r *store.Record) { r.Message.Headers = amqp.Table{"tenant": "acme"} })
	add("orders", store.Waiting, 3, `three`, func(r *store.Record) { r.Error = "timeout after 3s" })
	add("mail", store.Parked, 4, `H4sIAAAAAAAA/0pMTk0EBAAA///gSOXkBgAAAA==`, func(r *store.Record) { r.Error = "timeout after 77s" })
	add("mail", store.Discarded, 5, `five ACME`, func(r *store.Record) { r.Reason, r.Error = "expired", "" })
	add("other", store.Parked, 6, `six`, func(r *store.Record) { r.Reason, r.Error, r.Message.Type = "expired", "", "T" })
}

// found are the bodies of what a search finds, page by page.
func found(t *testing.T, d *desk, by auth.Caller, text string, limit int) (bodies []string) {
	t.Helper()
	after := ""
	for {
		p, err := d.Search(ctx, by, text, after, limit)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if len(p.Messages) > limit || p.Messages == nil {
			t.Fatalf("%s: a page of %d", text, len(p.Messages))
		}
		for _, m := range p.Messages {
			b, err := d.Body(ctx, by, m.Key)
			must(t, err)
			bodies = append(bodies, string(b[:min(5, len(b))]))
		}
		if after = p.After; after == "" {
			return bodies
		}
	}
}

func TestSearch(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		shelf(t, d)
		all, err := d.Search(ctx, caller(auth.Viewer), "", "", 0)
		if err != nil || len(all.Messages) != 6 || all.After != "" || all.Bounded != "" || all.Looked != 6 {
			t.Fatalf("%+v, %v", all, err)
		}
		first := all.Messages[len(all.Messages)-1]
		orders := ""
		for _, m := range all.Messages {
			if m.Queue == "mail" && m.State == inspect.Parked {
				orders = m.Group
			}
		}
		for text, want := range map[string]string{
			"queue:orders state:parked":            "{\"ord {\"ord",
			"queue:m*":                             "five  H4sIA",
			"state:waiting":                        "three",
			"reason:expired":                       "five  six",
			"-state:parked":                        "five  three",
			"error:TIMEOUT":                        "three H4sIA",
			"group:" + orders:                      "H4sIA",
			"group:0000000000000000":               "",
			"header.tenant:acme":                   "{\"ord",
			"body.order.total:>100":                "{\"ord",
			"body.order.total:>98":                 "{\"ord {\"ord",
			"acme":                                 "five ",
			"state:discarded acme":                 "five ",
			"queue:nowhere":                        "",
			"state:waiting state:parked":           "",
			"type:T OR state:waiting":              "three six",
			"after:2026-01-02T03:08Z state:parked": "six H4sIA",
			"parked:2026-01-02T03:05Z":             "{\"ord",
			"due:<2h":                              "three",
			"id:" + first.ID:                       "{\"ord",
			"id:" + first.ID + " state:waiting":    "",
			"id:" + uuid.Nil.String():              "",
			"id:" + strings.ToUpper(first.ID) + " OR id:" + uuid.Nil.String(): "{\"ord",
			"state:retried": "",
		} {
			for _, limit := range []int{1, 2, 1000} {
				got := found(t, d, caller(auth.Viewer), text, limit)
				expect.Equal(t, strings.Join(got, " "), want, "%s, %d a page: found", text, limit)
			}
			n, exact, err := d.Count(ctx, caller(auth.Viewer), text)
			if words := len(found(t, d, caller(auth.Viewer), text, 10)); err != nil || !exact || n != int64(words) {
				t.Errorf("%s counts %d (exactly %v), %v; found %d", text, n, exact, err, words)
			}
		}
		for _, bad := range []struct{ text, after string }{{"state:", ""}, {"", "x"}, {"", "1."}, {"", "-1.ff"}, {"", "1.zz"}} {
			if _, err := d.Search(ctx, caller(auth.Viewer), bad.text, bad.after, 0); err == nil {
				t.Errorf("%+v is taken", bad)
			}
		}
		early := record("mail", store.Waiting, "early")
		early.Due = long
		d.add(t, early)
		for text, want := range map[string]string{"due:<2h": "early three", "state:waiting": "early three",
			"due:<2h OR type:T": "three six early",
			"due:>2000-01-01":   "early three"} {
			for _, limit := range []int{1, 10} {
				expect.Equal(t, strings.Join(found(t, d, caller(auth.Viewer), text, limit), " "), want, "%s, %d a page: found", text, limit)
			}
		}
		expect.Err(t, errOf(d.Search(ctx, caller(auth.Viewer), "", "", 1001)), inspect.ErrInvalid, "a limit of 1,001")
	})
}

// Whoever is limited to queues finds, counts and is shown nothing of others.
func TestOthersQueuesAreNotThere(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		shelf(t, d)
		limited, all := caller(auth.Viewer, "mail*"), caller(auth.Viewer)
		for text, want := range map[string]int{"": 2, "queue:orders": 0, "queue:*": 2, "-queue:mail": 0, "acme": 1, "reason:expired": 1, "timeout": 1} {
			if got := found(t, d, limited, text, 10); len(got) != want {
				t.Errorf("%s: found %q", text, got)
			}
			if n, _, err := d.Count(ctx, limited, text); err != nil || n != int64(want) {
				t.Errorf("%s counts %d, %v", text, n, err)
			}
		}
		p, err := d.Search(ctx, all, "queue:orders", "", 1)
		must(t, err)
		for _, name := range []string{p.Messages[0].ID, p.Messages[0].Key} {
			expect.Err(t, errOf(d.Message(ctx, limited, name)), inspect.ErrNotFound, "%s", name)
			expect.Err(t, errOf(d.Body(ctx, limited, name)), inspect.ErrNotFound, "%s", name)
			p, err := d.Search(ctx, limited, "id:"+p.Messages[0].ID, "", 0)
			if err != nil || len(p.Messages) > 0 || p.Looked > 0 {
				t.Errorf("found %+v, %v", p, err)
			}
		}
		qs, _, err := d.Queues(ctx, limited, "", 0)
		if err != nil || len(qs) != 1 || qs[0].Name != "mail" || qs[0].Parked != 1 || qs[0].Discarded != 1 {
			t.Errorf("queues %+v, %v", qs, err)
		}
		one, err := d.Queue(ctx, limited, "mail")
		if err != nil || one.Parked != 1 || one.GroupCount != 2 || len(one.Groups) != 2 || one.Pattern == "" {
			t.Errorf("queue %+v, %v", one, err)
		}
		for _, other := range []string{"orders", "nothing"} {
			expect.Err(t, errOf(d.Queue(ctx, limited, other)), inspect.ErrNotFound, "queue %s", other)
		}
		theirs, err := d.Groups(ctx, all, "queue:orders", "", "", 1)
		must(t, err)
		expect.Err(t, errOf(d.Group(ctx, limited, theirs.Groups[0].ID)), inspect.ErrNotFound, "another's group")
		for name, want := range map[string]string{"mial": `did you mean "mail"?`, "ordres": "", "q": ""} {
			if err := errOf(d.Queue(ctx, limited, name)); hint.Of(err) != want {
				t.Errorf("queue %s: %v", name, err)
			}
		}
		expect.Equal(t, hint.Of(errOf(d.Queue(ctx, all, "ORDRES"))), `did you mean "orders"?`, "to one who sees all")
		gs, err := d.Groups(ctx, limited, "", "", "", 0)
		if err != nil || len(gs.Groups) != 2 || gs.Groups[0].Queue != "mail" || gs.Groups[1].Queue != "mail" {
			t.Errorf("groups %+v, %v", gs, err)
		}
		o, err := d.Overview(ctx, limited)
		if err != nil || o.Parked != 1 || o.Waiting != 0 || len(o.Queues) != 1 || o.Calendar[2].Count != 0 {
			t.Errorf("overview %+v, %v", o, err)
		}
	})
}

func TestNobodySeesNothing(t *testing.T) {
	d := newDesk(memstore.New())
	by := auth.Caller{}
	var errs []error
	note := func(_ any, err error) { errs = append(errs, err) }
	note(d.Search(ctx, by, "", "", 0))
	note(d.Message(ctx, by, uuid.Nil.String()))
	note(d.Body(ctx, by, "x"))
	note(d.Groups(ctx, by, "", "", "", 0))
	qs, _, err := d.Queues(ctx, by, "", 0)
	note(qs, err)
	note(d.Queue(ctx, by, "mail"))
	note(d.Group(ctx, by, "0000000000000000"))
	note(d.Policies(ctx, by))
	note(d.Overview(ctx, by))
	_, _, err = d.Count(ctx, by, "")
	note(nil, err)
	_, _, err = d.AuditLog(ctx, by, inspect.AuditFilter{}, "", 0)
	note(nil, err)
	for i, err := range errs {
		if !errors.Is(err, auth.ErrSignIn) {
			t.Errorf("%d: %v", i, err)
		}
	}
	if _, _, err := d.AuditLog(ctx, caller(auth.Editor), inspect.AuditFilter{}, "", 0); !errors.Is(err, auth.ErrForbidden) {
		t.Errorf("an editor reads the audit log: %v", err)
	}
}

// That a message with the same id is in another's queue hides nothing, and shows
// nothing.
func TestAnIDInAnothersQueueToo(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		mine := record("mail", store.Waiting, "x")
		d.add(t, mine)
		inspecttest.RetryDue(t, d.store, "mail", time.Now().Add(24*time.Hour))
		for range 2 { // kept, then returned
			others := record("orders", store.Waiting, "x")
			others.ID = mine.ID
			d.add(t, others)
			p, err := d.Search(ctx, caller(auth.Viewer, "mail"), "id:"+mine.ID.String(), "", 0)
			if err != nil || len(p.Messages) != 1 || p.Messages[0].Queue != "mail" || p.Messages[0].State != inspect.Retried || p.Looked != 1 {
				t.Errorf("%+v, %v", p, err)
			}
			inspecttest.RetryDue(t, d.store, "orders", time.Now().Add(24*time.Hour))
		}
	})
}

func TestAPlaceThatIsNone(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		shelf(t, d)
		for _, after := range []string{"x", "1.", "1.zz", "-1.00", ".", "1.0011"} {
			expect.Err(t, errOf(d.Search(ctx, caller(auth.Viewer), "", after, 0)), inspect.ErrInvalid, "%q", after)
		}
	})
}

// A group says in words whether it gets worse.
func TestTheTrendOfAGroup(t *testing.T) {
	for hours, want := range map[[7]int64]string{
		{}:                      "not in the last 24 h",
		{9, 1000}:               "1,009 in 24 h, not in the last 2 h",
		{0, 0, 0, 0, 3, 3, 1}:   "7 in 24 h, new",
		{5, 1, 2, 1, 3, 3, 3}:   "18 in 24 h, rising",
		{0, 9, 9, 9, 9, 1, 1}:   "38 in 24 h, falling",
		{0, 60, 60, 60, 60, 60}: "300 in 24 h, steady",
		{10, 0, 0, 0, 10, 0, 0}: "20 in 24 h, rising",
	} {
		expect.Equal(t, inspect.Group{Hours: hours[:]}.Trend(), want, "%v", hours)
	}
	old := inspect.Group{Hours: []int64{0, 0, 0, 0, 0, 7}, First: long, Last: long.Add(240 * time.Hour)}
	expect.Equal(t, old.Trend(), "7 in 24 h, rising", "one that came back")
	expect.Equal(t, inspect.Group{Reason: "rejected", Type: "paid"}.What(), "rejected, type paid, without an error text", "it has")
}

// One group is shown with its newest error as it came, times to the second, and what its messages have in common.
func TestOneGroup(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		base := time.Now().Add(-time.Hour).Truncate(time.Minute)
		d.add(t, record("orders", store.Parked, "of another group")) // or the search for one would be limited in time
		newest, oldest, parkedFirst := "", "", ""
		for i, seconds := range []int{70, 7, 130} {
			r := record("orders", store.Parked, "x")
			r.Error, r.Failures, r.Message.Type = fmt.Sprintf("card %d declined", 1000+i), 1+i/2, []string{"Paid", "Sent", "Paid"}[i]
			r.FailedAt = base.Add(time.Duration(seconds) * time.Second)
			r.FirstFailed = r.FailedAt
			d.add(t, r)
			newest = r.ID.String()
			if i == 0 {
				parkedFirst = newest
			}
			if i == 1 {
				oldest = newest
			}
		}
		gs, err := d.Groups(ctx, caller(auth.Viewer), "error:declined", "", "", 0)
		must(t, err)
		g, err := d.Group(ctx, caller(auth.Viewer), gs.Groups[0].ID)
		if err != nil || g.Parked != 3 || g.Looked != 3 || g.Bounded || g.Newest.ID != newest ||
			g.Newest.Error != "card 1002 declined" || g.Oldest.ID != oldest {
			t.Errorf("%+v, %v", g, err)
		}
		var recent []string
		for _, m := range g.Recent {
			recent = append(recent, m.Error)
		}
		expect.Equal(t, fmt.Sprint(recent, g.Sample.Text), "[card 1002 declined card 1000 declined card 1001 declined]x",
			"the newest first, and the body of that")
		expect.Equal(t, g.First.Sub(base), 7*time.Second, "since")
		expect.Equal(t, g.Last.Sub(base), 130*time.Second, "last")
		expect.Equal(t, fmt.Sprint(g.Types, g.Attempts), "[{Paid 2} {Sent 1}] [{1 2} {2 1}]", "types and attempts")
		for i := range 1000 {
			r := record("orders", store.Parked, "x")
			r.Error, r.FailedAt = fmt.Sprintf("card %d declined", 2000+i), base.Add(time.Hour/2)
			d.add(t, r)
		}
		if g, err = d.Group(ctx, caller(auth.Viewer), g.ID); err != nil || g.Looked != 1000 || !g.Bounded ||
			g.Parked != 1003 || len(g.Recent) != 5 || g.Oldest.ID != parkedFirst || !g.First.Equal(base.Add(7*time.Second)) {
			t.Errorf("of 1,003 it looked at %d (bounded: %v), the oldest is %s, the first failed %s, %v", g.Looked,
				g.Bounded, g.Oldest.ID, g.First, err)
		}
		for _, none := range []string{"0000000000000000", "nothing", ""} {
			expect.Err(t, errOf(d.Group(ctx, caller(auth.Viewer), none)), inspect.ErrNotFound, "group %q", none)
		}
	})
}

// Columns of one's choice are of what the caller sees, and so is what they take from bodies.
func TestChosenColumns(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		shelf(t, d)
		for _, c := range []struct {
			by   auth.Caller
			q    string
			want string
		}{
			{caller(auth.Viewer), "queue:orders state:parked", "[orders 101 acme] [orders 99 ]"},
			{caller(auth.Viewer), "state:waiting", "[orders  ]"},
			{caller(auth.Viewer, "mail"), "state:parked body.order.total:*", ""},
		} {
			p, err := d.Search(ctx, c.by, c.q, "", 0, "queue,body.order.total", "header.tenant")
			must(t, err)
			var got []string
			for _, m := range p.Messages {
				got = append(got, fmt.Sprintf("[%s %s %s]", m.Columns["queue"], m.Columns["body.order.total"], m.Columns["header.tenant"]))
			}
			expect.Equal(t, strings.Join(got, " "), c.want, "%s", c.q)
		}
		expect.Err(t, errOf(d.Search(ctx, caller(auth.Viewer), "", "", 0, "qeue")), inspect.ErrInvalid, "an unknown column")
		p, err := d.Search(ctx, caller(auth.Viewer), "", "", 0)
		must(t, err)
		expect.Equal(t, p.Messages[0].Columns == nil, true, "columns that nobody asked for")
	})
}

// Bodies are only read for columns that show them, of the messages of the page alone, and no longer than a page
// is looked for.
func TestColumnsOfBodiesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kept := &bodies{Store: memstore.New()}
		d := newDesk(kept)
		var all []*store.Record
		for i := range 150 {
			r := record("orders", store.Parked, fmt.Sprintf(`{"n":%d}`, i))
			r.ID[15], r.Forward = byte(i), nil
			all = append(all, r)
		}
		d.add(t, all...)
		for columns, want := range map[string][3]int{"queue": {150, 0, 0}, "body.n": {100, 100, 0}} {
			kept.read = 0
			p, err := d.Search(ctx, caller(auth.Viewer), "state:parked", "", 1000, columns)
			must(t, err)
			expect.Equal(t, [3]int{len(p.Messages), kept.read, len(p.Bounded)}, want, "%s", columns)
		}
		kept.takes = 300 * time.Millisecond
		p, err := d.Search(ctx, caller(auth.Viewer), "state:parked", "", 10, "body.n")
		must(t, err)
		expect.Equal(t, p.Bounded, "the bodies of the last 6 messages were not decoded, since that takes long", "a page of ten")
		if p.Messages[3].Columns["body.n"] == "" || p.Messages[4].Columns["body.n"] != "" {
			t.Errorf("%v", p.Messages)
		}
	})
}

// bodies counts the bodies that are read, each of which takes a while.
type bodies struct {
	store.Store
	read  int
	takes time.Duration
}

func (b *bodies) Get(ctx context.Context, key store.Key) (store.Listed, error) {
	b.read++
	time.Sleep(b.takes)
	return b.Store.Get(ctx, key)
}

// What only bodies or unindexed fields tell is looked for among the newest, and the
// page says so.
func TestASearchIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // by what it reads: no time passes
		s := memstore.New()
		d := newDesk(s)
		for from := 0; from < 100_100; from += 1000 {
			var batch []*store.Record
			for i := range 1000 {
				at := long.Add(time.Duration(from+i) * time.Second)
				batch = append(batch, &store.Record{ID: uuid.UUID{byte(i), byte(i >> 8), byte(from >> 8), byte(from >> 16)}, Queue: "orders", State: store.Parked, Due: at, FailedAt: at, Failures: from + i,
					Message: wire.Message{Type: "T"}})
			}
			d.add(t, batch...)
		}
		all := func(text string) (n int, looked int64, bounded string) {
			after := ""
			for {
				p, err := d.Search(ctx, caller(auth.Viewer), text, after, 1000)
				must(t, err)
				n, looked = n+len(p.Messages), looked+p.Looked
				if after = p.After; after == "" {
					return n, looked, p.Bounded
				}
			}
		}
		if n, looked, bounded := all("attempt:<5"); n != 0 || looked != 100_000 || !strings.Contains(bounded, "100000") {
			t.Errorf("found %d of %d: %q", n, looked, bounded)
		}
		if n, _, bounded := all("parked:<2026-01-02T03:04:10Z"); n != 5 || bounded != "" {
			t.Errorf("by an index: found %d: %q", n, bounded)
		}
		if n, exact, err := d.Count(ctx, caller(auth.Viewer), "type:T"); n != 100_000 || exact || err != nil {
			t.Errorf("counted %d (exactly %v), %v", n, exact, err)
		}
		ctx, cancel := context.WithCancel(ctx)
		cancel()
		expect.Err(t, errOf(d.Search(ctx, caller(auth.Viewer), "attempt:<5", "", 0)), context.Canceled, "canceled")
	})
}

// sluggish takes a second for each record.
type sluggish struct{ store.Store }

func (s sluggish) Scan(ctx context.Context, r store.Range, visit func(store.Listed) (bool, error)) error {
	return s.Store.Scan(ctx, r, func(l store.Listed) (bool, error) {
		time.Sleep(time.Second)
		return visit(l)
	})
}

// The counts behind the tabs of a page come from the store's counts, of what the caller sees; not known is not
// none.
func TestCountingStatesLooksAtNoMessage(t *testing.T) {
	d := newDesk(unscanned{memstore.New()})
	d.add(t, inspecttest.Parked("orders", 3)...)
	d.add(t, inspecttest.Parked("mail", 2)...)
	waiting := inspecttest.Parked("orders", 1)[0]
	waiting.ID, waiting.State = uuid.UUID{9}, store.Waiting
	d.add(t, waiting)
	limited := caller(auth.Viewer)
	limited.Queues = []string{"mail"}
	for _, c := range []struct {
		by    auth.Caller
		query string
		want  inspect.StateCounts
		known bool
	}{
		{caller(auth.Viewer), "", inspect.StateCounts{Waiting: 1, Parked: 5}, true},
		{caller(auth.Viewer), "queue:ord*", inspect.StateCounts{Waiting: 1, Parked: 3}, true},
		{limited, "", inspect.StateCounts{Parked: 2}, true},
		{limited, "queue:orders", inspect.StateCounts{}, true},
		{caller(auth.Viewer), "text:x", inspect.StateCounts{}, false},
	} {
		n, known, err := d.CountStates(ctx, c.by, c.query)
		if known != c.known || err != nil || known && n != c.want {
			t.Errorf("%v %q: %+v (known %v), %v; want %+v", c.by.Queues, c.query, n, known, err, c.want)
		}
	}
}

// unscanned has no messages to look at.
type unscanned struct{ store.Store }

func (unscanned) Scan(context.Context, store.Range, func(store.Listed) (bool, error)) error {
	return errors.New("a message was looked at")
}

// Who counts what only bodies tell does not wait for all of them.
func TestACountEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(sluggish{memstore.New()})
		d.add(t, inspecttest.Parked("orders", 1000)...)
		began := time.Now()
		n, exact, err := d.Count(ctx, caller(auth.Viewer), "text:*")
		if took := time.Since(began); exact || n < 5 || n > 10 || took > 10*time.Second || err != nil {
			t.Errorf("counted %d (exactly %v) in %v, %v", n, exact, took, err)
		}
	})
}

// A search takes a third of the time only while messages are being retried, and bodies are searched by
// few at once.
func TestSearchesMakeWayForRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(sluggish{memstore.New()})
		d.add(t, inspecttest.Parked("orders", 3)...)
		for busy, want := range map[bool]int64{false: 3, true: 1} { // in the five seconds that a count has
			d.Busy = func() bool { return busy }
			if n, exact, err := d.Count(ctx, caller(auth.Viewer), "text:*"); n != want || exact == busy || err != nil {
				t.Errorf("busy %v: counted %d (exactly %v), want %d: %v", busy, n, exact, want, err)
			}
		}
		d.Busy = nil
		var refused atomic.Int32
		began := time.Now()
		var counting sync.WaitGroup
		for _, name := range []string{"ann", "bob", "cy", "di"} {
			counting.Go(func() {
				by := caller(auth.Viewer)
				by.Name = name
				if _, _, err := d.Count(ctx, by, "text:*"); err != nil {
					t.Error(err)
				}
			})
		}
		if counting.Wait(); time.Since(began) != 6*time.Second {
			t.Errorf("four searches of three seconds are done after %v, two at a time", time.Since(began))
		}
		for range 20 {
			counting.Go(func() {
				if _, _, err := d.Count(ctx, caller(auth.Viewer), "text:*"); errors.Is(err, background.ErrTooMany) {
					refused.Add(1)
				}
			})
		}
		if counting.Wait(); refused.Load() != 13 {
			t.Errorf("%d of 20 searches of one caller are refused, when they have waited for 20 s", refused.Load())
		}
	})
}

// What has returned is found until it fails again.
func TestRetriedMessagesAreFound(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		viewer := caller(auth.Viewer)
		var ids []string
		for i := range 5 {
			r := record("orders", store.Waiting, "x")
			r.Error = fmt.Sprintf("error %d", i)
			ids = append(ids, r.ID.String())
			d.add(t, r)
			if i != 3 { // two of them at once
				inspecttest.RetryDue(t, d.store, "orders", time.Now().Add(24*time.Hour))
			}
		}
		again := record("orders", store.Parked, "x")
		again.ID, again.Failures = uuid.MustParse(ids[2]), 4
		d.add(t, again)
		for _, limit := range []int{1, 2, 10} {
			var got []string
			after := ""
			for {
				p, err := d.Search(ctx, viewer, "state:retried", after, limit)
				must(t, err)
				for _, m := range p.Messages {
					if m.State != inspect.Retried || m.RetriedAt == nil || m.Key != "" || m.Due != nil {
						t.Fatalf("%+v", m)
					}
					got = append(got, m.ID)
				}
				if after = p.After; after == "" {
					break
				}
			}
			if n, exact, err := d.Count(ctx, viewer, "state:retried"); n != 4 || !exact || err != nil {
				t.Fatalf("counted %d (exactly %v), %v", n, exact, err)
			}
			if len(got) == 4 && got[0] == ids[3] {
				got[0], got[1] = got[1], got[0] // they ended together
			}
			if want := []string{ids[4], ids[3], ids[1], ids[0]}; !slices.Equal(got, want) {
				t.Fatalf("%d a page: %q, want %q", limit, got, want)
			}
		}
		p, err := d.Search(ctx, viewer, "id:"+ids[0], "", 0)
		if err != nil || len(p.Messages) != 1 || p.Messages[0].State != inspect.Retried {
			t.Fatalf("by id: %+v, %v", p, err)
		}
		p, err = d.Search(ctx, viewer, `state:retried error:"error 3"`, "", 0)
		if err != nil || len(p.Messages) != 1 || p.Messages[0].ID != ids[3] {
			t.Fatalf("by its error: %+v, %v", p, err)
		}
		m, err := d.Message(ctx, viewer, ids[0])
		if err != nil || m.State != inspect.Retried || len(m.Timeline) != 1 || m.Timeline[0].Ending != "retried" || m.Timeline[0].Ended == nil || m.Body != nil {
			t.Fatalf("%+v, %v", m, err)
		}
		expect.Err(t, errOf(d.Body(ctx, viewer, ids[0])), inspect.ErrNotFound, "its body")
		m, err = d.Message(ctx, viewer, ids[2])
		if err != nil || m.State != inspect.Parked || len(m.Timeline) != 2 || m.Timeline[1].Why != "out of attempts" || m.Timeline[1].Ended != nil {
			t.Fatalf("%+v, %v", m, err)
		}
		if got := found(t, d, caller(auth.Viewer, "mail"), "state:retried", 10); got != nil {
			t.Errorf("others see %q", got)
		}
		first := time.Now().Add(-time.Hour).Truncate(time.Second)
		twice := record("mail", store.Waiting, "x")
		for i := range 2 {
			twice.Error, twice.Failures, twice.FailedAt, twice.FirstFailed = "", i+1, first.Add(time.Duration(i)*time.Minute), first
			d.add(t, twice)
			inspecttest.RetryDue(t, d.store, "mail", time.Now().Add(24*time.Hour))
		}
		m, err = d.Message(ctx, viewer, twice.ID.String())
		if err != nil || !m.FirstFailed.Equal(first) || m.Group != "" {
			t.Errorf("one that failed twice, without an error: %s, group %q, %v", m.FirstFailed, m.Group, err)
		}
	})
}

func orders() policy.Policy {
	return policy.Policy{Name: "orders", Queues: []string{"orders*"}, Attempts: 4, Backoff: policy.Exponential(10*time.Second, 2, time.Minute), Jitter: policy.Fraction(0.2)}
}

func TestWhyThatDelay(t *testing.T) {
	s := memstore.New()
	c := inspect.New(inspect.Config{Store: s, Policies: func() policy.Set { return policy.Set{orders()} }})
	for i, step := range []struct {
		change func(*store.Record)
		delay  string
		why    []string
	}{
		{func(r *store.Record) {}, "19s", []string{`failure 2 of 4`, `policy "orders" waits 16s to 24s (20s with jitter ±20%)`}},
		{func(r *store.Record) { r.Due = r.FailedAt.Add(time.Hour) }, "1h", []string{"this differs because"}},
		{func(r *store.Record) { r.Failures = 0 }, "", []string{"a person replayed it"}},
		{func(r *store.Record) { r.Policy = "old" }, "19s", []string{`policy "old" decided, which is not in force any more`}},
		{func(r *store.Record) { r.Failures = 9 }, "19s", []string{"failure 9 of the 4"}},
		{func(r *store.Record) { r.Forward = &store.Destination{Exchange: "x"} }, "", []string{`it goes to exchange "x"`}},
		{func(r *store.Record) { r.State, r.ParkedFor = store.Parked, "tired" }, "", []string{"tired"}},
		{func(r *store.Record) { r.State = store.Discarded }, "", []string{"a person discarded it"}},
	} {
		r := record("orders.eu", store.Waiting, "x")
		r.Policy, r.Failures, r.FirstFailed, r.Due = "orders", 2, r.FailedAt.Add(-time.Hour), r.FailedAt.Add(19*time.Second)
		step.change(r)
		must(t, s.Add(ctx, []*store.Record{r}))
		m, err := c.Message(ctx, caller(auth.Viewer), r.ID.String())
		must(t, err)
		last := m.Timeline[len(m.Timeline)-1]
		expect.Equal(t, last.Delay, step.delay, "%d: waits", i)
		for _, why := range step.why {
			if !strings.Contains(last.Why, why) {
				t.Errorf("%d: because %q, not %q", i, last.Why, why)
			}
		}
		if r.Failures > 1 && (len(m.Timeline) != 2 || m.Timeline[0].Attempt != 1 || !m.Timeline[0].Failed.Equal(r.FirstFailed)) {
			t.Errorf("%d: the first failure is not there: %+v", i, m.Timeline)
		}
	}
}

func TestWhoseHeaders(t *testing.T) {
	s := memstore.New()
	c := inspect.New(inspect.Config{Store: s})
	r := record("orders", store.Parked, `{"a":1}`)
	r.Proven = true
	r.Message.Headers = amqp.Table{"x-death": []any{amqp.Table{"queue": "orders", "count": int64(9007199254740993), "raw": []byte{0xff}}},
		"x-first-death-queue": "orders", "x-redrive-attempt": int64(2), "tenant": "a<b>", "none": nil, "when": long}
	r.Message.DeliveryMode, r.Message.Priority, r.Message.Timestamp = 2, 3, long
	forged := record("orders", store.Parked, "")
	forged.Message.Headers = amqp.Table{"x-death": []any{}}
	must(t, s.Add(ctx, []*store.Record{r, forged}))
	m, err := c.Message(ctx, caller(auth.Viewer), r.ID.String())
	must(t, err)
	want := []inspect.Header{
		{Name: "none", Type: "void", From: "publisher"},
		{Name: "tenant", Type: "string", Value: "a<b>", From: "publisher"},
		{Name: "when", Type: "timestamp", Value: "2026-01-02T03:04:05Z", From: "publisher"},
		{Name: "x-death", Type: "array", Value: `[{"count":9007199254740993,"queue":"orders","raw":"/w=="}]`, From: "broker"},
		{Name: "x-first-death-queue", Type: "string", Value: "orders", From: "publisher"},
		{Name: "x-redrive-attempt", Type: "int64", Value: "2", From: "redrive"},
	}
	if !slices.Equal(m.Headers, want) {
		t.Errorf("headers are %+v", m.Headers)
	}
	props := []inspect.Property{{"delivery_mode", "2 (persistent)"}, {"priority", "3"}, {"timestamp", "2026-01-02T03:04:05Z"}}
	if !slices.Equal(m.Properties, props) {
		t.Errorf("properties are %+v", m.Properties)
	}
	if m.Body == nil || m.Body.Format != "json" {
		t.Errorf("the body is %+v", m.Body)
	}
	if m, err = c.Message(ctx, caller(auth.Viewer), forged.ID.String()); err != nil || m.Headers[0].From != "publisher" {
		t.Errorf("without proof x-death is %+v, %v", m.Headers, err)
	}
}

// A name proves nothing: a consumer's report, its annotations and a publisher write x-redrive-* too.
func TestWhoseRedriveHeaders(t *testing.T) {
	for _, c := range []struct{ name, reason, headers, note, want string }{
		{"a first report", "reported", "error delay park tenant", "",
			"delay=consumer error=consumer park=consumer tenant=publisher"},
		{"the report of a retried message", "reported", "id attempt queue error delay", "",
			"attempt=redrive delay=consumer error=consumer id=redrive queue=redrive"},
		{"a retried message, rejected", "rejected", "id attempt error other", "",
			"attempt=redrive error=redrive id=redrive other=publisher"},
		{"rejected by AMQP 1.0", "rejected", "id attempt error rejected-for delay park", "",
			"attempt=redrive delay=consumer error=redrive id=redrive park=consumer rejected-for=consumer"},
		{"at the delivery limit", "delivery_limit", "rejected-for", "", "rejected-for=consumer"},
		{"expired, and no consumer had it", "expired", "rejected-for delay park", "",
			"delay=publisher park=publisher rejected-for=publisher"},
		{"reported with an annotation's name", "reported", "rejected-for", "", "rejected-for=publisher"},
		{"another message's, copied or forged", "rejected", "id attempt queue error", headers.Foreign,
			"attempt=publisher error=publisher id=publisher queue=publisher"},
		{"never published by Redrive", "rejected", "queue error reason", "",
			"error=publisher queue=publisher reason=publisher"},
		{"parked in RabbitMQ", "rejected", "id parked-for", "", "id=redrive parked-for=redrive"},
	} {
		s := memstore.New()
		r := record("orders", store.Parked, "")
		r.Reason, r.Message.Headers = c.reason, amqp.Table{}
		if c.note != "" {
			r.Notes = []string{"odd", c.note}
		}
		for _, name := range strings.Fields(c.headers) {
			r.Message.Headers["x-redrive-"+name] = "x"
		}
		must(t, s.Add(ctx, []*store.Record{r}))
		m, err := inspect.New(inspect.Config{Store: s}).Message(ctx, caller(auth.Viewer), r.ID.String())
		must(t, err)
		got := []string{}
		for _, h := range m.Headers {
			got = append(got, strings.TrimPrefix(h.Name, "x-redrive-")+"="+h.From)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %v\nwant %s", c.name, got, c.want)
		}
	}
}

func TestMessagesThatShareAnID(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		a, b, c := record("orders", store.Parked, "a"), record("mail", store.Parked, "b"), record("secret", store.Parked, "c")
		b.ID, c.ID = a.ID, a.ID
		d.add(t, a, b, c)
		by := caller(auth.Viewer, "orders", "mail")
		m, err := d.Message(ctx, by, a.ID.String())
		if err != nil || m.Queue != "orders" || len(m.SameID) != 1 || m.SameID[0].Queue != "mail" {
			t.Fatalf("%+v, %v", m, err)
		}
		m, err = d.Message(ctx, by, m.SameID[0].Key)
		if err != nil || m.Queue != "mail" || len(m.SameID) != 1 || m.SameID[0].Queue != "orders" {
			t.Fatalf("%+v, %v", m, err)
		}
		for name, begins := range map[string]bool{"": false, "x": false, "16cb172a": true, uuid.Nil.String(): false} {
			err := errOf(d.Message(ctx, by, name))
			expect.Err(t, err, inspect.ErrNotFound, "%q", name)
			expect.Equal(t, strings.Contains(err.Error(), "id:"+name+"* finds it"), begins, "the hint for %q: %v",
				name, err)
		}
	})
}

// The rule that a group shows parses, and matches the group's own failures.
func TestARuleOfAGroupMatchesIt(t *testing.T) {
	s := memstore.New()
	d := newDesk(s)
	failures := map[string]policy.Failure{}
	for i, text := range []string{"Shop.ValidationError: invalid IBAN DE4711", "dial tcp 10.1.2.3:5432: connection refused after 30s", "7", "",
		`it's "quoted" \ and #1`, "KeyError: 'a'", "Traceback (most recent call last):\n  File \"x\"\nshop.Bad: order 17 of 2026-11-20",
		"at 10:15:03 job 0193e0a4-5f00-7000-8000-0123456789ab failed"} {
		r := inspecttest.Record("orders", store.Parked, "body")
		r.Error, r.Reason, r.Message.Type = text, "reported", fmt.Sprint("Type ", i)
		inspecttest.Add(t, s, r)
		failures[s.GroupOf(r).String()] = policy.Failure{Queue: "orders", Reason: r.Reason, Attempt: 1, Error: text, Message: &r.Message}
	}
	page, err := d.Groups(ctx, caller(auth.Viewer), "", "", "", 0)
	must(t, err)
	for _, g := range page.Groups {
		f := failures[g.ID]
		c, err := config.Parse("rule.yaml", []byte("policies:\n  - queues: [orders]\n    "+strings.ReplaceAll(g.Rule, "\n", "\n    ")))
		if err != nil {
			t.Errorf("%q: %v in\n%s", f.Error, err, g.Rule)
			continue
		}
		if v := c.Policies[0].Decide(f); v.Action != policy.Park || v.Rule != "1" {
			t.Errorf("%q: %+v by\n%s", f.Error, v, g.Rule)
		}
	}
	expect.Equal(t, len(page.Groups), len(failures), "groups")
}

// A waiting message says what keeps it back. A forward waits for its target alone.
func TestWhatHoldsAMessageBack(t *testing.T) {
	now := time.Now()
	until, dead := now.Add(time.Minute), &store.Destination{RoutingKey: "dead"}
	view := func(change func(*inspect.ThrottleView)) *inspect.ThrottleView {
		v := &inspect.ThrottleView{State: "closed"}
		change(v)
		return v
	}
	open := view(func(v *inspect.ThrottleView) {
		v.State, v.Why, v.Since, v.Until = "open", "9 of 10 failed", &now, &until
	})
	limited := view(func(v *inspect.ThrottleView) { v.LimitedBy = throttle.WhyRate })
	const none = "; no probe is sent while it is paused"
	const paused, before = "retries are paused by ana: the supplier is down, since", "messages of its queue " +
		"that are due before it: 2"
	for name, is := range map[string]struct {
		overdue, paused bool
		throttle        *inspect.ThrottleView
		holds           []condition.Condition
		forward         *store.Destination
		want            string
		listed          string // as a tag in the list
		state           store.State
	}{
		"nothing":             {throttle: limited},
		"those due before it": {overdue: true, want: before},
		"a person":            {paused: true, want: paused, listed: "paused"},
		"its breaker": {paused: true, throttle: open,
			want: paused + "; its breaker is open: 9 of 10 failed" + none + ", since", listed: "paused"},
		"its probes": {paused: true, throttle: view(func(v *inspect.ThrottleView) { v.State, v.Why = "half-open", "3 are sent" }),
			want: paused + "; its breaker is half-open" + none, listed: "paused"},
		"its breaker by a person": {paused: true, listed: "paused", throttle: view(func(v *inspect.ThrottleView) {
			v.State, v.Forced = "open", &inspect.Forced{To: "open", By: "bo"}
		}), want: paused + "; its breaker is set to open by bo" + none},
		"its ramp": {paused: true, throttle: view(func(v *inspect.ThrottleView) { v.State = "ramp" }), want: paused, listed: "paused"},
		"no consumers of a paused one": {paused: true, throttle: view(func(v *inspect.ThrottleView) { v.NoConsumer = &now }),
			want: paused + "; it has no consumers, since", listed: "paused"},
		"a parked one": {overdue: true, paused: true, state: store.Parked, throttle: limited, forward: dead, holds: []condition.Condition{
			{Kind: condition.Forward, Queue: "orders", Target: dead.String(), Text: "full"}}, want: paused},
		"its breaker alone": {overdue: true, throttle: open, want: "breaker open: 9 of 10 failed, since, until; " + before,
			listed: "breaker open"},
		"no consumers": {throttle: view(func(v *inspect.ThrottleView) { v.NoConsumer = &now }),
			want: "paused: no consumers, since", listed: "no consumers"},
		"its rate": {overdue: true, throttle: limited, want: "retries are limited by rate; " + before},
		"its queue": {holds: []condition.Condition{{Kind: condition.Unreachable, Queue: "mail", Text: "gone"},
			{Kind: condition.Clock, Text: "wrong"}, {Kind: condition.Unreachable, Queue: "orders", Text: "full"}},
			want: "retries are stopped: full", listed: "stopped"},
		"no connection": {holds: []condition.Condition{{Kind: condition.Publish, Text: "refused"}},
			want: "retries: refused, since"},
		"its target": {overdue: true, paused: true, throttle: open, forward: dead, holds: []condition.Condition{
			{Kind: condition.Forward, Queue: "orders", Target: "queue dead letters", Text: "gone"},
			{Kind: condition.Unreachable, Queue: "orders", Text: "full"},
			{Kind: condition.Forward, Queue: "orders", Target: dead.String(), Text: "full"}},
			want: "forwards of queue orders to queue dead: full, since"},
	} {
		t.Run(name, func(t *testing.T) {
			s := memstore.New()
			c := inspect.New(inspect.Config{Store: s, Throttle: func(string) *inspect.ThrottleView { v := *is.throttle; return &v },
				Conditions: func() []condition.Condition { return is.holds }, Now: func() time.Time { return now },
				Holds: func(of condition.Condition) string {
					for _, c := range is.holds {
						if c.Kind == of.Kind && c.Queue == of.Queue {
							return c.Text
						}
					}
					return ""
				},
				Policies: inspecttest.Everything})
			if is.throttle == nil {
				c.Throttle = nil
			}
			if is.paused {
				value, _ := json.Marshal(inspect.QueuePause{By: "ana", Reason: "the supplier is down", Since: now})
				must(t, s.PutEntries(ctx, []store.Entry{{Name: store.PausePrefix + "orders", Value: value}}))
			}
			var all []*store.Record
			for i := range 3 {
				r := record("orders", cmp.Or(is.state, store.Waiting), "x")
				r.Due, r.Forward = now.Add(time.Duration(i)*time.Second), is.forward
				if is.overdue {
					r.Due = r.Due.Add(-time.Minute)
				}
				all = append(all, r)
			}
			must(t, s.Add(ctx, all))
			m, err := c.Message(ctx, caller(auth.Viewer), all[2].ID.String())
			must(t, err)
			var got []string
			for _, h := range m.HeldBy {
				text := h.Why
				if h.Since != nil {
					text += ", since"
				}
				if h.Until != nil {
					text += ", until"
				}
				got = append(got, text)
			}
			expect.Equal(t, strings.Join(got, "; "), is.want, "held back by")
			p, err := c.Search(ctx, caller(auth.Viewer), "queue:orders", "", 0)
			must(t, err)
			for _, m := range p.Messages {
				expect.Equal(t, m.Held, is.listed, "held back by, in the list")
			}
			some := map[bool]string{true: "3 held back, even once due: 3 " + is.listed}[is.listed != ""]
			expect.Equal(t, p.HeldBack(), some, "held back on the page")
			if h := m.Holding(); m.State == inspect.Waiting &&
				(h != nil && h.What != m.Held || (h == nil) != (m.Held == "") || is.listed != "" && m.Held != is.listed) {
				t.Errorf("held by %+v, in a word %q, in the list %q", h, m.Held, is.listed)
			}
		})
	}
}

// The errors of earlier failures are masked as the last one is, and so is what a group shows of its messages.
func TestPastFailuresAreMasked(t *testing.T) {
	s := memstore.New()
	c := inspect.New(inspect.Config{Store: s})
	rules := mask.New([]mask.Entry{{Patterns: []string{"/ann/"}}}, mask.DefaultBodies())
	c.Mask = func() *mask.Rules { return rules }
	r := record("orders", store.Waiting, `"ann"`)
	r.Error = "ann has no account"
	must(t, s.Add(ctx, []*store.Record{r}))
	inspecttest.RetryDue(t, s, "orders", r.Due)
	again := *r
	again.Failures, again.State = r.Failures+1, store.Parked
	must(t, s.Add(ctx, []*store.Record{&again}))
	for role, want := range map[auth.Role]string{auth.Viewer: "[masked] has no account", auth.Admin: "ann has no account"} {
		m, err := c.Message(ctx, caller(role), r.ID.String())
		must(t, err)
		expect.Equal(t, len(m.Timeline), 2, "failures")
		for i, step := range m.Timeline {
			expect.Equal(t, step.Error, want, "failure %d as %s sees it", i, role)
		}
		g, err := c.Group(ctx, caller(role), m.Group)
		must(t, err)
		expect.Equal(t, fmt.Sprint(g.Recent[0].Error, g.Sample.Text), fmt.Sprint(want, m.Body.Text), "the group as %s sees it", role)
		expect.Equal(t, strings.Contains(g.Sample.Text, "ann"), role == auth.Admin, "%s sees the body whole", role)
	}
}

// A replay sets the failures of a record back to 0.
func TestFailuresOfAReplayedMessage(t *testing.T) {
	first := time.Now().Add(-time.Hour)
	for _, is := range []struct {
		failures []int // of its records, 0: replayed after it failed
		last     store.State
		from     int // the first of them that is remembered
		attempts []int
		text     string
	}{
		{[]int{1, 2}, store.Parked, 0, []int{1, 2}, "2"},
		{[]int{1, 2, 0}, store.Waiting, 0, []int{1, 2, 3}, "3, before its replay"},
		{[]int{1, 2, 0, 1}, store.Parked, 0, []int{1, 2, 3, 1}, "4, 1 since its replay"},
		{[]int{0, 0, 1, 2}, store.Waiting, 0, []int{1, 1, 1, 2}, "4, 2 since its replay"},
		{[]int{1, 0, 1}, store.Waiting, 2, []int{1}, "at least 2, 1 since its replay"},
		{[]int{1, 2, 0, 1}, store.Parked, 2, []int{1, 0, 1}, "at least 3, 1 since its replay"},
	} {
		s := memstore.New()
		c := inspect.New(inspect.Config{Store: s})
		r := record("orders", store.Waiting, "x")
		r.FirstFailed = first.Truncate(time.Second)
		for i, n := range is.failures {
			r.Failures, r.FailedAt = n, first.Add(time.Duration(i)*time.Minute)
			if n == 0 {
				r.Replays++
			}
			if i < is.from {
				continue
			}
			if i == len(is.failures)-1 {
				r.State = is.last
			}
			must(t, s.Add(ctx, []*store.Record{r}))
			if i < len(is.failures)-1 {
				inspecttest.RetryDue(t, s, "orders", time.Now().Add(24*time.Hour))
			}
		}
		m, err := c.Message(ctx, caller(auth.Viewer), r.ID.String())
		must(t, err)
		var attempts []int
		for _, step := range m.Timeline {
			attempts = append(attempts, step.Attempt)
		}
		expect.Equal(t, fmt.Sprint(attempts), fmt.Sprint(is.attempts), "attempts of %v", is.failures)
		expect.Equal(t, m.FailuresText(), is.text, "failures of %v", is.failures)
	}
}
