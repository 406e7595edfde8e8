package inspect_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/redrive-mq/redrive/internal/audit"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/condition"
	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/inspect/inspecttest"
	"github.com/redrive-mq/redrive/internal/mask"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/memstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	ctx      = context.Background()
	caller   = inspecttest.Caller
	operator = caller(auth.Operator)
	record   = inspecttest.Record
	long     = inspecttest.Long
)

// desk is an Inspector with all that it needs, over an engine.
type desk struct {
	*inspect.Inspector
	store    store.Store
	throttle *inspect.ThrottleView
}

// What is overdue, due and held back are kept apart, and the slots are as long as what is due needs.
func TestTheOverviewTellsWhatIsDue(t *testing.T) {
	for name, c := range map[string]struct {
		due    []time.Duration // of messages for orders
		says   string
		length time.Duration
		counts []int64 // of the first slots
	}{
		"in minutes": {[]time.Duration{90 * time.Second, 3 * time.Minute}, "next due in 1m 30s, 2 held back", time.Minute, []int64{0, 1, 0, 1, 0}},
		"in an hour": {[]time.Duration{90 * time.Second, 50 * time.Minute}, "next due in 1m 30s, 2 held back", 5 * time.Minute, []int64{1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}},
		"in hours":   {[]time.Duration{90 * time.Second, 5 * time.Hour}, "next due in 1m 30s, 2 held back", 30 * time.Minute, []int64{1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}},
		"just now":   {[]time.Duration{-time.Second}, "due now, 2 held back", time.Minute, []int64{1, 0}},
		"overdue":    {[]time.Duration{-time.Minute, -time.Hour, time.Minute}, "2 overdue, 2 held back", time.Minute, []int64{0, 1, 0}},
		"thousands": {slices.Repeat([]time.Duration{-time.Minute}, 1001),
			"1,001 overdue, 2 held back", 30 * time.Minute, []int64{0}},
		"nothing": {nil, "2 held back", 30 * time.Minute, []int64{0, 0}},
	} {
		synctest.Test(t, func(t *testing.T) {
			d := newDesk(memstore.New())
			now := time.Now()
			add := func(queue string, after time.Duration) {
				r := record(queue, store.Waiting, "x")
				r.Due = now.Add(after)
				d.add(t, r)
			}
			for _, after := range c.due {
				add("orders", after)
			}
			add("mail", -time.Hour)
			add("mail", time.Minute)
			must(t, d.store.PutEntries(ctx, []store.Entry{{Name: store.PausePrefix + "mail", Value: []byte("{}")}}))
			o, err := d.Overview(ctx, caller(auth.Viewer))
			must(t, err)
			var counts []int64
			for i, s := range o.Calendar {
				if counts = append(counts, s.Count); i > 0 && (!s.From.Equal(o.Calendar[i-1].To) || s.To.Sub(s.From) != c.length) {
					t.Errorf("%s: slot %d is from %v to %v", name, i, s.From, s.To)
				}
			}
			expect.Equal(t, o.Due(), c.says, "%s: it says", name)
			if !slices.Equal(counts[:len(c.counts)], c.counts) {
				t.Errorf("%s: the slots have %d, want %d", name, counts, c.counts)
			}
		})
	}
}

func newDesk(s store.Store) *desk {
	d := &desk{store: s}
	d.Inspector = inspect.New(inspect.Config{Store: s, Audit: &inspecttest.AuditLog{}, Broker: inspecttest.NewQueues(), Policies: inspecttest.Everything,
		Throttle: func(string) *inspect.ThrottleView { return d.throttle }})
	return d
}

// each runs a test over both engines.
func each(t *testing.T, test func(t *testing.T, d *desk)) {
	inspecttest.Stores(t, func(t *testing.T, s store.Store) { test(t, newDesk(s)) })
}

func (d *desk) add(t *testing.T, records ...*store.Record) {
	t.Helper()
	inspecttest.Add(t, d.store, records...)
}

// activity is as if the same happened to each queue.
type activity struct{ failed int64 }

func (r *activity) Minute(string, time.Time) inspect.Flow { return inspect.Flow{Failed: 2, Retried: 1} }

func (r *activity) Hour(_ time.Time, sees func(string) bool) []inspect.Flow {
	return make([]inspect.Flow, 60)
}

func (r *activity) Day(time.Time, string) []inspect.Flow { return make([]inspect.Flow, 48) }

func (r *activity) Queues() []string { return []string{"orders", "quiet"} }

func (r *activity) Failed(func(string) bool) int64 { return r.failed }

// slow answers for some 25 queues a second and asker.
type slow struct{}

func (slow) Queue(ctx context.Context, name string) (inspect.AtBroker, error) {
	select {
	case <-time.After(40 * time.Millisecond):
		return inspect.AtBroker{Exists: true}, nil
	case <-ctx.Done():
		return inspect.AtBroker{}, ctx.Err()
	}
}

