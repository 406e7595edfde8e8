package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/redrive-mq/redrive"
	"github.com/redrive-mq/redrive/testenv/brokertest"
)

// wayResult is every message failing once by one way: the median round.
type wayResult struct {
	Way        string  `json:"way"`
	Absent     string  `json:"absent,omitempty"` // why it has no numbers
	Rate       float64 `json:"messages_per_s"`   // failed and succeeded, the delay left out
	Ratio      float64 `json:"of_fixed_recipe"`
	P50        float64 `json:"p50_ms"` // of lateness: from due to return
	P99        float64 `json:"p99_ms"`
	Max        float64 `json:"max_ms"`
	Early      int     `json:"early"`
	Lost       int     `json:"lost"`
	Duplicates int     `json:"duplicates"`
	CPU        float64 `json:"cpu_us_per_message"` // of RabbitMQ and the consumer; 0 when it is unknown
	Queues     int     `json:"queues"`             // made besides the work queue
	Exchanges  int     `json:"exchanges"`
	Waiting    int     `json:"waiting,omitempty"`
	Memory     float64 `json:"broker_grew_mib,omitempty"` // resident, while so many wait
}

func (w *wayResult) speed() float64 { return w.Rate }

func (w *wayResult) wrong() string {
	if w.Early+w.Lost+w.Duplicates == 0 {
		return ""
	}
	return fmt.Sprintf("%d early, %d lost, %d duplicates", w.Early, w.Lost, w.Duplicates)
}

// waiter is one way to wait, as a row.
type waiter struct {
	name string
	// start makes the work queue, whose messages are to wait so long.
	start func(context.Context, vhost, time.Duration) (way, error)
	fail  failer
}

// failer has n messages fail once, and returns when all have come back; with
// stay, when all have failed.
type failer func(ctx context.Context, v vhost, n int, delay time.Duration, stay bool) (returns, error)

const (
	fixedRecipe  = "fixed recipe (broker alone)"
	byHand       = "fixed recipe + confirmed publish"
	byHandSafely = "levels by hand"
	levelsWay    = "levels"
)

func waiters() []waiter {
	always := func(w redrive.Way) func(time.Duration) redrive.Way {
		return func(time.Duration) redrive.Way { return w }
	}
	return []waiter{
		{fixedRecipe, startFixedWith, rejectEach},
		{byHand, startFixedWith, republishEach},
		{byHandSafely, startFixedSafely, republishMarked},
		{"fixed", startPlain, failBy(func(d time.Duration) redrive.Way { return redrive.Levels(d) })},
		{levelsWay, startPlain, failBy(func(d time.Duration) redrive.Way { return redrive.Levels(d, 2*d, 4*d, 8*d) })},
		{"levels, classic", startPlain, failBy(func(d time.Duration) redrive.Way { return redrive.ClassicLevels(d, 2*d, 4*d, 8*d) })},
		{"dynamic", startPlain, failBy(always(redrive.Dynamic()))},
		{"message-ttl", startPlain, failBy(always(redrive.MessageTTL()))},
		{"binary, 100 ms", startPlain, failBy(always(redrive.Binary(100 * time.Millisecond)))},
		{"service", startServiceWith, failBy(always(redrive.Service()))},
		{"delayed exchange", startPlugin, failBy(always(redrive.DelayedExchange()))},
		{"native", startNativeWith, failBy(always(redrive.Native()))},
	}
}

// failing has every message fail once by each way, in turn, several times.
func (res *libraryResult) failing(ctx context.Context, r *report, b brokertest.Broker, kind string) error {
	r.printf("every message fails once, %d handlers, delay %s\n", *handlers, *libraryDelay)
	all := slices.DeleteFunc(waiters(), func(w waiter) bool { return !strings.HasPrefix(w.name, *only) })
	names := make([]string, len(all))
	for i, row := range all {
		names[i] = row.name
	}
	medians, why := inTurn(ctx, r, fmt.Sprintf("RabbitMQ %s, %s", b.Version, kind), names, func(i int) (*wayResult, error) { return measureWay(ctx, b, kind, all[i]) })
	if medians == nil {
		return ctx.Err()
	}
	rates, cpu := map[string]float64{}, map[string]float64{}
	for i, row := range all {
		w := &wayResult{Way: row.name, Absent: why[i]}
		if w.Absent == "" {
			w = medians[i]
			rates[w.Way], cpu[w.Way] = w.Rate, w.CPU
			if rates[fixedRecipe] > 0 {
				w.Ratio = round(w.Rate / rates[fixedRecipe])
			}
			if *waiting > 0 {
				w.Waiting = *waiting
				var err error
				if w.Memory, err = growth(ctx, b, kind, row); err != nil {
					r.fail("RabbitMQ %s, %s, %s, %d waiting: %v", b.Version, kind, w.Way, *waiting, err)
				}
			}
		}
		res.Ways = append(res.Ways, w)
	}
	res.print(r)
	// What a message costs is CPU: of all the numbers here it is the one that the
	// machine's other work changes least.
	const against = "levels against the fixed recipe plus a confirmed publish, with the same headers and at-least-once: "
	if rates[levelsWay] > 0 && rates[byHandSafely] > 0 {
		r.printf("%s%.2f × its messages/s\n", against, rates[levelsWay]/rates[byHandSafely])
	}
	if cpu[levelsWay] > 0 && cpu[byHandSafely] > 0 {
		res.Targets = append(res.Targets, r.atMost(against+"CPU", cpu[levelsWay]/cpu[byHandSafely], "×", 1))
	}
	return ctx.Err()
}

