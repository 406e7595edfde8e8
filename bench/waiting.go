package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/redrive-mq/redrive/testenv/brokertest"
)

var (
	waiting       = flag.Int("waiting", 0, "measure the service with so many messages waiting in it")
	waitingDirect = flag.Bool("waiting-direct", false, "with -waiting: write them into the store before the service starts, not through RabbitMQ")
)

// waitingResult is what many waiting messages cost the service.
type waitingResult struct {
	RabbitMQ string    `json:"rabbitmq"`
	Kind     string    `json:"kind"`
	Store    string    `json:"store"`
	Waiting  int       `json:"waiting"`
	Direct   bool      `json:"direct"`
	Filling  float64   `json:"filling_s"`
	Filled   footprint `json:"filled"` // when the filling had come to rest
	Empty    float64   `json:"empty_messages_per_s"`
	Full     float64   `json:"full_messages_per_s"`
	Cycled   footprint `json:"cycled"` // after the rounds
	// Of its Redis, if it has one.
	RedisFilled *footprint `json:"redis_filled,omitempty"`
	RedisCycled *footprint `json:"redis_cycled,omitempty"`
	RedisEach   float64    `json:"redis_bytes_each,omitempty"` // that a waiting message takes, by what Redis says
	Restarts    []restart  `json:"restarts"`
	Targets     []target   `json:"targets"`
}

// footprint is the memory of a service or a Redis, in MiB.
type footprint struct {
	Resident float64 `json:"resident_mib"`
	Peak     float64 `json:"peak_mib"` // since its start
}

// restart is one start of the service with all its messages.
type restart struct {
	After  string    `json:"after"`          // the signal that ended it before
	First  float64   `json:"first_return_s"` // from the start of the process to the return of a message that was due
	Memory footprint `json:"memory"`
}

// withWaiting is that on each store.
func (r *report) withWaiting(ctx context.Context, b brokertest.Broker, kind string) error {
	for name := range strings.SplitSeq(*stores, ",") {
		r.printf("\nRabbitMQ %s, %s work queue, %d messages of %d bytes wait, store: %s\n", b.Version, kind, *waiting, *size, name)
		var missing notThere
		if err := r.withWaitingIn(ctx, name, b, kind); errors.As(err, &missing) {
			r.printf("%s\n", missing)
		} else if err != nil {
			return fmt.Errorf("store: %s: %w", name, err)
		}
	}
	return nil
}

// withWaitingIn fills the service, then compares its cycles with those of an empty
// one, turn by turn, and restarts it.
func (r *report) withWaitingIn(ctx context.Context, store string, b brokertest.Broker, kind string) error {
	res := &waitingResult{RabbitMQ: b.Version, Kind: kind, Store: store, Waiting: *waiting, Direct: *waitingDirect}
	fullHost, remove, err := newVHost(ctx, b, kind)
	if err != nil {
		return err
	}
	defer remove()
	emptyHost, remove, err := newVHost(ctx, b, kind)
	if err != nil {
		return err
	}
	defer remove()
	full, err := newServiceIn(ctx, store, fullHost.url, delays{work: 0, far: farDelay, soon: soonDelay})
	if err != nil {
		return err
	}
	defer full.remove()
	if err := res.fill(ctx, r, full, fullHost); err != nil {
		return err
	}
	empty, err := newServiceIn(ctx, store, emptyHost.url, delays{work: 0})
	if err != nil {
		return err
	}
	defer empty.remove()
	if err := empty.start(ctx); err != nil {
		return err
	}
	if err := res.cycles(ctx, r, emptyHost, fullHost); err != nil {
		return err
	}
	res.Cycled = full.footprint()
	res.RedisCycled, _ = full.redis.footprint(ctx)
	for _, by := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		again, err := full.restart(ctx, fullHost, by)
		if err != nil {
			return err
		}
		res.Restarts = append(res.Restarts, again)
	}
	if n, err := full.waiting(ctx, far); err != nil || n != *waiting {
		r.fail("%d messages wait in the end (%v), and should be %d", n, err, *waiting)
	}
	r.Waiting = append(r.Waiting, res)
	res.print(r)
	return nil
}

