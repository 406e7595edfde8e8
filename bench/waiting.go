package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"golang.org/x/sync/errgroup"

	"github.com/redrive-mq/redrive/testenv/brokertest"
)

// Messages of the queue far wait for an hour; that of soon is due while the service is down.
const (
	far, soon = "far", "soon"
	soonDelay = 5 * time.Second
)

// withWaiting measures what many waiting messages cost the service, on each store.
func withWaiting(ctx context.Context, b brokertest.Broker, kind string) error {
	for _, store := range only(*store, onDisk, onRedis) {
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
	var hosts []*vhost // of the empty service, of the full one
	for range 2 {
		v, err := newVHost(ctx, b, kind)
		if err != nil {
			return err
		}
		defer v.close()
		delays := map[string]time.Duration{work: 0, far: time.Hour, soon: soonDelay}
		if err := startServices(ctx, v, store, 1, delays); err != nil {
			return err
		}
		hosts = append(hosts, v)
	}
	full := hosts[1]
	began, before := time.Now(), full.redisUses(ctx)
	if err := full.fill(ctx, *waiting); err != nil {
		return err
	}
	took := time.Since(began).Seconds()
	fmt.Printf("filled in %.0f s, %.0f per second", took, float64(*waiting)/took)
	full.rest(ctx)
	full.printMemory()
	if full.redis != nil {
		each := (full.redisUses(ctx) - before) / float64(*waiting)
		fmt.Printf("Redis: %.0f bytes a message by its own account\n", each)
	}
	rates, err := cycles(ctx, hosts)
	if err != nil {
		return err
	}
	fmt.Printf("cycles: %.0f per second with an empty store, %.0f with the full one, %.2f ×",
		rates[0], rates[1], rates[1]/rates[0])
	full.printMemory()
	for _, by := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		first, err := full.restart(ctx, by)
		if err != nil {
			return err
		}
		fmt.Printf("restart after %s: first return after %.2f s", by, first.Seconds())
		full.printMemory()
	}
	return full.services[0].untilWaiting(ctx, far, func(now int) bool { return now == *waiting })
}

// printMemory ends a line.
func (v *vhost) printMemory() {
	fmt.Printf("; then %s", footprint(v.services[0].pid()))
	if v.redis != nil {
		fmt.Printf("; Redis %s", footprint(v.redisPID()))
	}
	fmt.Println()
}

// redisUses is how many bytes its Redis says that it uses; 0 where there is none.
func (v *vhost) redisUses(ctx context.Context) (bytes float64) {
	if v.redis != nil {
		bytes, _ = strconv.ParseFloat(v.redis.Info(ctx, "memory", "used_memory"), 64)
	}
	return bytes
}

// fill has n messages rejected, the way users' messages get there.
func (v *vhost) fill(ctx context.Context, n int) error {
	const chunk = 20_000 // RabbitMQ holds no more than twice that
	enough := errors.New("enough")
	both, ctx := errgroup.WithContext(ctx) // without the rejecting the filling would wait for ever
	both.Go(func() error {
		return eachDelivery(ctx, v.url, far, func(d amqp.Delivery) (bool, error) { return false, d.Reject(false) })
	})
	both.Go(func() error {
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
			if err := v.services[0].untilWaiting(ctx, far, func(now int) bool { return now >= least }); err != nil {
				return err
			}
		}
		return enough
	})
	if err := both.Wait(); err != enough {
		return err
	}
	return nil
}

// rest waits until the service, or its Redis, has written what it writes behind, for a
// minute at most.
func (v *vhost) rest(ctx context.Context) {
	deadline, pids := time.Now().Add(time.Minute), []int{v.services[0].pid()}
	before, _ := cpuSeconds(pids)
	for quiet := 0; quiet < 3 && time.Now().Before(deadline) && pause(ctx, 500*time.Millisecond) == nil; {
		now, _ := cpuSeconds(pids)
		quiet++
		if now-before > 0.02 || v.redis != nil && v.redis.Info(ctx, "persistence", "aof_rewrite_in_progress") == "1" {
			quiet = 0
		}
		before = now
	}
}

// cycles runs rounds in the virtual hosts in turn, so that what changes on the machine
// meanwhile changes all, and returns the median rate of each. The first round is not counted: a
// service that has just started is slower.
func cycles(ctx context.Context, hosts []*vhost) (medians []float64, err error) {
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
			if err == nil {
				err = back.failure(0)
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
func (v *vhost) restart(ctx context.Context, by syscall.Signal) (first time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	s := v.services[0]
	// The one of the restart before may not be acknowledged yet, and would come again.
	if err := s.untilWaiting(ctx, soon, func(now int) bool { return now == 0 }); err != nil {
		return 0, err
	}
	if err := publish(ctx, v.url, soon, 1, 0); err != nil {
		return 0, err
	}
	var back returns
	var began time.Time
	both, ctx := errgroup.WithContext(ctx)
	both.Go(func() (err error) {
		back, err = consume(ctx, v.url, soon, 1, false)
		return err
	})
	both.Go(func() error {
		if err := s.untilWaiting(ctx, soon, func(now int) bool { return now == 1 }); err != nil {
			return err
		}
		due := time.Now().Add(soonDelay) // or a little later
		s.end(by)
		if err := pause(ctx, time.Until(due)); err != nil {
			return err
		}
		began = time.Now()
		return s.launch()
	})
	if err = both.Wait(); err == nil {
		err = back.failure(soonDelay)
	}
	if err == nil && back.ended.Before(began) {
		err = fmt.Errorf("the service took longer than %s to end", soonDelay)
	}
	if err != nil {
		return 0, fmt.Errorf("restart after %s: %w", by, err)
	}
	return back.ended.Sub(began), nil
}
