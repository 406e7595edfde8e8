package faults_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/rabbitnode"
	"github.com/redrive-mq/redrive/testenv/redisnode"
	"github.com/redrive-mq/redrive/wire"
)

// Under a memory alarm nothing is retried and the intake continues; then all are.
// What was on its way to wait in RabbitMQ just then may come twice.
func TestAMemoryAlarmLosesNothing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, policies string
	}{{"disk", policies}, {"levels", policiesInRabbitMQ}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			brokertest.EachPrivate(t, "", func(t *testing.T, v *brokertest.VHost, n *rabbitnode.Node) {
				l := newTally(t, v, "orders")
				p := serve(t, v, c.policies)
				l.publish(500)
				watermark := func(to string) {
					_, err := n.Eval(context.Background(), "vm_memory_monitor:set_vm_memory_high_watermark("+to+").")
					must(t, err)
				}
				l.during(func() {
					watermark("0.00001")
					consuming(t, l)
					blocked := func() bool { return strings.Contains(p.readyz(), "alarm") }
					brokertest.Eventually(t, "the service says that an alarm blocks it", blocked)
					brokertest.Eventually(t, "the intake has taken all", func() bool { return v.Depth("orders") == 0 && v.Depth(wire.QueueIntake) == 0 })
					if c.name == "disk" { // a stop ends though RabbitMQ does not answer
						p.term()
						p.start()
					}
					watermark("{absolute, 4000000000}")
				})
				l.awaitAcknowledged()
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
		p.configure(`policies: [{name: p, queues: ["*"], backoff: {fixed: 5s}, jitter: none, no_consumer: retry, no_queue: 1s}]`) // the queue is deleted meanwhile
		p.start()
		p.waitReady()
		ch := v.Channel()
		declare := func() { v.Queue("q", amqp.Table{"x-queue-type": "classic", "x-dead-letter-exchange": "redrive"}) }
		fail := func(id string) {
			must(t, ch.PublishWithContext(context.Background(), "", "q", true, false, amqp.Publishing{MessageId: id}))
			brokertest.Eventually(t, id+" arrives", func() bool {
				d, ok, err := ch.Get("q", false)
				must(t, err)
				return ok && d.Reject(false) == nil
			})
			// Asked on the same channel, RabbitMQ answers when the queue has released it:
			// its deletion goes by another way, and would take it along.
			_, err := ch.QueueDeclarePassive("q", true, false, false, false, nil)
			must(t, err)
		}
		back := func(id string) {
			brokertest.Eventually(t, id+" comes back", func() bool {
				d, ok, err := ch.Get("q", true)
				must(t, err)
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
		p := serve(t, v, policies)
		consuming(t, l)
		l.publish(200)
		l.awaitAcknowledged()
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
		l.awaitAcknowledged()
		brokertest.Eventually(t, "the service is ready again", func() bool { return p.readyz() == "" })
		l.account()
	})
}

// An exchange "redrive" that anyone may publish to is refused.
func TestAnExchangeThatIsNotInternalIsRefused(t *testing.T) {
	t.Parallel()
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		must(t, v.Channel().ExchangeDeclare("redrive", "fanout", true, false, false, false, nil))
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
		case <-time.After(time.Minute):
			t.Error("it goes on with an exchange that proves nothing")
		}
	})
}

// With a full disk the intake stops and the messages stay in RabbitMQ; with room
// again it goes on by itself.
func TestAFullDiskLosesNothing(t *testing.T) {
	t.Parallel()
	onASmallDisk(t, func(t *testing.T, v *brokertest.VHost, p *process, l *tally, disk string) {
		p.start()
		p.waitReady()
		consuming(t, l)
		l.publish(200)
		l.awaitAcknowledged()

		ballast := filepath.Join(disk, "ballast")
		fill(t, ballast, disk, 16<<20) // less than the reserve
		l.publish(300)
		brokertest.Eventually(t, "the service says that its disk is full", func() bool { return strings.Contains(p.readyz(), "the store is full") })
		brokertest.Eventually(t, "the messages are RabbitMQ's", func() bool { return v.Messages(wire.QueueIntake) >= 300 })
		must(t, os.Remove(ballast))
		l.awaitAcknowledged()
		p.waitReady()
		l.account()
	})
}

// When somebody else takes the reserve too, to the last byte, the service may
// end. Whatever runs it starts it again, which fails until there is room.
func TestADiskFullToTheLastByteLosesNothing(t *testing.T) {
	t.Parallel()
	onASmallDisk(t, func(t *testing.T, v *brokertest.VHost, p *process, l *tally, disk string) {
		p.supervise()
		p.waitReady()
		consuming(t, l)
		l.publish(200)
		brokertest.Eventually(t, "some returned", func() bool { return l.acknowledged() > 50 })

		l.during(func() {
			ballast := filepath.Join(disk, "ballast")
			fill(t, ballast, disk, 0)
			l.publish(300)
			brokertest.Eventually(t, "the messages are RabbitMQ's", func() bool { return v.Messages(wire.QueueIntake) >= 300 })
			must(t, os.Remove(ballast))
			p.waitReady()
		})
		l.awaitAcknowledged()
		p.waitReady()
		l.account()
	})
}

