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

// steadily rejects messages at a steady rate and prints how late they come back.
//
// A message is due its delay after its reject, as the consumer's monotonic clock
// has it: see consume for why none is called early that was not. The way to the
// service and back counts as lateness.
func (r *report) steadily(ctx context.Context, b brokertest.Broker, kind string) error {
	n := int(float64(*steady) * steadyFor.Seconds())
	r.printf("\nRabbitMQ %s, %s work queue, %d rejects per second for %s, delay %s, messages of %d bytes\n", b.Version, kind, *steady, *steadyFor, *delay, *size)
	ctx, cancel := context.WithTimeout(ctx, *steadyFor+*delay+time.Minute)
	defer cancel()
	v, remove, err := newVHost(ctx, b, kind)
	if err != nil {
		return err
	}
	defer remove()
	s, err := newService(v.url, delays{work: *delay})
	if err != nil {
		return err
	}
	defer s.remove()
	if err := s.start(ctx); err != nil {
		return err
	}
	if err := enrolled(v, work); err != nil {
		return err
	}

	own, broker := newMeter(s.pids()), newMeter(groupPids(b.Group))
	var publishing sync.WaitGroup
	var failure error
	publishing.Go(func() {
		if failure = publish(ctx, v.url, work, n, float64(*steady)); failure != nil {
			cancel() // nothing more would come
		}
	})
	back, err := consume(ctx, v.url, work, n, false)
	if err != nil {
		cancel()
	}
	publishing.Wait()
	if err := errors.Join(err, failure); err != nil {
		return err
	}

	res := &steadyResult{RabbitMQ: b.Version, Kind: kind, Delay: ms(*delay), Messages: n, Rejects: round(back.rejects),
		Early: back.early(*delay), Lost: back.lost, Duplicates: back.duplicates, Service: own.usage(), Broker: broker.usage()}
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

func (r *report) printUsage(who string, u *usage) {
	if u == nil {
		r.printf("%s: CPU -, peak memory -\n", who)
		return
	}
	r.printf("%s: CPU %.1f s, peak memory %.0f MiB\n", who, u.CPU, u.Peak)
}
