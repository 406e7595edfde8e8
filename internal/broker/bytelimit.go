package broker

import "sync/atomic"

// gate counts body bytes that were read and not yet taken.
type gate struct {
	in     atomic.Int64
	freed  chan struct{}
	closed chan struct{}
	once   atomic.Bool
	idle   atomic.Bool // the taker has nothing and waits: let a large message through
}

// mostBuffered bodies may be in memory unread by the intake.
const mostBuffered = 32 << 20

func (g *gate) init() { g.freed, g.closed = make(chan struct{}, 1), make(chan struct{}) }

// entered counts n bytes in and waits while there are too many, unless the taker
// has nothing: one message may be larger than the bound. It tells whether it waited.
func (g *gate) entered(n int) (waited bool) {
	if g.once.Load() { // open: nothing is counted out
		return false
	}
	for now := g.in.Add(int64(n)); now > mostBuffered && !g.idle.Load(); now = g.in.Load() {
		waited = true
		select {
		case <-g.freed:
		case <-g.closed:
			return waited
		}
	}
	return waited
}

// taken counts n bytes out.
func (g *gate) taken(n int) {
	g.in.Add(-int64(n))
	g.signal()
}

// waiting says whether the taker has nothing to do.
func (g *gate) waiting(yes bool) {
	g.idle.Store(yes)
	if yes {
		g.signal()
	}
}

func (g *gate) signal() {
	select {
	case g.freed <- struct{}{}:
	default:
	}
}

func (g *gate) open() {
	if g.once.CompareAndSwap(false, true) {
		close(g.closed)
	}
}
