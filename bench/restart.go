package main

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"
)

// soon is the queue whose message is due while the service is down.
const (
	soon      = "soon"
	soonDelay = 5 * time.Second
)

// restart ends the service while a message waits, starts it when that one is
// due, and measures how long it takes to come.
func (s *service) restart(ctx context.Context, v vhost, by syscall.Signal) (again restart, err error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	again.After = map[syscall.Signal]string{syscall.SIGTERM: "SIGTERM", syscall.SIGKILL: "SIGKILL"}[by]
	// The one of the restart before may not be acknowledged yet, and would come again.
	if err := s.untilWaiting(ctx, soon, func(now int) bool { return now == 0 }); err != nil {
		return again, err
	}
	if err := publish(ctx, v.url, soon, 1, 0); err != nil {
		return again, err
	}
	var back returns
	var failure error
	came := make(chan struct{})
	go func() {
		defer close(came)
		back, failure = consume(ctx, v.url, soon, 1, false)
	}()
	defer func() {
		cancel()
		<-came
	}()
	if err := s.untilWaiting(ctx, soon, func(now int) bool { return now == 1 }); err != nil {
		return again, err
	}
	due := time.NewTimer(soonDelay) // or a little later
	defer due.Stop()
	s.end(by)
	select {
	case <-ctx.Done():
		return again, ctx.Err()
	case <-due.C:
	}
	began := time.Now()
	if err := s.launch(); err != nil {
		return again, err
	}
	<-came
	switch {
	case failure != nil || back.lost > 0:
		return again, errors.Join(errors.New("the message that was due did not come back after the restart"), failure)
	case back.early(soonDelay) > 0:
		return again, errors.New("the message came back early")
	case back.ended.Before(began):
		return again, fmt.Errorf("the service took longer than %s to end", soonDelay)
	}
	again.First = round(back.ended.Sub(began).Seconds())
	again.Memory = s.footprint()
	return again, nil
}