// Of very many queues some are asked about each time, and the page never waits.
func TestManyQueuesOfASlowRabbitMQ(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		for i := range 150 {
			must(t, s.Add(ctx, []*store.Record{record(fmt.Sprintf("q%03d", i), store.Parked, "x")}))
		}
		c := inspect.New(inspect.Config{Store: s, Broker: slow{}})
		for round, want := range []int{96, 150} {
			began := time.Now()
			all, _, err := c.Queues(ctx, caller(auth.Viewer), "", 0)
			if err != nil || time.Since(began) > time.Second {
				t.Fatal(time.Since(began), err)
			}
			known := 0
			for _, q := range all {
				if q.Broker != nil {
					known++
				}
			}
			if known < want {
				t.Errorf("round %d: %d queues are known", round, known)
			}
		}
	})
}

// Who goes on looking never waits for RabbitMQ, and learns nothing old; no one asks
// it for those who have gone.
func TestWhoLooksOnDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, b := memstore.New(), &counting{}
		must(t, s.Add(ctx, []*store.Record{record("orders", store.Parked, "x")}))
		c := inspect.New(inspect.Config{Store: s, Broker: b})
		running, stop := context.WithCancel(ctx)
		ended := make(chan struct{})
		go func() { defer close(ended); c.Run(running) }()
		for i := range 20 {
			began := time.Now()
			all, _, err := c.Queues(ctx, caller(auth.Viewer), "", 0)
			if err != nil || all[0].Broker == nil {
				t.Fatal(all, err)
			}
			if waited := time.Since(began); i > 0 && waited > 0 {
				t.Errorf("look %d waited for %v", i, waited)
			}
			if old := b.since(all[0].Broker.Ready); old > 8*time.Second {
				t.Errorf("look %d was told what RabbitMQ said %v ago", i, old)
			}
			time.Sleep(3 * time.Second)
		}
		time.Sleep(time.Minute)
		before := b.asked()
		time.Sleep(time.Minute)
		expect.Equal(t, b.asked()-before, 0, "RabbitMQ was asked … times, although nothing needed the answer")
		stop()
		<-ended
	})
}

// counting says how often it was asked, as the number of ready messages.
type counting struct {
	mu    sync.Mutex
	times []time.Time
}

func (b *counting) Queue(context.Context, string) (inspect.AtBroker, error) {
	time.Sleep(100 * time.Millisecond)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.times = append(b.times, time.Now())
	return inspect.AtBroker{Exists: true, Ready: len(b.times)}, nil
}

func (b *counting) asked() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.times)
}

// since is how long ago it gave its nth answer.
func (b *counting) since(nth int) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return time.Since(b.times[nth-1])
}

// One error in several queues is one line of the overview, and its query finds the messages of all that are seen.
func TestTheOverviewHasEachErrorOnce(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		add := func(queue, text string, n int) {
			for i := range n {
				r := record(queue, store.Parked, "x")
				r.Error, r.FailedAt = fmt.Sprintf(text, 1000+i), time.Now().Add(-time.Duration(i)*time.Minute)
				d.add(t, r)
			}
		}
		add("mail", "timeout after %d ms", 2)
		add("orders", "timeout after %d ms", 3)
		add("orders", "card %d declined", 4)
		for queues, want := range map[string]string{"*": "timeout after # ms: 5 in orders and 1 more | card # declined: 4 in orders | ",
			"mail": "timeout after # ms: 2 in mail | "} {
			by := caller(auth.Viewer, queues)
			o, err := d.Overview(ctx, by)
			must(t, err)
			got := ""
			for _, g := range o.Groups {
				got += fmt.Sprintf("%s: %d in %s | ", g.Error, g.Parked, g.Queues())
				p, err := d.Search(ctx, by, "state:parked "+g.Query(), "", 0)
				must(t, err)
				expect.Equal(t, len(p.Messages), int(g.Parked), "messages of %q", g.Error)
			}
			expect.Equal(t, got, want, "errors that %s sees", queues)
		}
	})
}

