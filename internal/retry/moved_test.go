package retry_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
	"github.com/redrive-mq/redrive/wire"
)

// identified is a dead letter with a message-id, dead-lettered now.
func identified(body string) wire.Delivery {
	d := rejectedNow(body)
	d.Message.MessageID = "id of " + body
	return d
}

// When the leader of a work queue moves, RabbitMQ's at-least-once dead-lettering publishes
// again what it had not noted as safe in the intake, and our connection notices nothing.
// The copy of what has a message-id is known all the same; without one it cannot be distinguished
// from another message with equal content. All are kept.
func TestACopyAfterALeaderMovedKeepsItsID(t *testing.T) {
	again := func(d wire.Delivery, body string) wire.Delivery {
		c := identified(body)
		c.Message.Exchange, c.Redelivered, c.DuplicateHeader = d.Message.Exchange, d.Redelivered, d.DuplicateHeader
		c.Message.MessageID = d.Message.MessageID
		return c
	}
	for name, c := range map[string]struct {
		change func(*wire.Delivery) // of the first and of what comes after
		after  time.Duration
		equal  int // equal dead letters that come after the first
		others int // dead letters of the same queue in between
		ids    int
	}{
		"a copy":                     {after: 3 * time.Second, equal: 1, ids: 1},
		"within the same second":     {equal: 1, ids: 1},
		"of a node that hung":        {after: 80 * time.Second, equal: 1, ids: 1},
		"behind what else was there": {after: time.Second, equal: 1, others: 100, ids: 1},
		"RabbitMQ 4.3":               {change: func(d *wire.Delivery) { d.Redelivered = true }, after: time.Second, equal: 1, ids: 1},
		"content repeated":           {after: time.Second, equal: 4, ids: 4},
		"long after":                 {after: 3 * time.Minute, equal: 1, ids: 2},
		"without a message-id":       {change: func(d *wire.Delivery) { d.Message.MessageID = "" }, after: time.Second, equal: 1, ids: 2},
		"reported":                   {change: func(d *wire.Delivery) { d.Message.Exchange = wire.ExchangeFailures }, after: time.Second, equal: 1, ids: 2},
		"with headers twice":         {change: func(d *wire.Delivery) { d.DuplicateHeader = "twice" }, after: time.Second, equal: 1, ids: 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, s := context.Background(), memstore.New()
				f := newIntake(s)
				must(t, f.Connected(ctx))
				first := identified("x")
				if c.change != nil {
					c.change(&first)
				}
				must(t, f.Handle(ctx, []wire.Delivery{first}))
				for i := range c.others {
					must(t, f.Handle(ctx, []wire.Delivery{identified(fmt.Sprint("other ", i))}))
				}
				for range c.equal {
					time.Sleep(c.after)
					must(t, f.Handle(ctx, []wire.Delivery{again(first, "x")}))
				}
				checkIDs(t, s, "x", c.equal+1, c.ids)
			})
		})
	}
}

// checkIDs checks how many records with that body there are, with how many ids, and that
// those with the same id have the same first failure.
func checkIDs(t *testing.T, s store.Store, body string, records, ids int) {
	t.Helper()
	n, firsts := 0, map[string]time.Time{}
	for _, r := range newest(t, s, 0) {
		if string(r.Message.Body) != body {
			continue
		}
		n++
		id := r.ID.String()
		if first, known := firsts[id]; known && !first.Equal(r.FirstFailed) {
			t.Errorf("%s failed first at %s and at %s", id, first, r.FirstFailed)
		}
		firsts[id] = r.FirstFailed
	}
	if n != records || len(firsts) != ids {
		t.Errorf("%d records with %d ids, want %d with %d", n, len(firsts), records, ids)
	}
}

// The copy may come to another replica than the first.
func TestACopyThatAnotherReplicaTakesKeepsItsID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, s := context.Background(), sharedStore{Store: memstore.New()}
		one, other := newIntake(s), newIntake(s)
		must(t, one.Connected(ctx))
		must(t, other.Connected(ctx))
		must(t, one.Handle(ctx, []wire.Delivery{identified("x")}))
		time.Sleep(time.Second)
		must(t, other.Handle(ctx, []wire.Delivery{identified("x")}))
		checkIDs(t, s, "x", 2, 1)
	})
}

// Two messages of two queues are two: what is equal has failed in the same queue.
func TestACopyIsOfTheSameQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, s := context.Background(), memstore.New()
		f := newIntake(s)
		must(t, f.Connected(ctx))
		at := func(queue string) wire.Delivery {
			d := identified("x")
			d.Message.Headers["x-death"].([]any)[0].(amqp.Table)["queue"] = queue
			return d
		}
		must(t, f.Handle(ctx, []wire.Delivery{at("q"), at("r")}))
		checkIDs(t, s, "x", 2, 2)
	})
}
