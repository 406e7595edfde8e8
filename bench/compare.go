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
			res, err := measure(ctx, b, kind, all[i])
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case errors.As(err, new(notThere)):
				absent[i] = err
				continue
			case err != nil:
				absent[i] = errors.New("failed")
			case res.lost+res.duplicates > 0:
				err = fmt.Errorf("%d lost, %d duplicates", res.lost, res.duplicates)
			}
			if err != nil {
				failures = append(failures, fmt.Errorf("%s: %w", all[i].name, err))
			}
			results[i] = append(results[i], res)
		}
	}
	fmt.Printf("%d messages, median of %d\n", *messages, *rounds)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "row\tmessages/s\t× forwarder\tp50\tp99\tmax\tCPU µs each\tpeak MiB\tRedis CPU µs each\tpeak MiB\tbroker CPU µs each\tpeak MiB\t")
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
		fmt.Fprintf(w, "%s\t%.0f\t%.2f\t%.0fms\t%.0fms\t%.0fms\t%s\t%s\t%s\t\n", row.name, m.rate, m.rate/forwarder, ms(m.p(50)), ms(m.p(99)), ms(m.p(100)),
			m.own.columns(*messages), m.redis.columns(*messages), m.broker.columns(*messages))
		if most := memoryBound(*size); row.name == "redrive" && *size >= 1<<20 && m.own.known && m.own.peak > most {
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

// memoryBound is how much the service on disk takes at most, in MiB, with bodies of so many
// bytes: see TestLargeBodiesTakeBoundedMemory.
func memoryBound(size int) float64 { return 160 + 10*float64(size)/(1<<20) }

// measure is one round of one row, in a virtual host of its own.
func measure(ctx context.Context, b brokertest.Broker, kind string, row row) (res result, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	v, remove, err := newVHost(ctx, b, kind)
	if err != nil {
		return res, err
	}
	defer remove()
	w, err := row.start(ctx, v)
	if err != nil {
		return res, err
	}
	defer w.stop()
	// The work queue is full before, so that the round measures the way back alone.
	if err := publish(ctx, v.url, work, *messages, 0); err != nil {
		return res, err
	}
	costs := measureCosts(w, b)
	res.returns, err = consume(ctx, v.url, work, *messages, row.requeue)
	res.costs = costs()
	return res, err
}
