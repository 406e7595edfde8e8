package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/testenv/brokertest"
)

// Messages of the queue far wait for an hour; that of soon is due while the service is down.
const (
	far, soon = "far", "soon"
	soonDelay = 5 * time.Second
)

// withWaiting measures what many waiting messages cost the service, on each store.
func withWaiting(ctx context.Context, b brokertest.Broker, kind string) error {
	for store := range strings.SplitSeq(*stores, ",") {
		fmt.Printf("\n%d messages wait, store: %s\n", *waiting, store)
		err := withWaitingIn(ctx, store, b, kind)
		if errors.As(err, new(notThere)) {
			fmt.Println(err)
		} else if err != nil {
			return fmt.Errorf("store: %s: %w", store, err)
		}
	}
	return nil
}

// withWaitingIn fills a service, then compares its cycles with those of an empty
// one, turn by turn, and restarts it.
func withWaitingIn(ctx context.Context, store string, b brokertest.Broker, kind string) error {
	var hosts []vhost
	var services []*service // the empty one, the full one
	var full *redis
	for range 2 {
		v, remove, err := newVHost(ctx, b, kind)
		if err != nil {
			return err
		}
		defer remove()
		var on *redis
		if store == onRedis {
			if on, err = startRedis(ctx); err != nil {
				return err
			}
			defer on.stop()
		}
		s, err := newService(v.url, on, map[string]time.Duration{work: 0, far: time.Hour, soon: soonDelay})
		if err != nil {
			return err
		}
		defer s.remove()
		if err := errors.Join(s.start(ctx), enrolled(v, work, far, soon)); err != nil {
			return err
		}
		hosts, services, full = append(hosts, v), append(services, s), on
	}
	s, v := services[1], hosts[1]
	began, before := time.Now(), full.used(ctx)
	if err := s.fill(ctx, v, *waiting); err != nil {
		return err
	}
	took := time.Since(began).Seconds()
	fmt.Printf("filled in %.0f s, %.0f per second", took, float64(*waiting)/took)
	s.rest(ctx, full)
	s.printMemory(full)
	if full != nil {
		fmt.Printf("Redis: %.0f bytes a message by its own account\n", (full.used(ctx)-before)/float64(*waiting))
	}
	rates, err := cycles(ctx, hosts)
	if err != nil {
		return err
	}
	fmt.Printf("cycles: %.0f per second with an empty store, %.0f with the full one, %.2f ×", rates[0], rates[1], rates[1]/rates[0])
	s.printMemory(full)
	for _, by := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		first, err := s.restart(ctx, v, by)
		if err != nil {
			return err
		}
		fmt.Printf("restart after %s: first return after %.2f s", by, first.Seconds())
		s.printMemory(full)
	}
	return s.untilWaiting(ctx, far, func(now int) bool { return now == *waiting })
}

// printMemory ends a line.
func (s *service) printMemory(on *redis) {
	fmt.Printf("; then %s", footprint(s.pid()))
	if on != nil {
		fmt.Printf("; Redis %s", footprint(on.pid))
	}
	fmt.Println()
}

// used is how many bytes Redis says that it uses; 0 for none.
func (r *redis) used(ctx context.Context) (bytes float64) {
	if r != nil {
		bytes, _ = strconv.ParseFloat(r.Info(ctx, "memory", "used_memory"), 64)
	}
	return bytes
}

// fill has n messages rejected, the way users' messages get there.
func (s *service) fill(ctx context.Context, v vhost, n int) error {
	const chunk = 20_000 // RabbitMQ holds no more than twice that
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	rejecting := make(chan error, 1)
	go func() {
		defer stop() // without it the filling would wait for ever
		rejecting <- rejectAll(ctx, v.url)
	}()
	err := func() error {
		for sent := 0; sent < n; {
			more := min(chunk, n-sent)
			if err := publish(ctx, v.url, far, more, 0); err != nil {
				return err
			}
			sent += more
			least := sent - chunk
			if sent == n {
				least = n
			}
			if err := s.untilWaiting(ctx, far, func(now int) bool { return now >= least }); err != nil {
				return err
			}
		}
		return nil
	}()
	stop()
	return errors.Join(<-rejecting, err)
}

