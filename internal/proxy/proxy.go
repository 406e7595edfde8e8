// Package proxy stands between a client and a server, for tests: it cuts connections
// at any byte, and holds back what they send.
package proxy

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// Proxy passes connections on to one server.
type Proxy struct {
	target string
	listen net.Listener
	budget atomic.Int64 // bytes, both ways together, until the next cut; < 0: none
	cuts   atomic.Int64
	ended  sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]bool
	pass  chan struct{} // closed but while all is held back
}

// New makes a proxy to the server at target, host:port, for one test.
func New(t testing.TB, target string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{target: target, listen: l, conns: map[net.Conn]bool{}, pass: make(chan struct{})}
	close(p.pass)
	p.budget.Store(-1)
	p.ended.Go(p.accept)
	t.Cleanup(func() {
		l.Close()
		p.Cut()
		p.ended.Wait()
	})
	return p
}

// Addr is where it listens, host:port.
func (p *Proxy) Addr() string { return p.listen.Addr().String() }

// CutAfter cuts all connections when so many more bytes have passed.
func (p *Proxy) CutAfter(bytes int64) { p.budget.Store(bytes) }

// Cuts is how often CutAfter has cut.
func (p *Proxy) Cuts() int { return int(p.cuts.Load()) }

// Cut cuts all connections now.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.Close()
	}
}

// Hold keeps all connections and lets nothing through, either way, until release is
// called, which may be done twice; then all that was sent meanwhile arrives. It must be
// released before the test ends.
func (p *Proxy) Hold() (release func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pass := make(chan struct{})
	p.pass = pass
	return sync.OnceFunc(func() { close(pass) })
}

func (p *Proxy) accept() {
	for {
		client, err := p.listen.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			client.Close()
			continue
		}
		p.mu.Lock()
		p.conns[client], p.conns[server] = true, true
		p.mu.Unlock()
		p.ended.Go(func() { p.pump(client, server) })
		p.ended.Go(func() { p.pump(server, client) })
	}
}

// pump copies until either side ends, then ends both.
func (p *Proxy) pump(to, from net.Conn) {
	defer func() {
		to.Close()
		from.Close()
		p.mu.Lock()
		delete(p.conns, to)
		delete(p.conns, from)
		p.mu.Unlock()
	}()
	b := make([]byte, 32<<10)
	for {
		n, err := from.Read(b)
		p.mu.Lock()
		pass := p.pass
		p.mu.Unlock()
		<-pass
		if left := p.budget.Load(); left >= 0 && n > 0 {
			if rest := p.budget.Add(-int64(n)); rest < 0 {
				n = max(0, n+int(rest)) // the byte it is cut at
				if p.budget.CompareAndSwap(rest, -1) {
					p.cuts.Add(1)
					defer p.Cut()
				}
				err = io.EOF
			}
		}
		if _, werr := to.Write(b[:n]); werr != nil || err != nil {
			return
		}
	}
}
