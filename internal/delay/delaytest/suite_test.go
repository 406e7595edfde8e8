// Package delaytest is the suite that every way to wait in RabbitMQ passes, on every version: see suiteWays.
package delaytest

import (
	"errors"
	"fmt"
	"math/bits"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/headers"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/wire"
)

// A message comes back to its own queue alone and not early, also if that has a name that means something.
func TestAMessageComesBackToItsOwnQueueOnly(t *testing.T) {
	names := []string{"orders", "orders.created", "orders.*", "#", "sha256.orders", "ordres.é", "a..b.", strings.Repeat("long.", 51), strings.Repeat("x", 254)}
	each(t, func(t *testing.T, b *suite) {
		consumers := map[string]*brokertest.Consumer{}
		for _, q := range names {
			consumers[q] = b.work(q)
			b.v.Publish("", q, amqp.Publishing{Body: []byte(q)})
		}
		for _, wait := range b.delays {
			holds := map[string]delayedMessage{}
			for _, q := range names {
				holds[q] = b.fail(consumers[q].Next(), q, wait)
			}
			for _, q := range names {
				d := b.back(consumers[q], q, holds[q])
				if hops, _ := d.Headers["x-death"].([]any); b.name == "Binary" && len(hops) != bits.OnesCount64(uint64(holds[q].Delay/(10*ms)))+1 { // and its lane
					t.Errorf("%s took %d hops", holds[q].Delay, len(hops))
				}
				if wait != b.delays[len(b.delays)-1] {
					// Once more: the body tells which queue it belongs to.
					b.v.Publish("", q, amqp.Publishing{Body: d.Body})
				}
				must(t, d.Ack(false))
			}
		}
		for q, c := range consumers {
			if c.Arrived() {
				t.Errorf("something came to %q twice", q)
			}
		}
		b.parked(0)
	})
}

// parked returns how many messages are parked in RabbitMQ.
func (b *suite) parked(want int) {
	b.t.Helper()
	if n := b.v.Depth(wire.QueueParked); n != want {
		b.t.Errorf("%d messages are parked, want %d", n, want)
	}
}

// Long waits do not hold up short ones, unless the way says so.
func TestManyDelaysRunAtOnce(t *testing.T) {
	each(t, func(t *testing.T, b *suite) {
		if len(b.delays) == 1 {
			return // one delay only: nothing can stand behind a longer one
		}
		c, other := b.work("orders"), b.work("other")
		for tries := 1; !b.shortBehindLong(c, other, tries); tries++ {
			t.Log("this machine stood still between the long ones and the short one, which proves nothing: again")
		}
	})
}

// shortBehindLong reports whether it was quick enough to prove anything: twenty late messages are the way's fault.
func (b *suite) shortBehindLong(c, other *brokertest.Consumer, tries int) bool {
	const many = 20
	long, short := b.delays[len(b.delays)-1], 200*ms
	if tries > 1 { // a slow machine has more time
		long = killDelay
	}
	var last time.Time
	for _, at := range b.waitMany("orders", long, many) {
		if at.After(last) {
			last = at
		}
	}
	sent := b.waitMany("other", short, 1)["other 0"]
	b.wait("orders", short, wire.Message{Body: []byte("short")})
	quick := time.Since(last) < (long-short)/2
	other.Take("other 0")
	if took := time.Since(sent); took >= long && tries < 20 {
		quick = false
	} else if quick && took >= long {
		b.t.Errorf("a message of another queue, with a delay of %s, came after %s", short, took)
	}
	place, late := 0, time.Duration(0)
	for i := range many + 1 {
		d := c.Next()
		if string(d.Body) == "short" {
			place, late = i, time.Since(sent)-short
		}
		must(b.t, d.Ack(false))
	}
	if !quick {
		return false
	}
	if b.way.Limits().Blocks {
		b.t.Logf("a delay of %s behind %d of %s: %s late", short, many, long, late)
		if place != many {
			b.t.Errorf("%s has the limit Blocks, and %d with a long delay came after the short one", b.name, many-place)
		}
	} else if place != 0 {
		b.t.Errorf("%d with a long delay came before the short one, which was %s late", place, late)
	}
	return true
}

