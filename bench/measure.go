package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"text/tabwriter"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"golang.org/x/sync/errgroup"

	"github.com/redrive-mq/redrive"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/testenv/brokertest"
)

// result is one round of a row.
type result struct {
	returns
	costs
}

// compare measures all rows in turn, as often as -rounds says, and prints the median of each.
func compare(ctx context.Context, b brokertest.Broker, kind string) error {
	all := rows()
	results, absent := make([][]result, len(all)), make([]error, len(all))
	var failures []error
	for round := range *rounds {
		for n := range all {
			i := (n + round) % len(all) // no row is always the first
			if absent[i] != nil {
				continue
			}
			res, err := measure(ctx, b, kind, all[i], *messages, 0)
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case errors.As(err, new(notThere)):
				absent[i] = err
				continue
			case err != nil:
				absent[i] = errors.New("failed")
			default:
				err = res.failure(0)
			}
			if err != nil {
				failures = append(failures, fmt.Errorf("%s: %w", all[i].name, err))
			}
			results[i] = append(results[i], res)
		}
	}
	fmt.Printf("%d messages, median of %d\n", *messages, *rounds)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "row\tmessages/s\t× forwarder\tp50\tp99\tmax\tCPU µs each\tpeak MiB\t"+
		"Redis CPU µs each\tpeak MiB\tbroker CPU µs each\tpeak MiB\t")
	forwarder := 0.0
	for i, row := range all {
		if absent[i] != nil {
			continue
		}
		slices.SortFunc(results[i], func(a, b result) int { return cmp.Compare(a.rate, b.rate) })
		m := results[i][len(results[i])/2]
		if i == 0 {
			forwarder = m.rate
		}
		fmt.Fprintf(w, "%s\t%.0f\t%.2f\t%.0fms\t%.0fms\t%.0fms\t%s\t%s\t%s\t\n", row.name, m.rate, m.rate/forwarder,
			ms(m.p(50)), ms(m.p(99)), ms(m.p(100)),
			m.own.columns(*messages), m.redis.columns(*messages), m.broker.columns(*messages))
		// See TestLargeBodiesTakeBoundedMemory.
		most := 160 + 10*float64(*size)/(1<<20)
		if row.name == "redrive" && *size >= 1<<20 && m.own.known && m.own.peak > most {
			failures = append(failures, fmt.Errorf("redrive took up to %.0f MiB, more than %.0f", m.own.peak, most))
		}
	}
	w.Flush()
	for i, row := range all {
		if absent[i] != nil {
			fmt.Printf("%s: %v\n", row.name, absent[i])
		}
	}
	return errors.Join(failures...)
}

// lateness rejects messages at a steady rate and prints how late they come back.
//
// A message is due its delay after its reject, as the consumer's monotonic clock
// has it: see consume for why none is called early that was not. The way to the
// service and back counts as lateness; what it is on this machine, now, the bare
// forwarder shows first.
func lateness(ctx context.Context, b brokertest.Broker, kind string) error {
	n := int(float64(*steady) * steadyFor.Seconds())
	fmt.Printf("%d rejects per second for %s, delay %s\n", *steady, *steadyFor, *delay)
	alone, err := measure(ctx, b, kind, forwarder, max(1, n/3), *steady)
	if err != nil {
		return err
	}
	fmt.Printf("the way alone, by a bare forwarder without a delay: p50 %.1f ms, p99 %.1f ms\n",
		ms(alone.p(50)), ms(alone.p(99)))
	var failures []error
	for _, row := range serviceRows(*delay, only(*store, onDisk, onRedis)) {
		back, err := measure(ctx, b, kind, row, n, *steady)
		if errors.As(err, new(notThere)) {
			fmt.Printf("%s: %v\n", row.name, err)
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", row.name, err)
		}
		fmt.Printf("\n%s\n%.0f rejects per second; late by p50 %.1f ms, p99 %.1f ms, max %.1f ms; "+
			"%d early, %d lost, %d duplicates\n", row.name, back.rejects,
			ms(back.p(50)-*delay), ms(back.p(99)-*delay), ms(back.p(100)-*delay),
			back.early(*delay), back.lost, back.duplicates)
		fmt.Printf("service: %s\nRedis: %s\nbroker: %s\n", back.own.text(n), back.redis.text(n), back.broker.text(n))
		if err := back.failure(*delay); err != nil {
			failures = append(failures, fmt.Errorf("%s: %w", row.name, err))
		}
	}
	return errors.Join(failures...)
}

