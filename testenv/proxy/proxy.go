// Package proxy stands between a client and a server, for tests and measurements: it
// cuts connections at any byte, holds back what they send, and is as slow as a link.
package proxy

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Proxy passes connections on to one server.
type Proxy struct {
	target string
	listen net.Listener
	budget atomic.Int64 // bytes, both ways together, until the next cut; < 0: none
	cuts   atomic.Int64
	// refuses is whether new connections are cut at once; refused counts them.
	refuses atomic.Bool
	refused atomic.Int64
	ended   sync.WaitGroup
	// Each way has its own pace.
	toServer, toClient pace

	mu    sync.Mutex
	conns map[net.Conn]*inLine
	line  *line         // of new connections
	pass  chan struct{} // closed but while all is held back
	// answers is the same for what the server sends.
	answers chan struct{}
}

// New makes a proxy to the server at target, host:port, for one test.
func New(t testing.TB, target string) *Proxy {
	t.Helper()
	p, err := Start(target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// Start is New outside of a test; Close it.
func Start(target string) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{target: target, listen: l, conns: map[net.Conn]*inLine{}, pass: make(chan struct{}), line: newLine()}
	close(p.pass)
	p.line.admit(NoLimit)
	p.answers = p.pass
	p.budget.Store(-1)
	p.toServer.budget.Store(-1)
	p.toClient.budget.Store(-1)
	p.ended.Go(p.accept)
	return p, nil
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

// Limit lets so many bytes a second through each way, of all connections together; 0 is
// no limit, as at first. A limit is for what is sent from now on.
func (p *Proxy) Limit(bytesPerSecond int64) {
	p.toServer.perSecond.Store(bytesPerSecond)
	p.toClient.perSecond.Store(bytesPerSecond)
}

// pace is how fast bytes pass one way, and how many.
type pace struct {
	perSecond atomic.Int64
	budget    atomic.Int64 // as Proxy's
	passed    atomic.Int64
	mu        sync.Mutex
	free      time.Time // when all that was let through before has passed
}

// wait waits as long as so many bytes take after those before them.
func (p *pace) wait(bytes int) {
	perSecond := p.perSecond.Load()
	if perSecond == 0 {
		return
	}
	p.mu.Lock()
	if now := time.Now(); p.free.Before(now) {
		p.free = now
	}
	p.free = p.free.Add(time.Duration(bytes) * time.Second / time.Duration(perSecond))
	until := p.free
	p.mu.Unlock()
	time.Sleep(time.Until(until))
}

// CutAfter cuts all connections when so many more bytes have passed.
func (p *Proxy) CutAfter(bytes int64) { p.budget.Store(bytes) }

// CutToServerAfter cuts all connections when so many more bytes have passed to the server;
// < 0: no more.
func (p *Proxy) CutToServerAfter(bytes int64) { p.toServer.budget.Store(bytes) }

// CutToClientAfter is the same of those to the client.
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
	for c := range p.conns {
		c.Close()
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
func (p *Proxy) Hold() (release func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pass := make(chan struct{})
	p.pass = pass
	return sync.OnceFunc(func() { close(pass) })
}

// HoldAnswers is Hold of what the server sends alone: it does what it is asked, and
// no one sees it.
func (p *Proxy) HoldAnswers() (release func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	answers := make(chan struct{})
	p.answers = answers
	return sync.OnceFunc(func() { close(answers) })
}

func (p *Proxy) accept() {
	for {
		client, err := p.listen.Accept()
		if err != nil {
			return
		}
		if p.refuses.Load() {
			p.refused.Add(1)
			client.Close()
			continue
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			client.Close()
			continue
		}
		one := p.add(client, server)
		if one == nil {
			continue
		}
		p.ended.Go(func() { p.pump(client, server, &p.toClient, one) })
		p.ended.Go(func() { p.pump(server, client, &p.toServer, one) })
	}
}

// add notes a connection for Cut, but ends one that came just before Refuse.
func (p *Proxy) add(client, server net.Conn) *inLine {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuses.Load() {
		p.refused.Add(1)
		client.Close()
		server.Close()
		return nil
	}
	one := p.line.join()
	p.conns[client], p.conns[server] = one, one
	return one
}

// pump copies until either side ends, then ends both.
func (p *Proxy) pump(to, from net.Conn, pace *pace, one *inLine) {
	defer func() {
		to.Close()
		from.Close()
		p.mu.Lock()
		delete(p.conns, to)
		delete(p.conns, from)
		p.mu.Unlock()
	}()
	<-one.line.admitted
	passed, limit := one.way(pace == &p.toClient)
	b := make([]byte, 32<<10)
	for {
		n, err := from.Read(b)
		p.mu.Lock()
		pass, answers := p.pass, p.answers
		p.mu.Unlock()
		<-pass
		if pace == &p.toClient {
			<-answers
		}
		pace.wait(n)
		for _, budget := range []*atomic.Int64{&p.budget, &pace.budget} {
			if left := budget.Load(); left >= 0 && n > 0 {
				if rest := budget.Add(-int64(n)); rest < 0 {
					n = max(0, n+int(rest)) // the byte it is cut at
					if budget.CompareAndSwap(rest, -1) {
						defer func() { p.Cut(); p.cuts.Add(1) }() // whoever sees it counted finds them cut
					}
					err = io.EOF
				}
			}
		}
		if own := passed.Load(); limit >= 0 && own+int64(n) > limit {
			n = int(limit - own)
			defer func() { to.Close(); from.Close(); one.cut(&p.cuts) }()
			err = io.EOF
		}
		passed.Add(int64(n))
		pace.passed.Add(int64(n))
		if _, werr := to.Write(b[:n]); werr != nil || err != nil {
			return
		}
	}
}