// One error in several queues is one line of the list, whose numbers, tabs, pages, queries and states are those of the
// queues that the query, the filter and the caller leave.
func TestTheListHasEachErrorOnce(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		ids := map[string]string{}
		for i, queue := range []string{"mail", "orders", "stock"} {
			for n, text := range []string{"timeout after %d ms", "timeout after %d ms", "", "Shop.Bad: %d", "no " + queue}[:4+i%2] {
				r := record(queue, store.Parked, "x")
				if r.Error = ""; text != "" {
					r.Error = strings.ReplaceAll(text, "%d", fmt.Sprint(1000+n))
				}
				if queue == "stock" && n == 1 {
					r.State = store.Waiting
				}
				r.FailedAt = time.Now().Add(-time.Duration(10*i+n) * time.Minute)
				d.add(t, r)
				ids[queue+strings.TrimSuffix(" "+text, " ")] = r.Group().ID.String()
			}
		}
		late := ids["mail timeout after %d ms"]
		g, err := d.Group(ctx, caller(auth.Viewer), late)
		must(t, err)
		err = d.store.PutEntries(ctx, []store.Entry{
			{Name: store.GroupStatePrefix + late, Value: []byte(`{"state":"ignored","state_at":"2026-01-01T00:00:00Z","state_before":9}`)},
			{Name: "group/" + late + "/note", Value: []byte("ask Ann")},
			{Name: "group/" + ids["stock timeout after %d ms"] + "/note", Value: []byte("ask Bob")}})
		must(t, err)
		secret := mask.New([]mask.Entry{{Patterns: []string{"/timeout/"}}}, mask.DefaultBodies())
		d.Inspector.Mask = func() *mask.Rules { return secret }
		for _, c := range []struct {
			by           auth.Caller
			query, state string
			want         string
			tabs         [3]int // unresolved, ignored, all
		}{
			{caller(auth.Admin), "", "all",
				"timeout after # ms in mail and 2 more: 5+1 open in 2, ignored in 1; rejected, without an error text in mail and 2 more: 3+0 open; " +
					"Shop.Bad: # in mail and 2 more: 3+0 open; no orders in orders: 1+0 open; ", [3]int{4, 1, 4}},
			{caller(auth.Admin), "error:timeout", "", "timeout after # ms in orders and 1 more: 3+1 open; ", [3]int{1, 1, 1}},
			{caller(auth.Admin), "error:timeout", "ignored", "timeout after # ms in mail: 2+0 ignored; ", [3]int{1, 1, 1}},
			{caller(auth.Admin), "queue:orders error:timeout", "", "timeout after # ms in orders: 2+0 open; ", [3]int{1, 0, 1}},
			{caller(auth.Admin, "orders", "stock"), "error:timeout", "all",
				"timeout after # ms in orders and 1 more: 3+1 open; ", [3]int{1, 0, 1}},
			{caller(auth.Viewer, "mail", "stock"), "", "all", "[masked] after # ms in mail and 1 more: 3+1 open in 1, ignored in 1; " +
				"rejected, without an error text in mail and 1 more: 2+0 open; Shop.Bad: # in mail and 1 more: 2+0 open; ", [3]int{3, 1, 3}},
		} {
			got := ""
			for after := ""; ; {
				page, err := d.Errors(ctx, c.by, c.query, c.state, after, 1)
				must(t, err)
				for _, g := range page.Groups {
					got += fmt.Sprintf("%s in %s: %d+%d %s; ", g.What(), g.Queues(), g.Parked, g.Waiting, g.StateText())
					for state, n := range map[string]int64{"parked": g.Parked, "waiting": g.Waiting} {
						found, err := d.Search(ctx, c.by, "state:"+state+" attempt:>0 "+g.Query(), "", 0)
						must(t, err)
						expect.Equal(t, int64(len(found.Messages)), n, "%s of %q by %s", state, g.Error, g.Query())
					}
					expect.Equal(t, strings.Contains(g.Query(), " OR "), g.Partial && len(g.Same) > 0, "%s names groups", g.Query())
				}
				expect.Equal(t, [3]int{page.Filtered[""], page.Filtered[inspect.Ignored],
					page.Filtered[inspect.AllStates]}, c.tabs, "%q: tabs", c.query)
				expect.Equal(t, page.Total, page.Filtered[c.state], "%q: in all", c.query)
				if after = page.After; after == "" {
					break
				}
			}
			expect.Equal(t, got, c.want, "%q of %q by %v", c.state, c.query, c.by.Queues)
		}
		whole, err := d.Group(ctx, caller(auth.Admin), g.ErrorID)
		must(t, err)
		expect.Equal(t, fmt.Sprintf("%s: %s: %d %d", whole.Queues(), whole.Note, len(whole.ByQueue), whole.Looked),
			"mail and 2 more: ask Ann; ask Bob: 3 6", "the error")
		one, err := d.Group(ctx, caller(auth.Admin), late)
		must(t, err)
		expect.Equal(t, fmt.Sprintf("%s: %t %d %d", one.Queues(), one.Partial, len(one.ByQueue), one.Looked),
			"mail: true 0 2", "a group of it")
		theirs, err := d.Group(ctx, caller(auth.Admin, "stock"), g.ErrorID)
		must(t, err)
		expect.Equal(t, fmt.Sprint(theirs.ID, theirs.Key(), theirs.Partial, theirs.Looked),
			fmt.Sprint(ids["stock timeout after %d ms"], theirs.ID, false, 2), "to one who sees one queue")
		expect.Err(t, errOf(d.Group(ctx, caller(auth.Admin, "none"), g.ErrorID)), inspect.ErrNotFound, "to one who sees none")
	})
}

// silence is a RabbitMQ that does not answer.
type silence struct{ asked int }

func (s *silence) Queue(ctx context.Context, _ string) (inspect.AtBroker, error) {
	s.asked++
	<-ctx.Done()
	return inspect.AtBroker{}, ctx.Err()
}

