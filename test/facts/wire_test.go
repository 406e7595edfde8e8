package facts_test

import (
	"bytes"
	"encoding/binary"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

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
