// Package proxy stands between a client and a server, for tests: it cuts connections at
// any byte, and holds back what they send.
package proxy

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redrive-mq/redrive/testenv/expect"
)

// Bytes are how many pass each way of a connection; < 0: any number.
type Bytes struct{ ToServer, ToClient int64 }

// NoLimit lets all pass.
var NoLimit = Bytes{-1, -1}

// A flow is what passes one way, or both ways together.
type flow struct {
	passed atomic.Int64
	budget atomic.Int64 // bytes until the next cut; < 0: none
}

// take is how many of n bytes may pass. The connection ends where that are fewer, and the one
// of several that come to that byte at once cuts all.
func (f *flow) take(n int) (may int, cuts, ends bool) {
	if n == 0 || f.budget.Load() < 0 {
		return n, false, false
	}
	left := f.budget.Add(-int64(n))
	if left >= 0 {
		return n, false, false
	}
	return max(0, n+int(left)), f.budget.CompareAndSwap(left, -1), true
}

// Proxy passes connections on to one server.
type Proxy struct {
	target                   string
	listen                   net.Listener
	both, toServer, toClient flow
	cuts, refused            atomic.Int64
	ended                    sync.WaitGroup
	refuses                  atomic.Bool // new connections are cut at once

	mu            sync.Mutex
	conns         map[net.Conn]*inLine
	line          *line         // of new connections
	pass, answers chan struct{} // closed but while all, or what the server sends, is held back
}

// line are connections that pass nothing before all of them are admitted.
type line struct {
	admitted chan struct{} // closed when they are
	limit    Bytes         // of each; set before that
	all      []*inLine     // with Proxy.mu
}

// inLine is one of them, and what has passed of it.
type inLine struct {
	*line
	toServer, toClient atomic.Int64
	counted            sync.Once // that it was cut
}

func (l *line) isAdmitted() bool {
	select {
	case <-l.admitted:
		return true
	default:
		return false
	}
}

func (l *line) admit(limit Bytes) {
	if !l.isAdmitted() {
		l.limit = limit
		close(l.admitted)
	}
}

// New makes a proxy to the server at target, host:port, for one test.
func New(t testing.TB, target string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	expect.NoError(t, err)
	open := make(chan struct{})
	close(open)
	p := &Proxy{target: target, listen: l, conns: map[net.Conn]*inLine{}, pass: open, answers: open,
		line: &line{admitted: open, limit: NoLimit}}
	for _, f := range []*flow{&p.both, &p.toServer, &p.toClient} {
		f.budget.Store(-1)
	}
	p.ended.Go(p.accept)
	t.Cleanup(p.Close)
	return p
}

// Close cuts all connections and takes no more.
func (p *Proxy) Close() {
	p.listen.Close()
	p.Cut()
	p.Open()
	p.ended.Wait()
}

// Addr is where it listens, host:port.
func (p *Proxy) Addr() string { return p.listen.Addr().String() }

// CutAfter cuts all connections when so many more bytes have passed, both ways together;
// < 0: no more.
func (p *Proxy) CutAfter(bytes int64) { p.both.budget.Store(bytes) }

// CutToServerAfter and CutToClientAfter are the same of those that pass one way.
func (p *Proxy) CutToServerAfter(bytes int64) { p.toServer.budget.Store(bytes) }
func (p *Proxy) CutToClientAfter(bytes int64) { p.toClient.budget.Store(bytes) }

// Passed is how many bytes have passed each way.
func (p *Proxy) Passed() (toServer, toClient int64) {
	return p.toServer.passed.Load(), p.toClient.passed.Load()
}

// Cuts is how often bytes have cut.
func (p *Proxy) Cuts() int { return int(p.cuts.Load()) }

// Cut cuts all connections now.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cutBut(nil)
}

// cutBut cuts all connections that are not in a line, with mu.
func (p *Proxy) cutBut(l *line) {
	for conn, c := range p.conns {
		if c.line != l {
			conn.Close()
		}
	}
}

// Refuse cuts all connections, and each new one at once, until allow is called.
func (p *Proxy) Refuse() (allow func()) {
	p.refuses.Store(true)
	p.Cut()
	return func() { p.refuses.Store(false) }
}

// Refused is how many connections Refuse has cut as they came.
func (p *Proxy) Refused() int { return int(p.refused.Load()) }

