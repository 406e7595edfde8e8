package memredis

import (
	"bufio"
	"net"
	"time"
)

// connection is one of a client's.
type connection struct {
	server *Server
	end    net.Conn
	client string
	number int64
	ended  chan struct{} // closed by cut, under the server's mutex

	// What the server's mutex protects.
	isEnded  bool
	version  int // of RESP
	wrote    int // the file's unit that it wrote last
	channels []string
}

func newConnection(s *Server, end net.Conn, client string, number int64) *connection {
	return &connection{server: s, end: end, client: client, number: number, ended: make(chan struct{}), version: 2}
}

// cut ends the connection. The caller has the server's mutex.
func (c *connection) cut() {
	if !c.isEnded {
		c.isEnded = true
		close(c.ended)
		_ = c.end.Close() // never fails
		delete(c.server.connections, c)
	}
}

// run does one command after the other, until the connection ends.
func (c *connection) run() {
	in := bufio.NewReader(c.end)
	for {
		args, err := readCommand(in)
		if err != nil || len(args) == 0 || !c.serve(args) {
			break
		}
	}
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	c.cut()
}

// send sends an answer. The caller has the server's mutex.
func (c *connection) send(a answer) {
	if !c.isEnded {
		_, _ = c.end.Write(appendAnswer(nil, a, c.version)) // a client that has gone needs none
	}
}

// wait waits, and tells whether the server is still there.
func (c *connection) wait(d time.Duration) bool {
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-c.ended:
		return false
	}
}
