// Package redrivetest tells, for tests, what would happen to a message whose
// handler fails, and when: with the code that decides at run time, without a
// broker and without waiting.
package redrivetest

import (
	"errors"
	"iter"
	"slices"
	"time"

	"github.com/redrive-mq/redrive"
)

// Step is one attempt.
type Step struct {
	Attempt int
	Outcome redrive.Outcome
	Delay   time.Duration // Retried: until the next attempt, at least
	At      time.Duration // of the attempt, after the first; handlers take no time here
	Why     string        // it is parked, discarded or forwarded by the policy
}

// id of the message: the same jitter in each run.
const id = "00000000-0000-8000-8000-000000000000"

// Run tells what becomes of a message whose attempts return errs, one after the
// other; nil is a success. It ends with the attempt that ends the message, or with
// the last error. Config needs Policy and Wait; URL and Queue may be left out.
func Run(c redrive.Config, errs ...error) ([]Step, error) {
	return run(c, slices.Values(errs))
}

// Always tells what becomes of a message whose every attempt returns err. With
// redrive.Service, which decides by itself, it tells of one attempt.
func Always(c redrive.Config, err error) ([]Step, error) {
	if err == nil {
		return nil, errors.New("redrivetest: Always needs an error")
	}
	return run(c, func(yield func(error) bool) {
		for yield(err) && !c.Wait.Limits().Decides {
		}
	})
}

func run(c redrive.Config, errs iter.Seq[error]) ([]Step, error) {
	if c.URL == "" {
		c.URL = "amqp://localhost" // nothing connects
	}
	if c.Queue == "" {
		c.Queue = "work"
	}
	consumer, err := redrive.NewConsumer(c)
	if err != nil {
		return nil, err
	}
	var steps []Step
	m := redrive.Message{Queue: c.Queue, ID: id}
	var at time.Duration
	for failure := range errs {
		m.Attempt++
		d := redrive.Decision{Outcome: redrive.Succeeded}
		if failure != nil {
			d = consumer.Decide(&m, failure)
			m.LastError = failure.Error()
		}
		steps = append(steps, Step{Attempt: m.Attempt, Outcome: d.Outcome, Delay: d.Delay, At: at, Why: d.Why})
		if d.Outcome != redrive.Retried {
			break
		}
		at += d.Delay
	}
	return steps, nil
}
