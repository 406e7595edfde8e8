package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strconv"
	"sync"
	"text/tabwriter"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/upstream"
)

var (
	storm     = flag.Duration("storm", 0, "how long the service that consumers call is down")
	stormRate = flag.Int("storm-rate", 200, "with -storm: new messages a second; it can do three times as many, and returns may take as many as come new")
)

const (
	stormBefore = 5 * time.Second  // it is well at first,
	stormLimp   = 5 * time.Second  // and limps at the end of its outage
	stormAfter  = 90 * time.Second // longest wait for all to be done
)

// stormRow is one way to retry what failed.
type stormRow struct {
	name    string
	requeue bool
	start   func(ctx context.Context, v vhost) (way, error)
}

// The policies never give up, so that all have the same to do.
func stormRows() []stormRow {
	backoff := "backoff: {exponential: {initial: 1s, factor: 2, max: 30s}}, attempts: 1000000"
	redrive := func(more string) func(context.Context, vhost) (way, error) {
		return func(ctx context.Context, v vhost) (way, error) {
			s, err := newServiceOf(v.url, "", fmt.Sprintf("- {name: storm, queues: [%s], %s%s}\n", work, backoff, more))
			if err != nil {
				return way{}, err
			}
			return s.serve(ctx, v)
		}
	}
	return []stormRow{
		{name: "requeue at once", requeue: true, start: func(_ context.Context, v vhost) (way, error) {
			return way{stop: func() {}}, onChannel(v.url, func(ch *amqp.Channel) error {
				return declare(ch, work, amqp.Table{"x-queue-type": v.kind})
			})
		}},
		{name: "fixed delay of 5s, broker alone", start: func(ctx context.Context, v vhost) (way, error) { return startFixedWith(ctx, v, 5*time.Second) }},
		{name: exponentialRow, start: redrive("")},
		{name: breakerRow, start: redrive(fmt.Sprintf(", rate: %d/s, settle: 1s, breaker: {share: 50%%, least: 20, window: 10s, wait: 2s, max_wait: 5s, probes: 1, ramp: 2s}", *stormRate))},
	}
}

const exponentialRow, breakerRow = "Redrive, exponential alone", "Redrive, with breaker and rate"

// stormResult is what one of them does to it.
type stormResult struct {
	Row        string  `json:"row"`
	First      int     `json:"first_calls_while_down"` // by new messages: these cannot be kept away
	Again      int     `json:"calls_again_while_down"`
	Share      float64 `json:"of_exponential"` // Again, of what exponential alone makes
	Peak       int     `json:"most_calls_per_s_after"`
	Recovered  float64 `json:"recovered_s"` // -1: never
	Backlog    int     `json:"backlog"`     // not done when it is well again
	Drained    float64 `json:"drained_s"`   // -1: not in time
	Best       float64 `json:"best_s"`      // at the rate of returns
	Left       int     `json:"never_done"`  // of the backlog
	Duplicates int     `json:"duplicates"`
}

type storms struct {
	RabbitMQ string         `json:"rabbitmq"`
	Kind     string         `json:"kind"`
	Outage   float64        `json:"outage_s"`
	Rate     int            `json:"new_per_s"`
	Rows     []*stormResult `json:"rows"`
	Targets  []target       `json:"targets"`
}

