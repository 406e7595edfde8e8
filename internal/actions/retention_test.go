package actions_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/policy"
)

// Parked messages whose policy keeps them no longer are discarded, as a person would: they can be
// restored, and ledger, audit log and events have them.
func TestRetentionDiscardsWhatIsParkedForTooLong(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		now := time.Now()
		d.Inspector.Config.Policies = func() policy.Set {
			return policy.Set{{Name: "orders", Queues: []string{"orders"}, Attempts: 1, Retention: 24 * time.Hour}, {Name: "rest", Queues: []string{"*"}, Attempts: 1}}
		}
		var all []*store.Record
		for _, queue := range []string{"orders", "mail"} {
			for _, age := range []time.Duration{time.Hour, 25 * time.Hour, 48 * time.Hour} {
				r := record(queue, store.Parked, "x")
				r.Due, r.ParkedFor = now.Add(-age), "why"
				all = append(all, r)
			}
		}
		waiting := record("orders", store.Waiting, "x")
		waiting.Due = now.Add(-72 * time.Hour)
		d.add(t, append(all, waiting)...)
		if err := d.DiscardExpired(ctx, now); err != nil {
			t.Fatal(err)
		}
		for i, r := range all {
			is, want := d.kept(t, r.ID.String()), store.Parked
			if i == 1 || i == 2 {
				want = store.Discarded
			}
			if is.State != want {
				t.Errorf("message %d is %d, want %d", i, is.State, want)
			}
			if note := strings.Join(is.Notes, "\n"); want == store.Discarded && (!strings.Contains(note, `discarded by retention: policy "orders" keeps parked messages for 1d`) || is.Due.Before(now)) {
				t.Errorf("message %d: %q until %s", i, note, is.Due)
			}
		}
		if is := d.kept(t, waiting.ID.String()); is.State != store.Waiting {
			t.Errorf("the waiting one is %d", is.State)
		}
		if lines := d.audit.All(); len(lines) != 1 || !strings.HasPrefix(lines[0], "retention discard queue:orders parked:<") || !strings.HasSuffix(lines[0], ": done 2") {
			t.Errorf("the audit log has %q", lines)
		}
		if len(d.events) != 1 || d.events[0] != "discarded orders 2 by retention" {
			t.Errorf("events %q", d.events)
		}
		if err := d.DiscardExpired(ctx, now); err != nil || len(d.audit.All()) != 1 {
			t.Errorf("again: %v, %q", err, d.audit.All())
		}
		// Without the audit log nothing is discarded.
		d.audit.Full = errors.New("disk full")
		if err := d.DiscardExpired(ctx, now.Add(48*time.Hour)); err == nil || d.kept(t, all[0].ID.String()).State != store.Parked {
			t.Errorf("without an audit log: %v", err)
		}
	})
}
