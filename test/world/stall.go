package world

import "sync"

// stall is a time in which a process stands still, as when its machine is paused or swaps: nothing
// of it reaches the store or RabbitMQ, and nothing of theirs reaches it. Then it goes on where it
// was. Its goroutines are held where they call the store or use a connection; that its timers go
// on meanwhile, no one outside can tell.
type stall struct {
	mu      sync.Mutex
	over    chan struct{} // nil: the process runs
	point   point         // at which it begins by itself
	reached chan struct{}
}

// point is where a process is in its work when it stands still or crashes.
type point int

const (
	anywhere point = iota
	adding         // it is about to store what failed
	added          // it has, and has not noticed
	finishing
	finished
	changing // about to do a step of an operation, or what a person asks for
	changed
	pointCount
)

func (p point) String() string {
	return [...]string{"", " when it is about to store", " when it has just stored", " when it is about to end claims", " when it has just ended claims",
		" when it is about to change messages", " when it has just changed messages"}[p]
}

// begin begins it; false: the process stands still already.
func (s *stall) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over != nil {
		return false
	}
	s.over = make(chan struct{})
	return true
}

// beginAt has it begin at a point, and returns what is closed then.
func (s *stall) beginAt(p point) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.point, s.reached = p, make(chan struct{})
	return s.reached
}

// reach is called when the process is at a point.
func (s *stall) reach(p point) {
	s.mu.Lock()
	if s.point == p && s.over == nil {
		s.point, s.over = anywhere, make(chan struct{})
		close(s.reached)
	}
	s.mu.Unlock()
	s.wait()
}

// end ends it, or has it not begin.
func (s *stall) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.point = anywhere
	if s.over != nil {
		close(s.over)
		s.over = nil
	}
}

func (s *stall) isOn() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over != nil
}

// wait returns when the process runs.
func (s *stall) wait() {
	for {
		s.mu.Lock()
		over := s.over
		s.mu.Unlock()
		if over == nil {
			return
		}
		<-over
	}
}
