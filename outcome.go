package redrive

import (
	"errors"
	"fmt"
	"time"
)

// ErrDiscard, returned by a handler, discards the message: it is acknowledged, and not
// retried. It may be wrapped.
var ErrDiscard = errors.New("redrive: discard the message")

// ErrMaxDeliveries is the error of a message that was parked because of Consumer.MaxDeliveries.
var ErrMaxDeliveries = errors.New("redrive: the message was delivered too often without an acknowledgement")

// ParkError, returned by a handler, parks the message at once: it is not retried, and waits
// in the queue redrive.parked for a person. It may be wrapped.
type ParkError struct {
	Err error // why; may be nil
}

// Park returns a *ParkError. err may be nil.
func Park(err error) error { return &ParkError{Err: err} }

// Error is the text of Err, or says that there is none.
func (e *ParkError) Error() string { return textOr(e.Err, "its handler parked it, without an error") }

// Unwrap returns Err.
func (e *ParkError) Unwrap() error { return e.Err }

// RetryAfterError, returned by a handler, retries the message after a delay of its own, as
// an HTTP Retry-After asks for. It counts as an attempt like any other. It may be wrapped.
type RetryAfterError struct {
	Err error // why; may be nil
	// Delay until the next attempt, at least. One of 0 or less is none: the next attempt is made
	// at once or, with Service, after what the service's policy says. A delay longer than
	// policy.Policy.MaxRetryAfter, or else the policy's longest wait, is cut to that.
	Delay time.Duration
}

// RetryAfter returns a *RetryAfterError. err may be nil.
func RetryAfter(err error, delay time.Duration) error {
	return &RetryAfterError{Err: err, Delay: delay}
}

// Error is the text of Err, or says that there is none.
func (e *RetryAfterError) Error() string {
	return textOr(e.Err, fmt.Sprintf("its handler asked for another attempt in %s, without an error", e.Delay))
}

// Unwrap returns Err.
func (e *RetryAfterError) Unwrap() error { return e.Err }

func textOr(err error, without string) string {
	if err == nil {
		return without
	}
	return err.Error()
}

// PanicError is the error of an attempt whose handler panicked. Consumer.Retry and
// ParkedMessage.Err get it.
type PanicError struct {
	Value any    // as recover returned it
	Stack []byte // the frames of runtime/debug.Stack that are not Redrive's own
}

// Error begins with "panic: ".
func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// Outcome is what became of one attempt.
type Outcome string

const (
	Succeeded Outcome = "succeeded" // acknowledged
	Retried   Outcome = "retried"   // waits for its next attempt, and comes back to its queue
	Parked    Outcome = "parked"    // in the queue redrive.parked, for a person
	Discarded Outcome = "discarded" // acknowledged, as the handler or the policy decided
	Forwarded Outcome = "forwarded" // published where the policy forwards
	// Unsettled: it was not acknowledged, and no copy of it was confirmed, since the connection
	// was lost, the time to stop was over, or RabbitMQ accepts no copy. RabbitMQ delivers it again.
	Unsettled Outcome = "unsettled"
	// Unacknowledged: it was published to where it waits, is parked or forwarded, but could
	// not be acknowledged. RabbitMQ delivers the original as well, so there are two copies.
	Unacknowledged Outcome = "unacknowledged"
)
