package facts_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
)

// death is an x-death that names the queue the message is in: RabbitMQ 3 counts
// on in it.
func death(queue string, count any) []any {
	return []any{amqp.Table{"queue": queue, "reason": "rejected", "exchange": "", "count": count, "routing-keys": []any{queue}, "time": time.Unix(1_700_000_000, 0)}}
}

func TestMalformedXDeathThatHarmsNothing(t *testing.T) {
	onEachBroker(t, func(t *testing.T, v *vhost) {
		for _, kind := range bothTypes {
			deadLetters(v, kind, "dead of "+kind, amqp.Table{"x-queue-type": kind})
			work, dead := v.Consume(kind), v.Consume("dead of "+kind)
			for name, value := range map[string]any{
				"text": "forged", "number": int64(7), "empty list": []any{}, "empty table": []any{amqp.Table{}},
				"other count": death("other", "many"), "queue is a number": []any{amqp.Table{"queue": int64(1), "reason": "rejected"}},
			} {
				v.Publish("", kind, amqp.Publishing{Headers: amqp.Table{"x-death": value}, Body: []byte(name)})
				work.Reject()
				if head := deaths(t, dead.Take(name))[0]; head["queue"] != kind || head["count"] != int64(1) {
					t.Errorf("%s, %s: the head entry is %v, want the broker's own", kind, name, head)
				}
			}
		}
	})
}

// crashing are values of x-death that RabbitMQ 3.10 cannot count on in.
func crashing(queue string) map[string]any {
	return map[string]any{"list of text": []any{"forged"}, "count of text": death(queue, "many"), "count is a table": death(queue, amqp.Table{})}
}

// again takes a message from a queue that has just crashed: until it is there
// again, RabbitMQ answers with 404, 541 or nothing.
func again(t *testing.T, v *vhost, queue string) (d amqp.Delivery) {
	t.Helper()
	brokertest.Eventually(t, queue+" gives its message again", func() bool {
		ch, err := v.Dial().Channel()
		must(t, err)
		in, err := ch.Consume(queue, "", false, false, false, false, nil)
		if err != nil {
			return false
		}
		var ok bool
		select {
		case d, ok = <-in:
		case <-time.After(5 * time.Second):
			_ = ch.Close()
		}
		return ok
	})
	return d
}

// On 3.10 the classic queue of a publisher who sends such a message crashes, its
// consumers are cancelled as a rule, and the message comes again.
func TestMalformedXDeathCrashesAClassicQueueOn3(t *testing.T) {
	onEachBroker(t, func(t *testing.T, v *vhost) {
		for name := range crashing("") {
			deadLetters(v, name, "dead of "+name, amqp.Table{"x-queue-type": "classic"})
			v.Publish("", name, amqp.Publishing{Headers: amqp.Table{"x-death": crashing(name)[name]}, DeliveryMode: amqp.Persistent, Body: []byte("m")})
			work := v.Consume(name)
			cancelled := work.Channel.NotifyCancel(make(chan string, 1))
			work.Reject()
			if since(v, 4, 0) {
				v.Consume("dead of " + name).Take("m")
				continue
			}
			var d amqp.Delivery
			select {
			case d = <-work.In: // the queue was back before RabbitMQ noticed
			case <-cancelled:
				d = again(t, v, name)
			case <-time.After(time.Minute):
				t.Fatalf("%s: the queue has not crashed", name)
			}
			if !d.Redelivered || string(d.Body) != "m" {
				t.Errorf("%s: %q came again, redelivered %t", name, d.Body, d.Redelivered)
			}
			must(t, d.Ack(false))
		}
	})
}

