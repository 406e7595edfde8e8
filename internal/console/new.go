package console

import (
	"log/slog"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/decode"
)

// Console is what a person may see and do. Its methods may be called at once from
// many goroutines, and each checks its caller.
type Console struct {
	Config
	queues   queueCache    // see queues.go
	tally    tally         // see queuecounts.go
	calendar calendarCache // see overview.go
	recounts recounts      // see ledger.go

	ops     operations // see operation.go
	pausing sync.Mutex // the store and the scheduler receive pauses in the same order
	// forcedAs are the entries of the breakers that were set here or that were looked
	// at; pausing keeps them.
	forcedAs map[string]string
}

// New makes a console. What its Config leaves out is not shown, and what needs it
// is refused.
func New(c Config) *Console {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Decoder == nil {
		c.Decoder, _ = decode.New(decode.Options{}) // without files nothing can fail
	}
	return &Console{Config: c, ops: newOperations()}
}
