package console

import "time"

// Console is what a person may see and do. Its methods may be called at once from
// many goroutines, and each checks its caller.
type Console struct {
	Config
	queues queueCache // see queue.go
}

// New makes a console. What its Config leaves out is not shown, and what needs it
// is refused.
func New(c Config) *Console {
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Console{Config: c}
}
