package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/testenv/brokertest"
)

var (
	steady    = flag.Int("steady", 0, "measure lateness at so many rejects per second")
	steadyFor = flag.Duration("for", 30*time.Second, "with -steady and -parked: how long messages are rejected; with -scale: how long they are counted")
	delay     = flag.Duration("delay", 5*time.Second, "with -steady: the delay of each")
)

// steadyResult is how late messages came back at a steady rate.
type steadyResult struct {
	RabbitMQ   string   `json:"rabbitmq"`
	Kind       string   `json:"kind"`
	Row        string   `json:"row"`
	Delay      float64  `json:"delay_ms"`
	Messages   int      `json:"messages"`
	Rejects    float64  `json:"rejects_per_s"` // as it came out
	Way        way99    `json:"way"`           // there and back without a delay, by the bare forwarder
	P50        float64  `json:"p50_ms"`        // of lateness: from due to return
	P99        float64  `json:"p99_ms"`
	Max        float64  `json:"max_ms"`
	Early      int      `json:"early"`
	Lost       int      `json:"lost"`
	Duplicates int      `json:"duplicates"`
	Service    *usage   `json:"service"`
	Redis      *usage   `json:"redis"`
	Broker     *usage   `json:"broker"`
	Targets    []target `json:"targets"`
}

// way99 is how long the way alone took.
type way99 struct {
	P50 float64 `json:"p50_ms"`
	P99 float64 `json:"p99_ms"`
}

// steadily rejects messages at a steady rate and prints how late they come back.
//
// A message is due its delay after its reject, as the consumer's monotonic clock
// has it: see consume for why none is called early that was not. The way to the
// service and back counts as lateness; what it is on this machine, now, the bare
// forwarder shows first.
func (r *report) steadily(ctx context.Context, b brokertest.Broker, kind string) error {
	n := int(float64(*steady) * steadyFor.Seconds())
	r.printf("\nRabbitMQ %s, %s work queue, %d rejects per second for %s, delay %s, messages of %d bytes\n", b.Version, kind, *steady, *steadyFor, *delay, *size)
	alone, _, err := atPace(ctx, b, kind, startForwarder, max(1, n/3))
	if err != nil {
		return err
	}
	bare := way99{ms(alone.p(50)), ms(alone.p(99))}
	r.printf("the way alone, by a bare forwarder without a delay: p50 %.1f ms, p99 %.1f ms\n", bare.P50, bare.P99)
	for _, row := range steadyRows() {
		res := &steadyResult{RabbitMQ: b.Version, Kind: kind, Row: row.name, Delay: ms(*delay), Messages: n, Way: bare}
		var missing notThere
		if err := r.lateness(ctx, b, row, res); errors.As(err, &missing) {
			r.printf("%s: %s\n", row.name, missing)
		} else if err != nil {
			return fmt.Errorf("%s: %w", row.name, err)
		}
	}
	return nil
}

// steadyRows are the service on each of its stores, and in replicas.
func steadyRows() (rows []row) {
	if inStore(onDisk) {
		rows = append(rows, row{name: redriveRow, start: func(ctx context.Context, v vhost) (way, error) { return startServiceWith(ctx, v, *delay) }})
	}
	if inStore(onRedis) {
		for count := 1; count <= mostReplicas; count++ {
			rows = append(rows, row{name: replicasRow(count), start: replicas{count: count, delay: *delay}.start})
		}
	}
	return rows
}

// lateness measures one of them.
func (r *report) lateness(ctx context.Context, b brokertest.Broker, row row, res *steadyResult) error {
	back, took, err := atPace(ctx, b, res.Kind, row.start, res.Messages)
	if err != nil {
		return err
	}
	res.Rejects, res.Service, res.Redis, res.Broker = round(back.rejects), took.Own, took.Redis, took.Broker
	res.Early, res.Lost, res.Duplicates = back.early(*delay), back.lost, back.duplicates
	if len(back.waits) > 0 {
		res.P50, res.P99, res.Max = ms(back.p(50)-*delay), ms(back.p(99)-*delay), ms(back.p(100)-*delay)
	}
	r.Steady = append(r.Steady, res)
	r.printf("\n%s\n%.0f rejects per second; late by p50 %.1f ms, p99 %.1f ms, max %.1f ms; %d early, %d lost, %d duplicates\n", row.name, res.Rejects, res.P50, res.P99, res.Max, res.Early, res.Lost, res.Duplicates)
	r.printUsage("service", res.Service, res.Messages)
	if res.Redis != nil {
		r.printUsage("Redis", res.Redis, res.Messages)
	}
	r.printUsage("broker", res.Broker, res.Messages)
	res.Targets = append(res.Targets, r.atMost("lateness p99", res.P99, "ms", 25))
	if res.Early+res.Lost+res.Duplicates > 0 {
		r.fail("RabbitMQ %s, %s, steady, %s: %d early, %d lost, %d duplicates", b.Version, res.Kind, row.name, res.Early, res.Lost, res.Duplicates)
	}
	return nil
}

// atPace is one round at the steady rate, in a virtual host of its own.
func atPace(ctx context.Context, b brokertest.Broker, kind string, start func(context.Context, vhost) (way, error), n int) (back returns, took costs, err error) {
	ctx, cancel := context.WithTimeout(ctx, *steadyFor+*delay+time.Minute)
	defer cancel()
	v, remove, err := newVHost(ctx, b, kind)
	if err != nil {
		return back, took, err
	}
	defer remove()
	w, err := start(ctx, v)
	if err != nil {
		return back, took, err
	}
	defer w.stop()
	meters := newMeters(w, b)
	var publishing sync.WaitGroup
	var failure error
	publishing.Go(func() {
		if failure = publish(ctx, v.url, work, n, float64(*steady)); failure != nil {
			cancel() // nothing more would come
		}
	})
	back, err = consume(ctx, v.url, work, n, false)
	if err != nil {
		cancel()
	}
	publishing.Wait()
	return back, meters.costs(), errors.Join(err, failure)
}
