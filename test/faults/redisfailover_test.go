package faults_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/redisnode"
)

// With Sentinel a write is safe when each replica has it: whichever becomes the primary.
// One is enough for a primary that dies, since Sentinel chooses the replica that has
// most; but when a person asks for a failover, the old primary goes on for a moment, with
// the other replica.
func TestASentinelFailoverLosesNothing(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, v *brokertest.VHost, o redisnode.Options) {
		ctx := context.Background()
		sentinel := redisnode.NewSentinel(t, o)
		l, all := newRedisTally(t, v), replicas(t, v, sentinel.URL(), "durability: replicated, replicas: 2", shortLease)
		waitLong(all)
		start(all)
		consuming(t, l)
		l.publish(500)
		<-time.After(wait)
		l.during(func() {
			primary, err := sentinel.Failover(ctx)
			if err != nil {
				t.Fatal(err)
			}
			l.publish(500)
			<-time.After(wait)
			killWithoutReplicas(t, l, all, primary, sentinel.Servers)
			if _, err := sentinel.AwaitPrimary(ctx, primary); err != nil {
				t.Fatal(err)
			}
			if err := primary.Restart(ctx); err != nil {
				t.Fatal(err)
			}
		})
		finish(t, l, all)
		l.account()
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
func killWithoutReplicas(t *testing.T, l *tally, all []*process, primary *redisnode.Server, servers []*redisnode.Server) {
	t.Helper()
	ctx := context.Background()
	var still []*redisnode.Server
	for _, s := range servers {
		if s.Follows(ctx, primary) {
			if err := s.Pause(); err != nil {
				t.Fatal(err)
			}
			still = append(still, s)
		}
	}
	if len(still) == 0 {
		t.Fatal("the primary has no replica")
	}
	if _, err := primary.Do(ctx, "CLIENT", "KILL", "TYPE", "replica"); err != nil {
		t.Fatal(err)
	}
	l.publish(200)
	unsafe(t, all)
	primary.Kill()
	for _, s := range still {
		if err := s.Continue(); err != nil {
			t.Fatal(err)
		}
	}
}

// Replicas that stand still make nothing safe: the intake stops, and offers again what
// the primary has already taken. When they go on nothing has come twice.
func TestFrozenReplicasOfRedisDuplicateNothing(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, v *brokertest.VHost, o redisnode.Options) {
		sentinel := redisnode.NewSentinel(t, o)
		l, all := newRedisTally(t, v), replicas(t, v, sentinel.URL(), "durability: replicated, replicas: 2", longLease)
		start(all)
		consuming(t, l)
		l.publish(300)
		for _, s := range sentinel.Servers[1:] {
			if err := s.Pause(); err != nil {
				t.Fatal(err)
			}
		}
		l.publish(200)
		unsafe(t, all)
		<-time.After(6 * time.Second) // it is offered again, without success
		for _, s := range sentinel.Servers[1:] {
			if err := s.Continue(); err != nil {
				t.Fatal(err)
			}
		}
		finish(t, l, all)
		l.account()
	})
}

// unsafe waits until the services say that what they keep is not safe.
func unsafe(t *testing.T, all []*process) {
	t.Helper()
	brokertest.Eventually(t, "the services say that what they keep is not safe", func() bool {
		return strings.Contains(all[0].readyz(), "did not confirm") && strings.Contains(all[1].readyz(), "did not confirm")
	})
}

// Slots with messages move to another primary; then one dies.
func TestAClusterThatChangesLosesNothing(t *testing.T) {
	t.Parallel()
	const moves = 6
	eachRedis(t, func(t *testing.T, v *brokertest.VHost, o redisnode.Options) {
		ctx := context.Background()
		cluster := redisnode.NewCluster(t, o)
		l, all := newRedisTally(t, v), replicas(t, v, cluster.URL(), "durability: replicated", shortLease)
		waitLong(all)
		start(all)
		consuming(t, l)
		slot, err := cluster.Slot(ctx, "{redrive}")
		if err != nil {
			t.Fatal(err)
		}
		l.during(func() {
			for range moves {
				l.publish(200)
				to := cluster.Servers[0]
				if to == cluster.Owner(ctx, slot) {
					to = cluster.Servers[1]
				}
				if err := cluster.MoveSlot(ctx, slot, to); err != nil {
					t.Fatal(err)
				}
			}
			primary := cluster.Owner(ctx, slot)
			killWithoutReplicas(t, l, all, primary, cluster.Servers)
			if _, err := cluster.AwaitOwner(ctx, slot, primary); err != nil {
				t.Fatal(err)
			}
			if err := primary.Restart(ctx); err != nil {
				t.Fatal(err)
			}
		})
		finish(t, l, all)
		l.account()
	})
}