// rejectAll rejects what comes from the far queue until ctx ends.
func rejectAll(ctx context.Context, url string) error {
	return onChannel(url, func(ch *amqp.Channel) error {
		if err := ch.Qos(1000, 0, false); err != nil {
			return err
		}
		in, err := ch.Consume(far, "", false, false, false, false, nil)
		if err != nil {
			return err
		}
		for {
			select {
			case <-ctx.Done():
				return nil
			case d, ok := <-in:
				if !ok {
					return errors.New("the channel of the consumer of " + far + " closed")
				}
				if err := d.Reject(false); err != nil {
					return err
				}
			}
		}
	})
}

// rest waits until the service, or its Redis, has written what it writes behind, for a
// minute at most.
func (s *service) rest(ctx context.Context, on *redis) {
	deadline := time.Now().Add(time.Minute)
	before, _ := cpuSeconds([]int{s.pid()})
	for quiet := 0; quiet < 3 && time.Now().Before(deadline) && pause(ctx, 500*time.Millisecond) == nil; {
		now, _ := cpuSeconds([]int{s.pid()})
		if quiet++; now-before > 0.02 || on != nil && on.Info(ctx, "persistence", "aof_rewrite_in_progress") == "1" {
			quiet = 0
		}
		before = now
	}
}

// cycles runs rounds in the virtual hosts in turn, so that what changes on the machine
// meanwhile changes all, and returns the median rate of each. The first round is not counted: a
// service that has just started is slower.
func cycles(ctx context.Context, hosts []vhost) (medians []float64, err error) {
	rates := make([][]float64, len(hosts))
	for round := range 2**rounds + 1 { // each is the first as often as the other
		for n := range hosts {
			i := (n + round) % len(hosts)
			if err := publish(ctx, hosts[i].url, work, *messages, 0); err != nil {
				return nil, err
			}
			limited, cancel := context.WithTimeout(ctx, 5*time.Minute)
			back, err := consume(limited, hosts[i].url, work, *messages, false)
			cancel()
			if back.lost+back.duplicates > 0 {
				err = fmt.Errorf("%d lost, %d duplicates", back.lost, back.duplicates)
			}
			if err != nil {
				return nil, err
			}
			if round > 0 {
				rates[i] = append(rates[i], back.rate)
			}
		}
	}
	for _, of := range rates {
		medians = append(medians, median(of))
	}
	return medians, nil
}

// restart ends the service while a message waits, starts it when that one is
// due, and measures how long it takes to come.
func (s *service) restart(ctx context.Context, v vhost, by syscall.Signal) (first time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	// The one of the restart before may not be acknowledged yet, and would come again.
	if err := s.untilWaiting(ctx, soon, func(now int) bool { return now == 0 }); err != nil {
		return 0, err
	}
	if err := publish(ctx, v.url, soon, 1, 0); err != nil {
		return 0, err
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
		return 0, err
	}
	due := time.Now().Add(soonDelay) // or a little later
	s.end(by)
	if err := pause(ctx, time.Until(due)); err != nil {
		return 0, err
	}
	began := time.Now()
	if err := s.launch(); err != nil {
		return 0, err
	}
	<-came
	switch {
	case failure != nil || back.lost > 0:
		return 0, errors.Join(errors.New("the message that was due did not come back after the restart"), failure)
	case back.early(soonDelay) > 0:
		return 0, errors.New("the message came back early")
	case back.ended.Before(began):
		return 0, fmt.Errorf("the service took longer than %s to end", soonDelay)
	}
	return back.ended.Sub(began), nil
}
