package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/redrive-mq/redrive/testenv/brokertest"
)

var parked = flag.Int("parked", 0, "ask the service about so many parked messages while 1,000 a second return")

const (
	parkedQueues = 20
	// returning is how many messages a second are rejected meanwhile.
	returning = 1000
)

// parkedResult is how fast the service answers with many parked messages, and what
// that costs those that return.
type parkedResult struct {
	RabbitMQ string    `json:"rabbitmq"`
	Kind     string    `json:"kind"`
	Parked   int       `json:"parked"`
	Filling  float64   `json:"filling_s"`
	Filled   footprint `json:"filled"`
	Asked    footprint `json:"asked"` // after the asking
	Rejects  float64   `json:"rejects_per_s"`
	Answers  []answers `json:"answers"`
	Kinds    []answers `json:"kinds"` // the answers of each kind together
	// Of lateness, each the median of -rounds stretches in turn.
	Alone   way99    `json:"alone"`
	Asking  way99    `json:"asking"`
	Answer  float64  `json:"answer_cpu_ms"` // of the service, for one answer: what it takes more with the asking
	Targets []target `json:"targets"`
}

func (r *report) withParked(ctx context.Context, b brokertest.Broker, kind string) error {
	res := &parkedResult{RabbitMQ: b.Version, Kind: kind, Parked: *parked}
	r.printf("\nRabbitMQ %s, %s work queue, %d parked messages of %d bytes in %d queues; %d rejects per second, delay %s\n", b.Version, kind, *parked, *size, parkedQueues, returning, *delay)
	v, remove, err := newVHost(ctx, b, kind)
	if err != nil {
		return err
	}
	defer remove()
	queues, policies := []string{}, delays{work: *delay}
	for i := range parkedQueues {
		queues = append(queues, fmt.Sprintf("shop.%02d", i))
		policies[queues[i]] = farDelay
	}
	s, err := newService(v.url, policies)
	if err != nil {
		return err
	}
	defer s.remove()
	began := time.Now()
	if err := s.fillDirectly(ctx, *parked, r.progress(*parked), isParked(*parked, queues)); err != nil {
		return err
	}
	res.Filling = round(time.Since(began).Seconds())
	if err := s.start(ctx); err != nil {
		return err
	}
	for _, queue := range append(queues, work) {
		if err := enrolled(v, queue); err != nil {
			return err
		}
	}
	s.rest(ctx)
	res.Filled = s.footprint()
	a, err := newAsker(ctx, s, queues)
	if err != nil {
		return err
	}
	if err := res.stretches(ctx, r, v, s, a); err != nil {
		return err
	}
	res.Asked = s.footprint()
	res.Answers, res.Kinds = a.answers()
	r.Parked = append(r.Parked, res)
	res.print(r)
	return nil
}

// stretches measures lateness without and with the asking, in turn, after one that
// is not counted.
func (res *parkedResult) stretches(ctx context.Context, r *report, v vhost, s *service, a *asker) error {
	var p50, p99 [2][]float64
	var cpu [2]float64
	for i := range 2**rounds + 1 {
		asks := (i + (i+1)/2) % 2 // each is the first of a pair as often as the other
		before, _ := cpuSeconds(s.pids())
		back, err := steadyWith(ctx, v, func(ctx context.Context) {
			if asks == 1 && i > 0 {
				a.run(ctx)
			}
		})
		if err != nil {
			return err
		}
		if wrong := back.early(*delay) + back.lost + back.duplicates; wrong > 0 {
			r.fail("RabbitMQ %s, %s, %d parked: %d early, %d lost, %d duplicates", v.Version, v.kind, *parked, back.early(*delay), back.lost, back.duplicates)
		}
		if i == 0 {
			continue
		}
		late50, late99 := ms(back.p(50)-*delay), ms(back.p(99)-*delay)
		p50[asks], p99[asks] = append(p50[asks], late50), append(p99[asks], late99)
		r.printf("  %s: late by p50 %.1f ms, p99 %.1f ms\n", []string{"alone", "asked"}[asks], late50, late99)
		after, _ := cpuSeconds(s.pids())
		cpu[asks] += after - before
		res.Rejects = round(back.rejects)
	}
	res.Alone, res.Asking = way99{median(p50[0]), median(p99[0])}, way99{median(p50[1]), median(p99[1])}
	res.Answer = round((cpu[1] - cpu[0]) / float64(max(1, a.turn)) * 1000)
	return a.failure
}

// steadyWith is one stretch, and something else until its last message is back.
func steadyWith(ctx context.Context, v vhost, also func(context.Context)) (back returns, err error) {
	n := int(returning * steadyFor.Seconds())
	ctx, cancel := context.WithTimeout(ctx, *steadyFor+*delay+time.Minute)
	defer cancel()
	var others sync.WaitGroup
	var failure error
	others.Go(func() {
		if failure = publish(ctx, v.url, work, n, returning); failure != nil {
			cancel() // nothing more would come
		}
	})
	asking, enough := context.WithCancel(ctx)
	others.Go(func() { also(asking) })
	back, err = consume(ctx, v.url, work, n, false)
	enough()
	if err != nil {
		cancel()
	}
	others.Wait()
	return back, errors.Join(err, failure)
}

func (res *parkedResult) print(r *report) {
	r.printf("filled in %.0f s; then %s; after the asking %s\n", res.Filling, res.Filled, res.Asked)
	w := tabwriter.NewWriter(r.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "asked for\ttimes\tp50 ms\tp99 ms\tmax ms\t")
	for _, a := range append(res.Answers, res.Kinds...) {
		fmt.Fprintf(w, "%s\t%d\t%.1f\t%.1f\t%.1f\t\n", a.What, a.Times, a.P50, a.P99, a.Max)
	}
	w.Flush()
	r.printf("%.0f rejects per second; lateness p99 %.1f ms without the asking, %.1f ms with it; an answer takes %.1f ms of the service's CPU\n", res.Rejects, res.Alone.P99, res.Asking.P99, res.Answer)
	for _, kind := range res.Kinds {
		if mostMillis[kind.What] == 0 {
			continue
		}
		res.Targets = append(res.Targets, r.atMost(kind.What+", p99", kind.P99, "ms", mostMillis[kind.What]))
	}
	res.Targets = append(res.Targets, r.atMost("lateness p99, asking against not", res.Asking.P99/res.Alone.P99, "×", 1.1))
}
