package model_test

import (
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/testenv/brokertest"
)

// quorum declares a quorum queue.
func (w *world) quorum(name string, args amqp.Table) {
	w.Helper()
	all := amqp.Table{"x-queue-type": "quorum"}
	for k, a := range args {
		all[k] = a
	}
	w.queue(name, all)
}

// seen is what a delivery says of those before it.
func seen(d amqp.Delivery) string {
	return fmt.Sprintf("%s redelivered %t, delivery count %v, acquired count %v", d.Body, d.Redelivered, d.Headers["x-delivery-count"], d.Headers["x-acquired-count"])
}

func (w *world) sees(d amqp.Delivery, on3, on4 string) {
	w.Helper()
	want := on3
	if w.since4 {
		want = on4
	}
	if got := seen(d); got != want {
		w.Errorf("got  %s\nwant %s", got, want)
	}
}

// consumed are the next deliveries of a queue, which no one acknowledges before the channel
// ends.
func (w *world) consumed(queue string, n int) (ch *amqp.Channel, all []amqp.Delivery) {
	w.Helper()
	ch = w.another()
	from := w.consume(ch, queue)
	for range n {
		select {
		case d := <-from:
			all = append(all, d)
		case <-time.After(10 * time.Second):
			w.Fatalf("%d of %d are delivered", len(all), n)
		}
	}
	return ch, all
}

// order consumes so many messages, and requeues them.
func (w *world) order(queue string, n int) (bodies string) {
	w.Helper()
	ch, all := w.consumed(queue, n)
	for _, d := range all {
		bodies += string(d.Body)
	}
	w.must(ch.Close())
	return bodies
}

func (w *world) is(what, got, want string) {
	w.Helper()
	if got != want {
		w.Errorf("%s: %q, want %q", what, got, want)
	}
}

