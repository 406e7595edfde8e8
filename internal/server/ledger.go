package server

import (
	"fmt"
	"sync/atomic"
)

// ledgerState is by how much the ledger is off, of the queues where it is.
type ledgerState struct {
	off atomic.Pointer[map[string]int64]
}

// recounted receives the result of counting what is kept. A ledger that is off is lost
// messages, or messages in excess, until a person has looked: the service is not ready.
func (s *vhost) recounted(off map[string]int64) {
	s.metrics.Recounted(off)
	s.ledger.off.Store(&off)
	s.health.set(partLedger, s.ledger.wrong())
}

// wrong is what is wrong with the ledger, or "".
func (l *ledgerState) wrong() string {
	off := l.off.Load()
	if off == nil || len(*off) == 0 {
		return ""
	}
	return fmt.Sprintf("the ledger does not balance: messages are missing, or there are more than came; queues affected: %d (`redrive ledger` shows which)", len(*off))
}