func (res *libraryResult) print(r *report) {
	w := tabwriter.NewWriter(r.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "way\tmessages/s\t× fixed recipe\tlate p50\tp99\tmax\tCPU µs/message\tqueues\texchanges\tbroker grew MiB\t")
	for _, m := range res.Ways {
		if m.Absent == "" {
			memory := "-"
			if m.Waiting > 0 {
				memory = fmt.Sprintf("%.0f", m.Memory)
			}
			fmt.Fprintf(w, "%s\t%.0f\t%.2f\t%.0fms\t%.0fms\t%.0fms\t%.0f\t%d\t%d\t%s\t\n", m.Way, m.Rate, m.Ratio, m.P50, m.P99, m.Max, m.CPU, m.Queues, m.Exchanges, memory)
		}
	}
	w.Flush()
	for _, m := range res.Ways {
		if m.Absent != "" {
			r.printf("%s: %s\n", m.Way, m.Absent)
		}
	}
}

// measureWay is one round, in a virtual host of its own.
func measureWay(ctx context.Context, b brokertest.Broker, kind string, row waiter) (*wayResult, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	v, remove, err := newVHost(ctx, b, kind)
	if err != nil {
		return nil, err
	}
	defer remove()
	_, builtin, err := v.objects(ctx)
	if err != nil {
		return nil, err
	}
	w, err := row.start(ctx, v, *libraryDelay)
	if err != nil {
		return nil, err
	}
	defer w.stop()
	if err := publish(ctx, v.url, work, *messages, 0); err != nil {
		return nil, err
	}
	cpu := newMeter(nil)
	if broker := groupPids(b.Group); len(broker) > 0 {
		cpu = newMeter(append(broker, os.Getpid()))
	}
	back, err := row.fail(ctx, v, *messages, *libraryDelay, false)
	if err != nil {
		return nil, err
	}
	took := cpu.usage().each(*messages)
	queues, exchanges, err := v.objects(ctx)
	return &wayResult{CPU: took, Way: row.name, Rate: round(back.rate), Early: back.early(*libraryDelay), Lost: back.lost, Duplicates: back.duplicates,
		P50: ms(back.p(50) - *libraryDelay), P99: ms(back.p(99) - *libraryDelay), Max: ms(back.p(100) - *libraryDelay),
		Queues: queues - 1, Exchanges: exchanges - builtin}, err
}

// growth is how much more memory the broker has, in MiB, when -waiting messages
// wait for an hour; 0 when it is unknown.
func growth(ctx context.Context, b brokertest.Broker, kind string, row waiter) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Minute)
	defer cancel()
	v, remove, err := newVHost(ctx, b, kind)
	if err != nil {
		return 0, err
	}
	defer remove()
	w, err := row.start(ctx, v, time.Hour)
	if err != nil {
		return 0, err
	}
	defer w.stop()
	before := resident(b)
	if err := publish(ctx, v.url, work, *waiting, 0); err != nil {
		return 0, err
	}
	_, err = row.fail(ctx, v, *waiting, time.Hour, true)
	return round(resident(b) - before), err
}

func resident(b brokertest.Broker) (mib float64) {
	for _, pid := range groupPids(b.Group) {
		mib += memory(pid, "VmRSS")
	}
	return mib
}

// objects counts the queues and exchanges of the virtual host.
func (v vhost) objects(ctx context.Context) (queues, exchanges int, err error) {
	var q, x []struct{}
	err = errors.Join(v.api.Call(ctx, http.MethodGet, "queues/"+v.name, nil, &q), v.api.Call(ctx, http.MethodGet, "exchanges/"+v.name, nil, &x))
	return len(q), len(x), err
}
