package query

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/errorgroup"
	"github.com/redrive-mq/redrive/internal/store"
)

func TestColumns(t *testing.T) {
	r := &store.Record{Queue: "orders", State: store.Parked, Reason: "rejected", Failures: 3, FailedAt: time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC), Due: time.Date(2026, 11, 21, 11, 0, 0, 0, time.UTC), ParkedFor: "out of attempts"}
	r.Message.RoutingKey, r.Message.Headers = "order.created", amqp.Table{"tenant": "acme", "n": int64(7), "t": amqp.Table{"a": "b"}}
	l := &store.Listed{Record: r, BodySize: 12}
	decoded := func() *decode.Result {
		return &decode.Result{Value: map[string]any{"customer": map[string]any{"name": "Zoë"}, "lines": []any{json.Number("1"), json.Number("2"), json.Number("3"), json.Number("4"), json.Number("5")}, "none": nil}}
	}
	for name, want := range map[string]string{
		"queue": "orders", "state": "parked", "reason": "rejected", "attempt": "3", "key": "order.created", "size": "12", "why": "out of attempts",
		"failed": "2026-11-21T10:00:00Z", "parked": "2026-11-21T11:00:00Z", "due": "", "first": "", "group": "0100000000000000",
		"header.tenant": "acme", "header.n": "7", "header.t.a": "b", "header.t": "…", "header.no": "",
		"body.customer.name": "Zoë", "body.customer": "…", "body.lines": "1, 2, 3, …", "body.lines.1": "2", "body.none": "null", "body.no": "",
	} {
		c, err := ParseColumn(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Value(l, errorgroup.ID{1}, decoded); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
		if c.NeedsBody() != strings.HasPrefix(name, "body.") {
			t.Errorf("%s needs the body: %v", name, c.NeedsBody())
		}
	}
	for _, bad := range []string{"", "text", "before", "after", "nowhere", "body.", "header.", "body", "body." + strings.Repeat("a.", 60) + "b", "header." + strings.Repeat("x", 300)} {
		if _, err := ParseColumn(bad); err == nil {
			t.Errorf("%.40q is a column", bad)
		}
	}
	for _, name := range ColumnNames() {
		if _, err := ParseColumn(name); err != nil {
			t.Error(err)
		}
	}
}

// A query about a group finds it by its own id and by that of the error in all queues.
func TestGroupsAcrossQueues(t *testing.T) {
	of := func(queue, text string) (*store.Record, store.GroupCount) {
		r := &store.Record{Queue: queue, State: store.Parked, Reason: "rejected", Error: text}
		return r, store.GroupCount{Group: r.Group(), Parked: 1}
	}
	orders, ordersGroup := of("orders", "timeout after 5s")
	mail, mailGroup := of("mail", "timeout after 77s")
	other, otherGroup := of("mail", "no stock")
	across := ordersGroup.Across()
	if across != mailGroup.Across() || across == otherGroup.Across() || across == ordersGroup.ID {
		t.Fatalf("%s %s %s", across, mailGroup.Across(), otherGroup.Across())
	}
	q := parse(t, "group:"+across.String())
	for r, want := range map[*store.Record]bool{orders: true, mail: true, other: false} {
		n := q.Narrow(time.Time{}, []string{"orders", "mail"}, []store.GroupCount{ordersGroup, mailGroup, otherGroup})
		if len(n.Range.Groups) != 2 {
			t.Errorf("it is narrowed to %v", n.Range.Groups)
		}
		if got := n.Match(&store.Listed{Record: r}, nil); got != want {
			t.Errorf("%s %s: %v", r.Queue, r.Error, got)
		}
		// In a store that keeps no group for it, it is among the others.
		n.GroupOf = func(r *store.Record) errorgroup.ID { return errorgroup.Other(r.Queue, store.GroupsKept).ID }
		if n.Match(&store.Listed{Record: r}, nil) {
			t.Errorf("%s %s is counted elsewhere", r.Queue, r.Error)
		}
	}
}

func TestGroupsByTimeAndReason(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	g := store.GroupCount{Parked: 1, First: now.Add(-48 * time.Hour), Last: now.Add(-time.Hour), Reasons: store.ReasonsOf("rejected") | store.ReasonsOf("reported")}
	g.Queue, g.Pattern = "orders", "no stock"
	for text, want := range map[string]bool{"age:<2h": true, "age:>2h": false, "first:<2026-11-20": true, "failed:>2026-11-22": false, "after:2026-11-21": true, "before:2026-11-21": false,
		"reason:reported": true, "reason:rejected": true, "reason:expired": false, "reason:rejected age:>2h": false} {
		q := parse(t, text)
		if err := q.OnlyGroups(); err != nil {
			t.Error(err)
		}
		if got := q.MatchGroup(&g, now); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
}
