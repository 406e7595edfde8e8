package retry_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
	"github.com/redrive-mq/redrive/wire"
)

// rejectedNow returns a dead letter as RabbitMQ delivers it, dead-lettered now.
func rejectedNow(body string) wire.Delivery {
	d := deadLetter("q", body)
	head := d.Message.Headers["x-death"].([]any)[0].(amqp.Table)
	head["time"], head["count"] = time.Now().Truncate(time.Second), int64(1)
	return d
}

// again is how RabbitMQ delivers something once more.
func again(d wire.Delivery, redelivered bool) wire.Delivery {
	d.Message.Headers = maps.Clone(d.Message.Headers)
	d.Redelivered = redelivered
	if redelivered {
		d.Message.Headers["x-delivery-count"], d.Message.Headers["x-acquired-count"] = int64(2), int64(1)
	}
	return d
}

// A node that dies under at-least-once dead-lettering publishes again what it had not
// noted as safe in the intake: with a new time in x-death, on RabbitMQ 3.10 not marked as
// redelivered, and perhaps after the first was redelivered. Both copies are the first.
func TestACopyByAtLeastOnceDeadLetteringKeepsItsID(t *testing.T) {
	for name, marked := range map[string]bool{"RabbitMQ 3.10": false, "RabbitMQ 4.3": true} {
		inTime(t, name, func(t *testing.T) {
			ctx, s := context.Background(), memstore.New()
			f := connected(t, s)
			stored, unstored := rejectedNow("stored"), rejectedNow("unstored")
			must(t, f.Handle(ctx, []wire.Delivery{stored}))
			f.Disconnected()
			var copies []wire.Delivery
			for i := range 8 { // RabbitMQ starts again, and does not let it consume yet
				time.Sleep(500 * time.Millisecond)
				if i == 4 {
					copies = []wire.Delivery{again(rejectedNow("stored"), marked), again(rejectedNow("unstored"), marked)}
				}
				must(t, f.Connected(ctx))
				time.Sleep(100 * time.Millisecond)
				f.Disconnected()
			}
			must(t, f.Connected(ctx))
			time.Sleep(100 * time.Millisecond)
			must(t, f.Handle(ctx, []wire.Delivery{again(stored, true), again(unstored, true)}))
			time.Sleep(time.Second)
			must(t, f.Handle(ctx, copies))
			f.Disconnected() // before they were acknowledged
			time.Sleep(time.Second)
			must(t, f.Connected(ctx))
			must(t, f.Handle(ctx, []wire.Delivery{again(copies[0], true), again(copies[1], true)}))
			checkIDs(t, s, "stored", 4, 1)
			checkIDs(t, s, "unstored", 3, 1)
		})
	}
}

// Two messages with equal content are two, however RabbitMQ 4.3 marks them: it says of each
// that a consumer rejected that it was delivered before.
func TestEqualMessagesHaveAnIDEach(t *testing.T) {
	fresh := func(body string) wire.Delivery {
		d := rejectedNow(body)
		d.Redelivered, d.Message.Headers["x-delivery-count"] = true, int64(1)
		return d
	}
	for name, on := range map[string]store.Store{"disk": memstore.New(), "shared": sharedStore{Store: memstore.New()}} {
		inTime(t, name, func(t *testing.T) {
			ctx, f := context.Background(), newIntake(on)
			f.Disconnected()
			must(t, f.Connected(ctx))
			handle := func(n int) {
				t.Helper()
				for range n {
					must(t, f.Handle(ctx, []wire.Delivery{fresh("ping")}))
				}
			}
			handle(3) // within one second
			time.Sleep(time.Minute)
			handle(2)
			f.Disconnected()
			time.Sleep(2 * time.Second)
			must(t, f.Connected(ctx))
			handle(2)
			time.Sleep(time.Second)
			handle(2)
			checkIDs(t, on, "ping", 9, 9)
		})
	}
}

// Two equal dead letters that come twice each keep an id each, also when the batch
// was passed twice, since the store's answer was lost.
func TestABatchOfferedTwiceWritesNoReceiptThatAnotherTakes(t *testing.T) {
	ctx := context.Background()
	s := &lostAnswer{Store: memstore.New()}
	first := newIntake(s)
	twins := []wire.Delivery{rejectedNow("same"), rejectedNow("same")}
	if err := first.Handle(ctx, twins[:1]); err == nil {
		t.Fatal("the store's error was not returned")
	}
	must(t, first.Handle(ctx, twins[:1])) // kept twice
	must(t, first.Handle(ctx, twins[1:]))
	f := connected(t, s)
	must(t, f.Handle(ctx, []wire.Delivery{again(twins[0], true), again(twins[1], true)}))
	ids := idsOf(t, s)
	if len(ids) != 2 || slices.Min(slices.Collect(maps.Values(ids))) != 2 {
		t.Errorf("5 records have the ids %v; want the second twin's twice", ids)
	}
}

