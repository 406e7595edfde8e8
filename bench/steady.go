package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/testenv/brokertest"
)

// lateness rejects messages at a steady rate and prints how late they come back.
//
// A message is due its delay after its reject, as the consumer's monotonic clock
// has it: see consume for why none is called early that was not. The way to the
// service and back counts as lateness; what it is on this machine, now, the bare
// forwarder shows first.
func lateness(ctx context.Context, b brokertest.Broker, kind string) error {
	n := int(float64(*steady) * steadyFor.Seconds())
	fmt.Printf("%d rejects per second for %s, delay %s\n", *steady, *steadyFor, *delay)
	alone, err := atPace(ctx, b, kind, startForwarder, max(1, n/3))
	if err != nil {
		return err
	}
	fmt.Printf("the way alone, by a bare forwarder without a delay: p50 %.1f ms, p99 %.1f ms\n", ms(alone.p(50)), ms(alone.p(99)))
	var failures []error
	for _, row := range serviceRows(*delay, strings.Split(*stores, ",")...) {
		back, err := atPace(ctx, b, kind, row.start, n)
		if errors.As(err, new(notThere)) {
			fmt.Printf("%s: %v\n", row.name, err)
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", row.name, err)
		}
		early := back.early(*delay)
		fmt.Printf("\n%s\n%.0f rejects per second; late by p50 %.1f ms, p99 %.1f ms, max %.1f ms; %d early, %d lost, %d duplicates\n", row.name, back.rejects,
			ms(back.p(50)-*delay), ms(back.p(99)-*delay), ms(back.p(100)-*delay), early, back.lost, back.duplicates)
		fmt.Printf("service: %s\nRedis: %s\nbroker: %s\n", back.own.text(n), back.redis.text(n), back.broker.text(n))
		if early+back.lost+back.duplicates > 0 {
			failures = append(failures, fmt.Errorf("%s: %d early, %d lost, %d duplicates", row.name, early, back.lost, back.duplicates))
		}
	}
	return errors.Join(failures...)
}

// atPace is one round at the steady rate, in a virtual host of its own.
func atPace(ctx context.Context, b brokertest.Broker, kind string, start func(context.Context, vhost) (way, error), n int) (res result, err error) {
	ctx, cancel := context.WithTimeout(ctx, *steadyFor+*delay+time.Minute)
	defer cancel()
	v, remove, err := newVHost(ctx, b, kind)
	if err != nil {
		return res, err
	}
	defer remove()
	w, err := start(ctx, v)
	if err != nil {
		return res, err
	}
	defer w.stop()
	costs := measureCosts(w, b)
	var publishing sync.WaitGroup
	var failure error
	publishing.Go(func() {
		if failure = publish(ctx, v.url, work, n, float64(*steady)); failure != nil {
			cancel() // nothing more would come
		}
	})
	res.returns, err = consume(ctx, v.url, work, n, false)
	if err != nil {
		cancel()
	}
	publishing.Wait()
	res.costs = costs()
	return res, errors.Join(err, failure)
}
