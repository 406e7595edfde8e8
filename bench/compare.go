package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/redrive-mq/redrive/internal/broker/brokertest"
)

// comparison is all rows on one broker and kind of work queue.
type comparison struct {
	RabbitMQ string    `json:"rabbitmq"`
	Kind     string    `json:"kind"`
	Rows     []*result `json:"rows"`
	Targets  []target  `json:"targets"`
}

// result is a row's median round.
type result struct {
	Row        string  `json:"row"`
	Absent     string  `json:"absent,omitempty"` // why it has no numbers
	Rate       float64 `json:"messages_per_s"`
	Ratio      float64 `json:"of_forwarder"`
	P50        float64 `json:"p50_ms"` // from reject to return
	P99        float64 `json:"p99_ms"`
	Max        float64 `json:"max_ms"`
	Lost       int     `json:"lost"`
	Duplicates int     `json:"duplicates"`
	Own        *usage  `json:"own"`    // of its own process
	Broker     *usage  `json:"broker"` // null for one that somebody else runs
}

// compare runs all rows in turn, several times, and prints their medians.
func (r *report) compare(ctx context.Context, b brokertest.Broker, kind string) {
	r.printf("\nRabbitMQ %s, %s work queue, %d messages of %d bytes, median of %d\n", b.Version, kind, *messages, *size, *rounds)
	all := rows()
	results := make([][]*result, len(all))
	why := make([]string, len(all)) // a row is not there, or failed
	for round := range *rounds {
		for n := range all {
			i := (n + round) % len(all) // no row is always the first
			row := all[i]
			if why[i] != "" || ctx.Err() != nil {
				continue
			}
			res, err := measure(ctx, b, kind, row)
			var missing notThere
			switch {
			case errors.As(err, &missing):
				why[i] = missing.Error()
				continue
			case ctx.Err() != nil: // interrupted
				return
			case err != nil:
				why[i] = "failed: " + err.Error()
				r.fail("RabbitMQ %s, %s, %s: %v", b.Version, kind, row.name, err)
				continue
			case res.Lost > 0 || res.Duplicates > 0:
				r.fail("RabbitMQ %s, %s, %s: %d lost, %d duplicates", b.Version, kind, row.name, res.Lost, res.Duplicates)
			}
			results[i] = append(results[i], res)
		}
	}
	if ctx.Err() != nil {
		return
	}
	c := &comparison{RabbitMQ: b.Version, Kind: kind}
	r.Compare = append(r.Compare, c)
	rates := map[string]float64{}
	for i, row := range all {
		m := &result{Row: row.name, Absent: why[i]}
		if why[i] == "" {
			slices.SortFunc(results[i], func(a, b *result) int { return cmp.Compare(a.Rate, b.Rate) })
			m = results[i][len(results[i])/2]
			rates[row.name] = m.Rate
			m.Ratio = round(m.Rate / rates[forwarderRow])
		}
		c.Rows = append(c.Rows, m)
	}
	c.print(r)
	if rates[redriveRow] > 0 && rates[forwarderRow] > 0 {
		c.Targets = append(c.Targets, r.atLeast("redrive against the bare forwarder", rates[redriveRow]/rates[forwarderRow], "×", 0.9))
	}
}

func (c *comparison) print(r *report) {
	w := tabwriter.NewWriter(r.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "row\tmessages/s\t× forwarder\tp50\tp99\tmax\tCPU s\tpeak MiB\tbroker CPU s\tbroker peak MiB\t")
	for _, m := range c.Rows {
		if m.Absent == "" {
			fmt.Fprintf(w, "%s\t%.0f\t%.2f\t%.0fms\t%.0fms\t%.0fms\t%s\t%s\t\n", m.Row, m.Rate, m.Ratio, m.P50, m.P99, m.Max, m.Own, m.Broker)
		}
	}
	w.Flush()
	for _, m := range c.Rows {
		if m.Absent != "" {
			r.printf("%s: %s\n", m.Row, m.Absent)
		}
	}
}

// measure is one round of one row, in a virtual host of its own.
func measure(ctx context.Context, b brokertest.Broker, kind string, row row) (*result, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	v, remove, err := newVHost(ctx, b, kind)
	if err != nil {
		return nil, err
	}
	defer remove()
	w, err := row.start(ctx, v)
	if err != nil {
		return nil, err
	}
	defer w.stop()
	if *warmup > 0 {
		if err := publish(ctx, v.url, work, *warmup, 0); err != nil {
			return nil, err
		}
		if _, err := consume(ctx, v.url, work, *warmup, row.requeue); err != nil {
			return nil, err
		}
	}
	// The work queue is full before, so that the round measures the way back alone.
	if err := publish(ctx, v.url, work, *messages, 0); err != nil {
		return nil, err
	}
	own, broker := newMeter(w.pids), newMeter(groupPids(b.Group))
	back, err := consume(ctx, v.url, work, *messages, row.requeue)
	if err != nil {
		return nil, err
	}
	return &result{Row: row.name, Rate: round(back.rate), P50: ms(back.p(50)), P99: ms(back.p(99)), Max: ms(back.p(100)),
		Lost: back.lost, Duplicates: back.duplicates, Own: own.usage(), Broker: broker.usage()}, nil
}
