package faults_test

import (
	"flag"
	"fmt"
	"iter"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/redisnode"
)

var (
	soakBudget = flag.Duration("budget", 0, "TestSoak: how long all rows together may take; 0: each row as short as it can be")
	soakOnly   = flag.String("only", "", "TestSoak: the rows whose names match this regular expression")
	soakJSON   = flag.Bool("json", false, "TestSoak: print JSON, not a table")
	// See soakcontinue_test.go.
	soakContinue = flag.String("continue", "", "TestSoak: add to what earlier runs did, which is kept in this `file`")
)

// soakRows are the faults that `make soak` repeats, with the shares of the time that each gets.
var soakRows = []struct {
	name  string
	share int
	run   func(*testing.T, *soakRow)
}{
	{"kill -9 of the service", 4, soakKills},
	{"kill -9 of one of two replicas", 3, soakReplicas},
	{"power cut", 2, soakPower},
	{"connections to RabbitMQ cut at each byte", 4, soakBytes},
	{"connecting to RabbitMQ cut at each byte", 3, soakConnecting},
	{"connections to Redis cut at each byte", 2, soakRedisBytes},
	{"connecting to Redis cut at each byte", 2, soakRedisConnecting},
	{"one bit flipped in a stopped store", 3, soakFlips},
	{"kill -9 of RabbitMQ", 4, soakRabbitMQ},
	{"RabbitMQ by itself, kill -9", 2, soakWithout},
	{"kill -9 of Redis", 2, soakRedis},
	{"scale: thousands of queues and kill -9", 1, scaleQueues},
	{"scale: one beside very many that are due", 1, scaleDueAtOnce},
	{"scale: very many failures a second and kill -9", 1, scaleFailures},
	{"scale: very many waiting and kill -9", 1, scaleRestart},
	{"scale: very many open breakers", 1, scaleBreakers},
}

// TestSoak repeats faults until each row has met its goal or its time is over, and prints
// what became of the messages. Within `make test` each row is as short as it can be.
func TestSoak(t *testing.T) {
	if *soakBudget == 0 {
		t.Parallel()
	}
	s := soakFromFlags(t)
	t.Cleanup(func() { s.print(t) })
	only, err := regexp.Compile(*soakOnly)
	must(t, err)
	isRun := func(name string) bool { return only.MatchString(name) && s.isLeft(name) }
	shares, matches := 0, false
	for _, r := range soakRows {
		matches = matches || only.MatchString(r.name)
		if isRun(r.name) {
			shares += r.share
		}
	}
	if !matches {
		t.Fatalf("no row has a name that matches %q", *soakOnly)
	}
	for _, r := range soakRows {
		if !isRun(r.name) {
			continue
		}
		left := *soakBudget - time.Since(s.began)
		row := &soakRow{soak: s, name: r.name, until: time.Now().Add(left * time.Duration(r.share) / time.Duration(shares))}
		shares -= r.share
		t.Run(r.name, func(t *testing.T) {
			if *soakBudget == 0 {
				if strings.Contains(r.name, "RabbitMQ") && strings.Contains(r.name, "kill -9") {
					return // which takes a minute, and TestKillingRabbitMQLosesNothing does the same
				}
				t.Parallel()
			}
			r.run(t, row)
		})
	}
}

// soak has what is known of all rows: of this run, and of those that it continues.
type soak struct {
	began time.Time
	file  string   // see newSoak
	rows  []string // all names
	mu    sync.Mutex
	known soakReport
}

// soakRow is one fault.
type soakRow struct {
	*soak
	name  string
	until time.Time
}

// soakPart is a fault on one RabbitMQ or Redis.
type soakPart struct {
	Fault  string `json:"fault"`
	On     string `json:"on"`
	Goal   int    `json:"goal"`
	Done   int    `json:"done"`
	sums          // of its messages
	Failed int    `json:"failed_runs"`
	// Became is what became of how many faults, in rows that tell these apart.
	Became map[string]int `json:"became,omitempty"`
	// CutAt is where connections were cut, in rows that cut at each byte.
	CutAt *placeSet `json:"cut_at,omitempty"`
	// Note is what else is to be known of it.
	Note    string      `json:"note,omitempty"`
	Seconds float64     `json:"seconds"`
	Bounds  []soakBound `json:"bounds,omitempty"`

	until time.Time
	crowd *crowd // of the episode that runs, in rows of scale
	mu    sync.Mutex
	begun int // faults that are done or being done
}

// part is begun by a test, and is over when that test and its subtests are.
func (r *soakRow) part(t *testing.T, on string, goal int) *soakPart {
	p, end := r.begin(on, goal)
	t.Cleanup(func() { must(t, end(t.Failed())) })
	return p
}

// isMet tells whether all of it was done.
func (p *soakPart) isMet() bool { return p.Goal > 0 && p.Done >= p.Goal }

