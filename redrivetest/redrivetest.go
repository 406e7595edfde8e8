// Package redrivetest follows a message whose handler fails through its attempts, for
// tests: with the code that decides at run time, without a broker and without waiting.
package redrivetest

import (
	"cmp"
	"errors"
	"iter"
	"slices"
	"time"

	"github.com/redrive-mq/redrive"
)

// Step is one attempt.
type Step struct {
	Attempt int // from 1
	Outcome redrive.Outcome
	Delay   time.Duration // Retried: until the next attempt, at least; else 0
	At      time.Duration // since the first attempt; handlers take no time here
	Why     string        // it is parked, discarded or forwarded by the policy, in words
}

// id of the message: the same jitter in each run.
const id = "00000000-0000-8000-8000-000000000000"

// Run returns the attempts at a message whose handler returns errs, one after the other;
// nil is a success. It ends with the attempt that ends the message, or with the last
// error. Of k, Policy and Wait are needed. The error is what is wrong with k.
func Run(k redrive.Consumer, errs ...error) ([]Step, error) {
	return run(k, slices.Values(errs))
}

// Always returns the attempts at a message whose handler always returns err, which must
// not be nil. With redrive.Service, which decides by itself, it returns one attempt.
func Always(k redrive.Consumer, err error) ([]Step, error) {
	if err == nil {
		return nil, errors.New("redrivetest: Always needs an error")
	}
	return run(k, func(yield func(error) bool) {
		for yield(err) && !k.Wait.Limits().ServiceDecides {
		}
	})
}

func run(k redrive.Consumer, errs iter.Seq[error]) ([]Step, error) {
	k.Queue = cmp.Or(k.Queue, "work")
	var steps []Step
	m := redrive.Message{ID: id}
	var at time.Duration
	for failure := range errs {
		if m.Attempt++; at > 0 {
			m.FirstFailed = time.Now().Add(-at)
		}
		d, err := k.Decide(&m, failure)
		if err != nil {
			return nil, err
		}
		steps = append(steps, Step{Attempt: m.Attempt, Outcome: d.Outcome, Delay: d.Delay, At: at, Why: d.Why})
		if d.Outcome != redrive.Retried {
			break
		}
		at += d.Delay
	}
	return steps, nil
}
