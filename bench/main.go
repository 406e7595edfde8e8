// Command bench runs the same work side by side on one broker: N messages are
// rejected once by one consumer and acknowledged when they come back.
//
//	go run ./test/brokers go run ./bench        (or make bench)
//
// Machines are noisy: compare the ratios of one run, not numbers of two.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/redrive-mq/redrive/internal/broker/brokertest"
)

var (
	messages = flag.Int("n", 20_000, "messages in a round")
	size     = flag.Int("size", 1024, "bytes of body")
	rounds   = flag.Int("rounds", 3, "rounds of each row; the median counts")
	binary   = flag.String("redrive", "bin/redrive", "the service")
)

// row is one way to bring a message back.
type row interface {
	name() string
	// start makes queue and what brings its messages back, and returns when all
	// is ready.
	start(ctx context.Context, v vhost, queue, kind string) error
	// stop ends it, and tells what CPU and memory its own process took.
	stop() usage
}

func rows() []row { return []row{&forwarder{}, &service{}, &fixed{}} }

func main() {
	flag.Parse()
	log.SetFlags(0)
	brokers, err := brokertest.FromEnv()
	if err != nil {
		log.Fatal(err)
	}
	ok := true
	for _, b := range brokers {
		for _, kind := range []string{"classic", "quorum"} {
			ok = compare(b, kind) && ok
		}
	}
	if !ok {
		os.Exit(1)
	}
}

// compare runs all rows in turn, several times, and prints their medians. It
// tells whether every message was accounted for.
func compare(b brokertest.Broker, kind string) bool {
	fmt.Printf("\nRabbitMQ %s, %s work queue, %d messages of %d bytes, median of %d\n", b.Version, kind, *messages, *size, *rounds)
	all := rows()
	results := make([][]result, len(all))
	accounted := true
	for range *rounds {
		for i, r := range all {
			res, err := measure(b, kind, r)
			if err != nil {
				log.Fatalf("%s: %v", r.name(), err)
			}
			if res.lost > 0 || res.duplicates > 0 {
				fmt.Printf("%s: %d lost, %d duplicates\n", r.name(), res.lost, res.duplicates)
				accounted = false
			}
			results[i] = append(results[i], res)
		}
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "row\tmessages/s\t× forwarder\tp50\tp99\tmax\tCPU s\tpeak MiB\t")
	medians := make([]result, len(all))
	for i := range all {
		slices.SortFunc(results[i], func(a, b result) int { return int(a.rate - b.rate) })
		medians[i] = results[i][len(results[i])/2]
	}
	for i, r := range all {
		m := medians[i]
		fmt.Fprintf(w, "%s\t%.0f\t%.2f\t%s\t%s\t%s\t%.1f\t%.0f\t\n", r.name(), m.rate, m.rate/medians[0].rate, m.p50.Round(time.Millisecond), m.p99.Round(time.Millisecond), m.max.Round(time.Millisecond), m.cpu, m.peak)
	}
	w.Flush()
	return accounted
}