// over tells whether a part has met its goal or has no time left.
func (p *soakPart) over() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.begun >= p.Goal || time.Now().After(p.until)
}

// faults counts those of one episode, so many at most. Within `make test` there is one, and no
// other.
func (p *soakPart) faults(most int) iter.Seq[int] {
	return func(yield func(int) bool) {
		for i := 0; i < most && (i == 0 && *soakBudget == 0 || !p.over()); i++ {
			p.mu.Lock()
			p.begun++
			p.mu.Unlock()
			if !yield(i) {
				return
			}
			p.mu.Lock()
			p.Done++
			p.mu.Unlock()
		}
	}
}

// newTally is a tally of various messages, which counts for the part.
func (p *soakPart) newTally(t *testing.T, v *brokertest.VHost) *tally {
	l := newTally(t, v, "orders")
	l.various = true
	return p.of(t, l)
}

// of adds what became of a tally's messages to the part, when its test ends.
func (p *soakPart) of(t *testing.T, l *tally) *tally {
	t.Cleanup(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.add(l.result())
	})
	return l
}

// episodes runs one after the other, in so many lines at once, each in a test of its own, until
// the part is over or one of the line fails. Each line has what prepare makes for it.
func (p *soakPart) episodes(t *testing.T, lines int, prepare func(*testing.T) (episode func(*testing.T))) {
	if p.isMet() {
		return
	}
	if *soakBudget == 0 {
		lines = 1
	}
	for line := range lines {
		t.Run(fmt.Sprint("line ", line+1), func(t *testing.T) {
			t.Parallel()
			episode := prepare(t)
			for n := 1; n == 1 && line == 0 || !p.over(); n++ {
				if !t.Run(fmt.Sprint(n), episode) {
					return
				}
			}
		})
	}
}

// Kills of the service while messages wait on its disk, 1,000 in all.
func soakKills(t *testing.T, r *soakRow) {
	r.onEachBroker(t, "messages on disk", 1000, func(t *testing.T, b brokertest.Broker, p *soakPart) {
		killing(t, p.newTally(t, brokertest.NewVHost(t, b)), policies, p.faults(30))
	})
}

// onEachBroker runs episodes on each broker; each has its share of the goal.
func (r *soakRow) onEachBroker(t *testing.T, what string, goal int, episode func(*testing.T, brokertest.Broker, *soakPart)) {
	brokers := brokertest.All(t)
	for _, b := range brokers {
		t.Run("RabbitMQ "+b.Version, func(t *testing.T) {
			t.Parallel()
			p := r.part(t, fmt.Sprintf("RabbitMQ %s, %s", b.Version, what), goal/len(brokers))
			p.episodes(t, 2, func(*testing.T) func(*testing.T) { return func(t *testing.T) { episode(t, b, p) } })
		})
	}
}

// Kills of a replica, 200 in all.
func soakReplicas(t *testing.T, r *soakRow) {
	r.onEachRedis(t, 200, func(t *testing.T, l *tally, o redisnode.Options, p *soakPart) { killingReplicas(t, l, o, p.faults(25)) })
}

// Kills of Redis, 300 in all.
func soakRedis(t *testing.T, r *soakRow) {
	r.onEachRedis(t, 300, func(t *testing.T, l *tally, o redisnode.Options, p *soakPart) {
		killingRedis(t, l, o, 150, p.faults(10))
	})
}

// onEachRedis runs episodes with Redis and with Valkey, each beside one broker.
func (r *soakRow) onEachRedis(t *testing.T, goal int, episode func(*testing.T, *tally, redisnode.Options, *soakPart)) {
	brokers := brokertest.All(t)
	redisnode.Each(t, func(t *testing.T, o redisnode.Options) {
		b := brokers[0]
		if o.Root != "" {
			b = brokers[len(brokers)-1]
		}
		p := r.part(t, fmt.Sprintf("%s, RabbitMQ %s", o.Name(), b.Version), goal/2)
		p.episodes(t, 2, func(*testing.T) func(*testing.T) {
			return func(t *testing.T) { episode(t, p.newTally(t, brokertest.NewVHost(t, b)), o, p) }
		})
	})
}

// Kills of a node, 300 of each version. Several nodes are killed at once: until the service
// connects again it mostly waits.
func soakRabbitMQ(t *testing.T, r *soakRow) {
	brokertest.EachOfOurs(t, func(t *testing.T, b brokertest.Broker) {
		p := r.part(t, "RabbitMQ "+b.Version, 300)
		p.episodes(t, 3, func(t *testing.T) func(*testing.T) {
			v, n := brokertest.NewPrivate(t, b, "")
			return func(t *testing.T) {
				v.DeleteQueue("orders")
				killingRabbitMQ(t, p.newTally(t, v), n, 500, p.faults(20))
			}
		})
	})
}

// soakCommand is how this was run.
func soakCommand() string {
	return fmt.Sprintf("make soak SOAKFLAGS=%q", os.Getenv("SOAKFLAGS"))
}
