package faults_test

import (
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/proxy"
	"github.com/redrive-mq/redrive/testenv/redisnode"
	"github.com/redrive-mq/redrive/wire"
)

// Leases of claims: a short one ends while a test waits for it; a long one does not,
// however busy the machine, so that nothing may come twice.
const (
	shortLease = 5 * time.Second // the least that a service takes
	longLease  = 30 * time.Second
)

const synced = "durability: synced"

// unbroken is the policy of the other tests without a breaker: each message that is retried
// fails again at first, which is a storm.
var unbroken = strings.Replace(policies, "jitter: none", "jitter: none, breaker: off", 1)

// eachRedis runs a test with Redis and with Valkey, each beside one of the brokers.
func eachRedis(t *testing.T, test func(*testing.T, *brokertest.VHost, redisnode.Options)) {
	brokers := brokertest.All(t)
	redisnode.Each(t, func(t *testing.T, o redisnode.Options) {
		b := brokers[0]
		if o.Root != "" {
			b = brokers[len(brokers)-1]
		}
		test(t, brokertest.NewVHost(t, b), o)
	})
}

// replicas are two services on one store in Redis, not started yet.
func replicas(t *testing.T, v *brokertest.VHost, url, settings string, lease time.Duration) []*process {
	t.Helper()
	var all []*process
	for range 2 {
		p := newProcess(t, v.ServiceURL(brokertest.Works("orders")))
		p.store = fmt.Sprintf("{disk: %s, redis: {url: %q, %s, lease: %s}}", p.data(), url, settings, lease)
		p.configure(unbroken)
		all = append(all, p)
	}
	return all
}

func newRedisTally(t *testing.T, v *brokertest.VHost) *tally { return newTally(t, v, "orders") }

func start(all []*process) {
	for _, p := range all {
		p.start()
	}
	for _, p := range all {
		p.waitReady()
	}
}

// finish waits until each message is done, and holds the services' own account of
// them to it: it balances, or the command fails.
func finish(t *testing.T, l *tally, all []*process) {
	t.Helper()
	l.awaitAcknowledged(acknowledgedWithin)
	for _, p := range all {
		p.waitReady()
	}
	t.Log(all[0].cli("ledger", "--recount"))
}

func random(t *testing.T) *rand.Rand {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// Two services from start to end share the work, and double nothing; also when they
// are stopped and started in turn, as in an update.
func TestTwoReplicasRetryEachMessageOnce(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, v *brokertest.VHost, o redisnode.Options) {
		l, all := newRedisTally(t, v), replicas(t, v, redisnode.New(t, o).URL(), synced, longLease)
		start(all)
		consuming(t, l)
		for i := range 4 {
			l.publish(500)
			if err := all[i%2].term(); err != nil {
				t.Errorf("after SIGTERM: %v", err)
			}
			all[i%2].start()
		}
		finish(t, l, all)
		l.account()
	})
}

func TestKillingAReplicaLosesNothing(t *testing.T) {
	t.Parallel()
	const kills = 25 // with Redis and with Valkey: fifty
	eachRedis(t, func(t *testing.T, v *brokertest.VHost, o redisnode.Options) {
		killingReplicas(t, newRedisTally(t, v), o, times(kills))
	})
}

// killingReplicas kills one of two replicas so often while messages fail and come back.
func killingReplicas(t *testing.T, l *tally, o redisnode.Options, kills iter.Seq[int]) {
	all := replicas(t, l.v, redisnode.New(t, o).URL(), synced, shortLease)
	start(all)
	consuming(t, l)
	random := random(t)
	for range kills {
		l.publish(150)
		// Any moment will do: while it opens, connects, stores, or retries.
		<-time.After(time.Duration(random.IntN(600)) * time.Millisecond)
		p := all[random.IntN(len(all))]
		l.during(p.kill)
		p.start()
	}
	finish(t, l, all)
	l.account()
}

