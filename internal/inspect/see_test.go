package inspect_test

import (
	"context"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/audit"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/delay/ttlqueue"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/inspect/inspecttest"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/policy"
)

func TestPolicies(t *testing.T) {
	mail := policy.Policy{Name: "mail", Queues: []string{"mail"}, Attempts: 3, Backoff: policy.List(time.Second, time.Hour), Jitter: policy.None, Exhausted: policy.Exhausted{Action: policy.Forward, Destination: policy.Destination{RoutingKey: "dead"}}}
	s := memstore.New()
	levels, err := ttlqueue.NewLevels(ttlqueue.Quorum)
	if err != nil {
		t.Fatal(err)
	}
	c := inspect.New(inspect.Config{Store: s, Policies: func() policy.Set { return policy.Set{orders(), mail} },
		Way: func(name string) delay.Way {
			if name == "mail" {
				return levels
			}
			return nil
		}})
	all, err := c.Policies(ctx, caller(auth.Viewer))
	if err != nil || len(all) != 2 {
		t.Fatal(all, err)
	}
	o, m := all[0], all[1]
	if want := []inspect.Wait{{1, "8s", "12s"}, {2, "16s", "24s"}, {3, "32s", "48s"}}; !slices.Equal(o.Waits, want) || o.Way != retry.InStore || o.Jitter != "±20%" || !slices.Equal(o.Reasons, policy.DefaultReasons) {
		t.Errorf("orders: %+v", o)
	}
	if m.Way != "levels" || m.Exhausted != `forward to queue "dead"` || m.Waits[0].Least != "1s" || m.Waits[1].Most != "1h" {
		t.Errorf("mail: %+v", m)
	}
	if err := s.Add(ctx, []*store.Record{record("mail", store.Parked, "x")}); err != nil {
		t.Fatal(err)
	}
	if all, err = c.Policies(ctx, caller(auth.Viewer, "mail", "orders.secret")); err != nil || len(all) != 1 || all[0].Name != "mail" {
		t.Errorf("limited: %+v, %v", all, err)
	}
}

func TestTheAuditLogAPageAtATime(t *testing.T) {
	book := &inspecttest.AuditLog{}
	for range 5 {
		if _, err := book.Begin(audit.Entry{}); err != nil {
			t.Fatal(err)
		}
	}
	c := inspect.New(inspect.Config{Store: memstore.New(), Audit: book})
	by := caller(auth.Admin)
	by.ReadOnly = true
	var got []int64
	for after := ""; ; {
		page, next, err := c.AuditLog(ctx, by, after, 2)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range page {
			got = append(got, e.N)
		}
		if after = next; after == "" {
			break
		}
	}
	if !slices.Equal(got, []int64{5, 4, 3, 2, 1}) {
		t.Errorf("the lines are %d", got)
	}
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
		if got := (&inspect.ThrottleView{State: "closed", LimitedBy: why}).LimitText(); got != want {
			t.Errorf("%q: %q, want %q", why, got, want)
		}
	}
	for due, want := range map[time.Duration]throttle.WaitReason{-time.Second: throttle.WhyRate, time.Hour: ""} {
		s := memstore.New()
		r := record("orders", store.Waiting, "x")
		r.Due = time.Now().Add(due)
		if err := s.Add(ctx, []*store.Record{r}); err != nil {
			t.Fatal(err)
		}
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
	if enum := field.Tag.Get("enum"); enum != strings.Join(limits, ",") {
		t.Errorf("the enum of LimitedBy is %q, and the limits are %q", enum, limits)
	}
}
