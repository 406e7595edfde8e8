package faults_test

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/store/redisstore"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
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

// eachRedis runs a test with Redis beside one of the brokers and with Valkey beside the
// other; with one of both, chosen by the test's name, where the run is not long.
func eachRedis(t *testing.T, test func(*testing.T, *brokertest.VHost, redisnode.Options)) {
	t.Helper()
	t.Parallel()
	brokers, sampled := brokertest.All(t), brokertest.Sampled(t)
	for i, o := range redisnode.Both(t) {
		if b := brokers[min(i, len(brokers)-1)]; slices.Contains(sampled, b) {
			t.Run(o.Name(), func(t *testing.T) {
				t.Parallel()
				test(t, brokertest.NewVHost(t, b), o)
			})
		}
	}
}

// onReplicas is a tally of two replicas that have started.
func onReplicas(t *testing.T, v *brokertest.VHost, url, settings string, lease time.Duration) (*tally, []*process) {
	t.Helper()
	l, all := newTally(t, v, "orders"), replicas(t, v, 2, url, settings, lease)
	start(all)
	consuming(t, l)
	return l, all
}

// finish settles, and checks each message and the services' own account.
func finish(l *tally, all []*process) {
	l.test.Helper()
	l.settle(all...)
	all[0].balances()
	l.account()
}

// Two services from start to end share the work, and double nothing; also when they
// are stopped and started in turn, as in an update.
func TestTwoReplicasRetryEachMessageOnce(t *testing.T) {
	eachRedis(t, func(t *testing.T, v *brokertest.VHost, o redisnode.Options) {
		l, all := onReplicas(t, v, redisnode.New(t, o).URL(), synced, longLease)
		for i := range times(2, 4) {
			l.publish(500)
			all[i%2].term()
			all[i%2].start()
		}
		finish(l, all)
	})
}

func TestKillingAReplicaLosesNothing(t *testing.T) {
	eachRedis(t, func(t *testing.T, v *brokertest.VHost, o redisnode.Options) {
		killingReplicas(t, newTally(t, v, "orders"), o, times(4, 25))
	})
}

// killingReplicas kills one of two replicas so often while messages fail and come back.
func killingReplicas(t *testing.T, l *tally, o redisnode.Options, kills iter.Seq[int]) {
	all := replicas(t, l.v, 2, redisnode.New(t, o).URL(), synced, shortLease)
	start(all)
	consuming(t, l)
	random := random(t)
	for i := range kills {
		if i%10 == 3 {
			l.settle(all...)
		}
		l.publish(150)
		// Any moment will do: while it opens, connects, stores, or retries.
		<-time.After(time.Duration(random.IntN(600)) * time.Millisecond)
		p := all[random.IntN(len(all))]
		l.during(p.kill)
		p.start()
	}
	finish(l, all)
}

// A service that stands still for longer than its lease goes on with what others have
// done meanwhile: what it had published and not finished may come twice.
func TestAFrozenReplicaLosesNothing(t *testing.T) {
	eachRedis(t, func(t *testing.T, v *brokertest.VHost, o redisnode.Options) {
		l, all := onReplicas(t, v, redisnode.New(t, o).URL(), synced, shortLease)
		for i := range 2 {
			l.publish(600)
			<-time.After(wait) // into the middle of the retries
			stands := all[i%2].cmd.Process
			l.during(func() {
				must(t, stands.Signal(syscall.SIGSTOP))
				l.publish(200)
				<-time.After(shortLease + time.Second)
				must(t, stands.Signal(syscall.SIGCONT))
			})
		}
		finish(l, all)
	})
}

// What a service could not learn of happens once: nothing is doubled while it runs.
func TestKillingRedisLosesNothing(t *testing.T) {
	eachRedis(t, func(t *testing.T, v *brokertest.VHost, o redisnode.Options) {
		killingRedis(t, newTally(t, v, "orders"), o, times(2, 4))
	})
}