func (r *report) withStorm(ctx context.Context, b brokertest.Broker, kind string) error {
	r.printf("\nRabbitMQ %s, %s work queue: %d new messages a second for a service that can do %d; it is down for %s, then limps for %s\n", b.Version, kind, *stormRate, 3**stormRate, *storm, stormLimp)
	res := &storms{RabbitMQ: b.Version, Kind: kind, Outage: storm.Seconds(), Rate: *stormRate}
	r.Storm = append(r.Storm, res)
	by := map[string]*stormResult{}
	for _, row := range stormRows() {
		one, err := weather(ctx, b, kind, row)
		if err != nil {
			return fmt.Errorf("%s: %w", row.name, err)
		}
		if one.Left > 0 && !row.requeue { // RabbitMQ 4 drops what was requeued 20 times
			r.fail("RabbitMQ %s, %s, %s: %d were never done", b.Version, kind, row.name, one.Left)
		}
		by[row.name] = one
		res.Rows = append(res.Rows, one)
	}
	for _, one := range res.Rows {
		one.Share = round(float64(one.Again) / float64(max(1, by[exponentialRow].Again)))
	}
	w := tabwriter.NewWriter(r.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "row\tnew calls while down\tcalls again\t× exponential\tmost calls/s after\trecovered s\tbacklog\tdrained s\tbest s\tnever done\t")
	for _, one := range res.Rows {
		fmt.Fprintf(w, "%s\t%d\t%d\t%.3f\t%d\t%s\t%d\t%s\t%.1f\t%d\t\n", one.Row, one.First, one.Again, one.Share, one.Peak, orNever(one.Recovered), one.Backlog, orNever(one.Drained), one.Best, one.Left)
	}
	w.Flush()
	ours := by[breakerRow]
	res.Targets = append(res.Targets,
		r.atMost("calls again while it is down, of those of exponential alone", ours.Share, "×", 0.01),
		r.atMost("drained, of the best possible time", ours.Drained/ours.Best, "×", 1.1))
	return nil
}

func orNever(seconds float64) string {
	if seconds < 0 {
		return "never"
	}
	return strconv.FormatFloat(seconds, 'f', 1, 64)
}

// weather lets one row live through it.
func weather(ctx context.Context, b brokertest.Broker, kind string, row stormRow) (*stormResult, error) {
	v, remove, err := newVHost(ctx, b, kind)
	if err != nil {
		return nil, err
	}
	defer remove()
	way, err := row.start(ctx, v)
	if err != nil {
		return nil, err
	}
	defer way.stop()
	down := time.Now().Add(stormBefore)
	back := down.Add(*storm)
	well := back.Add(stormLimp)
	u := upstream.New(3 * *stormRate)
	u.Down(down)
	u.Back(back, well)
	c := upstream.NewConsumer(u, row.requeue)
	ctx, cancel := context.WithDeadline(ctx, well.Add(stormAfter))
	defer cancel()
	stop := traffic(ctx, v, c)
	res := &stormResult{Row: row.name, Drained: -1, Recovered: -1}
	sleep(ctx, time.Until(well))
	res.Backlog = c.Mark() // all that came before it was well
	select {
	case <-c.Drained:
		res.Drained = round(time.Since(well).Seconds())
		sleep(ctx, 3*time.Second) // to see it recovered
	case <-ctx.Done():
	}
	if err := stop(); err != nil {
		return nil, err
	}
	if d, ok := u.Recovered(); ok {
		res.Recovered = round(d.Seconds())
	}
	res.First, res.Again = u.WhileDown()
	res.Peak = u.Peak()
	res.Best = round(float64(res.Backlog) / float64(*stormRate))
	res.Left, res.Duplicates = c.Account()
	return res, nil
}

// traffic publishes new messages and consumes, until stop is called: the backlog is drained
// beside new messages.
func traffic(ctx context.Context, v vhost, c *upstream.Consumer) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	var others sync.WaitGroup
	var publishing, consuming error
	others.Go(func() {
		consuming = onChannel(v.url, func(ch *amqp.Channel) error { return c.Run(ctx, ch, work) })
	})
	others.Go(func() {
		publishing = publishEach(ctx, v.url, work, 1<<30, float64(*stormRate), func(i int) amqp.Publishing {
			c.Publishes(i)
			return amqp.Publishing{MessageId: strconv.Itoa(i), DeliveryMode: amqp.Persistent, Body: make([]byte, *size)}
		})
	})
	return func() error {
		cancel()
		others.Wait()
		for _, err := range []error{publishing, consuming} {
			if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
				return err
			}
		}
		return nil
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
