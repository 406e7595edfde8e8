package broker

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
)

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
