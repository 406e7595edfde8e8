package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/redrive-mq/redrive/testenv/brokertest"
)

var (
	scale    = flag.String("scale", "", "measure so many replicas on Redis, such as 1,2,3,6, each on a slow link to RabbitMQ")
	linkRate = flag.Int64("link", 2000, "with -scale: KiB a second each way between a replica and RabbitMQ")
)

// scaleWarm is how long messages go round before they are counted.
const scaleWarm = 10 * time.Second

// scaled is what replicas do that are each as slow as their link.
type scaled struct {
	RabbitMQ   string      `json:"rabbitmq"`
	Kind       string      `json:"kind"`
	Link       int64       `json:"link_kib_per_s"`
	Rows       []*scaleRow `json:"rows"`
	Prediction *prediction `json:"prediction"` // null where the broker's CPU is not known
}

type scaleRow struct {
	*result
	Replicas int     `json:"replicas"`
	Link     bool    `json:"link"` // it has one
	Of       float64 `json:"of_one"`
	Cores    float64 `json:"cores"` // of the machine that all took together
}

// withScale has messages go round by way of more and more replicas. On one machine more
// of them are no faster once its cores are busy, so each is made slow by something of
// its own, as if it were on a small machine: the link to RabbitMQ. That shows whether
// they add up. The last row is one without a link: what the machine can do.
func (r *report) withScale(ctx context.Context, b brokertest.Broker, kind string) error {
	r.printf("\nRabbitMQ %s, %s work queue, %d messages of %d bytes go round for %s, median of %d; each replica has a link of %d KiB/s each way\n",
		b.Version, kind, *messages, *size, *steadyFor, *rounds, *linkRate)
	counts, err := replicaCounts()
	if err != nil {
		return err
	}
	res := &scaled{RabbitMQ: b.Version, Kind: kind, Link: *linkRate}
	var all []row
	add := func(name string, o replicas) {
		all = append(all, row{name: name, start: o.start})
		res.Rows = append(res.Rows, &scaleRow{Replicas: o.count, Link: o.link > 0})
	}
	for _, count := range counts {
		add(replicasRow(count), replicas{count: count, link: *linkRate << 10})
	}
	add(replicasRow(1)+", no link", replicas{count: 1})
	for i, m := range r.inTurn(ctx, b, kind, all, goRound) {
		if m.Absent != "" {
			r.printf("%s: %s\n", m.Row, m.Absent)
			return nil
		}
		row := res.Rows[i]
		row.result = m
		row.Of = round(m.Rate / res.Rows[0].Rate * float64(res.Rows[0].Replicas))
		row.Cores = round(m.Rate * (m.each(m.Own) + m.each(m.Redis) + m.each(m.Broker) + m.each(m.Bench)) / 1e6)
	}
	if ctx.Err() != nil {
		return nil
	}
	r.Scale = append(r.Scale, res)
	w := tabwriter.NewWriter(r.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "row\tmessages/s\t× one\tCPU µs each\tof Redis\tof broker\tof bench\tcores busy\t")
	for _, row := range res.Rows {
		fmt.Fprintf(w, "%s\t%.0f\t%.2f\t%.0f\t%.0f\t%.0f\t%.0f\t%.2f\t\n", row.Row, row.Rate, row.Of, row.each(row.Own), row.each(row.Redis), row.each(row.Broker), row.each(row.Bench), row.Cores)
	}
	w.Flush()
	// Of most replicas, since each more takes smaller batches.
	most := slices.MaxFunc(res.Rows, func(a, b *scaleRow) int { return cmp.Compare(a.Replicas, b.Replicas) })
	res.Prediction = r.predict(most.result)
	return nil
}

// replicaCounts are what -scale says.
func replicaCounts() (counts []int, err error) {
	for word := range strings.SplitSeq(*scale, ",") {
		n, err := strconv.Atoi(word)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("-scale %s: expected numbers of replicas with commas, such as 1,2,3,6", *scale)
		}
		counts = append(counts, n)
	}
	return counts, nil
}

// goRound is one round of one row: messages that fail again and again, without a delay.
func goRound(ctx context.Context, b brokertest.Broker, kind string, row row) (*result, error) {
	ctx, cancel := context.WithTimeout(ctx, scaleWarm+*steadyFor+5*time.Minute)
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
	if err := publish(ctx, v.url, work, *messages, 0); err != nil {
		return nil, err
	}
	c := startCircle(ctx, v.url, *messages)
	defer c.stop()
	if err := c.pause(ctx, scaleWarm); err != nil {
		return nil, err
	}
	meters, before, began := newMeters(w, b), c.came.Load(), time.Now()
	if err := c.pause(ctx, *steadyFor); err != nil {
		return nil, err
	}
	res := &result{Row: row.name, Counted: int(c.came.Load() - before), costs: meters.costs()}
	res.Rate = round(float64(res.Counted) / time.Since(began).Seconds())
	res.Lost, res.Duplicates, err = c.finish(ctx)
	return res, err
}