// One message that was stored before an outage has one copy after it: what is equal and
// comes besides is another.
func TestOneReceiptIsUsedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, s := context.Background(), memstore.New()
		f := newIntake(s)
		must(t, f.Handle(ctx, []wire.Delivery{rejectedNow("x")}))
		f.Disconnected()
		time.Sleep(2 * time.Second)
		must(t, f.Connected(ctx))
		for range 2 {
			must(t, f.Handle(ctx, []wire.Delivery{rejectedNow("x")}))
			time.Sleep(time.Second)
		}
		all := newest(t, s, 0)
		if all[1].ID != all[0].ID || all[2].ID == all[0].ID {
			t.Errorf("the ids are %s, its copy %s and another's %s", all[0].ID, all[1].ID, all[2].ID)
		}
	})
}

// When Redrive goes down together with RabbitMQ nothing saw the outage begin: the newest
// receipt shows about when it began.
func TestACopyKeepsItsIDWhenRedriveWentDownToo(t *testing.T) {
	for name, c := range map[string]struct {
		firsts int           // equal dead letters before
		down   time.Duration // both were
		ids    int
	}{
		"one":               {1, 20 * time.Second, 1},
		"content repeated":  {2, 20 * time.Second, 3},
		"stopped for hours": {1, 3 * time.Hour, 2},
	} {
		inTime(t, name, func(t *testing.T) {
			ctx, s := context.Background(), memstore.New()
			f := connected(t, s)
			for range c.firsts {
				must(t, f.Handle(ctx, []wire.Delivery{rejectedNow("same")}))
			}
			time.Sleep(time.Second)
			must(t, f.Handle(ctx, []wire.Delivery{rejectedNow("other")}))
			time.Sleep(c.down)
			copied := again(rejectedNow("same"), false)
			f = newIntake(s) // another process, and RabbitMQ does not let it consume yet
			for range 3 {
				must(t, f.Connected(ctx))
				time.Sleep(time.Second)
				f.Disconnected()
			}
			must(t, f.Connected(ctx))
			must(t, f.Handle(ctx, []wire.Delivery{copied}))
			checkIDs(t, s, "same", c.firsts+1, c.ids)
		})
	}
}

// identified is a dead letter with a message-id, dead-lettered now.
func identified(body string) wire.Delivery {
	d := rejectedNow(body)
	d.Message.MessageID = "id of " + body
	return d
}

// When the leader of a work queue moves, RabbitMQ's at-least-once dead-lettering publishes
// again what it had not noted as safe in the intake, and our connection notices nothing.
// The copy of what has a message-id is known all the same; without one it cannot be distinguished
// from another message with equal content. All are kept. The copy may come to another replica.
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
		moves  bool // what comes after comes to another replica
	}{
		"a copy":                     {after: 3 * time.Second, equal: 1, ids: 1},
		"within the same second":     {equal: 1, ids: 1},
		"of a node that hung":        {after: 80 * time.Second, equal: 1, ids: 1},
		"behind what else was there": {after: time.Second, equal: 1, others: 100, ids: 1},
		"RabbitMQ 4.3":               {change: func(d *wire.Delivery) { d.Redelivered = true }, after: time.Second, equal: 1, ids: 1},
		"another replica":            {after: time.Second, equal: 1, ids: 1, moves: true},
		"content repeated":           {after: time.Second, equal: 4, ids: 4},
		"long after":                 {after: 3 * time.Minute, equal: 1, ids: 2},
		"without a message-id":       {change: func(d *wire.Delivery) { d.Message.MessageID = "" }, after: time.Second, equal: 1, ids: 2},
		"reported":                   {change: func(d *wire.Delivery) { d.Message.Exchange = wire.ExchangeFailures }, after: time.Second, equal: 1, ids: 2},
		"with headers twice":         {change: func(d *wire.Delivery) { d.DuplicateHeader = "twice" }, after: time.Second, equal: 1, ids: 2},
	} {
		inTime(t, name, func(t *testing.T) {
			ctx, s := context.Background(), sharedStore{Store: memstore.New()}
			f, other := connected(t, s), connected(t, s)
			first := identified("x")
			if c.change != nil {
				c.change(&first)
			}
			must(t, f.Handle(ctx, []wire.Delivery{first}))
			for i := range c.others {
				must(t, f.Handle(ctx, []wire.Delivery{identified(fmt.Sprint("other ", i))}))
			}
			if c.moves {
				f = other
			}
			for range c.equal {
				time.Sleep(c.after)
				must(t, f.Handle(ctx, []wire.Delivery{again(first, "x")}))
			}
			checkIDs(t, s, "x", c.equal+1, c.ids)
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
