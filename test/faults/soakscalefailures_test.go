package faults_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/testenv/brokertest"
)

// scaleFailures has messages fail as often as this machine can, 20,000 times a second at most, and
// kills the service in the middle.
func scaleFailures(t *testing.T, r *soakRow) {
	const rate, publishers = 20_000, 2
	n := r.size(30 * rate)
	r.onceOnEach(t, fmt.Sprintf("%s quorum queues, %s messages", thousands(4), thousands(n)), func(t *testing.T, v *brokertest.VHost, p *soakPart) {
		c := p.ofCrowd(newCrowd(t, v, 1, time.Second, names("work", 4)...))
		s := newProcess(t, v.ServiceURL(brokertest.Works("work-*")))
		s.configure(`policies: [{name: p, queues: ["work-*"], attempts: 50, backoff: {fixed: 1s}, jitter: none}]`)
		s.start()
		s.waitReady()
		c.declare(amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "redrive", "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"})
		c.consume(1000, c.queues...)
		began := time.Now()
		var all sync.WaitGroup
		for range publishers {
			all.Go(func() {
				if err := c.publish(t.Context(), n/publishers, rate/publishers, func(i int) int { return i % len(c.queues) }); err != nil {
					t.Error(err)
				}
			})
		}
		failed := func(share float64) {
			c.until(5*time.Minute, "they failed", func() bool { is, _, _ := c.progress(); return float64(is) >= share*float64(n/publishers*publishers) })
		}
		failed(0.5)
		before := s.memory()
		c.during(s.kill)
		s.start()
		ready := s.ready()
		failed(1)
		took := time.Since(began)
		all.Wait()
		ended := c.await(10 * time.Minute)
		p.measured("failures", float64(n)/took.Seconds(), "a second")
		p.atMost(t, "memory of the service", max(before, s.memory()), mostMemory, "MiB")
		p.atMost(t, "ready after the kill", ready, 10, "s")
		p.atMost(t, "all retried, after the last one failed", ended.Sub(began.Add(took)).Seconds(), 300, "s")
		s.balances()
		c.account()
	})
}