// The queue then has all that was not acknowledged, also what its consumer acknowledges since,
// but for what is not persistent.
func TestAClassicQueueThatCrashedHasLostWhatIsNotPersistentOn3(t *testing.T) {
	onEachBroker(t, func(t *testing.T, v *vhost) {
		deadLetters(v, "work", "dead", nil)
		v.Publish("", "work", amqp.Publishing{Headers: amqp.Table{"x-death": []any{"forged"}}, DeliveryMode: amqp.Persistent, Body: []byte("m")})
		for _, body := range []string{"a", "b", "c", "d"} {
			mode := map[bool]uint8{false: amqp.Persistent, true: amqp.Transient}[body == "b" || body == "d"]
			v.Publish("", "work", amqp.Publishing{DeliveryMode: mode, Body: []byte(body)})
		}
		ch := v.Channel()
		must(t, ch.Qos(3, 0, false))
		in, err := ch.Consume("work", "", false, false, false, false, nil)
		must(t, err)
		work := &consumer{v, "work", ch, in}
		m, a, _ := work.Next(), work.Next(), work.Next()
		cancelled := ch.NotifyCancel(make(chan string, 1))
		must(t, m.Reject(false))
		if since(v, 4, 0) {
			v.Consume("dead").Take("m")
			return
		}
		select {
		case <-cancelled:
			must(t, a.Ack(false))
		case <-in: // the queue was back before RabbitMQ noticed
		}
		_ = ch.Close() // in the middle of the crash even this may be a 541
		must(t, again(t, v, "work").Acknowledger.(*amqp.Channel).Close())
		got, rest := "", v.Consume("work")
		for range 3 {
			d := rest.Next()
			must(t, d.Ack(false))
			if got += string(d.Body); !d.Redelivered {
				t.Errorf("%q is not redelivered", d.Body)
			}
		}
		brokertest.Eventually(t, "the queue is empty", func() bool { return held(t, v, "work") == 0 })
		expect.Equal(t, got, "mac", "after the crash")
	})
}

// On 3.10 a quorum queue loses it, and its consumer gets nothing more until it
// consumes again.
func TestMalformedXDeathIsLostByAQuorumQueueOn3(t *testing.T) {
	onEachBroker(t, func(t *testing.T, v *vhost) {
		for name := range crashing("") {
			deadLetters(v, name, "dead of "+name, amqp.Table{"x-queue-type": "quorum"})
			v.Publish("", name, amqp.Publishing{Headers: amqp.Table{"x-death": crashing(name)[name]}, Body: []byte("m")})
			v.Publish("", name, amqp.Publishing{Body: []byte("next")})
			work, dead := v.Consume(name), v.Consume("dead of "+name)
			work.Reject()
			if since(v, 4, 0) {
				dead.Take("m")
				work.Reject()
			} else {
				_ = work.Channel.Close() // in the middle of the crash even this may be a 541
				must(t, again(t, v, name).Reject(false))
			}
			dead.Take("next")
			brokertest.Eventually(t, "the queue is empty", func() bool { return held(t, v, name) == 0 })
		}
	})
}

// What RabbitMQ then wanted to deliver does not arrive. The next delivery to that consumer ends
// its connection, and with that both are in the queue again.
func TestAfterAMalformedXDeathTheNextDeliveryEndsTheConsumersConnectionOn3(t *testing.T) {
	onEachBroker(t, func(t *testing.T, v *vhost) {
		deadLetters(v, "work", "dead", amqp.Table{"x-queue-type": "quorum"})
		v.Publish("", "work", amqp.Publishing{Headers: amqp.Table{"x-death": []any{"forged"}}, Body: []byte("m")})
		v.Publish("", "work", amqp.Publishing{Body: []byte("a")})
		v.Publish("", "work", amqp.Publishing{Body: []byte("b")})
		ch := v.Channel()
		must(t, ch.Qos(2, 0, false))
		in, err := ch.Consume("work", "", false, false, false, false, nil)
		must(t, err)
		closed, work := closes(ch), &consumer{v, "work", ch, in}
		m, a := work.Next(), work.Next()
		must(t, m.Reject(false))
		if since(v, 4, 0) {
			v.Consume("dead").Take("m")
			work.Take("b")
			return
		}
		select {
		case d := <-in:
			t.Fatalf("%q is delivered after the crash", d.Body)
		case <-time.After(3 * time.Second):
		}
		must(t, a.Ack(false))
		v.Publish("", "work", amqp.Publishing{Body: []byte("c")})
		refused(t, "the consumer's connection", <-closed, amqp.InternalError)
		again := v.Consume("work")
		again.Take("b")
		again.Take("c")
	})
}

