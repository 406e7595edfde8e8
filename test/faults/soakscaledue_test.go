package faults_test

import (
	"fmt"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/rabbitnode"
	"github.com/redrive-mq/redrive/wire"
)

// obstacle is why RabbitMQ does not take the messages of a queue for a while.
type obstacle struct {
	kind       string // of the queue
	begin, end func()
	consumed   bool // the queue has its consumer meanwhile
}

// scaleDueAtOnce has very many messages of one queue due at the same time as one of another, and
// then one of that each second.
func scaleDueAtOnce(t *testing.T, r *soakRow) {
	n := r.size(200_000)
	r.onceOnEach(t, thousands(n)+" due at once", func(t *testing.T, v *brokertest.VHost, p *soakPart) {
		dueAtOnce(t, v, p, n, obstacle{kind: "classic", begin: func() {}, end: func() {}, consumed: true})
	})
	if *soakBudget == 0 {
		return // the others take minutes, and TestQueuesThatHangStopNoRetry does as much
	}
	r.onceOnEach(t, thousands(n)+" due at once, of a full queue", func(t *testing.T, v *brokertest.VHost, p *soakPart) {
		dueAtOnce(t, v, p, n, full(t, v))
	})
	brokertest.EachPrivate(t, "", func(t *testing.T, v *brokertest.VHost, node *rabbitnode.Node) {
		oneAtATime.Lock()
		defer oneAtATime.Unlock()
		leader := func(do string) func() {
			return func() {
				_, err := node.Eval(t.Context(), fmt.Sprintf("{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<%q>>, queue, <<%q>>)), ok = sys:%s(amqqueue:get_pid(Q)).", v.Name, many, do))
				must(t, err)
			}
		}
		r.once(t, v, thousands(n)+" due at once, of a queue whose leader hangs", func(t *testing.T, v *brokertest.VHost, p *soakPart) {
			dueAtOnce(t, v, p, n, obstacle{kind: "quorum", begin: leader("suspend"), end: leader("resume")})
		})
	})
}

// many and one are the queues of dueAtOnce.
const many, one = "many", "one"

// full is a queue that takes a thousand messages until it ends, and whose consumer acknowledges
// none.
func full(t *testing.T, v *brokertest.VHost) obstacle {
	var conn *amqp.Connection
	return obstacle{kind: "classic", begin: func() {
		v.Policy("full", "^"+many+"$", 0, map[string]any{"max-length": 1000, "overflow": "reject-publish"})
		conn = v.Dial()
		ch, err := conn.Channel()
		must(t, err)
		must(t, ch.Qos(1, 0, false))
		_, err = ch.Consume(many, "", false, false, false, false, nil)
		must(t, err)
	}, end: func() {
		v.Must("DELETE", "policies/"+v.Name+"/full", nil)
		must(t, conn.Close())
	}}
}

func dueAtOnce(t *testing.T, v *brokertest.VHost, p *soakPart, n int, o obstacle) {
	const ones = 20
	c := p.ofCrowd(newCrowd(t, v, 1, 0, many, one))
	s := newProcess(t, v.ServiceURL(brokertest.Works(many, one)))
	// RabbitMQ may count no consumers of a queue whose leader hangs.
	s.configure(`policies: [{name: p, queues: [many, one], attempts: 50, backoff: {fixed: 2s}, jitter: none, no_consumer: retry}]`)
	due := time.Now().Add(15*time.Second + time.Duration(n)*100*time.Microsecond)
	c.fill(s, 0, n, func(int) time.Time { return due })
	c.fill(s, 1, ones, func(i int) time.Time { return due.Add(time.Duration(i) * time.Second) })
	c.declare(amqp.Table{"x-queue-type": o.kind, "x-dead-letter-exchange": "redrive"})
	s.start()
	s.ready()
	c.consume(500, one)
	if o.consumed {
		c.consume(500, many)
	}
	o.begin()
	if time.Now().After(due) {
		t.Fatalf("this machine takes too long to store %d messages", n)
	}
	c.until(2*time.Minute, "those of the other queue came", func() bool { return c.acknowledged(1) == ones })
	o.end()
	loose := time.Now()
	if !o.consumed {
		c.consume(500, many)
	}
	ended := c.await(5 * time.Minute)
	of := func(first bool) lateness {
		return c.late(func(queue string, at time.Duration) bool {
			return queue == one && first == (at < due.Add(time.Millisecond).Sub(c.began))
		})
	}
	p.atMost(t, "the one of another queue late", of(true).p(100), 3, "s")
	p.atMost(t, fmt.Sprintf("the latest of the next %d, one a second", ones-1), of(false).p(100), 3, "s")
	p.atMost(t, "memory of the service", s.memory(), mostMemory, "MiB")
	if o.consumed {
		late := c.late(func(queue string, _ time.Duration) bool { return queue == many })
		p.atMost(t, "all retried, after they were due", late.p(100), 120, "s")
	} else {
		p.atMost(t, "all retried, after the queue took them", ended.Sub(loose).Seconds(), 120, "s")
	}
	s.balances()
	c.account()
}