// killingRedis kills the Redis of two replicas so often.
func killingRedis(t *testing.T, l *tally, o redisnode.Options, kills iter.Seq[int]) {
	const each = 300 // new messages each time
	server := redisnode.New(t, o)
	all := replicas(t, l.v, 2, server.URL(), synced, longLease)
	start(all)
	consuming(t, l)
	for i := range kills {
		l.publish(each)
		<-time.After(wait)
		server.Kill()
		l.publish(each / 5) // they stay in RabbitMQ
		if i == 0 {
			brokertest.Eventually(t, "the service says that it is not ready", func() bool {
				return all[0].readyz() != ""
			})
		}
		must(t, server.Restart(context.Background()))
		// As docs/how-to/redis.md advises, or Redis 7.0 applies half a script at the next start.
		if server.HasCutOff() {
			must(t, server.RewriteLog(context.Background()))
		}
	}
	finish(l, all)
}

// A Redis that is away is reported once by each part that needs it, however long it is
// away, and so is that it is back.
func TestAMissingRedisIsReportedOnce(t *testing.T) {
	eachRedis(t, func(t *testing.T, v *brokertest.VHost, o redisnode.Options) {
		server := redisnode.New(t, o)
		between := proxy.New(t, server.Addr())
		l, all := newTally(t, v, "orders"), replicas(t, v, 2, "redis://"+between.Addr(), synced, shortLease)
		waitLong(all)
		start(all)
		consuming(t, l)
		var allow func()
		for _, how := range []struct {
			name       string
			away, back func() error
		}{
			{"killed", func() error { allow = between.Refuse(); server.Kill(); return nil }, func() error {
				defer allow()
				return server.Restart(context.Background())
			}},
			{"standing still", server.Pause, server.Continue},
		} {
			failed := l.deliveries() + 500
			l.publish(500)
			brokertest.Eventually(t, "they have failed once", func() bool { return l.deliveries() >= failed })
			brokertest.Eventually(t, "they are kept", func() bool { return all[0].count("state:waiting") > 250 })
			said := []int{len(all[0].log.String()), len(all[1].log.String())}
			must(t, how.away())
			l.publish(100)
			brokertest.Eventually(t, "the services say so", func() bool {
				for i, p := range all {
					log := p.log.String()[said[i]:]
					if !strings.Contains(log, "store: retrying due messages fails") ||
						!strings.Contains(log, "intake stopped") {
						return false
					}
				}
				return true
			})
			tries, last := 0, int64(-1)
			brokertest.Eventually(t, "the services have tried again and again", func() bool {
				toServer, _ := between.Passed()
				if now := toServer + int64(between.Refused()); now != last {
					tries, last = tries+1, now
				}
				return tries > 20
			})
			for i, p := range all {
				for _, trouble := range repeated(p.log.String()[said[i]:]) {
					t.Errorf("%s: said again before it worked again: %s", how.name, trouble)
				}
			}
			must(t, how.back())
			finish(l, all)
			for i, p := range all {
				p.kill() // so that its log is whole
				log := p.log.String()[said[i]:]
				for _, want := range []string{`msg="store: retrying due messages works again" after=`,
					`msg="intake resumed" queue=redrive.intake after=`} {
					expect.Contains(t, log, fmt.Sprintf("%s: it does not say", how.name), want)
				}
				if t.Failed() {
					t.Logf("%s: a service said:\n%s", how.name, log)
				}
			}
			start(all)
		}
	})
}

// repeated are the troubles that a log has again before it says that they are over.
func repeated(log string) (all []string) {
	said := map[string]bool{}
	for line := range strings.Lines(log) {
		_, text, _ := strings.Cut(line, `msg="`)
		what, _, _ := strings.Cut(text, `"`)
		if strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR") {
			if said[what] {
				all = append(all, what)
			}
			said[what] = true
			continue
		}
		for _, again := range []string{" works again", " resumed"} {
			if part, ok := strings.CutSuffix(what, again); ok {
				maps.DeleteFunc(said, func(trouble string, _ bool) bool { return strings.HasPrefix(trouble, part+" ") })
			}
		}
	}
	return all
}