// On 3.10 a count that is a float is counted on in, and then RabbitMQ itself ends
// each connection that the message is delivered to. Only the delivery limit of a
// quorum queue moves it, and what is delivered with it, out of the way: see
// DeliveryLimit in internal/broker.
func TestFloatCountInXDeathEndsEachConsumersConnectionOn3(t *testing.T) {
	onEachBroker(t, func(t *testing.T, v *vhost) {
		const limit = 3
		quorum := amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(1_000_000_000)}
		v.Queue("aside", quorum)
		v.Queue("intake", amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(limit), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "aside"})
		v.Queue("work", amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "intake"})
		v.Publish("", "work", amqp.Publishing{Headers: amqp.Table{"x-death": death("work", 1.5)}, Body: []byte("m")})
		work := v.Consume("work")
		work.Reject()
		if since(v, 4, 0) {
			v.Consume("intake").Take("m")
			return
		}
		work.Fail("next")
		ended := 0
		brokertest.Eventually(t, "what is behind it arrives", func() bool {
			conn := v.Dial()
			defer conn.Close()
			ends := conn.NotifyClose(make(chan *amqp.Error, 1))
			ch, err := conn.Channel()
			must(t, err)
			must(t, ch.Qos(1, 0, false))
			in, err := ch.Consume("intake", "", false, false, false, false, nil)
			if err == nil {
				if d, ok := <-in; ok {
					return string(d.Body) == "next"
				}
			}
			refused(t, "consuming", <-ends, amqp.InternalError)
			ended++
			return false
		})
		expect.Equal(t, ended, limit+1, "connections ended")
		brokertest.Eventually(t, "it is aside", func() bool { return v.Depth("aside") == 1 })
		// There a get ends the connection too; the management API shows it.
		_, _, err := v.Channel().Get("aside", false)
		refused(t, "getting", err, amqp.InternalError)
		brokertest.Eventually(t, "the management API shows it", func() bool {
			body, is := v.payload(t, "aside")
			return is && body == "m"
		})
		brokertest.Eventually(t, "it can be purged", func() bool {
			v.purge(t, "aside")
			return held(t, v, "aside") == 0
		})
	})
}

// On 3.10 at-least-once dead-lettering is one process, and what it cannot count
// ends it for all queues of the node: a new one that wants it is refused.
func malformedXDeathEndsAtLeastOnceOn3(t *testing.T, v *vhost) {
	atLeastOnce := amqp.Table{"x-queue-type": "quorum", "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
	deadLetters(v, "work", "dead", atLeastOnce)
	v.Publish("", "work", amqp.Publishing{Headers: amqp.Table{"x-death": death("work", "many")}, Body: []byte("m")})
	v.Consume("work").Reject()
	if since(v, 4, 0) {
		v.Consume("dead").Take("m")
		return
	}
	atLeastOnce["x-dead-letter-exchange"] = ""
	n := 0
	brokertest.Eventually(t, "a new queue is refused", func() bool {
		n++
		_, err := v.Channel().QueueDeclare(fmt.Sprint("other ", n), true, false, false, false, atLeastOnce)
		if err != nil {
			refused(t, "declaring", err, amqp.InternalError)
		}
		return err != nil
	})
}

// wire is a connection that replaces bytes on their way out, and notes what comes
// in.
type wire struct {
	net.Conn
	old, new string // of the same length

	mu sync.Mutex
	in bytes.Buffer
}

func (w *wire) Write(b []byte) (int, error) {
	n, err := w.Conn.Write(bytes.ReplaceAll(b, []byte(w.old), []byte(w.new)))
	return min(n, len(b)), err
}

func (w *wire) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.in.Write(b[:n])
	return n, err
}

