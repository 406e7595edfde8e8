package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/testenv/brokertest"
)

var replayed = flag.Int("replay", 0, "park so many messages, and replay them as one operation")

// replayResult is how fast an operation brings parked messages back.
type replayResult struct {
	RabbitMQ  string  `json:"rabbitmq"`
	Kind      string  `json:"kind"`
	Messages  int     `json:"messages"`
	Forwarder float64 `json:"forwarder_messages_per_s"` // out of a queue, not of a disk
	Cycle     float64 `json:"forwarder_cycles_per_s"`   // as in the comparison of all rows: rejected, and returned
	Redrive   float64 `json:"redrive_messages_per_s"`   // from its start to the last arrival
	Plan      float64 `json:"plan_s"`                   // before that
	Due       float64 `json:"due_s"`                    // from its start until all are due
	Service   *usage  `json:"service"`
	// CPU of broker, service and this process together, for each message.
	ForwarderCPU float64       `json:"forwarder_cpu_us"`
	RedriveCPU   float64       `json:"redrive_cpu_us"`
	Killed       *killedReplay `json:"killed"`
	Targets      []target      `json:"targets"`
}

// replays runs the forwarder and the operation in turn, then an operation that is
// killed.
func (r *report) replays(ctx context.Context, b brokertest.Broker, kind string) error {
	res := &replayResult{RabbitMQ: b.Version, Kind: kind, Messages: *replayed}
	r.printf("\nRabbitMQ %s, %s work queue, %d parked messages of %d bytes are replayed as one operation\n", b.Version, kind, *replayed, *size)
	var cycles, forwards, rates, forwardsCPU, ratesCPU []float64
	for range *rounds {
		for _, row := range []struct {
			bring      func(context.Context, brokertest.Broker, string) (rate, cpu float64, err error)
			rates, cpu *[]float64
		}{{forwardAll, &forwards, &forwardsCPU}, {res.once, &rates, &ratesCPU}} {
			rate, cpu, err := row.bring(ctx, b, kind)
			if err != nil {
				return err
			}
			*row.rates, *row.cpu = append(*row.rates, rate), append(*row.cpu, cpu)
		}
		cycle, err := measure(ctx, b, kind, row{name: forwarderRow, start: startForwarder})
		if err != nil {
			return err
		}
		cycles = append(cycles, cycle.Rate)
		last := len(rates) - 1
		r.printf("bare forwarder %.0f messages per second out of a queue, %.0f that are rejected first; operation %.0f (planned in %.2f s before, due after %.2f s); CPU of all for a message %.0f and %.0f µs\n",
			forwards[last], cycles[last], rates[last], res.Plan, res.Due, forwardsCPU[last], ratesCPU[last])
	}
	res.Forwarder, res.Cycle, res.Redrive = median(forwards), median(cycles), median(rates)
	res.ForwarderCPU, res.RedriveCPU = median(forwardsCPU), median(ratesCPU)
	r.printUsage("service", res.Service, *replayed)
	res.Targets = append(res.Targets, r.atLeast("operation against a bare forwarder of rejected messages", res.Redrive/res.Cycle, "×", 0.9),
		r.atLeast("operation against a bare forwarder out of a queue", res.Redrive/res.Forwarder, "×", 0.9))
	var err error
	if res.Killed, err = killReplay(ctx, b, kind); err != nil {
		return err
	}
	r.Replay = append(r.Replay, res)
	k := res.Killed
	r.printf("killed %d times, %d of them before the operation had ended: %s\n", k.Kills, k.Running, k)
	if k.wrong() {
		r.fail("RabbitMQ %s, %s, killed operation: %s", b.Version, kind, k)
	}
	return nil
}

