package inspect_test

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/audit"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
)

// actionsOf are the actions of an audit log, page by page, the newest first.
func actionsOf(t *testing.T, in *inspect.Inspector, f inspect.AuditFilter, limit int) (all []inspect.AuditAction) {
	t.Helper()
	for after := ""; ; {
		p, err := in.AuditActions(ctx, caller(auth.Admin), f, after, limit)
		if err != nil || len(p.Actions) > limit {
			t.Fatalf("%d, %v", len(p.Actions), err)
		}
		all = append(all, p.Actions...)
		if after = p.After; after == "" {
			return all
		}
	}
}

func TestAnActionIsOneLine(t *testing.T) {
	log, err := audit.Open(t.TempDir(), audit.Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	in := inspect.New(inspect.Config{Store: inspectMemory(), Audit: log})
	do := func(who, did, on, outcome string, n int64) time.Time {
		t.Helper()
		end, err := log.Begin(audit.Entry{Who: who, Did: did, On: on, Count: 1})
		if err != nil {
			t.Fatal(err)
		}
		at := time.Now()
		if outcome != "" {
			end(outcome, n)
		}
		return at
	}
	do("ann", "replay", "1f0c in orders", "done", 1)
	first := do("bob", "pause", "mail", "done", 0)
	end, err := log.Begin(audit.Entry{Who: "ann", Did: "export", On: "queue:orders"})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		do("ann", "operation.start", fmt.Sprintf("op%d: replay queue:mail in mail", i), "done", 7)
	}
	end("failed: the client went away", 3)
	do("bob", "discard", "2e1d in orders.eu", "", 0) // the service ended
	for _, limit := range []int{1, 5, 100} {
		all := actionsOf(t, in, inspect.AuditFilter{}, limit)
		if len(all) != 25 { // with the line that begins the file
			t.Fatalf("%d by %d", len(all), limit)
		}
		if e := all[0]; e.Did != "discard" || e.Outcome != "begun" || e.Ended != nil || e.Line != 0 {
			t.Errorf("what has no outcome: %+v", e)
		}
		if e := all[1]; e.Outcome != "done" || e.Count != 7 || e.Ended == nil || e.Line != e.N+1 {
			t.Errorf("by %d: %+v", limit, e)
		}
		if e := all[21]; e.Did != "export" || e.Outcome != "failed: the client went away" || e.Count != 3 || e.Line < e.N+40 {
			t.Errorf("by %d, one that took long: %+v", limit, e)
		}
	}
	for name, c := range map[string]struct {
		f    inspect.AuditFilter
		want int
	}{
		"who": {inspect.AuditFilter{Who: "bob"}, 2}, "did": {inspect.AuditFilter{Did: "replay"}, 1}, "all that begin so": {inspect.AuditFilter{Did: "operation."}, 20},
		"a queue": {inspect.AuditFilter{On: "ORDERS"}, 3}, "from": {inspect.AuditFilter{From: first}, 22}, "until": {inspect.AuditFilter{Until: first}, 3},
		"all": {inspect.AuditFilter{Who: "ann", Did: "operation.", On: "op1:"}, 1}, "nothing": {inspect.AuditFilter{Who: "eve"}, 0},
	} {
		if all := actionsOf(t, in, c.f, 3); len(all) != c.want {
			t.Errorf("%s: %d, want %d", name, len(all), c.want)
		}
	}
	if _, err := in.AuditActions(ctx, caller(auth.Operator), inspect.AuditFilter{}, "", 0); !errors.Is(err, auth.ErrForbidden) {
		t.Error(err)
	}
	if _, err := in.AuditActions(ctx, caller(auth.Admin, "orders"), inspect.AuditFilter{}, "", 0); !errors.Is(err, auth.ErrForbidden) {
		t.Error(err)
	}
	if _, err := in.AuditActions(ctx, caller(auth.Admin), inspect.AuditFilter{}, strings.Repeat("x", 9), 0); !errors.Is(err, inspect.ErrInvalid) {
		t.Error(err)
	}
}
