package faults_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/store/redisstore"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/redisnode"
	"github.com/redrive-mq/redrive/wire"
)

// Three processes on one Redis are one service: what a policy allows a second is that
// of all together, also while the leader is killed and one joins; what a person does
// at one holds at all; and nothing is lost. It measures how many are retried per second: other
// tests would slow it down, so it runs by itself.
func TestThreeReplicasAreOneService(t *testing.T) {
	const rate, queue = 40, "orders"
	redis := redisnode.New(t, redisnode.Options{})
	v := brokertest.NewVHost(t, brokertest.All(t)[0])
	v.Queue(queue, amqp.Table{"x-dead-letter-exchange": wire.ExchangeDeadLetters})
	url := v.ServiceURL(brokertest.Works(queue))
	policies := fmt.Sprintf(`policies: [{name: p, queues: ["*"], attempts: 50, backoff: {fixed: 500ms}, jitter: none, rate: %d/s}]`, rate)
	all := []*replica{newReplica(t, url, redis.Addr(), policies), newReplica(t, url, redis.Addr(), policies), newReplica(t, url, redis.Addr(), policies)}
	for _, r := range all {
		r.waitReady()
	}
	leader := sees(t, 3, all...)
	back := failingOnce(t, v, queue)
	published := 0
	publish := func(n int) {
		for range n {
			published++
			v.Publish("", queue, amqp.Publishing{Body: []byte(fmt.Sprint(published)), DeliveryMode: amqp.Persistent})
		}
	}
	publish(40 * rate)
	brokertest.Eventually(t, "returns", func() bool { return back.between(time.Time{}, time.Now()) > 2*rate })

	began := time.Now()
	<-time.After(12 * time.Second)
	leader.kill()
	killed := time.Now()
	living := slices.DeleteFunc(slices.Clone(all), func(r *replica) bool { return r == leader })
	brokertest.Eventually(t, "another leads", func() bool {
		o, err := living[0].Overview(context.Background())
		return err == nil && slices.ContainsFunc(o.Replicas, func(r inspect.Replica) bool {
			return r.Leads && time.Since(r.Beat) < time.Second && r.Address != leader.listen
		})
	})
	t.Logf("%s after the leader was killed another leads", time.Since(killed).Round(10*time.Millisecond))
	next := sees(t, 2, living...)
	t.Logf("%s after it was killed it is shown no longer", time.Since(killed).Round(10*time.Millisecond))
	<-time.After(time.Until(killed.Add(11 * time.Second)))
	leader.start()
	leader.waitReady()
	joined := time.Now()
	<-time.After(6 * time.Second)
	ended := time.Now()

	var each []int
	for at := began; at.Before(ended); at = at.Add(time.Second) {
		each = append(each, back.between(at, at.Add(time.Second)))
	}
	t.Logf("in each second %v; killed in the %dth, and back in the %dth", each, int(killed.Sub(began).Seconds()), int(joined.Sub(began).Seconds()))
	most, least := 0, 1<<30
	for at := began; at.Add(10 * time.Second).Before(ended); at = at.Add(100 * time.Millisecond) {
		n := back.between(at, at.Add(10*time.Second))
		most, least = max(most, n), min(least, n)
	}
	t.Logf("in ten seconds from %d to %d messages were retried, of %d allowed", least, most, 10*rate)
	// A machine that is slow makes it fewer, and never more.
	if float64(most) > 1.1*10*rate || float64(least) < 0.8*10*rate {
		t.Errorf("in ten seconds from %d to %d messages were retried, of %d allowed", least, most, 10*rate)
	}

	// A pause at one that does not lead is in force at all.
	sees(t, 3, all...)
	at := all[slices.IndexFunc(all, func(r *replica) bool { return r != next })]
	publish(10 * rate)
	if err := at.PauseQueue(context.Background(), queue, "test"); err != nil {
		t.Fatal(err)
	}
	paused := time.Now().Add(time.Second)
	<-time.After(5 * time.Second)
	if n := back.between(paused, time.Now()); n > 0 {
		t.Errorf("%d messages were retried later than a second after the queue was paused at another replica", n)
	}
	if err := next.ResumeQueue(context.Background(), queue, ""); err != nil {
		t.Fatal(err)
	}
	brokertest.Eventually(t, "all are back", func() bool {
		back.mu.Lock()
		defer back.mu.Unlock()
		return len(back.bodies) == published
	})
	again := 0
	for _, n := range back.bodies {
		again += n - 1
	}
	t.Logf("%d messages, %d of them twice", published, again)
	for _, r := range all {
		if err := r.term(); err != nil {
			t.Errorf("after SIGTERM: %v", err)
		}
	}
}