// fill has the messages wait, and the service run and be at rest.
func (res *waitingResult) fill(ctx context.Context, r *report, s *service, v vhost) error {
	_, before := s.redis.footprint(ctx)
	began, progress := time.Now(), r.progress(*waiting)
	if *waitingDirect {
		if err := s.fillDirectly(ctx, *waiting, progress, waitsFar()); err != nil {
			return err
		}
		res.Filling = round(time.Since(began).Seconds())
	}
	if err := s.start(ctx); err != nil {
		return err
	}
	for _, queue := range []string{far, soon} {
		if err := enrolled(v, queue); err != nil {
			return err
		}
	}
	if !*waitingDirect {
		began = time.Now()
		if err := s.fillByBroker(ctx, v, *waiting, progress); err != nil {
			return err
		}
		res.Filling = round(time.Since(began).Seconds())
	}
	s.rest(ctx)
	res.Filled = s.footprint()
	var used float64
	res.RedisFilled, used = s.redis.footprint(ctx)
	res.RedisEach = round((used - before) / float64(*waiting))
	return nil
}

// cycles runs the rounds of both in turn, so that what changes on the machine
// meanwhile changes both, after one that is not counted: a service that has just
// started is slower.
func (res *waitingResult) cycles(ctx context.Context, r *report, empty, full vhost) error {
	hosts := []vhost{empty, full}
	rates := make([][]float64, len(hosts))
	turns := 2 * *rounds // each is the first as often as the other
	for _, v := range hosts {
		if err := enrolled(v, work); err != nil {
			return err
		}
	}
	for round := range turns + 1 {
		for n := range hosts {
			i := (n + round) % len(hosts)
			if err := publish(ctx, hosts[i].url, work, *messages, 0); err != nil {
				return err
			}
			limited, cancel := context.WithTimeout(ctx, 5*time.Minute)
			back, err := consume(limited, hosts[i].url, work, *messages, false)
			cancel()
			if err != nil {
				return err
			}
			if back.lost+back.duplicates > 0 {
				r.fail("RabbitMQ %s, %s, %d waiting: %d lost, %d duplicates", full.Version, full.kind, *waiting, back.lost, back.duplicates)
			}
			if round > 0 {
				rates[i] = append(rates[i], back.rate)
			}
		}
	}
	for i := range rates {
		slices.Sort(rates[i])
	}
	res.Empty, res.Full = round(rates[0][turns/2]), round(rates[1][turns/2])
	return nil
}

func (s *service) footprint() footprint {
	return footprintOf(s.cmd.Process.Pid)
}

func footprintOf(pid int) footprint {
	return footprint{round(memory(pid, "VmRSS")), round(memory(pid, "VmHWM"))}
}

// rest waits until the service, or its Redis, has written what it writes behind, for a
// minute at most.
func (s *service) rest(ctx context.Context) {
	deadline := time.Now().Add(time.Minute)
	before, _ := cpuSeconds(s.pids())
	for quiet := 0; quiet < 3 && time.Now().Before(deadline); {
		select {
		case <-ctx.Done():
			return
		case <-time.After(500 * time.Millisecond):
		}
		now, _ := cpuSeconds(s.pids())
		if quiet++; now-before > 0.02 || s.redis.rewrites(ctx) {
			quiet = 0
		}
		before = now
	}
}

func (f footprint) String() string {
	return fmt.Sprintf("resident %.0f MiB, peak %.0f MiB", f.Resident, f.Peak)
}

func (res *waitingResult) print(r *report) {
	how := "through RabbitMQ"
	if res.Direct {
		how = "into the store"
	}
	r.printf("filled %s in %.0f s, %.0f per second; then %s\n", how, res.Filling, float64(res.Waiting)/res.Filling, res.Filled)
	if res.RedisFilled != nil {
		r.printf("Redis: %.0f bytes a message by its own account; %s\n", res.RedisEach, res.RedisFilled)
	}
	r.printf("cycles: %.0f per second with an empty store, %.0f with the full one; then %s\n", res.Empty, res.Full, res.Cycled)
	if res.RedisCycled != nil {
		r.printf("Redis: %s\n", res.RedisCycled)
	}
	resident := max(res.Filled.Resident, res.Cycled.Resident)
	for _, a := range res.Restarts {
		r.printf("restart after %s: first return after %.2f s; then %s\n", a.After, a.First, a.Memory)
		resident = max(resident, a.Memory.Resident)
	}
	res.Targets = append(res.Targets, r.atLeast("cycles, full store against empty", res.Full/res.Empty, "×", 0.9),
		r.atMost("resident memory of the service, the largest of the above", resident, "MiB", 150))
	for _, a := range res.Restarts {
		res.Targets = append(res.Targets, r.atMost("restart after "+a.After+" to first return", a.First, "s", 2))
	}
}