// A service that stands still for longer than its lease goes on with what others have
// done meanwhile: what it had published and not finished may come twice.
func TestAFrozenReplicaLosesNothing(t *testing.T) {
	t.Parallel()
	const stops = 2
	eachRedis(t, func(t *testing.T, v *brokertest.VHost, o redisnode.Options) {
		l, all := newRedisTally(t, v), replicas(t, v, redisnode.New(t, o).URL(), synced, shortLease)
		start(all)
		consuming(t, l)
		for i := range stops {
			l.publish(600)
			<-time.After(wait) // into the middle of the retries
			stands := all[i%2].cmd.Process
			l.during(func() {
				if err := stands.Signal(syscall.SIGSTOP); err != nil {
					t.Fatal(err)
				}
				l.publish(200)
				<-time.After(shortLease + time.Second)
				if err := stands.Signal(syscall.SIGCONT); err != nil {
					t.Fatal(err)
				}
			})
		}
		finish(t, l, all)
		l.account()
	})
}

// What a service could not learn of happens once: nothing is doubled while it runs.
func TestKillingRedisLosesNothing(t *testing.T) {
	t.Parallel()
	const kills = 4
	eachRedis(t, func(t *testing.T, v *brokertest.VHost, o redisnode.Options) {
		killingRedis(t, newRedisTally(t, v), o, 500, times(kills))
	})
}

// killingRedis kills the Redis of two replicas so often, with so many new messages each time.
func killingRedis(t *testing.T, l *tally, o redisnode.Options, each int, kills iter.Seq[int]) {
	server := redisnode.New(t, o)
	all := replicas(t, l.v, server.URL(), synced, longLease)
	start(all)
	consuming(t, l)
	for i := range kills {
		l.publish(each)
		<-time.After(wait)
		server.Kill()
		l.publish(each / 5) // they stay in RabbitMQ
		if i == 0 {
			brokertest.Eventually(t, "the service says that it is not ready", func() bool { return all[0].readyz() != "" })
		}
		if err := server.Restart(context.Background()); err != nil {
			t.Fatal(err)
		}
		// As docs/how-to/redis.md advises, or Redis 7.0 applies half a script at the next start.
		if server.HasCutOff() {
			must(t, server.RewriteLog(context.Background()))
		}
	}
	finish(t, l, all)
	l.account()
}

// A Redis that is away is reported once by each part that needs it, however long it is
// away, and so is that it is back; what was due meanwhile is retried from then on within
// about a second.
func TestAMissingRedisIsReportedOnce(t *testing.T) {
	const away = 10 * time.Second
	eachRedis(t, func(t *testing.T, v *brokertest.VHost, o redisnode.Options) {
		server := redisnode.New(t, o)
		l, all := newRedisTally(t, v), replicas(t, v, server.URL(), synced, shortLease)
		waitLong(all)
		start(all)
		consuming(t, l)
		for _, how := range []struct {
			name       string
			away, back func() error
		}{
			{"killed", func() error { server.Kill(); return nil }, func() error { return server.Restart(context.Background()) }},
			{"standing still", server.Pause, server.Continue},
		} {
			said := []int{all[0].log.Len(), all[1].log.Len()}
			failed := l.deliveries() + 500
			l.publish(500)
			brokertest.Eventually(t, "they have failed once", func() bool { return l.deliveries() >= failed })
			<-time.After(500 * time.Millisecond) // and most of them are kept
			if err := how.away(); err != nil {
				t.Fatal(err)
			}
			l.publish(100)
			<-time.After(away)
			before := l.deliveries()
			if err := how.back(); err != nil {
				t.Fatal(err)
			}
			back := time.Now()
			brokertest.Eventually(t, "messages return again", func() bool { return l.deliveries() > before })
			took := time.Since(back)
			t.Logf("%s: the first message is retried %s after Redis is back", how.name, took.Round(10*time.Millisecond))
			if took > 3*time.Second { // one, on a machine that is not busy
				t.Errorf("%s: the first message is retried %s after Redis is back", how.name, took)
			}
			finish(t, l, all)
			for i, p := range all {
				p.kill() // so that its log is whole
				log := p.log.String()[said[i]:]
				troubles := map[string]int{}
				for line := range strings.Lines(log) {
					if what := between(line, `msg="`, `"`); strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR") {
						troubles[what]++
					}
				}
				for what, n := range troubles {
					if n > 1 {
						t.Errorf("%s: said %d times in %s: %s", how.name, n, away, what)
					}
				}
				for _, want := range []string{`msg="store: retrying due messages works again" after=`, `msg="intake resumed" queue=redrive.intake after=`} {
					if strings.Count(log, want) != 1 {
						t.Errorf("%s: it does not say once %s", how.name, want)
					}
				}
				if t.Failed() {
					t.Logf("%s: a service said:\n%s", how.name, log)
				}
			}
			start(all)
		}
	})
}

