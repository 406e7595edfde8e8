package actions_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/inspect/inspecttest"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	ctx      = context.Background()
	caller   = inspecttest.Caller
	operator = caller(auth.Operator)
	record   = inspecttest.Record
	long     = inspecttest.Long
)

// desk is Actions with all that they need, over an engine.
type desk struct {
	*inspect.Inspector
	*actions.Actions
	store    store.Store
	audit    *inspecttest.AuditLog
	events   []string
	paused   map[string]bool
	throttle *inspect.ThrottleView
	forced   []string
}

func newDesk(s store.Store) *desk {
	d := &desk{store: s, audit: &inspecttest.AuditLog{}, paused: map[string]bool{}}
	d.Inspector = inspect.New(inspect.Config{Store: s, Broker: inspecttest.NewQueues(), Policies: inspecttest.Everything,
		Throttle: func(string) *inspect.ThrottleView { return d.throttle }})
	d.Actions = actions.New(actions.Config{Inspect: d.Inspector, Store: s, Audit: d.audit, Restorable: time.Hour,
		SetPaused: func(q string, paused bool) { d.paused[q] = paused },
		Force:     func(queue, to, by, why string) { d.forced = append(d.forced, queue+" "+to+" "+by+" "+why) },
		Events: func(e retry.Event) {
			d.events = append(d.events, fmt.Sprintf("%s %s %d by %s", e.Kind, e.Queue, e.N, e.By))
		}})
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

func (d *desk) kept(t *testing.T, id string) *store.Record {
	t.Helper()
	return inspecttest.Kept(t, d.store, id)
}
