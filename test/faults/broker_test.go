package faults_test

import (
	"context"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/rabbitnode"
	"github.com/redrive-mq/redrive/wire"
)

// Under a memory alarm nothing is retried and the intake continues; then all are.
// What was on its way to wait in RabbitMQ just then may come twice.
func TestAMemoryAlarmLosesNothing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, policies string
		stops          int
	}{{"disk", policies, 2}, {"levels", policiesInRabbitMQ, 0}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			brokertest.EachPrivate(t, "", func(t *testing.T, v *brokertest.VHost, n *rabbitnode.Node) {
				l := newTally(t, v, "orders")
				p := newProcess(t, v.ServiceURL(brokertest.Works("orders")))
				p.configure(c.policies)
				p.start()
				p.waitReady()
				l.publish(500)
				watermark := func(to string) {
					if _, err := n.Eval(context.Background(), "vm_memory_monitor:set_vm_memory_high_watermark("+to+")."); err != nil {
						t.Fatal(err)
					}
				}
				l.during(func() {
					watermark("0.00001")
					consuming(t, l)
					blocked := func() bool { return strings.Contains(p.readyz(), "alarm") }
					brokertest.Eventually(t, "the service says that an alarm blocks it", blocked)
					brokertest.Eventually(t, "the intake has taken all", func() bool { return v.Depth("orders") == 0 && v.Depth(wire.QueueIntake) == 0 })
					// A stop gives what was published its 10 s and not more: RabbitMQ would not
					// answer. The machine may be busy, but hardly both times.
					quickest := time.Hour
					for range c.stops {
						brokertest.Eventually(t, "the service says that an alarm blocks it", blocked)
						began := time.Now()
						if err := p.term(); err != nil {
							t.Error(err)
						}
						quickest = min(quickest, time.Since(began))
						p.start()
					}
					if c.stops > 0 && quickest > 11500*time.Millisecond {
						t.Errorf("the quickest stop took %s", quickest)
					}
					watermark("{absolute, 4000000000}")
				})
				l.awaitAcknowledged(acknowledgedWithin)
				p.waitReady()
				l.account()
			})
		})
	}
}

// A queue that is deleted and declared again gets its messages; those of one that
// is gone are parked, and a replay retries them when it exists again.
func TestADeletedQueueLosesNothing(t *testing.T) {
	t.Parallel()
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		p := newProcess(t, v.ServiceURL(brokertest.Works("q")))
		p.configure(`policies: [{name: p, queues: ["*"], backoff: {fixed: 5s}, jitter: none, no_consumer: retry}]`) // the queue is deleted meanwhile
		p.start()
		p.waitReady()
		ch := v.Channel()
		declare := func() { v.Queue("q", amqp.Table{"x-queue-type": "classic", "x-dead-letter-exchange": "redrive"}) }
		fail := func(id string) {
			if err := ch.PublishWithContext(context.Background(), "", "q", true, false, amqp.Publishing{MessageId: id}); err != nil {
				t.Fatal(err)
			}
			brokertest.Eventually(t, id+" arrives", func() bool {
				d, ok, err := ch.Get("q", false)
				if err != nil {
					t.Fatal(err)
				}
				return ok && d.Reject(false) == nil
			})
			// Asked on the same channel, RabbitMQ answers when the queue has released it:
			// its deletion goes by another way, and would take it along.
			if _, err := ch.QueueDeclarePassive("q", true, false, false, false, nil); err != nil {
				t.Fatal(err)
			}
		}
		back := func(id string) {
			brokertest.Eventually(t, id+" comes back", func() bool {
				d, ok, err := ch.Get("q", true)
				if err != nil {
					t.Fatal(err)
				}
				if ok && d.MessageId != id {
					t.Errorf("%s came", d.MessageId)
				}
				return ok
			})
		}
		declare()
		fail("first") // its retry binds the queue
		back("first")
		fail("again")
		v.Must("DELETE", "queues/"+v.Name+"/q", nil)
		declare()
		back("again")

		fail("gone")
		v.Must("DELETE", "queues/"+v.Name+"/q", nil)
		parked := func() string { return p.cli("messages", "list", "--state", "parked") }
		brokertest.Eventually(t, "it is parked", func() bool { return strings.Contains(parked(), "does not exist any more") })
		declare()
		p.cli("replay", "--queue", "q")
		back("gone")
	})
}

// Without a permission messages wait, the service says which is missing, and
// all goes on when it is granted.
func TestARevokedPermissionLosesNothing(t *testing.T) {
	t.Parallel()
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		l := newTally(t, v, "orders")
		p := newProcess(t, v.ServiceURL(brokertest.Works("orders")))
		p.start()
		p.waitReady()
		consuming(t, l)
		l.publish(200)
		l.awaitAcknowledged(acknowledgedWithin)
		l.during(func() { // RabbitMQ ends the channel: what was unanswered on it is sent again
			v.Grant(v.ServiceUser(), "^redrive(\\..*)?$", "^$", ".*")
			v.CloseConnections(v.ServiceUser()) // RabbitMQ remembers a right for as long as a channel lives, up to a minute
			l.publish(200)
			brokertest.Eventually(t, "the service says what is denied", func() bool {
				r := p.readyz()
				return strings.Contains(r, "permission denied") && strings.Contains(r, "binding of queue redrive.")
			})
			v.ServiceURL(brokertest.Works("orders")) // grants them again
		})
		l.awaitAcknowledged(acknowledgedWithin)
		brokertest.Eventually(t, "the service is ready again", func() bool { return p.readyz() == "" })
		l.account()
	})
}

// An exchange "redrive" that anyone may publish to is refused.
func TestAnExchangeThatIsNotInternalIsRefused(t *testing.T) {
	t.Parallel()
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		if err := v.Channel().ExchangeDeclare("redrive", "fanout", true, false, false, false, nil); err != nil {
			t.Fatal(err)
		}
		p := newProcess(t, v.ServiceURL(brokertest.Works("orders")))
		p.start()
		ended := make(chan error, 1)
		go func() { ended <- p.cmd.Wait() }()
		select {
		case err := <-ended:
			if err == nil || !strings.Contains(p.log.String(), "not an internal") {
				t.Errorf("it ended with %v and said %s", err, p.log.String())
			}
			p.cmd = nil
		case <-time.After(30 * time.Second):
			t.Error("it goes on with an exchange that proves nothing")
		}
	})
}
