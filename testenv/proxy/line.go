package proxy

import (
	"sync"
	"sync/atomic"
)

// Bytes are how many pass each way of a connection; < 0: any number.
type Bytes struct{ ToServer, ToClient int64 }

// NoLimit lets all pass.
var NoLimit = Bytes{-1, -1}

// line are connections that pass nothing before all of them are admitted.
type line struct {
	admitted chan struct{} // closed when they are
	limit    Bytes         // of each; set before that
	all      []*inLine     // with Proxy.mu
}

// inLine is one of them, and what has passed of it.
type inLine struct {
	line               *line
	toServer, toClient atomic.Int64
	counted            sync.Once // that it was cut
}

func newLine() *line { return &line{admitted: make(chan struct{})} }

// join adds a connection; those that pass at once are not kept.
func (l *line) join() *inLine {
	one := &inLine{line: l}
	if !l.isAdmitted() {
		l.all = append(l.all, one)
	}
	return one
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

// way is what has passed one way, and how much may.
func (c *inLine) way(toClient bool) (passed *atomic.Int64, limit int64) {
	if toClient {
		return &c.toClient, c.line.limit.ToClient
	}
	return &c.toServer, c.line.limit.ToServer
}

// cut counts a connection that was cut, once.
func (c *inLine) cut(cuts *atomic.Int64) { c.counted.Do(func() { cuts.Add(1) }) }

// Gather cuts all connections, and holds new ones before their first byte. A client that keeps so
// many connections then has as many in line, each of them once. Those that are in line already stay.
func (p *Proxy) Gather() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.line.isAdmitted() {
		p.line = newLine()
	}
	for conn, c := range p.conns {
		if c.line != p.line {
			conn.Close()
		}
	}
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
	p.line = newLine()
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