// Messages that come due after their queue was deleted are parked, each once.
func TestMessagesOfADeletedQueueAreParked(t *testing.T) {
	each(t, func(t *testing.T, b *suite) {
		if b.name == "Native" {
			return // what waits is in the work queue itself, and goes with it
		}
		b.work("orders").Channel.Close()
		// Before it waits: RabbitMQ may take longer to delete a queue than the message would wait.
		b.v.DeleteQueue("orders")
		h := b.wait("orders", b.delays[len(b.delays)-1], wire.Message{RoutingKey: "first", Body: []byte("a"), MessageID: "m"})
		d := b.back(b.v.Consume(wire.QueueParked), "a", h)
		if d.MessageId != "m" || d.Headers[wire.HeaderQueue] != "orders" || d.Headers[wire.HeaderRoutingKey] != "first" {
			t.Errorf("it is parked with message-id %q and headers %v", d.MessageId, d.Headers)
		}
		must(t, d.Ack(false))
		// A queue of that name that is made again is bound again.
		c := b.work("orders")
		b.v.Publish("", "orders", amqp.Publishing{Body: []byte("b")})
		b.back(c, "b", b.fail(c.Next(), "orders", b.delays[0]))
		b.parked(0)
	})
}

// At-least-once dead-lettering stops at 32 unroutable messages. Those of a deleted queue never cause that.
func TestADeletedQueueBlocksNoOther(t *testing.T) {
	each(t, func(t *testing.T, b *suite) {
		if !b.keeps {
			return
		}
		const many = 100
		b.work("vanishing")
		b.v.DeleteQueue("vanishing")
		c := b.work("orders")
		b.v.Publish("", "orders", amqp.Publishing{Body: []byte("o")})
		for range many {
			b.wait("vanishing", b.delays[0], wire.Message{Body: []byte("v")})
		}
		b.back(c, "o", b.fail(c.Next(), "orders", b.delays[0]))
		parked := 0
		defer func() {
			if parked != many {
				t.Logf("%d of %d are parked", parked, many)
			}
		}()
		brokertest.Eventually(t, "all are parked", func() bool { parked = b.v.Depth(wire.QueueParked); return parked == many })
	})
}

// Many messages, one right after the other: RabbitMQ rounds its clock, and must not be early because of it.
func TestNeverEarly(t *testing.T) {
	each(t, func(t *testing.T, b *suite) {
		if b.name == "Native" {
			return
		}
		const many = 300
		b.work("orders").Channel.Close()
		in, err := b.v.Channel().Consume("orders", "", true, false, false, false, nil)
		must(t, err)
		sent := b.waitMany("orders", 200*ms, many)
		for range many {
			d := brokertest.Receive(t, in, "what was to wait")
			if took := time.Since(sent[string(d.Body)]); took < 200*ms {
				t.Errorf("%s came back after %s, and was to wait 200 ms", d.Body, took)
			}
		}
	})
}

// RabbitMQ accepts the maximum delay of a way.
func TestTheLongestDelay(t *testing.T) {
	each(t, func(t *testing.T, b *suite) {
		if b.name == "Native" {
			return // it takes no delay; see its arguments
		}
		b.work("orders").Channel.Close()
		b.wait("orders", b.way.Limits().Longest, wire.Message{})
	})
}

// Delays that differ in their first two digits have a queue each.
func TestDynamicMakesAQueuePerDelay(t *testing.T) {
	each(t, func(t *testing.T, b *suite) {
		if b.name != "Dynamic" {
			return
		}
		b.v.Queue("orders", b.queue)
		b.declare("orders")
		names := map[string]bool{}
		for wait := 600_000 * ms; wait < 660_000*ms; wait += 600 * ms {
			names[b.wait("orders", wait, wire.Message{}).Exchange] = true
		}
		if n := delays(t, b.v, "queues"); n != len(names) || n > 7 {
			t.Errorf("there are %d queues for %d names", n, len(names))
		}
	})
}

