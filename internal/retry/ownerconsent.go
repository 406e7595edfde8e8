package retry

import (
	"errors"
	"fmt"
	"time"
)

// Consent knows which queues dead-letter to Redrive by their owner's choice: an argument or a
// policy in RabbitMQ.
type Consent interface {
	// Consented answers from memory, and is safe for concurrent use. It returns one of:
	//
	//   - yes: the queue's effective dead-letter exchange is redrive;
	//   - no, and asOf: at that time it was another, or none;
	//   - no, and a zero asOf: nothing is known yet.
	//
	// With no, err is why RabbitMQ cannot be asked for a newer answer; nil: it is being asked.
	Consented(queue string) (yes bool, asOf time.Time, err error)
}

var (
	// ErrLookupPending is the error of a result that depends on an answer which RabbitMQ has not
	// given yet. It is not reported as an obstacle.
	ErrLookupPending = errors.New("RabbitMQ is being asked")
	// ErrConsentUnknown is the error of a result that depends on an answer for which RabbitMQ
	// cannot be asked.
	ErrConsentUnknown = errors.New("reports of failures wait, since it is unknown whether the queue dead-letters to redrive")
)

// decideUnproven decides about a queue that only a report names and that has no retry exchange.
// The zero Result means that it may be declared one.
func (t *retryTargets) decideUnproven(queue string) Result {
	none := Result{Park: fmt.Sprintf("the queue %q is not enrolled: nothing was dead-lettered from it yet, its dead-letter exchange is not redrive, and no policy names it exactly", queue)}
	if t.consent == nil {
		return none
	}
	yes, asOf, err := t.consent.Consented(queue)
	switch {
	case yes:
		return Result{}
	case asOf.IsZero():
		return Result{Err: consentUnknown(err)}
	}
	none.asOf, none.errAfter = asOf, consentUnknown(err)
	return none
}

func consentUnknown(err error) error {
	if err == nil {
		return ErrLookupPending
	}
	return fmt.Errorf("%w: %w", ErrConsentUnknown, err)
}

// forDue returns the result for a message that is due then: the queue may have become a target
// after RabbitMQ was asked.
func (r Result) forDue(due time.Time) Result {
	if !r.asOf.IsZero() && due.After(r.asOf) {
		return Result{Err: r.errAfter}
	}
	return r
}
