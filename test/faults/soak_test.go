package faults_test

import (
	"flag"
	"fmt"
	"iter"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/redisnode"
)

var (
	soakBudget = flag.Duration("budget", 0, "TestSoak: how long all rows together may take; without it TestSoak does nothing")
	soakOnly   = flag.String("only", "", "TestSoak: the rows whose names match this regular expression")
)

// soakRow is one fault.
type soakRow struct {
	name  string
	share int // of the time
	run   func(*testing.T, *soakRow)
	until time.Time
	parts []*soakPart
}

// soakRows are the faults that `make soak` repeats.
var soakRows = []*soakRow{
	{name: "kill -9 of the service", share: 4, run: onBrokers(func(t *testing.T, l *tally, kills iter.Seq[int]) {
		killing(t, newProcess(t, l.v.ServiceURL(brokertest.Works("orders"))), true, kills, l)
	})},
	{name: "kill -9 of one of two replicas", share: 3, run: onRedis(killingReplicas)},
	{name: "power cut", share: 2, run: onBrokers(cuttingPower)},
	{name: "connections to RabbitMQ cut", share: 2, run: onBrokers(cuttingConnections)},
	{name: "connecting to RabbitMQ cut at any byte", share: 4, run: onBrokers(func(t *testing.T, l *tally, cuts iter.Seq[int]) {
		l.various = false // large bodies would be most of what can be cut
		cuttingAtBytes(t, l, cuts)
	})},
	{name: "connecting to Redis cut at any byte", share: 3, run: onRedis(func(t *testing.T, l *tally, o redisnode.Options, cuts iter.Seq[int]) {
		l.various = false
		cuttingRedisAtBytes(t, l, o, time.Now().UnixNano()%2 == 0, cuts)
	})},
	{name: "kill -9 of RabbitMQ", share: 4, run: onNodes},
	{name: "kill -9 of Redis", share: 2, run: onRedis(killingRedis)},
}

// TestSoak repeats faults for as long as -budget says, and prints what became of the messages.
// Without -budget it does nothing: each row is a test of its own, with fewer faults.
func TestSoak(t *testing.T) {
	if *soakBudget == 0 {
		return
	}
	only, err := regexp.Compile(*soakOnly)
	must(t, err)
	var versions []string
	for _, b := range brokertest.All(t) {
		versions = append(versions, b.Version)
	}
	began, shares := time.Now(), 0
	rows := slices.DeleteFunc(soakRows, func(r *soakRow) bool { return !only.MatchString(r.name) })
	for _, r := range rows {
		shares += r.share
	}
	if len(rows) == 0 {
		t.Fatalf("no row has a name that matches %q", *soakOnly)
	}
	t.Cleanup(func() {
		commit, _ := exec.Command("git", "describe", "--always", "--dirty").Output()
		fmt.Printf("%s, commit %s, RabbitMQ %s, %s, %d cores, %s:\n\n    make soak SOAKFLAGS=%q\n\n%s", began.UTC().Format("2006-01-02 15:04 UTC"),
			strings.TrimSpace(string(commit)), strings.Join(versions, " and "), runtime.Version(), runtime.NumCPU(),
			time.Since(began).Round(time.Second), os.Getenv("SOAKFLAGS"), soakTable(rows))
	})
	for _, r := range rows {
		left := *soakBudget - time.Since(began)
		r.until = time.Now().Add(left * time.Duration(r.share) / time.Duration(shares))
		shares -= r.share
		t.Run(r.name, func(t *testing.T) { r.run(t, r) })
	}
}

// soakPart is a fault on one RabbitMQ or Redis.
type soakPart struct {
	on           string
	until        time.Time
	done, failed int // faults, and episodes
	sums         sums
	took         time.Duration
}