func TestOverview(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		quiet := &silence{}
		c := inspect.New(inspect.Config{Store: s, Activity: &activity{}, Broker: quiet, Version: "v1", BrokerURL: func() string { return "amqp://h" }, Conditions: func() []condition.Condition {
			return []condition.Condition{{Kind: condition.Store, Text: "full"}, {Kind: condition.Unreachable, Queue: "orders", Text: "gone"}}
		}})
		now := time.Now()
		for i := range 3 {
			r := record("orders", store.Waiting, "x")
			r.FailedAt, r.Due = now.Add(-time.Minute), now.Add(time.Duration(i)*time.Hour-time.Second)
			must(t, s.Add(ctx, []*store.Record{r, record("mail", store.Parked, "y")}))
		}
		o, err := c.Overview(ctx, caller(auth.Viewer))
		must(t, err)
		if o.Waiting != 3 || o.Parked != 3 || o.Oldest == nil || !o.Oldest.Equal(now.Add(-time.Minute)) || o.PerMinute.Failed != 4 || len(o.Hour) != 60 || len(o.Conditions) != 2 || o.Conditions[1].Text != "full" {
			t.Errorf("%+v", o)
		}
		names := []string{}
		for _, q := range o.Queues {
			names = append(names, q.Name)
		}
		if !slices.Equal(names, []string{"mail", "orders", "quiet"}) || o.Queues[0].Broker != nil {
			t.Errorf("queues %+v", o.Queues)
		}
		var due int64
		for i, s := range o.Calendar {
			due += s.Count
			if i > 0 && !s.From.Equal(o.Calendar[i-1].To) {
				t.Errorf("slot %d begins at %v", i, s.From)
			}
		}
		if due != 3 || o.Calendar[0].Count == 0 {
			t.Errorf("%d are due: %+v", due, o.Calendar)
		}
		expect.Equal(t, time.Since(now), time.Second, "it waited … for RabbitMQ")
		if o, err := c.Overview(ctx, caller(auth.Viewer, "mail")); err != nil || len(o.Conditions) != 1 || o.Waiting != 0 || o.PerMinute.Failed != 0 {
			t.Errorf("to others: %+v, %v", o, err)
		}
		// That RabbitMQ is silent is remembered for a while.
		asked := quiet.asked
		if _, _, err := c.Queues(ctx, caller(auth.Viewer), "", 0); err != nil || quiet.asked != asked || time.Since(now) != time.Second {
			t.Errorf("asked again: %d times, %v after, %v", quiet.asked-asked, time.Since(now), err)
		}
	})
}

// With five messages parked in the last minute, or a queue that a person has paused, not all is well.
func TestTheVerdict(t *testing.T) {
	d := newDesk(memstore.New())
	flow := &happened{}
	d.Activity, d.Ready = flow, func() bool { return true }
	says := func(by auth.Caller, want string) {
		t.Helper()
		o, err := d.Overview(ctx, by)
		must(t, err)
		if o.Verdict != want || o.Well != strings.HasPrefix(want, "nothing is wrong") {
			t.Errorf("it says %q, well: %t, want %q", o.Verdict, o.Well, want)
		}
	}
	all, limited := caller(auth.Viewer), caller(auth.Viewer, "mail")
	d.add(t, record("orders", store.Parked, "x"))
	says(all, "nothing is wrong, but 1 message is parked and waits for a person")
	says(limited, "nothing is wrong")
	for range 1000 {
		d.add(t, record("orders", store.Parked, "x"))
	}
	says(all, "nothing is wrong, but 1,001 messages are parked and wait for a person")
	flow.minute.Parked = 5
	says(all, "5 messages were parked in the last minute")
	says(limited, "nothing is wrong")
	d.throttle = &inspect.ThrottleView{State: "open"}
	says(all, "retries of 1 queue are held back")
	d.throttle = nil
	d.Conditions = func() []condition.Condition {
		return []condition.Condition{{Kind: condition.Unreachable, Queue: "orders", Text: "gone"}}
	}
	says(all, "1 thing is wrong")
	says(limited, "nothing is wrong")
	for _, step := range []struct{ queue, all, limited string }{
		{"orders", "1 thing is wrong, and retries of 1 queue are paused", "nothing is wrong"},
		{"mail", "1 thing is wrong, and retries of 2 queues are paused", "retries of 1 queue are held back"},
	} {
		must(t, d.Store.PutEntries(ctx, []store.Entry{{Name: store.PausePrefix + step.queue, Value: []byte(`{"by":"ana"}`)}}))
		says(all, step.all)
		says(limited, step.limited)
	}
	must(t, d.Store.PutEntries(ctx, []store.Entry{{Name: store.PausePrefix + "orders"}, {Name: store.PausePrefix + "mail"}}))
	d.Ready = func() bool { return false }
	says(limited, "not ready")
	d.Ready = func() bool { return true }
	silent := condition.Condition{Kind: condition.Management, Text: "it does not answer"}
	d.Conditions = func() []condition.Condition { return []condition.Condition{silent} }
	says(limited, "the management API does not answer")
	d.Conditions = func() []condition.Condition {
		all := []condition.Condition{silent, {Kind: condition.Disk, Text: "full"}}
		for _, k := range []condition.Kind{condition.Publish, condition.Intake, condition.Parked} {
			all = append(all, condition.Condition{Kind: k, Text: condition.Silent + ": " + string(k), NotReady: true})
		}
		return all
	}
	d.Inspector.Holds = func(c condition.Condition) string {
		return map[condition.Kind]string{condition.Publish: condition.Silent + ": refused"}[c.Kind]
	}
	says(limited, "2 things are wrong")
	o, err := d.Overview(ctx, limited)
	must(t, err)
	expect.Equal(t, fmt.Sprint(condition.Lines(o.Conditions), o.HeldAll),
		"[connections: RabbitMQ does not answer: intake disk: full]RabbitMQ does not answer", "what is wrong")
}

