// Package pipe makes connections in memory, whose time is that of package time, which
// testing/synctest turns.
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
	defer s.mu.Unlock()
	if s.closed {
		return 0, io.ErrClosedPipe
	}
	s.bytes = append(s.bytes, b...)
	s.changed.Broadcast()
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

// end is one of the two ends of a connection.
type end struct {
	name    string
	in, out *stream
}

// New makes a connection of a client to what has this name.
func New(server string) (client, other net.Conn) {
	up, down := newStream(), newStream()
	return &end{"client", down, up}, &end{server, up, down}
}

func (e *end) Read(b []byte) (int, error)  { return e.in.read(b) }
func (e *end) Write(b []byte) (int, error) { return e.out.write(b) }

func (e *end) Close() error {
	e.in.close()
	e.out.close()
	return nil
}

func (e *end) LocalAddr() net.Addr { return address(e.name) }

func (e *end) RemoteAddr() net.Addr { return address("the other end of " + e.name) }

func (e *end) SetDeadline(t time.Time) error { return e.SetReadDeadline(t) }

func (e *end) SetReadDeadline(t time.Time) error {
	e.in.setDeadline(t)
	return nil
}

// SetWriteDeadline has nothing to do: writing never waits.
func (e *end) SetWriteDeadline(time.Time) error { return nil }

type address string

func (address) Network() string  { return "memory" }
func (a address) String() string { return string(a) }