// scaleRestart kills a service that keeps a million messages, while some come due.
func scaleRestart(t *testing.T, r *soakRow) {
	n := r.size(1_000_000)
	r.onceOnEach(t, thousands(n)+" waiting", func(t *testing.T, v *brokertest.VHost, p *soakPart) {
		const far, soon, some, delay = "far", "soon", 2000, 5 * time.Second
		c := p.ofCrowd(newCrowd(t, v, 1, delay, soon))
		waiting := newCrowd(t, v, 1, 0, far)
		s := newProcess(t, v.ServiceURL(brokertest.Works(far, soon)))
		s.configure(`policies: [{name: p, queues: [far, soon], attempts: 50, backoff: {fixed: 5s}, jitter: none}]`)
		waiting.fill(s, 0, n, func(int) time.Time { return waiting.began.Add(time.Hour) })
		p.sums.Messages += n
		s.start()
		first := s.ready()
		c.declare(classic)
		c.consume(500, soon)
		must(t, c.publish(t.Context(), some, 0, func(int) int { return 0 }))
		c.until(time.Minute, "all failed", func() bool { failed, _, _ := c.progress(); return failed == some })
		kept := time.Now()
		c.until(time.Minute, "the service has them", func() bool { return v.Depth(wire.QueueIntake) == 0 })
		before := s.memory()
		c.during(s.kill)
		<-time.After(time.Until(kept.Add(delay)))
		started := time.Now()
		s.start()
		ready := s.ready()
		c.until(time.Minute, "one came", func() bool { _, retried, _ := c.progress(); return retried > 0 })
		came := time.Since(started)
		ended := c.await(2 * time.Minute)
		p.atMost(t, "ready after a start", max(first, ready), 5, "s")
		p.atMost(t, "first due message, after the start", came.Seconds(), 5, "s")
		p.atMost(t, fmt.Sprintf("all %s due messages, after the start", thousands(some)), ended.Sub(started).Seconds(), 30, "s")
		p.atMost(t, "memory of the service", max(before, s.memory()), mostMemory, "MiB")
		s.balances()
		p.atMost(t, "memory of the service, after it counted all one by one", s.memory(), mostMemory, "MiB")
		c.account()
		must(t, s.term())
		p.Lost += waiting.missingIn(s)
	})
}

// missingIn is how many of its messages are not in the store of a service that was stopped; others
// fail the test.
func (c *crowd) missingIn(s *process) (n int) {
	c.test.Helper()
	d, err := diskstore.Open(s.data(), diskstore.Options{})
	must(c.test, err)
	defer d.Close()
	must(c.test, d.Scan(c.test.Context(), store.Range{State: store.Waiting, Body: true}, func(l store.Listed) (bool, error) {
		n := 0
		_, err := fmt.Sscan(l.Record.Message.MessageID, &n)
		if err != nil || n >= len(c.all) || c.all[n].acked || string(l.Record.Message.Body) != c.body(n) || l.Record.Queue != c.queues[0] {
			c.test.Errorf("the store has %q of queue %s twice or altered: %.60q", l.Record.Message.MessageID, l.Record.Queue, l.Record.Message.Body)
		} else {
			c.all[n].acked = true
		}
		return true, nil
	}))
	for _, m := range c.all {
		if !m.acked {
			n++
		}
	}
	if n > 0 {
		c.test.Errorf("%d of %d messages are not in the store", n, len(c.all))
	}
	return n
}