// happened is what happened in the last minute to the queue orders.
type happened struct {
	activity
	minute inspect.Flow
}

func (r *happened) Minute(string, time.Time) inspect.Flow { return r.minute }

func (r *happened) Queues() []string { return []string{"orders"} }

// The page of a queue has what is due first, its groups, its policy and its own conditions; it has those of a queue of
// which nothing failed yet, too.
func TestOneQueue(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		now := time.Now()
		late, soon := record("orders", store.Waiting, "x"), record("orders", store.Waiting, "x")
		late.Due, soon.Due = now.Add(time.Hour), now.Add(time.Minute)
		d.add(t, late, soon, record("orders", store.Parked, "y"), record("mail", store.Waiting, "x"))
		d.Conditions = func() []condition.Condition {
			return []condition.Condition{{Kind: condition.Disk, Text: "full"}, {Kind: condition.Unreachable, Queue: "mail", Text: "gone"},
				{Kind: condition.Unreachable, Queue: "orders", Text: "full"}}
		}
		q, err := d.Queue(ctx, caller(auth.Viewer), "orders")
		must(t, err)
		if len(q.Next) != 2 || q.Next[0].ID != soon.ID.String() || q.Next[1].ID != late.ID.String() {
			t.Errorf("due next is %+v", q.Next)
		}
		if q.Waiting != 2 || q.Parked != 1 || q.GroupCount != 1 || q.InForce == nil || q.Pattern != "*" || q.Broker == nil {
			t.Errorf("it is %+v", q)
		}
		if len(q.Conditions) != 1 || q.Conditions[0].Text != "full" {
			t.Errorf("wrong with it is %+v", q.Conditions)
		}
		limited, err := d.Overview(ctx, caller(auth.Viewer, "orders"))
		if err != nil || len(limited.Conditions) != 2 || limited.Conditions[1].Queue != "orders" {
			t.Errorf("who sees this queue alone sees %+v, %v", limited.Conditions, err)
		}
		quiet, err := d.Queue(ctx, caller(auth.Viewer), "other")
		if err != nil || quiet.Name != "other" || quiet.Next == nil || quiet.Groups == nil {
			t.Errorf("one without messages is %+v, %v", quiet, err)
		}
		unenrolled := func(by auth.Caller, queue, to string) string {
			d.Broker.(*inspecttest.Queues).Set(queue, inspect.AtBroker{Exists: true, DeadLetters: to})
			q, err := d.Queue(ctx, by, queue)
			must(t, err)
			return cmp.Or(q.NotEnrolled, map[bool]string{true: "alone"}[q.Alone])
		}
		d.Checkup = func(string) inspect.Checkup { return inspect.Checkup{Forgotten: []string{"mail", "old1", "secret"}} }
		seen, err := d.LastCheckup(ctx, caller(auth.Viewer, "old?"))
		if err != nil || len(seen.Forgotten) != 1 || seen.Forgotten[0] != "old1" {
			t.Errorf("who sees some queues sees %q, %v", seen.Forgotten, err)
		}
		few, viewer := caller(auth.Viewer, "old?"), caller(auth.Viewer)
		expect.Equal(t, unenrolled(viewer, "old1", ""), "", "it may be enrolled")
		expect.Equal(t, unenrolled(few, "old5", inspect.Alone), "alone", "of one that RabbitMQ alone retries")
		expect.Equal(t, unenrolled(viewer, "old2", inspect.Nowhere), "not enrolled, what consumers reject is gone",
			"of a queue without an exchange")
		expect.Equal(t, unenrolled(viewer, "old3", `to the queue "secret"`),
			`not enrolled, its dead letters go to the queue "secret"`, "of one that dead-letters")
		expect.Equal(t, unenrolled(few, "old4", `to the queue "secret"`), "not enrolled, its dead letters go elsewhere",
			"for who may not see the other")
		expect.Equal(t, unenrolled(viewer, "mail", inspect.Nowhere), "", "of one with messages, which are retried")
		d.Config.Policies = func() policy.Set { return nil }
		expect.Equal(t, unenrolled(viewer, "mail", inspect.Nowhere), "not enrolled, what consumers reject is gone",
			"of one with messages that no policy names")
	})
}

