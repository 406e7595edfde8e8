// Command bench measures Redrive beside its alternatives on one broker. It compares how many
// messages a second come back, and measures lateness at a steady rate, the size of the service
// with many messages waiting, the adoption of dead-letter queues, and the Go library's consumer:
//
//	go run ./test/brokers go run ./bench        (or make bench; --help for more)
//
// Machines are noisy: compare the ratios of one run, not numbers of two.
//
//	measure.go  what is measured
//	adopt.go    the same of full dead-letter queues
//	rows.go     ways to retry messages, the service, and what they take of CPU and memory
//	traffic.go  the publisher and the consumer
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/redrive-mq/redrive/testenv/brokertest"
)

var (
	messages  = flag.Int("n", 20_000, "messages in a round")
	size      = flag.Int("size", 1024, "bytes of body")
	rounds    = flag.Int("rounds", 3, "rounds of each row; the median counts")
	binary    = flag.String("redrive", "bin/redrive", "the service")
	version   = flag.String("version", "", "only brokers whose version begins so, such as 4.3")
	kind      = flag.String("kind", "", "only work queues of this kind, classic or quorum")
	store     = flag.String("store", "", "with -steady and -waiting: only on this store, disk or redis")
	steady    = flag.Int("steady", 0, "measure lateness at so many rejects per second")
	steadyFor = flag.Duration("for", 30*time.Second, "with -steady: how long messages are rejected")
	delay     = flag.Duration("delay", 5*time.Second, "with -steady: the delay of each message")
	waiting   = flag.Int("waiting", 0, "measure the service with so many messages waiting in it")
	adopt     = flag.Int("adopt", 0, "measure the adoption of so many messages in dead-letter queues")
	pages     = flag.Int("pages", 0, "measure the page with so many messages parked")
	library   = flag.Bool("library", false, "measure the Go library's consumer")
)

const usageText = `Each mode runs on every broker and kind of work queue; -version and -kind choose
fewer. "-" stands for what cannot be measured (CPU and memory of a broker on
another machine or of one that somebody else runs).

  bench            all rows side by side: -n messages are rejected once and
                   acknowledged when they come back, with no delay. A row that a
                   broker does not have is "not there", with the reason. With
                   -size from 1 MiB on, peak memory of the service on disk must
                   be within 160 MiB and ten times the body.

  bench -steady 1000 -for 30s
                   so many messages a second are rejected; how late they come
                   back after -delay (5s), measured at the consumer from the
                   moment of the reject, and what service and broker take.
                   First the way alone, by a bare forwarder, for a third of it;
                   then on each -store, on Redis with 1, 2 and 3 replicas.

  bench -waiting 1000000
                   rejects so many messages (minutes), which then wait for an hour.
                   Then: memory of the service, and of its Redis; cycles against
                   those of an empty service, in turn; and how soon after a restart
                   (SIGTERM, SIGKILL) a message that is due comes back. On each
                   -store, one after the other. Needs about three times
                   -waiting × -size of disk in TMPDIR, and for Redis 1.6 GB of memory
                   where 1,000,000 of 1 KiB wait.

  bench -adopt 100000
                   so many messages are in dead-letter queues of six formats: of
                   RabbitMQ (x-death), MassTransit, NServiceBus, Spring, EasyNetQ and
                   Rascal. How long it takes from the start of a service without a
                   config until a canary of 10 messages is at the consumer of their
                   work queue: it lists the queues and adopts them one by one, looks
                   at the groups of errors, allows replays, and replays the first
                   group. Then, in turn and as often as -rounds says, so many messages
                   are rejected and adopted, and so many rejected and moved to a quorum
                   queue by RabbitMQ's shovel, which is timed from its first message on.

  bench -pages 100000
                   so many messages are parked, a sixth of each queue's in one group and
                   the others in 2,000. How long each page takes, without mask in the
                   config and with it, in turn and as often as -rounds says; and their
                   ratio.

  bench -library   every message succeeds: redrive.Consume against a bare
                   amqp091-go loop with the same prefetch and acknowledgements.

Slow is no failure; lost, doubled and early messages are.

Flags:
`

func main() {
	log.SetFlags(0)
	flag.Usage = func() {
		fmt.Fprint(flag.CommandLine.Output(), "go run ./test/brokers go run ./bench [flags]\n\n"+usageText)
		flag.PrintDefaults()
	}
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		log.Fatal("bench: ", err)
	}
}

// What -store names.
const onDisk, onRedis = "disk", "redis"

func run(ctx context.Context) error {
	if flag.NArg() > 0 {
		return fmt.Errorf("%q is not expected; --help shows what is", flag.Arg(0))
	}
	if *messages < 1 || *rounds < 1 || *size < 0 || *waiting < 0 || *steady < 0 || *adopt < 0 || *pages < 0 {
		return errors.New("-n and -rounds must be 1 or more, all other numbers 0 or more")
	}
	brokers, err := brokertest.FromEnv()
	if err != nil {
		return err
	}
	brokers = slices.DeleteFunc(brokers, func(b brokertest.Broker) bool {
		return !strings.HasPrefix(b.Version, *version)
	})
	kinds := only(*kind, "classic", "quorum")
	if len(brokers) == 0 || len(kinds) == 0 || len(only(*store, onDisk, onRedis)) == 0 {
		return fmt.Errorf("no broker has -version %q, -kind %q, -store %q", *version, *kind, *store)
	}
	measure := compare
	switch {
	case *steady > 0:
		measure = lateness
	case *waiting > 0:
		measure = withWaiting
	case *adopt > 0:
		measure = adoption
	case *pages > 0:
		measure = pageTimes
	case *library:
		measure = consumers
	}
	var failures []error
	for _, b := range brokers {
		for _, kind := range kinds {
			fmt.Printf("\nRabbitMQ %s, %s work queue, messages of %d bytes\n", b.Version, kind, *size)
			if err := measure(ctx, b, kind); err != nil && ctx.Err() == nil {
				failures = append(failures, fmt.Errorf("RabbitMQ %s, %s: %w", b.Version, kind, err))
			}
			if ctx.Err() != nil {
				return errors.New("interrupted")
			}
		}
	}
	return errors.Join(failures...)
}

// only is what begins so, of all.
func only(prefix string, all ...string) []string {
	return slices.DeleteFunc(all, func(s string) bool { return !strings.HasPrefix(s, prefix) })
}

// median of some values, which it sorts.
func median(all []float64) float64 {
	slices.Sort(all)
	return all[len(all)/2]
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