// onASmallDisk runs a test with a service that is not started
// yet and keeps its data on a disk of 96 MiB, 32 of them in reserve.
func onASmallDisk(t *testing.T, do func(t *testing.T, v *brokertest.VHost, p *process, l *tally, disk string)) {
	if os.Getuid() != 0 {
		t.Skip("not run: mounting a small disk needs root")
	}
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		disk := t.TempDir()
		if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=96m"); err != nil {
			t.Fatalf("mounting a small disk: %v", err)
		}
		t.Cleanup(func() {
			if err := syscall.Unmount(disk, syscall.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
		l := newTally(t, v, "orders")
		p := newProcess(t, v.ServiceURL(brokertest.Works("orders")))
		yaml := fmt.Sprintf("store: {disk: %s, reserve: 32MiB}\nlisten: %s\n%s\n", filepath.Join(disk, "data"), p.listen, policies)
		must(t, os.WriteFile(p.config, []byte(yaml), 0o600))
		do(t, v, p, l, disk)
	})
}

// fill leaves so many bytes free. The service writes meanwhile: what it takes between
// the look and the filling makes that fail, and it is tried again.
func fill(t *testing.T, file, disk string, leave int64) {
	t.Helper()
	f, err := os.Create(file)
	must(t, err)
	defer f.Close()
	for range 100 {
		var s syscall.Statfs_t
		must(t, syscall.Statfs(disk, &s))
		if err = syscall.Fallocate(int(f.Fd()), 0, 0, int64(s.Bavail)*s.Bsize-leave); !errors.Is(err, syscall.ENOSPC) {
			break
		}
	}
	must(t, err)
}

// A service has a large body some times in memory: as RabbitMQ sends it, as it is
// written, and as it is read and published. docs/explanation/speed.md states the bound, for
// any number of them: 270 MiB and ten times the largest body; here, where nothing else is under
// way, 160 MiB.
func TestLargeBodiesTakeBoundedMemory(t *testing.T) {
	t.Parallel()
	t.Run("disk", func(t *testing.T) {
		t.Parallel()
		brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
			takesBoundedMemory(t, v, newProcess(t, v.ServiceURL(brokertest.Works("orders"))))
		})
	})
	t.Run("Redis", func(t *testing.T) {
		t.Parallel()
		eachRedis(t, func(t *testing.T, v *brokertest.VHost, o redisnode.Options) {
			takesBoundedMemory(t, v, replicas(t, v, 1, redisnode.New(t, o).URL(), synced, longLease)[0])
		})
	})
}

func takesBoundedMemory(t *testing.T, v *brokertest.VHost, p *process) {
	const messages = 4
	size := 48 << 20
	if v.Since4() {
		size = 15 << 20 // RabbitMQ 4 takes 16 MiB
	}
	l := newTally(t, v, "orders")
	p.start()
	p.waitReady()
	l.publishLarge(messages, size)
	consuming(t, l)
	l.awaitAcknowledged()
	if is, most := p.peakMemory(), 160+10*size>>20; is > most {
		t.Errorf("%d bodies of %d MiB took %d MiB, more than %d", messages, size>>20, is, most)
	} else {
		t.Logf("%d bodies of %d MiB took %d MiB", messages, size>>20, is)
	}
	l.account()
}

// publishLarge publishes n messages of so many bytes that do not compress, one at a time.
func (t *tally) publishLarge(n, size int) {
	t.test.Helper()
	ch := t.v.Channel()
	defer ch.Close()
	must(t.test, ch.Confirm(false))
	body := make([]byte, size)
	random := rand.NewChaCha8([32]byte{})
	for i := range n {
		_, _ = random.Read(body)
		id := fmt.Sprintf("large-%d", i)
		t.mu.Lock()
		t.bodies[id] = sha256.Sum256(body)
		t.mu.Unlock()
		c, err := ch.PublishWithDeferredConfirm("", t.queue, true, false, amqp.Publishing{MessageId: id, DeliveryMode: 2, Body: body, Headers: amqp.Table{"n": id, "of": t.v.Name}})
		if err != nil || !c.Wait() {
			t.test.Fatalf("RabbitMQ did not confirm a message of the test's own: %v", err)
		}
	}
}

// peakMemory is the most that the service had resident, in MiB.
func (p *process) peakMemory() (mib int) {
	p.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	must(p.t, err)
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			_, err := fmt.Sscan(rest, &mib)
			must(p.t, err)
		}
	}
	return mib >> 10
}