// The list of very many queues has each name once, a page at a time, whatever it is made of.
func TestQueuesArePaged(t *testing.T) {
	s := memstore.New()
	names := []string{"", "\xbe\xff"}
	for i := range 2*inspect.MostQueues + 300 {
		names = append(names, fmt.Sprintf("invented.%d.x", i))
	}
	var all []*store.Record
	for _, name := range names {
		all = append(all, record(name, store.Parked, "x"))
	}
	must(t, s.Add(ctx, all))
	d := newDesk(s)
	for _, limit := range []int{0, 1, 700} {
		seen, after := map[string]int{}, ""
		for pages := 0; pages == 0 || after != ""; pages++ {
			page, next, err := d.Queues(ctx, caller(auth.Viewer), after, limit)
			if after = next; err != nil {
				t.Fatal(err)
			}
			for _, q := range page {
				seen[q.Name]++
			}
			if limit == 1 && pages == 5 {
				break
			}
			if most := max(limit, 1); limit > 0 && len(page) > most || len(page) > inspect.MostQueues {
				t.Fatalf("a page of %d has %d", limit, len(page))
			}
		}
		if want := len(names); limit != 1 && len(seen) != want || limit == 1 && len(seen) != 6 {
			t.Errorf("in pages of %d there are %d names of %d", limit, len(seen), want)
		}
		for name, n := range seen {
			expect.Equal(t, n, 1, "%q is on … pages", name)
		}
	}
	first, _, err := d.Queues(ctx, caller(auth.Viewer), "", 4)
	must(t, err)
	expect.Equal(t, first[2].Name+" "+first[3].Name, "invented.1.x invented.2.x", "the first that are invented")
	if _, _, err := d.Queues(ctx, caller(auth.Viewer), "!", 0); err == nil {
		t.Error("a page that none ends with was given")
	}
}

func TestPolicies(t *testing.T) {
	mail := policy.Policy{Name: "mail", Queues: []string{"mail"}, Attempts: 3, MaxReplays: 4, MaxAge: time.Hour,
		Backoff: policy.List(time.Second, time.Hour), Jitter: policy.None, Exhausted: policy.Exhausted{Action: policy.Forward, Destination: policy.Destination{RoutingKey: "dead"}}}
	s := memstore.New()
	levels, err := delay.NewLevels(delay.Quorum)
	must(t, err)
	on := inspect.Config{Store: s, Policies: func() policy.Set { return policy.Set{orders(), mail} },
		Way: func(name string) delay.Way {
			if name == "mail" {
				return levels
			}
			return nil
		}}
	c := inspect.New(on)
	all, err := c.Policies(ctx, caller(auth.Viewer))
	if err != nil || len(all) != 2 {
		t.Fatal(all, err)
	}
	o, m := all[0], all[1]
	if want := []inspect.Wait{{1, "8s", "12s"}, {2, "16s", "24s"}, {3, "32s", "48s"}}; !slices.Equal(o.Waits, want) || o.Way != retry.InStore || o.Jitter != "±20%" || !slices.Equal(o.Reasons, policy.DefaultReasons) {
		t.Errorf("orders: %+v", o)
	}
	if m.Way != "levels" || fmt.Sprint(m.Settings) != "[{max_age 1h} {max_replays 4}]" ||
		m.Exhausted != `forward to queue "dead"` || m.Waits[0].Least != "1s" || m.Waits[1].Most != "1h" {
		t.Errorf("mail: %+v", m)
	}
	expect.Equal(t, fmt.Sprintln(o.Total, o.Settled, m.Total, m.Settled), "1m 10s 3 1h 2\n", "in all")
	mail.Attempts, mail.Backoff = policy.MaxAttempts, policy.List(time.Second, time.Hour, 10*time.Second)
	many, err := inspect.New(on).Policies(ctx, caller(auth.Viewer))
	must(t, err)
	expect.Equal(t, fmt.Sprintln(len(many[1].Waits), many[1].Total), "100 185d 5h\n", "a million attempts, in steps of 16s")
	mail.Backoff = policy.Fixed(policy.LongestDelay)
	many, err = inspect.New(on).Policies(ctx, caller(auth.Viewer))
	must(t, err)
	expect.Equal(t, many[1].Total, "more than 106751d 23h", "ten years a million times")
	on.Replicas = func() []inspect.Replica { return nil }
	if shared, err := inspect.New(on).Policies(ctx, caller(auth.Viewer)); err != nil || shared[0].Way != "redis" || shared[1].Way != "levels" {
		t.Errorf("with a store that is shared: %+v, %v", shared, err)
	}
	must(t, s.Add(ctx, []*store.Record{record("mail", store.Parked, "x")}))
	if all, err = c.Policies(ctx, caller(auth.Viewer, "mail", "orders.secret")); err != nil || len(all) != 1 || all[0].Name != "mail" {
		t.Errorf("limited: %+v, %v", all, err)
	}
}

func TestTheAuditLogAPageAtATime(t *testing.T) {
	book := &inspecttest.AuditLog{}
	for n := range 5 {
		must(t, errOf(book.Begin(audit.Entry{Count: int64(n + 1)})))
	}
	c := inspect.New(inspect.Config{Store: memstore.New(), Audit: book})
	by := caller(auth.Admin)
	by.ReadOnly = true
	var got []int64
	for after := ""; ; {
		page, next, err := c.AuditLog(ctx, by, inspect.AuditFilter{}, after, 2)
		must(t, err)
		for _, e := range page {
			got = append(got, e.Count)
		}
		if after = next; after == "" {
			break
		}
	}
	if !slices.Equal(got, []int64{5, 4, 3, 2, 1}) {
		t.Errorf("the lines are %d", got)
	}
}