// Hold keeps all connections and lets nothing through, either way, until release is
// called, which may be done twice; then all that was sent meanwhile arrives. It must be
// released before the test ends.
func (p *Proxy) Hold() (release func()) { return p.hold(&p.pass) }

// HoldAnswers is Hold of what the server sends alone: it does what it is asked, and
// no one sees it.
func (p *Proxy) HoldAnswers() (release func()) { return p.hold(&p.answers) }

func (p *Proxy) hold(what *chan struct{}) (release func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	held := make(chan struct{})
	*what = held
	return sync.OnceFunc(func() { close(held) })
}

// Gather cuts all connections, and holds new ones before their first byte. A client that keeps so
// many connections then has as many in line, each of them once. Those that are in line already stay.
func (p *Proxy) Gather() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.line.isAdmitted() {
		p.line = &line{admitted: make(chan struct{})}
	}
	p.cutBut(p.line)
}

// Connections is how many there are.
func (p *Proxy) Connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns) / 2
}

// Gathered is how many connections are in line.
func (p *Proxy) Gathered() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.line.all)
}

// Admit lets those in line pass, and cuts each when so many bytes of its own have passed one way.
// New ones are held. passed is what has passed of each since.
func (p *Proxy) Admit(limit Bytes) (passed func() []Bytes) {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.line.all
	p.line.admit(limit)
	p.line = &line{admitted: make(chan struct{})}
	return func() (each []Bytes) {
		for _, c := range all {
			each = append(each, Bytes{c.toServer.Load(), c.toClient.Load()})
		}
		return each
	}
}

// Open lets those in line pass, and new ones too.
func (p *Proxy) Open() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.line.admit(NoLimit)
	p.line.all = nil
}

func (p *Proxy) accept() {
	for {
		client, err := p.listen.Accept()
		if err != nil {
			return
		}
		if p.isRefused() {
			client.Close()
			continue
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			client.Close()
			continue
		}
		c := p.add(client, server)
		if c == nil {
			client.Close()
			server.Close()
			continue
		}
		p.ended.Go(func() { p.pump(server, client, c, &p.toServer, &c.toServer, false) })
		p.ended.Go(func() { p.pump(client, server, c, &p.toClient, &c.toClient, true) })
	}
}

// isRefused reports whether a connection is refused, and counts those.
func (p *Proxy) isRefused() bool {
	refuses := p.refuses.Load()
	if refuses {
		p.refused.Add(1)
	}
	return refuses
}

// add puts a connection in line; nil: it is refused, as one is that came just before Refuse.
func (p *Proxy) add(client, server net.Conn) *inLine {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isRefused() {
		return nil
	}
	c := &inLine{line: p.line}
	if !p.line.isAdmitted() { // those that pass at once are not kept
		p.line.all = append(p.line.all, c)
	}
	p.conns[client], p.conns[server] = c, c
	return c
}

// pump copies one way until either side ends, then ends both.
func (p *Proxy) pump(to, from net.Conn, c *inLine, way *flow, own *atomic.Int64, answers bool) {
	defer func() {
		to.Close()
		from.Close()
		p.mu.Lock()
		delete(p.conns, to)
		delete(p.conns, from)
		p.mu.Unlock()
	}()
	<-c.admitted
	limit := c.limit.ToServer
	if answers {
		limit = c.limit.ToClient
	}
	b := make([]byte, 32<<10)
	for {
		n, err := from.Read(b)
		p.mu.Lock()
		held := []chan struct{}{p.pass, p.answers}
		p.mu.Unlock()
		if <-held[0]; answers {
			<-held[1]
		}
		for _, f := range []*flow{&p.both, way} {
			may, cuts, ends := f.take(n)
			if n = may; cuts {
				defer func() { p.Cut(); p.cuts.Add(1) }() // whoever sees it counted finds them cut
			}
			if ends {
				err = io.EOF
			}
		}
		if has := own.Load(); limit >= 0 && has+int64(n) > limit {
			n = int(limit - has)
			defer func() { to.Close(); from.Close(); c.counted.Do(func() { p.cuts.Add(1) }) }()
			err = io.EOF
		}
		own.Add(int64(n))
		way.passed.Add(int64(n))
		if _, werr := to.Write(b[:n]); werr != nil || err != nil {
			return
		}
	}
}