func TestARepeatedTroubleIsSeen(t *testing.T) {
	const fails, works, other = `level=WARN msg="store: a fails; trying" error=x`,
		`level=INFO msg="store: a works again" after=1s`, `level=WARN msg="intake stopped: x"`
	for want, log := range map[int][]string{0: {fails, other, works, fails}, 1: {fails, works, other, fails, other},
		2: {fails, fails, other, `level=INFO msg="intake resumed" queue=q`, other, other}} {
		expect.Equal(t, len(repeated(strings.Join(log, "\n"))), want, "troubles that are repeated in %q", log)
	}
}

// Redis is cut off while it forgets its scripts; and it has no room: then the intake stops, what fails stays in RabbitMQ, and what waits
// returns all the same. Replicas that go on double nothing.
func TestARedisInTroubleLosesNothing(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, trouble := range map[string]func(*testing.T, *tally, *redisnode.Server, *proxy.Proxy, []*process){
		"cut": func(t *testing.T, l *tally, server *redisnode.Server, between *proxy.Proxy, _ []*process) {
			random := random(t)
			for range times(5, 15) {
				cutUnderLoad(l, between, random.Int64N(200_000))
				must(t, errOf(server.Do(ctx, "SCRIPT", "FLUSH", "SYNC")))
			}
		},
		"full": func(t *testing.T, l *tally, server *redisnode.Server, _ *proxy.Proxy, all []*process) {
			l.publish(1000)
			limit := func(to int) {
				must(t, errOf(server.Do(ctx, "CONFIG", "SET", "maxmemory", strconv.Itoa(to))))
			}
			used, err := strconv.Atoi(server.Info(ctx, "memory", "used_memory"))
			must(t, err)
			limit(used / 2)
			l.publish(200)
			brokertest.Eventually(t, "a service says that the store is full", func() bool {
				return strings.Contains(all[0].readyz()+all[1].readyz(), "the store is full")
			})
			brokertest.Eventually(t, "all that waits has returned", func() bool {
				return all[0].count("state:waiting") == 0
			})
			brokertest.Eventually(t, "what has failed is RabbitMQ's", func() bool {
				return l.v.Messages(wire.QueueIntake) > 0
			})
			limit(0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			eachRedis(t, func(t *testing.T, v *brokertest.VHost, o redisnode.Options) {
				server := redisnode.New(t, o)
				between := proxy.New(t, server.Addr())
				l, all := onReplicas(t, v, "redis://"+between.Addr(), synced, longLease)
				trouble(t, l, server, between, all)
				finish(l, all)
			})
		})
	}
}

// With Sentinel a write is safe when each replica has it: whichever becomes the primary.
// One is enough for a primary that dies, since Sentinel chooses the replica that has
// most; but when a person asks for a failover, the old primary goes on for a moment, with
// the other replica.
func TestASentinelFailoverLosesNothing(t *testing.T) {
	longOnly(t)
	eachRedis(t, func(t *testing.T, v *brokertest.VHost, o redisnode.Options) {
		ctx := context.Background()
		sentinel := redisnode.NewSentinel(t, o)
		l, all := newTally(t, v, "orders"), replicas(t, v, 2, sentinel.URL(), "durability: replicated, replicas: 2",
			shortLease)
		waitLong(all)
		start(all)
		consuming(t, l)
		l.publish(500)
		<-time.After(wait)
		l.during(func() {
			primary, err := sentinel.Failover(ctx)
			must(t, err)
			l.publish(500)
			<-time.After(wait)
			killWithoutReplicas(t, l, all, primary, sentinel.Servers)
			must(t, errOf(sentinel.AwaitPrimary(ctx, primary)))
			must(t, primary.Restart(ctx))
		})
		finish(l, all)
	})
}

// waitLong lets what fails wait until killWithoutReplicas kills: there is more to lose.
func waitLong(all []*process) {
	for _, p := range all {
		p.configure(strings.Replace(unbroken, "150ms", "4s", 1))
	}
}