// forwardAll has the bare forwarder bring messages that lie in a queue.
func forwardAll(ctx context.Context, b brokertest.Broker, kind string) (rate, cpu float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	v, remove, err := newVHost(ctx, b, kind)
	if err != nil {
		return 0, 0, err
	}
	defer remove()
	err = onChannel(v.url, func(ch *amqp.Channel) error {
		return declare(ch, "intake", amqp.Table{"x-queue-type": "quorum"})
	})
	if err == nil {
		record := isParked(*replayed, []string{work})
		err = publishEach(ctx, v.url, "intake", *replayed, 0, func(i int) amqp.Publishing {
			m := record(i).Message
			return amqp.Publishing{MessageId: m.MessageID, DeliveryMode: m.DeliveryMode, Type: m.Type, ContentType: m.ContentType, Headers: m.Headers, Body: m.Body}
		})
	}
	if err != nil {
		return 0, 0, err
	}
	meter, began := newMeter(all(b)), time.Now()
	w, err := startForwarder(ctx, v)
	if err != nil {
		return 0, 0, err
	}
	defer w.stop()
	in := arrive(ctx, v.url, *replayed)
	err = in.wait(ctx)
	cpu = perMessage(meter)
	return in.rate(began), cpu, errors.Join(err, in.stop())
}

// all are the processes of a round: the broker's, this one, and others.
func all(b brokertest.Broker, others ...int) []int {
	return append(append(groupPids(b.Group), os.Getpid()), others...)
}

// perMessage is in microseconds.
func perMessage(m meter) float64 {
	return m.usage().each(*replayed)
}

// parkedService is one that has the messages parked, and runs.
func parkedService(ctx context.Context, v vhost) (*service, error) {
	s, err := newService(v.url, delays{work: 0})
	if err != nil {
		return nil, err
	}
	if err = s.fillDirectly(ctx, *replayed, func(int) {}, isParked(*replayed, []string{work})); err == nil {
		err = s.start(ctx)
	}
	if err == nil {
		err = enrolled(v, work)
	}
	if err != nil {
		s.remove()
		return nil, err
	}
	s.rest(ctx)
	return s, nil
}

// replayAll plans the replay of all and starts it.
func (s *service) replayAll(ctx context.Context) (o operations.Operation, planned time.Duration, began time.Time, err error) {
	client := httpapi.Client{Addr: s.listen}
	began = time.Now()
	p, err := client.Plan(ctx, operations.PlanRequest{Verb: actions.Replay, Query: "queue:" + work + " state:parked", Reason: "measured"})
	if err == nil && p.Count != int64(*replayed) {
		err = fmt.Errorf("the plan is about %d messages, and should be about %d", p.Count, *replayed)
	}
	if err != nil {
		return o, 0, began, err
	}
	planned = time.Since(began)
	began = time.Now()
	o, err = client.Start(ctx, p.ID, operations.Start{ExpectCount: &p.Count})
	return o, planned, began, err
}

// once is one operation that nothing disturbs.
func (res *replayResult) once(ctx context.Context, b brokertest.Broker, kind string) (rate, cpu float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	v, remove, err := newVHost(ctx, b, kind)
	if err != nil {
		return 0, 0, err
	}
	defer remove()
	s, err := parkedService(ctx, v)
	if err != nil {
		return 0, 0, err
	}
	defer s.remove()
	in := arrive(ctx, v.url, *replayed)
	meter, together := newMeter(s.pids()), newMeter(all(b, s.pids()...))
	o, planned, began, err := s.replayAll(ctx)
	if err == nil {
		err = in.wait(ctx)
	}
	cpu = perMessage(together)
	if err == nil {
		o, err = httpapi.Client{Addr: s.listen}.Operation(ctx, o.ID)
	}
	if err == nil && o.Ended != nil {
		res.Due = round(o.Ended.Sub(o.Started).Seconds())
	}
	res.Plan, res.Service = round(planned.Seconds()), meter.usage()
	if err = errors.Join(err, in.stop()); err == nil && in.duplicates+in.unmarked > 0 {
		err = fmt.Errorf("%d duplicates, %d without the marks of their first attempt", in.duplicates, in.unmarked)
	}
	return in.rate(began), cpu, err
}

// ended waits until an operation has, and nothing of it waits any more.
func (s *service) ended(ctx context.Context, id string) error {
	for {
		o, err := httpapi.Client{Addr: s.listen}.Operation(ctx, id)
		if err != nil {
			return err
		}
		if o.Ended != nil {
			if o.State != operations.Finished {
				return fmt.Errorf("the operation is %s: %s", o.State, o.Why)
			}
			return s.untilWaiting(ctx, work, func(now int) bool { return now == 0 })
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