// A message is retried as it was published, also the second time, and moved nowhere by what a publisher forged.
func TestAMessageComesBackWithItsProperties(t *testing.T) {
	each(t, func(t *testing.T, b *suite) {
		if b.name == "Native" {
			return // the message never leaves its queue
		}
		c := b.work("orders")
		b.v.Queue("copies", amqp.Table{"x-queue-type": "classic"})
		b.v.Exchange("shop", amqp.ExchangeFanout, "orders")
		sent := brokertest.EveryProperty()
		b.v.Publish("shop", "order.eu", sent)
		d := c.Next()
		d.Headers["CC"] = []any{"copies"}
		d.Headers["BCC"] = []any{"copies"}
		d.Headers["x-delay"] = int32(3_600_000)
		d.Headers["x-death"] = []any{amqp.Table{"queue": "orders", "reason": "expired", "count": "many"}}
		for range 2 {
			h := b.fail(d, "orders", b.delays[0])
			d = b.back(c, string(sent.Body), h)
			history, _, _ := headers.Read(&wire.Message{Headers: d.Headers, MessageID: d.MessageId, Body: d.Body}, "orders", true, time.Now())
			if history.Exchange != "shop" || history.RoutingKey != "order.eu" || history.UserID != "guest" || history.Failures != 1 || history.Queue != "orders" {
				t.Errorf("its history is %+v", history)
			}
			expect.Equal(t, d.RoutingKey == "orders", b.way.Limits().ChangesRoutingKey,
				"it came back with the routing key %q; its limits say that it has another", d.RoutingKey)
			expect.Equal(t, cmp.Diff(sent.Headers, headers.Clean(d.Headers)), "", "headers (-sent +returned):\n")
			got, want := brokertest.Published(&d), sent
			want.Headers, want.UserId, want.Expiration = nil, "", "" // kept in our header; the broker takes it off, and it would count again
			expect.Equal(t, cmp.Diff(want, got), "", "properties (-sent +returned):\n")
			// As the library reads it for the next time.
			d.Exchange, d.RoutingKey, d.UserId = history.Exchange, history.RoutingKey, history.UserID
		}
		must(t, d.Ack(false))
		for _, q := range []string{"copies", wire.QueueParked} {
			expect.Equal(t, b.v.Depth(q), 0, "messages are in %s", q)
		}
	})
}

// RabbitMQ counts, and the wait grows by as much each time; 3.10 takes the arguments and does not wait.
func TestNativeGrowsLinearly(t *testing.T) {
	t.Parallel()
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		const step, longest = 200 * ms, 500 * ms
		b := newSuite(t, v, suiteWay{way: delay.Native{}, queue: delay.NativeArguments(step, longest)})
		c := b.work("orders")
		v.Publish("", "orders", amqp.Publishing{Body: []byte("a")})
		d := c.Next()
		waits := []time.Duration{step, 2 * step, longest, longest}
		if err := b.way.Limits().CheckVersion(v.Version); err != nil {
			began := time.Now()
			b.fail(d, "orders", step)
			c.Take("a")
			if time.Since(began) >= step {
				t.Errorf("RabbitMQ %s has waited %s, and we say that it cannot (%v)", v.Version, time.Since(began), err)
			}
			return
		}
		for i, w := range waits {
			expect.Equal(t, headers.Deliveries(d.Headers), int64(i), "after %d failures RabbitMQ counts", i)
			d = b.back(c, "a", b.fail(d, "orders", w))
		}
		b.fail(d, "orders", longest)
		v.Publish("", "orders", amqp.Publishing{Body: []byte("b")})
		b.fail(c.Next(), "orders", step)
		c.Take("b")
		c.Take("a")
	})
}

// A user without permission to declare learns what is missing, and nothing is declared.
func TestVerify(t *testing.T) {
	each(t, func(t *testing.T, b *suite) {
		ctx := t.Context()
		b.v.Queue("orders", b.queue)
		topology := b.way.Topology("orders")
		for range 2 {
			expect.Err(t, b.p.Verify(ctx, topology), wire.ErrUnroutable, "with nothing there")
		}
		b.declare("orders")
		b.declare("orders") // twice is as good as once
		expect.Err(t, b.p.Verify(ctx, topology), nil, "with everything there")
		for _, q := range topology.Queues[:min(2, len(topology.Queues))] {
			b.v.DeleteQueue(q.Name)
			expect.Err(t, b.p.Verify(ctx, topology), wire.ErrQueueGone, "without the queue %s", q.Name)
			b.declare("orders")
		}
		if err := b.p.Declare(ctx, b.way.Topology("missing")); b.name != "Native" && !errors.Is(err, wire.ErrQueueGone) {
			t.Errorf("for a work queue that does not exist: %v", err)
		}
	})
}

