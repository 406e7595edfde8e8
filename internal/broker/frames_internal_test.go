package broker

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/wire"
)

// bodyFrames sends body frames of 1 MiB for ever, until the pipe closes.
func bodyFrames(w io.Writer) {
	const size = 1 << 20
	frame := make([]byte, frameHead+size+1)
	frame[0], frame[len(frame)-1] = frameBody, frameEnd
	binary.BigEndian.PutUint32(frame[3:], size)
	for {
		if _, err := w.Write(frame); err != nil {
			return
		}
	}
}

func buffered(c *consumingConn) int {
	c.bodies.mu.Lock()
	defer c.bodies.mu.Unlock()
	return c.bodies.buffered
}

// readToLimit reads from endless bodies until the byte limit is reached, and passes what
// Read then says.
func readToLimit(t *testing.T) (c *consumingConn, reads <-chan error) {
	near, far := net.Pipe()
	sent, read := make(chan struct{}), make(chan struct{})
	go func() { defer close(sent); bodyFrames(far) }()
	c = newConsumingConn(near)
	results := make(chan error)
	stop := make(chan struct{})
	go func() {
		defer close(read)
		b := make([]byte, 2<<20)
		for over := false; ; {
			over = over || buffered(c) >= maxBuffered
			_, err := c.Read(b)
			if over || err != nil {
				select {
				case results <- err:
				case <-stop:
					return
				}
			}
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		c.Close()
		far.Close()
		close(stop)
		<-sent
		<-read
	})
	for buffered(c) <= maxBuffered {
		select {
		case err := <-results:
			t.Fatalf("read on at %d bytes: %v", buffered(c), err)
		default:
		}
	}
	return c, results
}

func TestReadingStopsAtTheByteLimit(t *testing.T) {
	c, reads := readToLimit(t)
	if in := buffered(c); in > maxBuffered+1<<20 {
		t.Errorf("%d bytes are in memory", in)
	}
	// The client's deadline passed meanwhile; that is no reason to lose the connection.
	must(t, c.SetReadDeadline(time.Now().Add(-time.Second)))
	c.bodies.remove(8 << 20)
	for range 2 {
		if err := <-reads; err != nil {
			t.Fatalf("after some bytes were processed: %v", err)
		}
	}
}

// A message larger than the bound comes through when there is nothing else to do.
func TestAMessageOverTheBoundIsReadByAnIdleIntake(t *testing.T) {
	c, reads := readToLimit(t)
	c.bodies.setIdle(true)
	for range 3 {
		must(t, <-reads)
	}
}

// Each delivery is in one batch, in order; a batch is as large as what has arrived, up to a
// bound of messages and bytes, and its tag is that of its last message.
func TestEachDeliveryIsInOneBatch(t *testing.T) {
	client, server := net.Pipe()
	defer client.Close()
	defer server.Close()
	deliveries := make(chan amqp.Delivery, 2000)
	bodies := make([][]byte, 1200)
	for i, size := range map[int]int{3: 7 << 20, 4: 2 << 20, 5: 7 << 20, 6: 9 << 20} {
		bodies[i] = make([]byte, size)
	}
	for i, b := range bodies {
		deliveries <- amqp.Delivery{DeliveryTag: uint64(i + 1), Body: b, CorrelationId: string(rune('0' + i))}
	}
	close(deliveries)
	g := &batcher{deliveries: deliveries, frames: newConsumingConn(client)}
	var got []string
	var sizes []int
	var tags []uint64
	for more := true; more; {
		var batch []wire.Delivery
		var last uint64
		if batch, last, more = g.next(context.Background()); len(batch) == 0 {
			continue
		}
		bytes := 0
		for _, d := range batch {
			got = append(got, d.Message.CorrelationID)
			bytes += len(d.Message.Body)
		}
		if bytes > batchBytes && len(batch) > 1 {
			t.Errorf("a batch of %d messages has %d bytes", len(batch), bytes)
		}
		sizes, tags = append(sizes, len(batch)), append(tags, last)
	}
	for i := range bodies {
		if i >= len(got) || got[i] != string(rune('0'+i)) {
			t.Fatalf("number %d is missing or not in its place", i)
		}
	}
	if len(got) != len(bodies) || !slices.Equal(sizes, []int{4, 1, 1, 1, 512, 512, 169}) || !slices.Equal(tags, []uint64{4, 5, 6, 7, 519, 1031, 1200}) {
		t.Errorf("%d deliveries in batches of %v that end with the tags %v", len(got), sizes, tags)
	}
}

