package redrive

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/headers"
)

const (
	defaultMaxDeliveries = 10
	// suspectFrom is after how many deliveries without an acknowledgement a message is handled alone.
	suspectFrom = 3
	// benefit is how many deliveries beyond the limit a message gets when another was parked at it:
	// RabbitMQ also counts messages that were only prefetched.
	benefit = 5
)

// deliveries finds messages whose handler may have ended the process before. Its methods are safe
// for concurrent use.
type deliveries struct {
	max    int64        // as Consumer.MaxDeliveries
	alone  sync.RWMutex // held for writing while a suspect is handled
	passed atomic.Bool  // a suspect's handler returned
	parked atomic.Bool  // a message reached max
}

// judge reads RabbitMQ's count. It counts only what RabbitMQ marks as redelivered: on the first
// delivery the header is a publisher's.
func (s *deliveries) judge(a *attempt, d *amqp.Delivery) {
	if !d.Redelivered {
		return
	}
	if _, counted := d.Headers["x-delivery-count"]; !counted { // a classic queue
		a.suspect = !s.passed.Load()
		return
	}
	limit := s.max
	if limit < 0 {
		limit = math.MaxInt64 - benefit
	}
	n := headers.Deliveries(d.Headers)
	if n >= limit && (!s.parked.Swap(true) || n >= limit+benefit) {
		a.failed, a.unhandled = fmt.Errorf("%w: %d times", ErrMaxDeliveries, n), true
		return
	}
	a.suspect = n >= min(suspectFrom, limit-1)
}

// enter waits until a handler may be called: a suspect's while no other one runs.
func (s *deliveries) enter(suspect bool) {
	if suspect {
		s.alone.Lock()
	} else {
		s.alone.RLock()
	}
}

func (s *deliveries) leave(suspect bool) {
	if suspect {
		s.passed.Store(true)
		s.alone.Unlock()
	} else {
		s.alone.RUnlock()
	}
}