// What exists with other settings is reported, one by one.
func TestADelayQueueWithOtherArgumentsIsReported(t *testing.T) {
	each(t, func(t *testing.T, b *suite) {
		b.v.Queue("orders", b.queue)
		topology := b.way.Topology("orders")
		ticket, err := b.way.Ticket("orders", b.delays[0])
		must(t, err)
		if ticket.DeclareFirst != nil {
			topology = topology.With(*ticket.DeclareFirst)
		}
		ch := b.v.Channel()
		differs := func(what string) {
			t.Helper()
			expect.Err(t, b.p.Declare(t.Context(), topology), wire.ErrDiffers, "%s exists with other settings", what)
		}
		for _, q := range topology.Queues {
			other := amqp.Table{"x-queue-type": q.Args["x-queue-type"], "x-max-length": int32(5)}
			b.v.Queue(q.Name, other)
			differs("queue " + q.Name)
			b.v.DeleteQueue(q.Name)
		}
		for _, e := range topology.Exchanges {
			must(t, ch.ExchangeDelete(e.Name, false, false))
			must(t, ch.ExchangeDeclare(e.Name, amqp.ExchangeHeaders, true, false, false, false, nil))
			differs("exchange " + e.Name)
			must(t, ch.ExchangeDelete(e.Name, false, false))
		}
		must(t, b.p.Declare(t.Context(), topology))
	})
}

// Without the plugin the error says so, and the publisher still works.
func TestAMissingPluginIsReported(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		p := publisher(t, v.URL())
		v.Queue("orders", quorum)
		if thePlugin(t, v) == "" {
			t.Skip("not run: the broker has the plugin")
		}
		for range 2 {
			expect.Err(t, p.Declare(t.Context(), delay.Plugin{}.Topology("orders")), wire.ErrNoType, "declaring it")
		}
		brokertest.Eventually(t, "the publisher works", func() bool { return p.Declare(t.Context(), delay.Due("orders")) == nil })
	})
}

// Why the delayed exchange has neither mandatory nor an alternate. It fails when the plugin has learnt better.
func TestThePluginKnowsNoMandatory(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		if lacks := thePlugin(t, v); lacks != "" {
			t.Skip("not run: " + lacks)
		}
		b := newSuite(t, v, suiteWay{way: delay.Plugin{}, queue: quorum})
		c := b.work("orders")
		ticket, err := b.way.Ticket("orders", 300*ms)
		must(t, err)
		ticket.Unchecked = false
		expect.Err(t, b.hold(ticket, "orders", wire.Message{Body: []byte("a")}), wire.ErrUnroutable, "as mandatory")
		c.Take("a")

		b.v.Queue("copies", amqp.Table{"x-queue-type": "classic"})
		b.v.Exchange("copies", amqp.ExchangeDirect, "copies")
		must(t, v.Channel().ExchangeDeclare("with an alternate", "x-delayed-message", true, false, false, false,
			amqp.Table{"x-delayed-type": "fanout", "alternate-exchange": "copies"}))
		v.Publish("with an alternate", "copies", amqp.Publishing{Headers: amqp.Table{"x-delay": int32(time.Hour / ms)}, Body: []byte("at once")})
		v.Consume("copies").Take("at once")
	})
}

// The service retries what is reported to it, and without it nothing is lost.
func TestAReportWaitsInTheService(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		b := newSuite(t, v, suiteWay{name: "Service", way: delay.Report{}})
		ticket, err := b.way.Ticket("orders", time.Second)
		must(t, err)
		b.declare("orders")
		expect.Err(t, b.hold(ticket, "orders", wire.Message{}), wire.ErrUnroutable, "before the service has ever run")
		v.Queue(wire.QueueIntake, quorum) // as the service makes it
		v.Exchange(wire.ExchangeFailures, amqp.ExchangeTopic)
		must(t, v.Channel().QueueBind(wire.QueueIntake, "#", wire.ExchangeFailures, false, nil))
		must(t, b.hold(ticket, "orders.created", wire.Message{Headers: brokertest.EveryHeader(), Body: []byte("a")}))
		d := v.Consume(wire.QueueIntake).Take("a")
		if d.RoutingKey != "orders" || d.Headers[wire.HeaderError] != "no reason but a test" {
			t.Errorf("it came with routing key %q and headers %v", d.RoutingKey, d.Headers)
		}
		ran("Service", v.Version, "ok, as far as redrive.intake: the service brings messages back, and has its own tests")
	})
}

