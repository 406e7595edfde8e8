package redrive

import (
	"errors"
	"fmt"
	"time"
)

// Discard is the error of a handler that wants its message gone: acknowledged,
// and not tried again.
var Discard = errors.New("redrive: discard the message")

// Park is the error of a handler that knows that another attempt is in vain: the
// message goes to the parking lot at once, with err as the reason. err may be nil.
func Park(err error) error { return &parkError{err} }

type parkError struct{ err error }

func (e *parkError) Error() string { return textOr(e.err, "its handler parked it, without an error") }
func (e *parkError) Unwrap() error { return e.err }

// RetryIn is the error of a handler that was told when to come back, as by an
// HTTP Retry-After: the next attempt is after that long, but no longer than the
// policy's longest wait, or its MaxRetryIn. It counts as an attempt like any other. err
// may be nil.
func RetryIn(err error, after time.Duration) error { return &retryError{err, after} }

type retryError struct {
	err   error
	after time.Duration
}

func (e *retryError) Error() string {
	return textOr(e.err, fmt.Sprintf("its handler asked for another attempt in %s, without an error", e.after))
}
func (e *retryError) Unwrap() error { return e.err }

func textOr(err error, without string) string {
	if err == nil {
		return without
	}
	return err.Error()
}

// PanicError is the failure of a handler that panicked.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// Outcome is what became of one attempt.
type Outcome string

const (
	Succeeded Outcome = "succeeded"
	Retried   Outcome = "retried"   // it waits for its next attempt
	Parked    Outcome = "parked"    // for a person
	Discarded Outcome = "discarded" // by the handler or the policy
	Forwarded Outcome = "forwarded" // by the policy
	Unsettled Outcome = "unsettled" // the connection or the time to stop ended first: RabbitMQ delivers it again
	// Unacknowledged: it was published to where it waits, is parked or is forwarded to, and
	// then could not be acknowledged. RabbitMQ delivers it again as well: there are two.
	Unacknowledged Outcome = "unacknowledged"
)
