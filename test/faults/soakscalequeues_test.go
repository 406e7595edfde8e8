package faults_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/testenv/brokertest"
)

// classic is a queue that dead-letters to the service. Quorum queues would take RabbitMQ a
// process and files for each.
var classic = amqp.Table{"x-queue-type": "classic", "x-dead-letter-exchange": "redrive"}

// scaleQueues has thousands of work queues with some failures each, and kills the service in the
// middle.
func scaleQueues(t *testing.T, r *soakRow) {
	queues, each := r.size(5000), 4
	r.onceOnEach(t, fmt.Sprintf("%s queues", thousands(queues)), func(t *testing.T, v *brokertest.VHost, p *soakPart) {
		const failures = 2
		c := p.ofCrowd(newCrowd(t, v, failures, 2*time.Second, append(names("work", queues), one)...))
		s := newProcess(t, v.ServiceURL(brokertest.Works("work-*", one)))
		s.configure(`policies: [{name: p, queues: ["work-*", one], attempts: 50, backoff: {fixed: 2s}, jitter: none}]`)
		s.start()
		s.waitReady()
		c.declare(classic)
		c.consume(100, c.queues...)
		stop := c.publishing(5, queues)
		began := time.Now()
		must(t, c.publish(t.Context(), queues*each, 0, func(i int) int { return i % queues }))
		c.until(5*time.Minute, "half of the retries came", func() bool {
			_, retried, _ := c.progress()
			return retried >= queues*each*failures/2
		})
		before := s.memory()
		c.during(s.kill)
		s.start()
		ready := s.ready()
		c.until(5*time.Minute, "all succeeded", func() bool { _, _, acked := c.progress(); return acked-c.acknowledged(queues) == queues*each })
		ended := time.Now()
		stop()
		c.await(time.Minute)
		p.atMost(t, "memory of the service", max(before, s.memory()), mostMemory, "MiB")
		p.atMost(t, "ready after the kill", ready, 10, "s")
		p.atMost(t, "from the first message to the last acknowledgement", ended.Sub(began).Seconds(), 180, "s")
		late := c.late(func(queue string, _ time.Duration) bool { return queue != one })
		p.measured("retries late, p50", late.p(50), "s")
		p.measured("retries late, the latest", late.p(100), "s")
		late = c.late(func(queue string, _ time.Duration) bool { return queue == one })
		p.atMost(t, "the latest of one queue with five messages a second", late.p(100), 15, "s")
		s.balances()
		c.account()
	})
}

// scaleBreakers has the consumers of a thousand queues fail for a while, beside one queue whose
// retries succeed.
func scaleBreakers(t *testing.T, r *soakRow) {
	sick := r.size(1000)
	r.onceOnEach(t, fmt.Sprintf("%s queues", thousands(sick)), func(t *testing.T, v *brokertest.VHost, p *soakPart) {
		const each, healthy = 20, "healthy"
		c := p.ofCrowd(newCrowd(t, v, 1, time.Second, append(names("sick", sick), healthy)...))
		var well atomic.Bool
		c.fails = func(queue string, attempt int) bool {
			return queue == healthy && attempt == 0 || queue != healthy && !well.Load()
		}
		s := newProcess(t, v.ServiceURL(brokertest.Works("sick-*", healthy)))
		open := 30 * time.Second // so long that all are open at once
		if *soakBudget == 0 {
			open = 5 * time.Second
		}
		s.configure(fmt.Sprintf(`policies: [{name: p, queues: ["sick-*", healthy], attempts: 1000000, backoff: {fixed: 1s}, jitter: none, settle: 3s,
  breaker: {share: 50%%, least: 10, window: 1m, wait: %s, max_wait: %[1]s, probes: 2, ramp: 5s}}]`, open))
		s.start()
		s.waitReady()
		c.declare(classic)
		c.consume(100, c.queues...)
		states := func() map[string]int {
			n := map[string]int{}
			all, err := httpapi.Client{Addr: s.listen}.Queues(context.Background())
			must(t, err)
			for _, q := range all.Queues {
				if q.Throttle != nil {
					n[q.Throttle.State]++
				}
			}
			return n
		}
		stop := c.publishing(10, sick)
		must(t, c.publish(t.Context(), sick*each, 0, func(i int) int { return i % sick }))
		began, most := time.Now(), 0
		c.until(3*time.Minute, "all breakers are open", func() bool {
			now := states()
			most = max(most, now[string(throttle.Open)]+now[string(throttle.HalfOpen)])
			return most == sick
		})
		p.measured("open or half-open at once, after "+time.Since(began).Round(time.Second).String(), float64(most), "breakers")
		opened := time.Since(c.began)
		<-time.After(open / 2) // the other queue's retries go on
		closing := time.Since(c.began)
		well.Store(true)
		recovers := time.Now()
		c.until(3*time.Minute, "all breakers are closed", func() bool {
			now := states()
			return now[string(throttle.Open)]+now[string(throttle.HalfOpen)]+now[string(throttle.Ramp)] == 0
		})
		closed := time.Since(recovers)
		stop()
		c.await(2 * time.Minute)
		late := c.late(func(queue string, due time.Duration) bool {
			return queue == healthy && due > opened+c.delay && due < closing
		})
		p.atMost(t, "the healthy queue's retries late while all were open, the latest", late.p(100), 1, "s")
		late = c.late(func(queue string, _ time.Duration) bool { return queue == healthy })
		p.measured("the healthy queue's retries late, the latest with those before", late.p(100), "s")
		p.atMost(t, "memory of the service", s.memory(), mostMemory, "MiB")
		p.atMost(t, "all closed, after the consumers recovered", closed.Seconds(), 90, "s")
		s.balances()
		c.account()
	})
}