// However long a sender stands still between declaration, publish and confirm: no message counts as held that is
// deleted with its queue, and nothing is left of the queues.
func TestNoMessageIsOnlyInAQueueThatItsExpiryDeletes(t *testing.T) {
	t.Parallel()
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		const many, gone, tooLate = 40, 0, 1
		way, err := delay.NewDynamic(10 * ms)
		must(t, err)
		way.Spare = func(time.Duration) time.Duration { return time.Second }
		v.Queue("orders", amqp.Table{"x-queue-type": "classic"})
		p := publisher(t, v.URL())
		ctx := t.Context()
		must(t, p.Declare(ctx, way.Topology("orders")))
		c := v.Consume("orders")

		var sending sync.Mutex
		var confirmed, late, refused atomic.Int64
		// Each has a queue of its own, or the others would renew it.
		hold := func(i int, afterDeclare, beforeConfirm time.Duration) error {
			for {
				ticket, err := way.Ticket("orders", time.Duration(20+i)*10*time.Millisecond)
				if err != nil {
					return err
				}
				began := time.Now()
				if err := p.Declare(ctx, *ticket.DeclareFirst); err != nil {
					return err
				}
				<-time.After(afterDeclare)
				if i == gone && refused.Load() == 0 { // as its expiry does, on however slow a machine
					v.DeleteQueue(ticket.DeclareFirst.Queues[0].Name)
				}
				id := uuid.NewString()
				sending.Lock()
				answers := p.Send(ctx, []wire.Outgoing{{Exchange: ticket.Exchange, RoutingKey: ticket.RoutingKey, ID: id,
					Message: &wire.Message{Headers: amqp.Table{wire.HeaderID: id}, Body: fmt.Append(nil, i)}}})
				sending.Unlock()
				<-time.After(beforeConfirm)
				if i == tooLate && late.Load() == 0 {
					<-time.After(time.Until(began.Add(ticket.ConfirmWithin + 1)))
				}
				err = answers(ctx)[0]
				switch {
				case errors.Is(err, wire.ErrUnroutable), errors.Is(err, wire.ErrNacked):
					refused.Add(1) // the queue was gone, or went before it had the message
				case err != nil:
					return err
				case time.Since(began) > ticket.ConfirmWithin:
					confirmed.Add(1)
					late.Add(1)
				default:
					confirmed.Add(1)
					return nil
				}
				afterDeclare, beforeConfirm = 0, 0
			}
		}
		var all sync.WaitGroup
		for i := range many {
			// From 0 to past the expiry, spent here or there.
			pause := time.Duration(i) * 50 * time.Millisecond
			pauses := [2]time.Duration{pause, 0}
			if i%4 == 3 {
				pauses = [2]time.Duration{pause / 2, pause / 2}
			}
			all.Go(func() {
				expect.Err(t, hold(i, pauses[0], pauses[1]), nil, "message %d", i)
			})
		}
		all.Wait()
		came, copies := map[string]bool{}, 0
		for len(came) < many && !t.Failed() {
			d := c.Next()
			came[string(d.Body)] = true
			copies++
			must(t, d.Ack(false))
		}
		t.Logf("%d confirmed, %d of them too late and sent again, %d refused; %d copies came back", confirmed.Load(), late.Load(), refused.Load(), copies)
		if late.Load() == 0 || refused.Load() == 0 {
			t.Error("the pauses were not at the worst moments")
		}
		for _, what := range []string{"queues", "exchanges"} {
			brokertest.Eventually(t, "no idle "+what+" are left", func() bool { return delays(t, v, what) == 0 })
		}
	})
}

// delays counts dynamic delay queues, or their exchanges.
func delays(t *testing.T, v *brokertest.VHost, what string) (n int) {
	t.Helper()
	var found []struct {
		Name string `json:"name"`
	}
	must(t, v.API().Call(t.Context(), "GET", what+"/"+v.Name, nil, &found))
	for _, f := range found {
		if strings.HasPrefix(f.Name, wire.DelayPrefix+"dynamic.") {
			n++
		}
	}
	return n
}

var must, errOf = expect.NoError, expect.ErrOf
