package inspect_test

import (
	"context"
	"testing"

	"go.uber.org/goleak"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/inspect/inspecttest"
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

// desk is an Inspector with all that it needs, over an engine.
type desk struct {
	*inspect.Inspector
	store    store.Store
	throttle *inspect.ThrottleView
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