// between is what stands in a text between two others, the first time.
func between(text, before, after string) string {
	_, text, _ = strings.Cut(text, before)
	text, _, _ = strings.Cut(text, after)
	return text
}

// A Redis that stands still answers nothing, and keeps its connections.
func TestAFrozenRedisLosesNothing(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, v *brokertest.VHost, o redisnode.Options) {
		server := redisnode.New(t, o)
		l, all := newRedisTally(t, v), replicas(t, v, server.URL(), synced, longLease)
		start(all)
		consuming(t, l)
		l.publish(500)
		<-time.After(wait)
		if err := server.Pause(); err != nil {
			t.Fatal(err)
		}
		l.publish(200)
		brokertest.Eventually(t, "the service says that it is not ready", func() bool { return all[0].readyz() != "" })
		if err := server.Continue(); err != nil {
			t.Fatal(err)
		}
		finish(t, l, all)
		l.account()
	})
}

func TestCuttingRedisConnectionsLosesNothing(t *testing.T) {
	t.Parallel()
	const cuts = 15
	eachRedis(t, func(t *testing.T, v *brokertest.VHost, o redisnode.Options) {
		between := proxy.New(t, redisnode.New(t, o).Addr())
		l, all := newRedisTally(t, v), replicas(t, v, "redis://"+between.Addr(), synced, longLease)
		start(all)
		consuming(t, l)
		random := random(t)
		for i := range cuts {
			between.CutAfter(random.Int64N(200_000))
			brokertest.Eventually(t, "the connections are cut", func() bool {
				l.publish(5)
				return between.Cuts() > i
			})
		}
		finish(t, l, all)
		l.account()
	})
}

// Scripts that Redis has forgotten are given to it again; nothing comes of it.
func TestFlushedScriptsLoseNothing(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, v *brokertest.VHost, o redisnode.Options) {
		server := redisnode.New(t, o)
		l, all := newRedisTally(t, v), replicas(t, v, server.URL(), synced, longLease)
		start(all)
		consuming(t, l)
		for range 20 {
			l.publish(50)
			if _, err := server.Do(context.Background(), "SCRIPT", "FLUSH", "SYNC"); err != nil {
				t.Fatal(err)
			}
		}
		finish(t, l, all)
		l.account()
	})
}

// When Redis has no room the intake stops, and what fails stays in RabbitMQ; what waits
// returns all the same. With room again all goes on by itself.
func TestAFullRedisLosesNothing(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, v *brokertest.VHost, o redisnode.Options) {
		ctx := context.Background()
		server := redisnode.New(t, o)
		l, all := newRedisTally(t, v), replicas(t, v, server.URL(), synced, longLease)
		start(all)
		consuming(t, l)
		l.publish(1000)
		limit := func(to int) {
			if _, err := server.Do(ctx, "CONFIG", "SET", "maxmemory", strconv.Itoa(to)); err != nil {
				t.Fatal(err)
			}
		}
		used, err := strconv.Atoi(server.Info(ctx, "memory", "used_memory"))
		if err != nil {
			t.Fatal(err)
		}
		limit(used / 2)
		l.publish(200)
		brokertest.Eventually(t, "a service says that the store is full", func() bool {
			return strings.Contains(all[0].readyz()+all[1].readyz(), "the store is full")
		})
		client := httpapi.Client{Addr: all[0].listen}
		brokertest.Eventually(t, "all that waits has returned", func() bool {
			count, err := client.Count(ctx, "state:waiting")
			return err == nil && count.Count == 0
		})
		brokertest.Eventually(t, "what has failed is RabbitMQ's", func() bool { return v.Messages(wire.QueueIntake) > 0 })
		limit(0)
		finish(t, l, all)
		l.account()
	})
}
