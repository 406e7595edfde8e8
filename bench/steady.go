package main

import (
	"context"
	"errors"
	"flag"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/broker/brokertest"
)

var (
	steady    = flag.Int("steady", 0, "measure lateness at so many rejects per second")
	steadyFor = flag.Duration("for", 30*time.Second, "with -steady: how long messages are rejected")
	delay     = flag.Duration("delay", 5*time.Second, "with -steady: the delay of each")
)

// steadyResult is how late messages came back at a steady rate.
type steadyResult struct {
	RabbitMQ   string   `json:"rabbitmq"`
	Kind       string   `json:"kind"`
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
	res := &steadyResult{RabbitMQ: b.Version, Kind: kind, Delay: ms(*delay), Messages: n}
	alone, _, _, err := atPace(ctx, b, kind, startForwarder, max(1, n/3))
	if err != nil {
		return err
	}
	res.Way = way99{ms(alone.p(50)), ms(alone.p(99))}
	r.printf("the way alone, by a bare forwarder without a delay: p50 %.1f ms, p99 %.1f ms\n", res.Way.P50, res.Way.P99)

	back, own, broker, err := atPace(ctx, b, kind, func(ctx context.Context, v vhost) (way, error) { return startServiceWith(ctx, v, *delay) }, n)
	if err != nil {
		return err
	}
	res.Rejects, res.Service, res.Broker = round(back.rejects), own, broker
	res.Early, res.Lost, res.Duplicates = back.early(*delay), back.lost, back.duplicates
	if len(back.waits) > 0 {
		res.P50, res.P99, res.Max = ms(back.p(50)-*delay), ms(back.p(99)-*delay), ms(back.p(100)-*delay)
	}
	r.Steady = append(r.Steady, res)
	r.printf("%.0f rejects per second; late by p50 %.1f ms, p99 %.1f ms, max %.1f ms; %d early, %d lost, %d duplicates\n", res.Rejects, res.P50, res.P99, res.Max, res.Early, res.Lost, res.Duplicates)
	r.printUsage("service", res.Service)
	r.printUsage("broker", res.Broker)
	res.Targets = append(res.Targets, r.atMost("lateness p99", res.P99, "ms", 25))
	if res.Early+res.Lost+res.Duplicates > 0 {
		r.fail("RabbitMQ %s, %s, steady: %d early, %d lost, %d duplicates", b.Version, kind, res.Early, res.Lost, res.Duplicates)
	}
	return nil
}

// atPace is one round at the steady rate, in a virtual host of its own.
func atPace(ctx context.Context, b brokertest.Broker, kind string, start func(context.Context, vhost) (way, error), n int) (back returns, own, broker *usage, err error) {
	ctx, cancel := context.WithTimeout(ctx, *steadyFor+*delay+time.Minute)
	defer cancel()
	v, remove, err := newVHost(ctx, b, kind)
	if err != nil {
		return back, nil, nil, err
	}
	defer remove()
	w, err := start(ctx, v)
	if err != nil {
		return back, nil, nil, err
	}
	defer w.stop()
	ownMeter, brokerMeter := newMeter(w.pids), newMeter(groupPids(b.Group))
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
	return back, ownMeter.usage(), brokerMeter.usage(), errors.Join(err, failure)
}

func (r *report) printUsage(who string, u *usage) {
	if u == nil {
		r.printf("%s: CPU -, peak memory -\n", who)
		return
	}
	r.printf("%s: CPU %.1f s, peak memory %.0f MiB\n", who, u.CPU, u.Peak)
}
