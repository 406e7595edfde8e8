package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"

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