// killWithoutReplicas kills a primary when it has taken what its replicas have not, since
// they stand still and their connections are cut: that is lost with it, and so no one may
// have relied on it.
func killWithoutReplicas(t *testing.T, l *tally, all []*process, primary *redisnode.Server,
	servers []*redisnode.Server) {
	t.Helper()
	ctx := context.Background()
	var still []*redisnode.Server
	for _, s := range servers {
		if s.Follows(ctx, primary) {
			must(t, s.Pause())
			still = append(still, s)
		}
	}
	if len(still) == 0 {
		t.Fatal("the primary has no replica")
	}
	must(t, errOf(primary.Do(ctx, "CLIENT", "KILL", "TYPE", "replica")))
	l.publish(200)
	unsafe(t, all)
	primary.Kill()
	for _, s := range still {
		must(t, s.Continue())
	}
}

// Replicas that stand still make nothing safe: the intake stops, and offers again what
// the primary has already taken. When they go on nothing has come twice.
func TestFrozenReplicasOfRedisDuplicateNothing(t *testing.T) {
	longOnly(t)
	eachRedis(t, func(t *testing.T, v *brokertest.VHost, o redisnode.Options) {
		sentinel := redisnode.NewSentinel(t, o)
		l, all := onReplicas(t, v, sentinel.URL(), "durability: replicated, replicas: 2", longLease)
		l.publish(300)
		for _, s := range sentinel.Servers[1:] {
			must(t, s.Pause())
		}
		l.publish(200)
		unsafe(t, all)
		<-time.After(6 * time.Second) // it is offered again, without success
		for _, s := range sentinel.Servers[1:] {
			must(t, s.Continue())
		}
		finish(l, all)
	})
}

// unsafe waits until the services say that what they keep is not safe.
func unsafe(t *testing.T, all []*process) {
	t.Helper()
	for _, p := range all {
		p.says("did not confirm")
	}
}

// Slots with messages move to another primary; then one dies.
func TestAClusterThatChangesLosesNothing(t *testing.T) {
	longOnly(t)
	const moves = 6
	eachRedis(t, func(t *testing.T, v *brokertest.VHost, o redisnode.Options) {
		ctx := context.Background()
		cluster := redisnode.NewCluster(t, o)
		l, all := newTally(t, v, "orders"), replicas(t, v, 2, cluster.URL(), "durability: replicated", shortLease)
		waitLong(all)
		start(all)
		consuming(t, l)
		slot, err := cluster.Slot(ctx, "{redrive}")
		must(t, err)
		l.during(func() {
			for range moves {
				l.publish(200)
				moveSlot(t, cluster, slot)
			}
			primary := cluster.Owner(ctx, slot)
			killWithoutReplicas(t, l, all, primary, cluster.Servers)
			must(t, errOf(cluster.AwaitOwner(ctx, slot, primary)))
			must(t, primary.Restart(ctx))
		})
		finish(l, all)
	})
}

// moveSlot moves a slot to another primary.
func moveSlot(t *testing.T, cluster *redisnode.Cluster, slot int) (to *redisnode.Server) {
	t.Helper()
	if to = cluster.Servers[0]; to == cluster.Owner(t.Context(), slot) {
		to = cluster.Servers[1]
	}
	must(t, cluster.MoveSlot(t.Context(), slot, to))
	return to
}