// An operation goes on where it was, at another replica, each time its leader is
// killed, or stands still for longer than its time and then goes on: in the end its
// account has each message once, done.
func TestAnOperationOutlivesItsLeaders(t *testing.T) {
	t.Parallel()
	const messages, kills, queue = 3000, 4, "orders"
	redis := redisnode.New(t, redisnode.Options{})
	v := brokertest.NewVHost(t, brokertest.All(t)[0])
	v.Queue(queue, nil)
	url := v.ServiceURL(brokertest.Works(queue))
	all := []*replica{newReplica(t, url, redis.Addr(), policies), newReplica(t, url, redis.Addr(), policies), newReplica(t, url, redis.Addr(), policies)}
	for _, r := range all {
		r.waitReady()
	}
	leader := sees(t, 3, all...)
	ctx := context.Background()
	var lines bytes.Buffer
	for i := range messages {
		fmt.Fprintf(&lines, `{"redrive":1,"id":"01900000-0000-7000-8000-%012d","state":"parked","queue":%q,"due":"2026-01-01T00:00:00Z","attempt":1,"message":{"exchange":"","routing_key":%[2]q,"body":"eA=="}}`+"\n", i, queue)
	}
	if im, err := all[0].Import(ctx, &lines, false); err != nil || im.Count != messages {
		t.Fatalf("imported %d, %v", im.Count, err)
	}
	plan, err := all[1].Plan(ctx, operations.PlanRequest{Verb: actions.Discard, Query: "queue:" + queue})
	if err != nil || plan.Count != messages {
		t.Fatalf("planned %d, %v", plan.Count, err)
	}
	if _, err := all[2].Start(ctx, plan.ID, operations.Start{Rate: 150}); err != nil {
		t.Fatal(err)
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for i := range kills {
		// Any moment will do: while it reads, changes, or has just changed.
		<-time.After(time.Second + time.Duration(random.IntN(500))*time.Millisecond)
		how := "was killed"
		if i%2 == 0 {
			leader.kill()
		} else {
			how = "stood still"
			leader.signal(syscall.SIGSTOP)
		}
		living := slices.DeleteFunc(slices.Clone(all), func(r *replica) bool { return r == leader })
		before, err := living[0].Operation(ctx, plan.ID)
		if err != nil {
			t.Fatal(err)
		}
		ended := time.Now()
		brokertest.Eventually(t, "the operation goes on", func() bool {
			o, err := living[0].Operation(ctx, plan.ID)
			return err == nil && (o.Done > before.Done+30 || o.State == operations.Finished)
		})
		t.Logf("%s after the leader %s, at %d of %d, it goes on", time.Since(ended).Round(10*time.Millisecond), how, before.Done, messages)
		if i%2 == 0 {
			leader.start()
		} else {
			leader.signal(syscall.SIGCONT)
		}
		leader.waitReady()
		leader = sees(t, 3, all...)
	}
	brokertest.Eventually(t, "it is finished, at each replica", func() bool {
		for _, r := range all {
			if o, err := r.Operation(ctx, plan.ID); err != nil || o.State != operations.Finished {
				return false
			}
		}
		return true
	})
	account := map[string]int{}
	for after := ""; ; {
		page, err := all[0].Outcomes(ctx, plan.ID, after, 1000)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range page.Outcomes {
			if account[o.Key]++; o.Outcome != "done" || account[o.Key] > 1 {
				t.Errorf("%s: %s %s, %d times", o.Key, o.Outcome, o.Why, account[o.Key])
			}
		}
		if after = page.After; after == "" {
			break
		}
	}
	if n, err := all[0].Count(ctx, "state:discarded"); err != nil || n.Count != messages || len(account) != messages {
		t.Errorf("%d are discarded and %d in the account, of %d: %v", n.Count, len(account), messages, err)
	}
}

// An operation outlives a primary of Redis that Sentinel replaces, while replicas are
// killed at any point: its account has each message once, and each came.
func TestAnOperationOutlivesAFailoverBySentinel(t *testing.T) {
	eachRedis(t, func(t *testing.T, v *brokertest.VHost, o redisnode.Options) {
		ctx := context.Background()
		sentinel := redisnode.NewSentinel(t, o)
		replayedThrough(t, v, sentinel.URL(), func() {
			primary := sentinel.Primary(ctx)
			primary.Kill()
			if _, err := sentinel.AwaitPrimary(ctx, primary); err != nil {
				t.Fatal(err)
			}
			if err := primary.Restart(ctx); err != nil {
				t.Fatal(err)
			}
		})
	})
}

// It outlives the slot of a cluster that moves, and a primary of it that dies.
func TestAnOperationOutlivesAClusterThatChanges(t *testing.T) {
	eachRedis(t, func(t *testing.T, v *brokertest.VHost, o redisnode.Options) {
		ctx := context.Background()
		cluster := redisnode.NewCluster(t, o)
		replayedThrough(t, v, cluster.URL(), func() {
			slot, err := cluster.Slot(ctx, "{redrive}")
			if err != nil {
				t.Fatal(err)
			}
			var owner *redisnode.Server
			for range 2 {
				owner = cluster.Servers[0]
				if owner == cluster.Owner(ctx, slot) {
					owner = cluster.Servers[1]
				}
				if err := cluster.MoveSlot(ctx, slot, owner); err != nil {
					t.Fatal(err)
				}
			}
			owner.Kill()
			if _, err := cluster.AwaitOwner(ctx, slot, owner); err != nil {
				t.Fatal(err)
			}
			if err := owner.Restart(ctx); err != nil {
				t.Fatal(err)
			}
		})
	})
}

// replayedThrough has three replicas on a Redis replay messages, kills some of them at
// random while something happens to Redis, and accounts for each message.
func replayedThrough(t *testing.T, v *brokertest.VHost, redis string, happens func()) {
	t.Helper()
	const messages, kills, rate = 3000, 4, 300
	ctx := context.Background()
	url := v.ServiceURL(brokertest.Works("orders"))
	s, err := redisstore.Open(ctx, redisstore.Options{URL: redis, Durability: redisstore.Replicated})
	if err != nil {
		t.Fatal(err)
	}
	want := park(t, s, "orders", messages)
	var all []*replica
	for range 3 {
		all = append(all, newReplicaOn(t, url, redis, "durability: replicated", `policies: [{name: p, queues: [orders], attempts: 5, backoff: {fixed: 1h}, no_consumer: retry}]`))
	}
	for _, r := range all {
		r.waitReady()
	}
	sees(t, 3, all...)
	v.Queue("orders", amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": wire.ExchangeDeadLetters})
	plan, err := all[1].Plan(ctx, operations.PlanRequest{Verb: actions.Replay, Query: "queue:orders state:parked"})
	if err != nil || plan.Count != messages {
		t.Fatalf("planned %d, %v", plan.Count, err)
	}
	if _, err := all[2].Start(ctx, plan.ID, operations.Start{Rate: rate}); err != nil {
		t.Fatal(err)
	}
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
		if err != nil || o.State != operations.Finished {
			return false
		}
		count, err := all[0].Count(ctx, "queue:orders (state:waiting OR state:parked)")
		return err == nil && count.Count == 0
	})
	// What is in flight when a replica is killed, or Redis fails over under all of them, has
	// left within a second.
	if n, most := replayedOnce(t, all[0].Client, plan.ID, want, taken(t, v, "orders")), (kills+len(all))*rate; n > most {
		t.Errorf("%d duplicates, more than %d ends of replicas explain at %d a second", n, kills+len(all), rate)
	}
}
