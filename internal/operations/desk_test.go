package operations_test

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/inspect/inspecttest"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	ctx      = context.Background()
	caller   = inspecttest.Caller
	operator = caller(auth.Operator)
	record   = inspecttest.Record
	openDisk = inspecttest.OpenDisk
	long     = inspecttest.Long
)

// desk is a Runner with all that it needs, over an engine.
type desk struct {
	*inspect.Inspector
	*actions.Actions
	*operations.Runner
	store  store.Store
	audit  *inspecttest.AuditLog
	broker *inspecttest.Queues
}

func newDesk(s store.Store) *desk {
	d := &desk{store: s, audit: &inspecttest.AuditLog{}, broker: inspecttest.NewQueues()}
	d.Inspector = inspect.New(inspect.Config{Store: s, Broker: d.broker, Policies: inspecttest.Everything})
	d.Actions = actions.New(actions.Config{Inspect: d.Inspector, Store: s, Audit: d.audit, Restorable: time.Hour})
	d.Runner = operations.New(operations.Config{Inspect: d.Inspector, Actions: d.Actions, Store: s})
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
