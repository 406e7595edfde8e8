// Command bench runs the same work side by side on one broker: N messages are
// rejected once by one consumer and acknowledged when they come back. It also
// measures lateness at a steady rate, what many waiting and parked messages cost, and
// whether replicas add up:
//
//	go run ./test/brokers go run ./bench        (or make bench; --help for more)
//
// Machines are noisy: compare the ratios of one run, not numbers of two.
package main

import (
	"context"
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
	messages = flag.Int("n", 20_000, "messages in a round")
	size     = flag.Int("size", 1024, "bytes of body")
	rounds   = flag.Int("rounds", 3, "rounds of each row, and pairs of rounds with -waiting, -parked and -replay; the median counts")
	warmup   = flag.Int("warmup", 0, "messages that go round before each round of a row, uncounted")
	binary   = flag.String("redrive", "bin/redrive", "the service")
	folder   = flag.String("dir", "", "where the service's data goes (default the folder for temporary files)")
	version  = flag.String("version", "", "only brokers whose version begins so, such as 4.3")
	kinds    = flag.String("kind", "classic,quorum", "of the work queue")
	stores   = flag.String("store", "disk,redis", "with -steady and -waiting: where the service keeps its messages")
	asJSON   = flag.Bool("json", false, "print one JSON document with everything on stdout; tables and progress go to stderr")
)

const usageText = `Each mode runs on every broker and kind of work queue; -version and -kind choose
fewer. "-" stands for what cannot be measured (CPU and memory of a broker on
another machine or of one that somebody else runs).

  bench            all rows side by side: -n messages are rejected once and
                   acknowledged when they come back, with no delay. A row that a
                   broker has not got is "not there", with the reason. With
                   -size from 1 MiB on it says whether the service's peak memory
                   is within 160 MiB and ten times the body.

  bench -steady 1000 -for 30s
                   so many messages a second are rejected; how late they come
                   back after -delay (5s), measured at the consumer from the
                   moment of the reject, and what service and broker take.
                   First the way alone, by a bare forwarder, for a third of it;
                   then on each -store, on Redis with 1, 2 and 3 replicas.

  bench -waiting 1000000
                   fills the service with so many messages that wait for an hour
                   (rejected on RabbitMQ, minutes; -waiting-direct writes them
                   into its store). Then: its memory, and that of its Redis;
                   cycles against those of an empty service, in turn; and how
                   soon after a restart (SIGTERM, SIGKILL) a message that is due
                   comes back. On each -store, one after the other. Needs about
                   three times -waiting × -size of disk at -dir, and for Redis 1.6
                   GB of memory where 1,000,000 of 1 KiB wait.

  bench -parked 1000000
                   writes so many parked messages of 20 queues into the service's
                   data folder. Then, while 1,000 messages a second are rejected
                   and return after -delay (5s): what a person asks, by API and by
                   page (lists by index, one message, groups), and how long the
                   answers take; and how late messages return with the asking and
                   without, in turn, each -rounds times for -for (30s).

  bench -replay 100000
                   parks so many (in the data folder) and replays them as one
                   operation at full speed, against a bare forwarder that brings as
                   many from a queue, in turn. Then once more with SIGKILL to the
                   service at five random points: each message exactly once in the
                   operation's account, and each at the consumer.

  bench -storm 60s the service that consumers call is down for so long, limps, and is
                   well again, while -storm-rate new messages come a second: how
                   often it is called meanwhile, when it has recovered, and when
                   all is done, by requeue at once, a fixed delay, exponential
                   backoff, and with breaker and rate.

  bench -scale 1,2,3,6
                   so many replicas on Redis, each on a link to RabbitMQ of its own
                   that lets -link KiB a second through each way: slow, as if it
                   were a small machine, so that one machine can show whether
                   replicas add up. -n messages fail again and again, without a
                   delay, and are counted for -for after 10 s; with the CPU that a
                   message takes, and what that predicts of larger machines. One
                   replica without a link shows what the machine can do.

  bench -library   the Go library. Every message succeeds: redrive.Consume against
                   a bare amqp091-go loop with the same prefetch and acks. Every
                   message fails once: each way to wait, with -handlers at once,
                   against the fixed recipe in the broker alone; how late after
                   -library-delay, and what is made in RabbitMQ. With -waiting N
                   also RabbitMQ's memory with so many messages waiting.

A target that is missed fails nothing; lost, doubled and early messages do.

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

// inStore tells whether -store names it.
func inStore(name string) bool { return slices.Contains(strings.Split(*stores, ","), name) }

func run(ctx context.Context) error {
	if flag.NArg() > 0 {
		return fmt.Errorf("%q is not expected; --help shows what is", flag.Arg(0))
	}
	if *messages < 1 || *rounds < 1 || *size < 0 || *warmup < 0 || *waiting < 0 || *parked < 0 || *replayed < 0 || *steady < 0 || *handlers < 1 || *linkRate < 1 || *libraryDelay < time.Millisecond {
		return fmt.Errorf("-n, -rounds, -handlers and -link must be 1 or more, -library-delay 1ms or more, all other numbers 0 or more")
	}
	for name := range strings.SplitSeq(*stores, ",") {
		if name != onDisk && name != onRedis {
			return fmt.Errorf("-store %s: expected disk, redis or both, with a comma", name)
		}
	}
	if _, err := replicaCounts(); *scale != "" && err != nil {
		return err
	}
	brokers, err := brokertest.FromEnv()
	if err != nil {
		return err
	}
	r, ran := newReport(), false
	for _, b := range brokers {
		if !strings.HasPrefix(b.Version, *version) {
			continue
		}
		for kind := range strings.SplitSeq(*kinds, ",") {
			if kind != "classic" && kind != "quorum" {
				return fmt.Errorf("-kind %s: expected classic, quorum or both, with a comma", kind)
			}
			ran = true
			if ctx.Err() == nil {
				r.modes(ctx, b, kind)
			}
		}
	}
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("interrupted")
	case !ran:
		return fmt.Errorf("no broker has version %s", *version)
	}
	if *asJSON {
		if err := r.json(); err != nil {
			return err
		}
	}
	if len(r.Failures) > 0 {
		return fmt.Errorf("%d failures, see above", len(r.Failures))
	}
	return nil
}

// modes runs what was asked for.
func (r *report) modes(ctx context.Context, b brokertest.Broker, kind string) {
	if *steady+*waiting+*parked+*replayed == 0 && !*library && *storm == 0 && *scale == "" {
		r.compare(ctx, b, kind)
	}
	check := func(mode string, err error) {
		if err != nil && ctx.Err() == nil {
			r.fail("RabbitMQ %s, %s, %s: %v", b.Version, kind, mode, err)
		}
	}
	if *steady > 0 {
		check("steady", r.steadily(ctx, b, kind))
	}
	if *library {
		check("library", r.withLibrary(ctx, b, kind))
	}
	if *waiting > 0 && !*library && ctx.Err() == nil {
		check("waiting", r.withWaiting(ctx, b, kind))
	}
	if *parked > 0 && ctx.Err() == nil {
		check("parked", r.withParked(ctx, b, kind))
	}
	if *storm > 0 && ctx.Err() == nil {
		check("storm", r.withStorm(ctx, b, kind))
	}
	if *scale != "" && ctx.Err() == nil {
		check("scale", r.withScale(ctx, b, kind))
	}
	if *replayed > 0 && ctx.Err() == nil {
		check("replay", r.replays(ctx, b, kind))
	}
}