// headerFrame is the first content header that came in, and its size by its own
// account: a client may not read one to its end.
func (w *wire) headerFrame() (frame []byte, size int) {
	const head, header = 7, 2
	w.mu.Lock()
	defer w.mu.Unlock()
	for in := w.in.Bytes(); len(in) > head; {
		size := head + int(binary.BigEndian.Uint32(in[3:])) + 1
		if in[0] == header {
			return in[:min(size, len(in))], size
		}
		in = in[min(size, len(in)):]
	}
	return nil, 0
}

// dialWire connects over a wire.
func dialWire(v *vhost, old, new string) (*wire, *amqp.Connection) {
	v.t.Helper()
	w := &wire{old: old, new: new}
	return w, v.DialOver(func(c net.Conn) net.Conn {
		w.Conn = c
		return w
	})
}

// delivered consumes a queue until a message has come or the connection has ended
// over it.
func delivered(t *testing.T, v *vhost, queue string) (*wire, *amqp.Error) {
	t.Helper()
	w, conn := dialWire(v, "", "")
	end := conn.NotifyClose(make(chan *amqp.Error, 1))
	ch, err := conn.Channel()
	must(t, err)
	in, err := ch.Consume(queue, "", false, false, false, false, nil)
	must(t, err)
	var ended *amqp.Error
	select {
	case _, ok := <-in:
		if !ok {
			ended = <-end
		}
	case <-time.After(time.Minute):
		t.Fatalf("nothing came from %s", queue)
	}
	return w, ended
}

func TestHeaderOfTypeLIsDeliveredAsItIsBefore4AndSignedSince(t *testing.T) {
	onEachBroker(t, func(t *testing.T, v *vhost) {
		v.Queue("work", nil)
		_, conn := dialWire(v, "\x08unsignedl", "\x08unsignedL")
		ch, err := conn.Channel()
		must(t, err)
		must(t, ch.Confirm(false))
		c, err := ch.PublishWithDeferredConfirm("", "work", true, false, amqp.Publishing{Headers: amqp.Table{"unsigned": int64(-2)}})
		must(t, err)
		if !c.Wait() {
			t.Fatal("not confirmed")
		}
		w, ended := delivered(t, v, "work")
		frame, _ := w.headerFrame()
		_, value, ok := bytes.Cut(frame, []byte("\x08unsigned"))
		if !ok {
			t.Fatalf("the header is not in %q", frame)
		}
		want := byte('L')
		if since(v, 4, 0) {
			want = 'l'
		}
		if value[0] != want || !bytes.Equal(value[1:9], []byte("\xff\xff\xff\xff\xff\xff\xff\xfe")) {
			t.Errorf("delivered as type %c, bytes %x; want type %c and the same bytes", value[0], value[1:9], want)
		}
		if died := ended != nil; died != (want == 'L') {
			t.Errorf("the client's connection ended: %v", ended)
		}
	})
}

// RabbitMQ adds its death headers without looking at the frame size it agreed to,
// and sends what comes of it.
func TestDeadLetteringGrowsAHeaderFramePastItsLimit(t *testing.T) {
	onEach(t, func(t *testing.T, v *vhost) {
		const frame = 131_072
		const largest = 131_043 // such a header makes a frame of just this size
		for queue, header := range map[string]int{"fits": largest - 1000, "largest": largest} {
			deadLetters(v, queue, "dead of "+queue, nil)
			v.Publish("", queue, amqp.Publishing{Headers: amqp.Table{"big": strings.Repeat("x", header)}, Expiration: "0"})
			w, ended := delivered(t, v, "dead of "+queue)
			_, size := w.headerFrame()
			t.Logf("a header of %d bytes came in a frame of %d", header, size)
			if grown := size > frame; grown != (queue == "largest") {
				t.Errorf("%s: a frame of %d bytes", queue, size)
			}
			if (ended != nil) != (size > frame) {
				t.Errorf("%s: a frame of %d bytes, and the client's connection ended: %v", queue, size, ended)
			}
		}
	})
}