// People read words, filters take the codes.
func TestTheAuditLogInWords(t *testing.T) {
	for _, c := range []struct{ did, on, want string }{
		{"operation.start", "X: replay queue:orders", "start replay"}, {"operation.end", "X: adopt dlq", "end of adopt"},
		{"operation.cancel", "X", "cancel operation"}, {"plan.discard", "queue:orders", "plan discard"},
		{"reported.doctor.fix", "own", "doctor fix, as reported"}, {"breaker open", "orders", "breaker open"},
		{"replay", "orders: X: discard", "replay"},
	} {
		if got := inspect.Does(audit.Entry{Did: c.did, On: c.on}); got != c.want {
			t.Errorf("%s on %s is %q, want %q", c.did, c.on, got, c.want)
		}
	}
}

// A filter finds by person, action, time and queue: as the entry's own, among named messages, and in a query.
func TestTheAuditLogFiltered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		book := &inspecttest.AuditLog{}
		for _, e := range []audit.Entry{
			{Who: "ann", Did: "pause", On: "orders"},
			{Who: "bob", Did: "replay", On: "mail, orders: " + uuid.Nil.String() + " to debug"},
			{Who: "ann", Did: "operation.start", On: "X: replay state:parked queue:orders.*"},
			{Who: "ann", Did: "export", On: `(queue:"orders" OR queue:mail)`},
			{Who: "ci", Did: "pause", On: "orders.new"},
		} {
			must(t, errOf(book.Begin(e)))
			time.Sleep(time.Hour)
		}
		began := time.Now().Add(-5 * time.Hour).UTC().Format(time.RFC3339)
		c := inspect.New(inspect.Config{Store: memstore.New(), Audit: book})
		for f, want := range map[inspect.AuditFilter]string{
			{}: "54321", {Who: "ann"}: "431", {Who: "a*"}: "431", {Who: "an"}: "", {Did: "pause"}: "51",
			{Did: "operation.*"}: "3", {Did: "replay"}: "32", {On: "orders"}: "421", {On: "orders.new"}: "53", {On: "mail"}: "42",
			{On: "debug"}: "2", {On: "order"}: "", {On: uuid.Nil.String()}: "2",
			{Since: "2h"}: "54", {Until: "2h"}: "321", {Since: "4h", Until: "2h"}: "32", {Since: began}: "54321",
			{Until: began}: "", {Who: "ann", On: "orders", Since: "3h"}: "4",
		} {
			got := ""
			for after, pages := "", 0; ; pages++ {
				page, next, err := c.AuditLog(ctx, caller(auth.Admin), f, after, 1)
				must(t, err)
				for _, e := range page {
					got += fmt.Sprint(1 + slices.IndexFunc(book.Entries(), func(b audit.Entry) bool { return b.N == e.N }))
				}
				if after = next; after == "" {
					break
				}
			}
			expect.Equal(t, got, want, "%+v finds", f)
		}
		_, _, err := c.AuditLog(ctx, caller(auth.Admin), inspect.AuditFilter{Since: "soon"}, "", 0)
		if !errors.Is(err, inspect.ErrInvalid) || !strings.Contains(err.Error(), "since") {
			t.Errorf("since soon: %v", err)
		}
	})
}

// slowBook is an audit log whose entries take a while to read.
type slowBook struct{ *inspecttest.AuditLog }

func (b slowBook) Before(ctx context.Context, n int64, visit func(audit.Entry) (bool, error)) error {
	return b.AuditLog.Before(ctx, n, func(e audit.Entry) (bool, error) {
		time.Sleep(300 * time.Millisecond)
		return visit(e)
	})
}

// A page of a filter ends after a second, wherever it is, and the next one continues there.
func TestAFilterOfTheAuditLogIsBoundedInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		book := &inspecttest.AuditLog{}
		for n := range 20 {
			must(t, errOf(book.Begin(audit.Entry{Who: []string{"ann", "bob"}[min(n, 1)]})))
		}
		c := inspect.New(inspect.Config{Store: memstore.New(), Audit: slowBook{book}})
		pages, found := 0, 0
		for after := ""; ; pages++ {
			began := time.Now()
			page, next, err := c.AuditLog(ctx, caller(auth.Admin), inspect.AuditFilter{Who: "ann"}, after, 10)
			must(t, err)
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("a page took %v", took)
			}
			found += len(page)
			if after = next; after == "" {
				break
			}
		}
		if found != 1 || pages < 5 {
			t.Errorf("found %d on %d pages", found, pages)
		}
	})
}

// missing is a store in which counting what is kept finds one message of a queue less.
type missing struct {
	*memstore.Store
	queue string
}

func (m *missing) Recount(ctx context.Context) ([]store.LedgerLine, error) {
	lines, err := m.Store.Recount(ctx)
	for i := range lines {
		if lines[i].Queue == m.queue {
			lines[i].Sums[store.Waiting]--
		}
	}
	return lines, err
}