// measure is one round of one row with n messages, in a virtual host of its own. With a pace so many
// come per second; without one all are there before, so that it measures the way back alone.
func measure(ctx context.Context, b brokertest.Broker, kind string, row row, n, pace int) (res result, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute+*steadyFor+*delay)
	defer cancel()
	v, err := newVHost(ctx, b, kind)
	if err != nil {
		return res, err
	}
	defer v.close()
	if err := row.start(ctx, v); err != nil {
		return res, err
	}
	if pace == 0 {
		if err := publish(ctx, v.url, work, n, 0); err != nil {
			return res, err
		}
	}
	costs := measureCosts(v)
	both, ctx := errgroup.WithContext(ctx) // without one of them the other would wait for ever
	if pace > 0 {
		both.Go(func() error { return publish(ctx, v.url, work, n, float64(pace)) })
	}
	both.Go(func() (err error) {
		res.returns, err = consume(ctx, v.url, work, n, row.requeue)
		return err
	})
	err = both.Wait()
	res.costs = costs()
	return res, err
}

// pass is a round in which every message succeeds at once.
type pass struct{ rate, allocations, bytes float64 } // a second, and of a message

// consumers compares the library's consumer with a bare loop, in turn on one broker.
func consumers(ctx context.Context, b brokertest.Broker, kind string) error {
	v, err := newVHost(ctx, b, kind)
	if err != nil {
		return err
	}
	defer v.close()
	if err := onChannel(v.url, func(ch *amqp.Channel) error {
		return declare(ch, work, amqp.Table{"x-queue-type": kind})
	}); err != nil {
		return err
	}
	loops := []struct {
		name string
		run  func(context.Context, *vhost, *counter) error
		all  []pass
	}{{name: "bare amqp091-go loop", run: bareLoop}, {name: "redrive.Consume", run: consumerLoop}}
	for round := range *rounds + 1 {
		for n := range loops {
			l := &loops[(n+round)%len(loops)]
			if err := publish(ctx, v.url, work, prefetch+*messages, 0); err != nil {
				return err
			}
			limited, cancel := context.WithTimeout(ctx, 5*time.Minute)
			var c counter
			err := l.run(limited, v, &c)
			cancel()
			if err != nil {
				return err
			}
			if round > 0 { // the first is not counted: everything is cold
				l.all = append(l.all, c.result)
			}
		}
	}
	var ratios []float64 // of the rounds
	for i := range *rounds {
		ratios = append(ratios, loops[1].all[i].rate/loops[0].all[i].rate)
	}
	fmt.Printf("the library, %d messages, median of %d\n", *messages, *rounds)
	for _, l := range loops {
		slices.SortFunc(l.all, func(a, b pass) int { return cmp.Compare(a.rate, b.rate) })
		m := l.all[len(l.all)/2]
		fmt.Printf("success, %s: %.0f messages/s, %.1f allocations and %.0f bytes a message\n",
			l.name, m.rate, m.allocations, m.bytes)
	}
	fmt.Printf("the consumer against the bare loop: %.2f ×\n", median(ratios))
	return nil
}

// counter counts messages, and the memory and time they take. The first ones, as
// many as are prefetched, are not counted: the client has them before the clock
// starts.
type counter struct {
	seen   int
	first  time.Time
	before runtime.MemStats
	result pass
}

// next counts one, by one goroutine at a time, and reports whether it was the last.
func (c *counter) next() bool {
	switch c.seen++; c.seen {
	case 1:
		runtime.GC()
	case prefetch:
		runtime.ReadMemStats(&c.before)
		c.first = time.Now()
	case prefetch + *messages:
		took := time.Since(c.first).Seconds()
		var after runtime.MemStats
		runtime.ReadMemStats(&after)
		n := float64(*messages)
		c.result = pass{n / took, float64(after.Mallocs-c.before.Mallocs) / n,
			float64(after.TotalAlloc-c.before.TotalAlloc) / n}
		return true
	}
	return false
}

// bareLoop is what a consumer is without the library: take, and acknowledge.
func bareLoop(ctx context.Context, v *vhost, c *counter) error {
	return eachDelivery(ctx, v.url, work, func(d amqp.Delivery) (bool, error) { return c.next(), d.Ack(false) })
}

// consumerLoop is the same by the library.
func consumerLoop(ctx context.Context, v *vhost, c *counter) error {
	running, stop := context.WithCancel(ctx)
	defer stop()
	config := redrive.Config{URLs: []string{v.url}, Log: slog.New(slog.DiscardHandler)}
	err := redrive.Consume(running, config, redrive.Consumer{Queue: work, Prefetch: prefetch, Wait: redrive.Levels(),
		Policy: policy.Policy{Attempts: 2, Backoff: policy.Fixed(time.Second)},
		Handler: func(context.Context, *redrive.Message) error {
			if c.next() {
				stop()
			}
			return nil
		}})
	return cmp.Or(err, ctx.Err())
}

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
