package broker

import (
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"
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
	if err := c.SetReadDeadline(time.Now().Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
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
		if err := <-reads; err != nil {
			t.Fatal(err)
		}
	}
}