// gatherAt has the other end of a pipe. Each Read of it, with room enough, gets
// what one write wrote, and until then that write is under way.
func gatherAt(t *testing.T) (g *coalescingConn, far net.Conn) {
	near, far := net.Pipe()
	t.Cleanup(func() { far.Close() })
	return newCoalescingConn(near), far
}

func write(t *testing.T, w io.Writer, text string) {
	t.Helper()
	if n, err := w.Write([]byte(text)); n != len(text) || err != nil {
		t.Errorf("writing %q: %d, %v", text, n, err)
	}
}

func readOnce(t *testing.T, r io.Reader) []byte {
	t.Helper()
	b := make([]byte, 4*maxCoalesced)
	n, err := r.Read(b)
	if err != nil {
		t.Error(err)
	}
	return b[:n]
}

func TestWritesDuringAWriteAreWrittenAsOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, far := gatherAt(t)
		for _, want := range []string{"bcdefg", "ijk"} {
			write(t, g, "first")
			synctest.Wait() // its write is under way
			for _, c := range want {
				write(t, g, string(c))
			}
			if got := readOnce(t, far); string(got) != "first" {
				t.Errorf("the write under way wrote %q", got)
			}
			if got := readOnce(t, far); string(got) != want {
				t.Errorf("the next wrote %q, want %q", got, want)
			}
		}
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Nothing is lost, torn or out of order, whoever writes, and the caller may use
// its bytes again at once.
func TestWritersKeepTheirOrder(t *testing.T) {
	const writers, each, size = 4, 5000, 64
	g, far := gatherAt(t)
	var writing sync.WaitGroup
	for w := range writers {
		writing.Go(func() {
			b := make([]byte, size)
			for n := range each {
				for at := 0; at < size; at += 8 {
					binary.BigEndian.PutUint64(b[at:], uint64(w)<<32|uint64(n))
				}
				write(t, g, string(b))
			}
		})
	}
	next := [writers]uint32{}
	b := make([]byte, size)
	for range writers * each {
		if _, err := io.ReadFull(far, b); err != nil {
			t.Fatal(err)
		}
		w, n := binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])
		if w >= writers || n != next[w] || !bytes.Equal(b, bytes.Repeat(b[:8], size/8)) {
			t.Fatalf("got %x, when writer %d's next is %d", b, w, next[w%writers])
		}
		next[w]++
	}
	writing.Wait()
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}

// full fills what may coalesce while the other end does not read, and starts one
// write more, which waits.
func full(t *testing.T, g *coalescingConn) (waiting <-chan error) {
	write(t, g, "under way")
	synctest.Wait()
	write(t, g, string(make([]byte, maxCoalesced)))
	result := make(chan error, 1)
	go func() {
		_, err := g.Write([]byte("late"))
		result <- err
	}()
	synctest.Wait()
	select {
	case err := <-result:
		t.Fatalf("more than %d bytes gathered (%v)", maxCoalesced, err)
	default:
	}
	return result
}

func TestAFullWriteBufferWaitsForTheOtherEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, far := gatherAt(t)
		waiting := full(t, g)
		readOnce(t, far)
		if err := <-waiting; err != nil {
			t.Errorf("when there was room: %v", err)
		}
		if n := len(readOnce(t, far)); n != maxCoalesced {
			t.Errorf("%d bytes had gathered, want %d", n, maxCoalesced)
		}
		if got := readOnce(t, far); string(got) != "late" {
			t.Errorf("then came %q", got)
		}
		g.Close()
	})
}

func TestCloseReleasesWaitingWriters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := gatherAt(t)
		waiting := full(t, g)
		if err := g.Close(); err != nil {
			t.Error(err)
		}
		if err := <-waiting; err == nil {
			t.Error("what was never sent was reported as written")
		}
		if n, err := g.Write([]byte("x")); n != 0 || err == nil {
			t.Errorf("writing after Close: %d, %v", n, err)
		}
		g.Close() // a second time does not hang
	})
}

func TestAWriteThatFailedFailsTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, far := gatherAt(t)
		waiting := full(t, g)
		far.Close()
		if err := <-waiting; !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("who waited got %v", err)
		}
		if n, err := g.Write([]byte("x")); n != 0 || !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("who came later got %d, %v", n, err)
		}
		g.Close()
	})
}

// Reading is not gathered: it goes on while a write hangs.
func TestReadingGoesOnWhileAWriteHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, far := gatherAt(t)
		write(t, g, "unread")
		synctest.Wait()
		go func() { _, _ = far.Write([]byte("alarm")) }()
		if got := readOnce(t, g); string(got) != "alarm" {
			t.Errorf("read %q", got)
		}
		g.Close()
	})
}

// must ends a test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