func TestTheLedger(t *testing.T) {
	s := &missing{memstore.New(), "none"}
	var told []map[string]int64
	c := inspect.New(inspect.Config{Store: s, Recounted: func(off map[string]int64) { told = append(told, off) }})
	if err := s.Add(ctx, []*store.Record{record("orders", store.Waiting, ""), record("orders", store.Parked, ""), record("mail", store.Discarded, "")}); err != nil {
		t.Fatal(err)
	}
	s.CountUnstored("orders", store.Delayed, 2)
	some := caller(auth.Viewer)
	some.Queues = []string{"mail"}
	orders := inspect.LedgerLine{Queue: "orders", In: 4, Waiting: 1, Parked: 1, Delayed: 2}
	mail := inspect.LedgerLine{Queue: "mail", In: 1, Discarded: 1}
	lost := orders
	lost.Off = 1
	for i, step := range []struct {
		missing string
		by      auth.Caller
		recount bool
		counted bool
		want    []inspect.LedgerLine
	}{
		{"none", caller(auth.Viewer), false, false, []inspect.LedgerLine{mail, orders}},
		{"none", some, false, false, []inspect.LedgerLine{mail}},
		{"orders", caller(auth.Viewer), false, false, []inspect.LedgerLine{mail, orders}}, // no one has looked yet
		{"orders", caller(auth.Viewer), true, true, []inspect.LedgerLine{mail, lost}},
		{"orders", caller(auth.Viewer), false, true, []inspect.LedgerLine{mail, lost}},
		{"none", caller(auth.Viewer), true, true, []inspect.LedgerLine{mail, orders}},
	} {
		s.queue = step.missing
		l, err := c.Ledger(ctx, step.by, step.recount, "", 0)
		if err != nil || !reflect.DeepEqual(l.Queues, step.want) || (l.Recounted != nil) != step.counted {
			t.Errorf("step %d: %v, counted %v, %+v; want %+v", i, err, l.Recounted, l.Queues, step.want)
		}
	}
	if want := []map[string]int64{{"orders": 1}, {}}; !reflect.DeepEqual(told, want) {
		t.Errorf("told %v, want %v", told, want)
	}
	if _, err := c.Ledger(ctx, auth.Caller{}, false, "", 0); err == nil {
		t.Error("nobody sees it")
	}
}

// A rate that has just been used up is no news of a queue with nothing due.
func TestALimitIsShownWhileMessagesAreDue(t *testing.T) {
	for why, want := range map[throttle.WaitReason]string{throttle.WhyRate: "limited by rate", throttle.WhyInFlight: "limited by in_flight", "": ""} {
		expect.Equal(t, (&inspect.ThrottleView{State: "closed", LimitedBy: why}).LimitText(), want, "%q", why)
	}
	for due, want := range map[time.Duration]throttle.WaitReason{-time.Second: throttle.WhyRate, time.Hour: ""} {
		s := memstore.New()
		r := record("orders", store.Waiting, "x")
		r.Due = time.Now().Add(due)
		must(t, s.Add(ctx, []*store.Record{r}))
		d := newDesk(s)
		d.throttle = &inspect.ThrottleView{State: "closed", LimitedBy: throttle.WhyRate}
		all, _, err := d.Queues(ctx, operator, "", 10)
		if err != nil || len(all) != 1 || all[0].Throttle.LimitedBy != want {
			t.Errorf("due in %s: %+v, %v, want limited by %q", due, all, err, want)
		}
	}
}

func TestAThrottleInWords(t *testing.T) {
	for _, c := range []struct {
		throttle *inspect.ThrottleView
		want     string
		keeps    bool
	}{
		{nil, "", false},
		{&inspect.ThrottleView{State: "closed"}, "", false},
		{&inspect.ThrottleView{State: "open", Why: "9 of 10 failed"}, "breaker open: 9 of 10 failed", true},
		{&inspect.ThrottleView{State: "ramp"}, "breaker ramp", true},
		{&inspect.ThrottleView{State: "closed", NoConsumer: &time.Time{}}, "paused: no consumers", true},
		{&inspect.ThrottleView{State: "open", Forced: &inspect.Forced{To: "open", By: "dana"}}, "breaker set to open by dana", true},
		{&inspect.ThrottleView{State: "closed", Forced: &inspect.Forced{To: "closed", By: "dana"}}, "breaker set to closed by dana", false},
	} {
		if got := c.throttle.Text(); got != c.want || c.throttle.KeepsBack() != c.keeps {
			t.Errorf("%+v: %q, want %q; keeps messages back: %t", c.throttle, got, c.want, !c.keeps)
		}
	}
}

// The API's document names each limit that people can be shown.
func TestEachLimitIsInTheDocument(t *testing.T) {
	var limits []string
	for _, why := range throttle.WaitReasons {
		if why.IsLimit() {
			limits = append(limits, string(why))
		}
	}
	field, _ := reflect.TypeFor[inspect.ThrottleView]().FieldByName("LimitedBy")
	expect.Equal(t, field.Tag.Get("enum"), strings.Join(limits, ","),
		"the enum of LimitedBy is …, and the limits are %q", limits)
}

var must, errOf = expect.NoError, expect.ErrOf
