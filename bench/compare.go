package main

import (
	"context"
	"fmt"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/redrive-mq/redrive/testenv/brokertest"
)

// comparison is all rows on one broker and kind of work queue.
type comparison struct {
	RabbitMQ   string      `json:"rabbitmq"`
	Kind       string      `json:"kind"`
	Rows       []*result   `json:"rows"`
	Prediction *prediction `json:"prediction"` // of Redis; null where a CPU is not known
	Targets    []target    `json:"targets"`
}

// result is a row's median round.
type result struct {
	Row        string  `json:"row"`
	Absent     string  `json:"absent,omitempty"` // why it has no numbers
	Rate       float64 `json:"messages_per_s"`
	Ratio      float64 `json:"of_forwarder,omitempty"`
	P50        float64 `json:"p50_ms,omitempty"` // from reject to return
	P99        float64 `json:"p99_ms,omitempty"`
	Max        float64 `json:"max_ms,omitempty"`
	Lost       int     `json:"lost"`
	Duplicates int     `json:"duplicates"`
	costs
	Counted int `json:"counted"` // messages that the costs are of
}

// each is the CPU of one message, in microseconds.
func (m *result) each(u *usage) float64 { return u.each(m.Counted) }

func (m *result) speed() float64 { return m.Rate }

func (m *result) wrong() string {
	if m.Lost+m.Duplicates == 0 {
		return ""
	}
	return fmt.Sprintf("%d lost, %d duplicates", m.Lost, m.Duplicates)
}

// compare runs all rows in turn, several times, and prints their medians.
func (r *report) compare(ctx context.Context, b brokertest.Broker, kind string) {
	r.printf("\nRabbitMQ %s, %s work queue, %d messages of %d bytes, median of %d\n", b.Version, kind, *messages, *size, *rounds)
	all := rows()
	c := &comparison{RabbitMQ: b.Version, Kind: kind}
	c.Rows = r.inTurn(ctx, b, kind, all, measure)
	if ctx.Err() != nil {
		return
	}
	r.Compare = append(r.Compare, c)
	rates := map[string]float64{}
	for _, m := range c.Rows {
		rates[m.Row] = m.Rate
		m.Ratio = round(m.Rate / rates[forwarderRow])
	}
	c.print(r)
	most := slices.IndexFunc(c.Rows, func(m *result) bool { return m.Row == replicasRow(mostReplicas) })
	c.Prediction = r.predict(c.Rows[most])
	for _, m := range c.Rows {
		if m.Row == redriveRow && m.Own != nil && *size >= largeBody {
			c.Targets = append(c.Targets, r.atMost("peak memory of redrive on disk", m.Own.Peak, "MiB", memoryBound(*size)))
		}
	}
	if rates[redriveRow] > 0 && rates[forwarderRow] > 0 {
		c.Targets = append(c.Targets, r.atLeast("redrive against the bare forwarder", rates[redriveRow]/rates[forwarderRow], "×", 0.9))
	}
}

// largeBody is from what size on bodies decide how much memory the service takes.
const largeBody = 1 << 20

// memoryBound is how much the service takes at most, in MiB, with bodies of so many bytes:
// see TestLargeBodiesTakeBoundedMemory.
func memoryBound(size int) float64 { return 160 + 10*float64(size)/(1<<20) }

// inTurn has each row measured as often as -rounds says, and is their medians.
func (r *report) inTurn(ctx context.Context, b brokertest.Broker, kind string, all []row, measure func(context.Context, brokertest.Broker, string, row) (*result, error)) []*result {
	names := make([]string, len(all))
	for i, row := range all {
		names[i] = row.name
	}
	medians, why := inTurn(ctx, r, fmt.Sprintf("RabbitMQ %s, %s", b.Version, kind), names, func(i int) (*result, error) { return measure(ctx, b, kind, all[i]) })
	for i := range medians {
		if why[i] != "" {
			medians[i] = &result{Row: names[i], Absent: why[i]}
		}
	}
	return medians
}

func (c *comparison) print(r *report) {
	w := tabwriter.NewWriter(r.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "row\tmessages/s\t× forwarder\tp50\tp99\tmax\tCPU µs each\tpeak MiB\tRedis CPU µs each\tpeak MiB\tbroker CPU µs each\tpeak MiB\t")
	for _, m := range c.Rows {
		if m.Absent == "" {
			fmt.Fprintf(w, "%s\t%.0f\t%.2f\t%.0fms\t%.0fms\t%.0fms\t%s\t%s\t%s\t\n", m.Row, m.Rate, m.Ratio, m.P50, m.P99, m.Max, m.Own.of(m.Counted), m.Redis.of(m.Counted), m.Broker.of(m.Counted))
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
	meters := newMeters(w, b)
	back, err := consume(ctx, v.url, work, *messages, row.requeue)
	if err != nil {
		return nil, err
	}
	return &result{Row: row.name, Rate: round(back.rate), P50: ms(back.p(50)), P99: ms(back.p(99)), Max: ms(back.p(100)),
		Lost: back.lost, Duplicates: back.duplicates, costs: meters.costs(), Counted: *messages}, nil
}