// Three processes on one Redis are one service, also while the leader is killed and joins
// again: each message comes once, and what a person does at one holds at all. (That a rate is
// that of all together is TestARateIsThatOfAllTogether of internal/server.)
func TestThreeReplicasAreOneService(t *testing.T) {
	eachRedis(t, func(t *testing.T, v *brokertest.VHost, o redisnode.Options) {
		l, other := newTally(t, v, "orders"), newTally(t, v, "other")
		all := replicas(t, v, 3, redisnode.New(t, o).URL(), synced, shortLease)
		start(all)
		leader := sees(t, all...)
		consuming(t, l)
		consuming(t, other)
		l.publish(500)
		l.during(leader.kill)
		next := sees(t, slices.DeleteFunc(slices.Clone(all), func(p *process) bool { return p == leader })...)
		l.publish(500)
		leader.serve()
		sees(t, all...)
		l.settle(all...)

		at := all[slices.IndexFunc(all, func(p *process) bool { return p != next })]
		must(t, at.PauseQueue(context.Background(), "orders", "test"))
		brokertest.Eventually(t, "all have paused the queue", func() bool {
			before := l.acknowledged()
			l.publish(60)
			other.publish(60) // they return
			other.awaitAcknowledged()
			return l.acknowledged() == before
		})
		must(t, next.ResumeQueue(context.Background(), "orders", ""))
		l.settle(all...)
		for _, p := range all {
			p.term()
		}
		l.account()
		other.account()
	})
}

// An operation goes on where it was, at another replica, each time the one that runs it is
// killed, or stands still for longer than its time and then goes on: in the end its
// account has each message once, done.
func TestAnOperationOutlivesItsReplicas(t *testing.T) {
	eachRedis(t, outlivesItsReplicas)
}

func outlivesItsReplicas(t *testing.T, v *brokertest.VHost, o redisnode.Options) {
	const messages, queue = 1000, "orders"
	v.Queue(queue, nil)
	all := replicas(t, v, 3, redisnode.New(t, o).URL(), synced, shortLease)
	start(all)
	sees(t, all...)
	ctx := context.Background()
	var lines bytes.Buffer
	for i := range messages {
		fmt.Fprintf(&lines, `{"redrive":1,"id":"01900000-0000-7000-8000-%012d","state":"parked","queue":%q,"due":"2026-01-01T00:00:00Z","attempt":1,"message":{"exchange":"","routing_key":%[2]q,"body":"eA=="}}`+"\n", i, queue)
	}
	if im, err := all[0].Import(ctx, &lines, actions.ImportOptions{}); err != nil || im.Count != messages {
		t.Fatalf("imported %d, %v", im.Count, err)
	}
	plan, err := all[1].Plan(ctx, operations.PlanRequest{Verb: actions.Discard, Query: "queue:" + queue})
	if err != nil || plan.Count != messages {
		t.Fatalf("planned %d, %v", plan.Count, err)
	}
	must(t, errOf(all[2].Start(ctx, plan.ID, operations.Start{Rate: 80})))
	random, runs := random(t), all[2]
	for i := range times(2, 4) {
		// Any moment will do: while it reads, changes, or has just changed.
		<-time.After(time.Second + time.Duration(random.IntN(500))*time.Millisecond)
		how := "was killed"
		if i%2 == 0 {
			runs.kill()
		} else {
			how = "stood still"
			runs.signal(syscall.SIGSTOP)
		}
		living := slices.DeleteFunc(slices.Clone(all), func(r *process) bool { return r == runs })
		before, err := living[0].Operation(ctx, plan.ID)
		must(t, err)
		ended := time.Now()
		brokertest.Eventually(t, "the operation goes on", func() bool {
			o, err := living[0].Operation(ctx, plan.ID)
			return err == nil && (o.Done > before.Done+30 || o.State == operations.Finished)
		})
		t.Logf("%s after its replica %s, at %d of %d, it goes on", time.Since(ended).Round(10*time.Millisecond), how,
			before.Done, messages)
		if i%2 == 0 {
			runs.start()
		} else {
			runs.signal(syscall.SIGCONT)
		}
		runs.waitReady()
		runs = sees(t, all...) // the leader has taken it
	}
	brokertest.Eventually(t, "it is finished, at each replica", func() bool {
		for _, r := range all {
			if o, err := r.Operation(ctx, plan.ID); err != nil || o.State != operations.Finished {
				return false
			}
		}
		return true
	})
	account := outcomes(t, all[0].Client, plan.ID)
	if n := all[0].count("state:discarded"); n != messages || len(account) != messages {
		t.Errorf("%d are discarded and %d in the account, of %d", n, len(account), messages)
	}
}