// countsOfDead dead-letters from one type of queue to another.
func (w *world) countsOfDead(from, to string) {
	w.Helper()
	name := from + " to " + to
	w.queue("dead of "+name, amqp.Table{"x-queue-type": to})
	w.queue(name, amqp.Table{"x-queue-type": from, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead of " + name})
	for _, how := range []string{"rejected", "expired", "after reject", "after nack", "after the end"} {
		p := amqp.Publishing{Body: []byte(how)}
		if how != "rejected" {
			p.Expiration = "300"
		}
		w.publish("", name, p)
		switch how {
		case "rejected":
			w.reject(name)
		case "after reject":
			w.must(w.got(name, false).Reject(true))
		case "after nack":
			w.must(w.got(name, false).Nack(false, true))
		case "after the end":
			w.order(name, 1)
		}
		brokertest.Eventually(w, "it is dead", func() bool {
			q, err := w.ch.QueueDeclarePassive("dead of "+name, true, false, false, false, nil)
			w.must(err)
			return q.Messages == 1
		})
		ch, all := w.consumed("dead of "+name, 1)
		w.must(ch.Close())
		again := w.get("dead of " + name)
		failed := how == "rejected" || how == "after reject" || how == "after the end"
		on3, on4 := " redelivered false, delivery count <nil>, acquired count <nil>", " redelivered false, delivery count <nil>, acquired count <nil>"
		again3, again4 := " redelivered true, delivery count <nil>, acquired count <nil>", " redelivered true, delivery count <nil>, acquired count <nil>"
		if to == "quorum" {
			again3 = " redelivered true, delivery count 1, acquired count <nil>"
		}
		switch {
		case to == "quorum" && failed:
			on4, again4 = " redelivered true, delivery count 1, acquired count 1", " redelivered true, delivery count 2, acquired count 1"
		case to == "quorum":
			again4 = " redelivered true, delivery count 1, acquired count 1"
		case failed:
			on4 = again4
		}
		w.sees(all[0], how+on3, how+on4)
		w.sees(again, how+again3, how+again4)
		if w.Failed() {
			w.Log(name)
		}
	}
}

// settled waits until RabbitMQ has seen what the channel sent before.
func (w *world) settled(ch *amqp.Channel) {
	w.Helper()
	w.must(ch.Qos(0, 0, false))
	time.Sleep(100 * time.Millisecond)
}

var quorums = []behaviour{
	{"a quorum queue delivers first what was returned, in that order", func(w *world) {
		for _, name := range []string{"limited", "unlimited"} {
			args, want := amqp.Table{"x-delivery-limit": int64(1000)}, "cbade"
			switch {
			case name == "unlimited" && !w.since4:
				args, want = nil, "cdeba" // what a client returns goes to the end
			case name == "unlimited":
				args = amqp.Table{"x-delivery-limit": int64(-1)}
			}
			w.quorum(name, args)
			w.bodies(name, "a", "b", "c", "d", "e")
			ch := w.another()
			w.must(ch.Qos(3, 0, false))
			from := w.consume(ch, name)
			a, b := w.next(from, "a"), w.next(from, "b")
			w.next(from, "c")
			w.must(b.Nack(false, true)) // and has it again
			w.must(a.Reject(true))
			w.settled(ch)
			w.must(ch.Close())
			w.is(name, w.order(name, 5), want)
		}
	}},
	{"a quorum queue gets several back at once", func(w *world) {
		w.quorum("q", amqp.Table{"x-delivery-limit": int64(1000)})
		w.bodies("q", "a", "b", "c", "d", "e")
		ch := w.another()
		w.must(ch.Qos(3, 0, false))
		from := w.consume(ch, "q")
		w.next(from, "a")
		w.next(from, "b")
		w.must(w.next(from, "c").Nack(true, true))
		w.settled(ch)
		w.must(ch.Close())
		w.is("order", w.order("q", 5), "abcde")
	}},
	{"the counts of a delivery", func(w *world) {
		w.quorum("q", amqp.Table{"x-delivery-limit": int64(1000)})
		w.bodies("q", "m")
		d := w.got("q", false)
		w.sees(d, "m redelivered false, delivery count 0, acquired count <nil>", "m redelivered false, delivery count <nil>, acquired count <nil>")
		w.must(d.Nack(false, true))
		d = w.got("q", false)
		w.sees(d, "m redelivered true, delivery count 1, acquired count <nil>", "m redelivered true, delivery count <nil>, acquired count 1")
		w.must(d.Reject(true))
		ch, all := w.consumed("q", 1)
		w.sees(all[0], "m redelivered true, delivery count 2, acquired count <nil>", "m redelivered true, delivery count 1, acquired count 2")
		w.must(ch.Close())
		ch, all = w.consumed("q", 1)
		w.sees(all[0], "m redelivered true, delivery count 3, acquired count <nil>", "m redelivered true, delivery count 2, acquired count 3")
		w.must(all[0].Ack(false))
		w.must(ch.Close())
		w.quorum("new", nil) // a queue does not know at once that its consumer has ended
		w.bodies("new", "n")
		_, all = w.consumed("new", 1)
		w.sees(all[0], "n redelivered false, delivery count <nil>, acquired count <nil>", "n redelivered false, delivery count <nil>, acquired count <nil>")
	}},
	{"what is on its way to a consumer that cancels can be put back, and has not failed", func(w *world) {
		w.quorum("q", amqp.Table{"x-delivery-limit": int64(1000)})
		for range 30 {
			w.bodies("q", "a", "b")
			ch := w.another()
			w.must(ch.Qos(1, 0, false))
			from, err := ch.Consume("q", "c", false, false, false, false, nil)
			w.must(err)
			w.must(w.next(from, "a").Ack(false)) // b is delivered
			w.must(ch.Cancel("c", false))
			for range from {
			}
			w.must(ch.Nack(0, true, true))
			w.settled(ch)
			w.must(ch.Close())
			d := w.got("q", true)
			if count := d.Headers["x-delivery-count"]; string(d.Body) != "b" || w.since4 && count != nil {
				w.Errorf("%s", seen(d))
			}
		}
	}},
	{"the counts of a dead letter", func(w *world) {
		for _, from := range []string{"classic", "quorum"} {
			for _, to := range []string{"classic", "quorum"} {
				w.countsOfDead(from, to)
			}
		}
	}},
	{"at least once", func(w *world) {
		w.quorum("dead", nil)
		w.quorum("q", amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"})
		w.publish("", "q", amqp.Publishing{Expiration: "1", Body: []byte("m")})
		d := w.got("dead", false)
		w.sees(d, "m redelivered false, delivery count 0, acquired count <nil>", "m redelivered false, delivery count <nil>, acquired count <nil>")
		delete(d.Headers, "x-delivery-count")
		w.headersAre(d, with(deathHeaders("first", "q", "expired", ""), "x-death",
			[]any{with(entry(1, "q", "expired", "", "q"), "original-expiration", "1")}), deathHeaders("last", "q", "expired", ""))
		w.bodies("q", "n")
		w.reject("q")
		w.sees(w.got("dead", false), "n redelivered false, delivery count 0, acquired count <nil>", "n redelivered true, delivery count 1, acquired count 1")
	}},
	{"at least once, and the target is missing at first", func(w *world) {
		w.quorum("q", amqp.Table{"x-dead-letter-exchange": "later", "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"})
		w.publish("", "q", amqp.Publishing{Expiration: "1", Body: []byte("m")})
		time.Sleep(300 * time.Millisecond)
		w.must(w.ch.ExchangeDeclare("later", "fanout", true, false, false, false, nil))
		w.queue("dead", nil)
		w.must(w.ch.QueueBind("dead", "", "later", false, nil))
		w.get("dead") // when it is tried again
	}},
	{"turns of the consumers of a quorum queue", func(w *world) {
		w.quorum("q", nil)
		var from []<-chan amqp.Delivery
		for range 3 {
			ch := w.another()
			w.must(ch.Qos(1, 0, false))
			from = append(from, w.consume(ch, "q"))
		}
		w.bodies("q", "a", "b", "c")
		a, b, _ := w.next(from[0], "a"), w.next(from[1], "b"), w.next(from[2], "c")
		w.must(b.Ack(false))
		time.Sleep(50 * time.Millisecond)
		w.must(a.Ack(false))
		time.Sleep(50 * time.Millisecond)
		w.bodies("q", "d", "e")
		w.next(from[1], "d")
		w.next(from[0], "e")
	}},
}
