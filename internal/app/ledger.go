package app

import (
	"fmt"
	"sync/atomic"
)

// ledgerState is by how much the ledger is off, of the queues where it is.
type ledgerState struct {
	off atomic.Pointer[map[string]int64]
}

// recounted is told what counting what is kept has found.
func (s *tenant) recounted(off map[string]int64) {
	s.metrics.Recounted(off)
	s.ledger.off.Store(&off)
}

func (l *ledgerState) notices() []string {
	off := l.off.Load()
	if off == nil || len(*off) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("messages came that are neither returned nor kept, or more are there than came; queues concerned: %d (redrive ledger shows which)", len(*off))}
}