// An operation outlives a primary of Redis that Sentinel replaces, while replicas are
// killed at any point: its account has each message once, and each came.
func TestAnOperationOutlivesAFailoverBySentinel(t *testing.T) {
	longOnly(t)
	eachRedis(t, func(t *testing.T, v *brokertest.VHost, o redisnode.Options) {
		ctx := context.Background()
		sentinel := redisnode.NewSentinel(t, o)
		replayedThrough(t, v, sentinel.URL(), func() {
			primary := sentinel.Primary(ctx)
			primary.Kill()
			must(t, errOf(sentinel.AwaitPrimary(ctx, primary)))
			must(t, primary.Restart(ctx))
		})
	})
}

// It outlives the slot of a cluster that moves, and a primary of it that dies.
func TestAnOperationOutlivesAClusterThatChanges(t *testing.T) {
	longOnly(t)
	eachRedis(t, func(t *testing.T, v *brokertest.VHost, o redisnode.Options) {
		ctx := context.Background()
		cluster := redisnode.NewCluster(t, o)
		replayedThrough(t, v, cluster.URL(), func() {
			slot, err := cluster.Slot(ctx, "{redrive}")
			must(t, err)
			moveSlot(t, cluster, slot)
			owner := moveSlot(t, cluster, slot)
			owner.Kill()
			must(t, errOf(cluster.AwaitOwner(ctx, slot, owner)))
			must(t, owner.Restart(ctx))
		})
	})
}

// replayedThrough has three replicas on a Redis replay messages, kills some of them at
// random while something happens to Redis, and accounts for each message.
func replayedThrough(t *testing.T, v *brokertest.VHost, redis string, happens func()) {
	t.Helper()
	const messages, kills, rate = 3000, 4, 300
	ctx := context.Background()
	s, err := redisstore.Open(ctx, redisstore.Options{URL: redis, Durability: redisstore.Replicated})
	must(t, err)
	want := park(t, s, "orders", messages)
	all := replicas(t, v, 3, redis, "durability: replicated", shortLease)
	for _, p := range all {
		p.configure(stayingAway)
	}
	start(all)
	sees(t, all...)
	v.Queue("orders", amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": wire.ExchangeDeadLetters})
	plan, err := all[1].Plan(ctx, operations.PlanRequest{Verb: actions.Replay, Query: "queue:orders state:parked"})
	if err != nil || plan.Count != messages {
		t.Fatalf("planned %d, %v", plan.Count, err)
	}
	must(t, errOf(all[2].Start(ctx, plan.ID, operations.Start{Rate: rate})))
	random := random(t)
	var killing sync.WaitGroup
	killing.Go(func() {
		for range kills {
			<-time.After(time.Duration(500+random.IntN(1500)) * time.Millisecond)
			r := all[random.IntN(len(all))]
			r.kill()
			r.start()
		}
	})
	<-time.After(time.Second) // into the middle of it
	happens()
	killing.Wait()
	for _, r := range all {
		if o, err := r.Operation(ctx, plan.ID); err == nil {
			t.Logf("when all of that had happened, %d of %d were done", o.Done, messages)
			break
		}
	}
	for _, r := range all {
		brokertest.Eventually(t, "the service is ready", func() bool {
			if r.ended() {
				r.start() // it found no Redis when it was started, and may have taken long to end
			}
			return r.readyz() == ""
		})
	}
	brokertest.Eventually(t, "all have returned", func() bool {
		o, err := all[0].Operation(ctx, plan.ID)
		return err == nil && o.State == operations.Finished &&
			all[0].count("queue:orders (state:waiting OR state:parked)") == 0
	})
	// Each end of a replica, and Redis's under all of them, may double what was in flight.
	replayedOnce(t, all[0].Client, plan.ID, want, taken(t, v, "orders"), 1+kills+len(all))
}