// repeat runs episodes on something until the row's time is over or one of them fails: at least
// one, each in a test of its own that is given its faults. It runs beside the row's other parts.
func (r *soakRow) repeat(t *testing.T, on string, episode func(*testing.T, *soakPart)) {
	p := &soakPart{on: on, until: r.until}
	r.parts = append(r.parts, p)
	t.Run(on, func(t *testing.T) {
		t.Parallel()
		began := time.Now()
		defer func() { p.took = time.Since(began) }()
		for n := 1; n == 1 || time.Now().Before(p.until); n++ {
			if !t.Run(fmt.Sprint(n), func(t *testing.T) { episode(t, p) }) {
				p.failed++
				return
			}
		}
	})
}

// faults counts those of one episode, so many at most.
func (p *soakPart) faults(most int) iter.Seq[int] {
	return func(yield func(int) bool) {
		for i := 0; i < most && (i == 0 || time.Now().Before(p.until)); i++ {
			if !yield(i) {
				return
			}
			p.done++
		}
	}
}

// newTally is a tally of various messages, which counts for the part.
func (p *soakPart) newTally(t *testing.T, v *brokertest.VHost) *tally {
	l := newTally(t, v, "orders")
	l.various = true
	t.Cleanup(func() { p.sums.add(l.result()) })
	return l
}

// onBrokers runs episodes on each broker, plain and by TLS.
func onBrokers(episode func(*testing.T, *tally, iter.Seq[int])) func(*testing.T, *soakRow) {
	return func(t *testing.T, r *soakRow) {
		for _, b := range brokertest.All(t) {
			for _, how := range []string{"plain", "TLS"} {
				b := b
				if how == "TLS" {
					if b.Authority == "" {
						continue // somebody else's
					}
					b.AMQP, b.Management = b.AMQPS, b.HTTPS
				}
				r.repeat(t, fmt.Sprintf("RabbitMQ %s, %s", b.Version, how), func(t *testing.T, p *soakPart) {
					episode(t, p.newTally(t, brokertest.NewVHost(t, b)), p.faults(30))
				})
			}
		}
	}
}

// onRedis runs episodes with Redis beside one of the brokers and with Valkey beside the other.
func onRedis(episode func(*testing.T, *tally, redisnode.Options, iter.Seq[int])) func(*testing.T, *soakRow) {
	return func(t *testing.T, r *soakRow) {
		brokers := brokertest.All(t)
		for i, o := range redisnode.Both(t) {
			b := brokers[min(i, len(brokers)-1)]
			r.repeat(t, fmt.Sprintf("%s, RabbitMQ %s", o.Name(), b.Version), func(t *testing.T, p *soakPart) {
				episode(t, p.newTally(t, brokertest.NewVHost(t, b)), o, p.faults(25))
			})
		}
	}
}

// onNodes kills nodes of their own.
func onNodes(t *testing.T, r *soakRow) {
	for _, b := range brokertest.All(t) {
		if !b.Private {
			continue // somebody else's
		}
		r.repeat(t, "RabbitMQ "+b.Version, func(t *testing.T, p *soakPart) {
			v, n := brokertest.NewPrivate(t, b, "")
			killingRabbitMQ(t, p.newTally(t, v), n, p.faults(20))
		})
	}
}

func soakTable(rows []*soakRow) string {
	var b strings.Builder
	b.WriteString("| fault | on | done | messages | lost | early | changed | doubled | doubled without a fault that explains it | took |\n|---|---|---|---|---|---|---|---|---|---|\n")
	for _, r := range rows {
		for _, p := range r.parts {
			done := fmt.Sprint(p.done)
			if p.failed > 0 {
				done += ", and failed"
			}
			s := p.sums
			fmt.Fprintf(&b, "| %s | %s | %s | %d | %d | %d | %d | %d | %d | %s |\n", r.name, p.on, done,
				s.Messages, s.Lost, s.Early, s.Changed, s.Doubled, s.Unexplained, p.took.Round(time.Second))
		}
	}
	return b.String()
}
