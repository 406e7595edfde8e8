// Package pipe makes connections in memory, whose time is that of package time, which
// testing/synctest turns. They can be cut at a chosen byte of either direction.
package pipe

import (
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// stream is one direction of a connection: bytes in memory, of any number, so that writing
// never waits.
type stream struct {
	mu       sync.Mutex
	changed  *sync.Cond
	bytes    []byte
	closed   bool
	deadline time.Time
	timer    *time.Timer
	cut      func() // cuts the connection behind left more bytes; nil: it is not cut
	left     int
}

func newStream() *stream {
	s := &stream{}
	s.changed = sync.NewCond(&s.mu)
	return s
}

func (s *stream) read(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.bytes) == 0 {
		switch {
		case s.closed:
			return 0, io.EOF
		case !s.deadline.IsZero() && !time.Now().Before(s.deadline):
			return 0, os.ErrDeadlineExceeded
		}
		s.changed.Wait()
	}
	n := copy(b, s.bytes)
	s.bytes = s.bytes[n:]
	return n, nil
}

func (s *stream) write(b []byte) (int, error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return 0, io.ErrClosedPipe
	}
	cut := s.cut
	if len(b) < s.left {
		cut = nil
	}
	if cut != nil {
		b = b[:s.left]
	}
	s.left -= len(b)
	s.bytes = append(s.bytes, b...)
	s.changed.Broadcast()
	s.mu.Unlock()
	if cut != nil {
		cut()
		return len(b), net.ErrClosed
	}
	return len(b), nil
}

// close ends the stream after what is in it.
func (s *stream) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.stopTimer()
	s.changed.Broadcast()
}

func (s *stream) setDeadline(t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopTimer()
	s.deadline = t
	if !t.IsZero() && !s.closed {
		s.timer = time.AfterFunc(time.Until(t), func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.changed.Broadcast()
		})
	}
	s.changed.Broadcast()
}

func (s *stream) stopTimer() {
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
}

// End is one of the two ends of a connection.
type End struct {
	name    string
	in, out *stream
}

// New makes a connection of a client to what has this name.
func New(server string) (client, other *End) {
	up, down := newStream(), newStream()
	return &End{"client", down, up}, &End{server, up, down}
}

// CutBehind cuts the connection behind so many more bytes that this end sends, or receives, and calls cut
// then, unless it was closed before.
func (e *End) CutBehind(bytes int, received bool, cut func()) {
	do := sync.OnceFunc(func() {
		if !e.IsClosed() {
			_ = e.Close() // never fails
			cut()
		}
	})
	s := e.out
	if received {
		s = e.in
	}
	s.mu.Lock()
	s.left, s.cut = bytes, do
	s.mu.Unlock()
	if bytes == 0 {
		do()
	}
}

// IsClosed reports whether either end was closed, or the connection was cut.
func (e *End) IsClosed() bool {
	e.out.mu.Lock()
	defer e.out.mu.Unlock()
	return e.out.closed
}

func (e *End) Read(b []byte) (int, error)  { return e.in.read(b) }
func (e *End) Write(b []byte) (int, error) { return e.out.write(b) }

func (e *End) Close() error {
	e.in.close()
	e.out.close()
	return nil
}

func (e *End) LocalAddr() net.Addr { return address(e.name) }

func (e *End) RemoteAddr() net.Addr { return address("the other end of " + e.name) }

func (e *End) SetDeadline(t time.Time) error { return e.SetReadDeadline(t) }

func (e *End) SetReadDeadline(t time.Time) error {
	e.in.setDeadline(t)
	return nil
}

// SetWriteDeadline has nothing to do: writing never waits.
func (e *End) SetWriteDeadline(time.Time) error { return nil }

type address string

func (address) Network() string  { return "memory" }
func (a address) String() string { return string(a) }
