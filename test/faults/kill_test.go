package faults_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive"
	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/server"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/rabbitnode"
	"github.com/redrive-mq/redrive/wire"
)

func TestKillingTheServiceLosesNothing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, policies string
		kills          iter.Seq[int]
	}{{"disk", policies, times(3, 30)}, {"levels", policiesInRabbitMQ, times(3, 15)}} {
		t.Run(c.name, func(t *testing.T) {
			brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
				l := newTally(t, v, "orders")
				l.various = true
				p := newProcess(t, v.ServiceURL(brokertest.Works("orders")))
				p.configure(c.policies)
				// The store does not know of what waits in RabbitMQ.
				killing(t, p, c.name == "disk", c.kills, l)
			})
		})
	}
}

// killing kills a service so often while messages of tallies fail and come back. It settles
// now and then, which it cannot where the store does not know of what waits.
func killing(t *testing.T, p *process, settles bool, kills iter.Seq[int], all ...*tally) {
	kill := func() {
		all[0].during(p.kill)
		for _, l := range all[1:] {
			l.faults = all[0].faults
		}
	}
	each := func(do func(*tally)) {
		for _, l := range all {
			do(l)
		}
	}
	p.serve() // until the exchange is there RabbitMQ drops what is dead-lettered to it
	p.kill()
	each(func(l *tally) { consuming(t, l) })
	random := random(t)
	for i := range kills {
		p.start()
		if settles && i%10 == 2 {
			each(func(l *tally) { l.settle(p) })
		}
		each(func(l *tally) { l.publish(150) })
		// Any moment will do: while it opens, connects, stores, or retries.
		<-time.After(time.Duration(random.IntN(600)) * time.Millisecond)
		kill()
	}
	p.start()
	each((*tally).awaitAcknowledged)
	kill()
	p.start()
	each(func(l *tally) { l.publish(300) }) // what fails only now comes once, though it has just started after a kill
	each((*tally).awaitAcknowledged)
	p.waitReady()
	each(func(l *tally) { p.balances("--vhost", l.v.Name) })
	p.term()
	each((*tally).account)
}

func TestStoppingTheServiceDuplicatesNothing(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		l := newTally(t, v, "orders")
		p := newProcess(t, v.ServiceURL(brokertest.Works("orders")))
		consuming(t, l)
		for range times(2, 5) {
			p.serve()
			l.publish(1000)
			<-time.After(100 * time.Millisecond) // into the middle of it
			p.term()
		}
		p.start()
		l.awaitAcknowledged()
		l.account()
	})
}

// What is parked in RabbitMQ is taken from there when it is safe on disk, and not
// before.
func TestKillingTheServiceLosesNothingThatIsCollected(t *testing.T) {
	const each = 200
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		p := serve(t, v, policies)
		ch, random := v.Channel(), random(t)
		want := map[string]bool{}
		for range times(2, 10) {
			for range each {
				id := uuid.NewString()
				want[id] = true
				headers := amqp.Table{wire.HeaderID: id, wire.HeaderQueue: "orders", wire.HeaderAttempt: int64(3)}
				must(t, ch.Publish(wire.ExchangeParked, "orders", true, false, amqp.Publishing{DeliveryMode: 2,
					Headers: headers}))
			}
			<-time.After(time.Duration(random.IntN(300)) * time.Millisecond)
			p.kill()
			p.start()
		}
		p.waitReady()
		var got map[string]int
		brokertest.Eventually(t, "all is collected", func() bool {
			got = map[string]int{}
			for _, m := range p.messages("state:parked") {
				got[m.ID]++
			}
			return len(got) == len(want)
		})
		p.term() // what was taken is now acknowledged
		expect.Equal(t, v.Depth(wire.QueueParked), 0, "came back to RabbitMQ")
		duplicates := 0
		for id := range want {
			if got[id] == 0 {
				t.Errorf("%s is lost, and one is parked that was not published", id)
			}
			if got[id] > 11 {
				t.Errorf("%s is parked %d times, more than there were kills", id, got[id])
			}
			duplicates += max(got[id]-1, 0)
		}
		t.Logf("%d messages, %d duplicates", len(want), duplicates)
	})
}

// pairs are messages of which two each are the same.
func pairs(i int) amqp.Publishing { return amqp.Publishing{DeliveryMode: 2, Type: fmt.Sprint(i / 2)} }

// idsOfPairs are the ids of each pair, and how many messages have each.
func idsOfPairs(all []inspect.Message) (ids map[string]map[string]int, n int) {
	ids = map[string]map[string]int{}
	for _, m := range all {
		if ids[m.Type] == nil {
			ids[m.Type] = map[string]int{}
		}
		ids[m.Type][m.ID]++
	}
	return ids, len(all)
}

// A service that is killed while it adopts goes on where it was: each message is parked, and one that is
// parked twice has the same id. Two messages with the same bytes are two.
func TestKillingTheServiceLosesNothingThatIsAdopted(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		p := newProcess(t, v.URL())
		random := random(t)
		p.serve()
		for i := range times(3, 20) {
			dlq := fmt.Sprintf("orders.%d.dlq", i)
			v.Queue(dlq, amqp.Table{"x-queue-type": []string{"quorum", "classic"}[i%2]})
			const n = 3000
			v.PublishMany(dlq, n, pairs)
			brokertest.Eventually(t, "all are there", func() bool { return v.Depth(dlq) == n })
			op := p.begin(operations.PlanRequest{Verb: actions.Adopt, From: dlq, WorkQueues: []string{"orders"}}, 3000)
			for range 2 {
				<-time.After(time.Duration(random.IntN(500)) * time.Millisecond)
				p.kill()
				p.serve()
			}
			p.awaitEnd(&op)
			expect.Equal(t, v.Depth(dlq), 0, "are left")
			ids, all := idsOfPairs(p.messages(fmt.Sprintf("state:parked queue:orders adopted:%s", dlq)))
			for m := range n / 2 {
				if of := ids[fmt.Sprint(m)]; len(of) != 2 {
					t.Errorf("the two messages %d have the ids %v", m, of)
				}
			}
			t.Logf("%d messages, %d duplicates", n, all-n)
		}
		p.balances()
	})
}

// A service that is killed while it puts adopted messages back goes on where it was: each is back in the queue,
// in order, and only those that RabbitMQ had when the service was killed may stand there twice.
func TestKillingTheServiceLosesNothingThatIsPutBack(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		p := newProcess(t, v.URL())
		random := random(t)
		p.serve()
		for i := range times(4, 30) {
			dlq := fmt.Sprintf("orders.%d.dlq", i)
			v.Queue(dlq, amqp.Table{"x-queue-type": []string{"quorum", "classic"}[i%2]})
			const n, kills, window = 3000, 2, 256
			v.PublishMany(dlq, n, func(m int) amqp.Publishing {
				return amqp.Publishing{DeliveryMode: 2, Body: fmt.Append(nil, m)}
			})
			brokertest.Eventually(t, "all are there", func() bool { return v.Depth(dlq) == n })
			p.adopt(operations.PlanRequest{From: dlq, WorkQueues: []string{"orders"}})
			expect.Equal(t, v.Depth(dlq), 0, "are left")
			op := p.begin(operations.PlanRequest{Verb: actions.Unadopt, To: dlq}, 0)
			for range kills {
				<-time.After(time.Duration(random.IntN(200)) * time.Millisecond)
				p.kill()
				p.start()
			}
			p.waitReady()
			p.awaitEnd(&op)
			expect.Equal(t, fmt.Sprint(op.State, op.Done), fmt.Sprint("finished", n), "came of it")
			back := v.Depth(dlq)
			c := v.ConsumeMany(dlq)
			next, twice := 0, 0
			for range back {
				d := c.Next()
				must(t, d.Ack(false))
				switch is, err := strconv.Atoi(string(d.Body)); {
				case err != nil || is > next:
					t.Fatalf("%d comes where %d is missing: %v", is, next, err)
				case is < next:
					twice++
				default:
					next++
				}
			}
			if next != n || twice > kills*window {
				t.Errorf("%d of %d are back, and %d of them twice", next, n, twice)
			}
			expect.Equal(t, p.count("state:parked adopted:"+dlq), 0, "are still parked")
			t.Logf("%d messages, %d twice", n, twice)
		}
		p.balances()
	})
}

// A service that is killed while it follows dead-letter queues goes on: what fails comes back, with its
// attempts counted and one id; what is parked is parked. Two messages with the same bytes are two, with an
// id each, but for those that a kill came between: at that moment nothing tells the second from the first.
func TestKillingTheServiceLosesNothingThatItFollows(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("orders.dlq", amqp.Table{"x-queue-type": "quorum"})
		v.Queue("orders", amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "",
			"x-dead-letter-routing-key": "orders.dlq", "x-dead-letter-strategy": "at-least-once",
			"x-overflow": "reject-publish"})
		l := emptyTally(t, v, "orders")
		l.various = true
		p := newProcess(t, v.ServiceURL(brokertest.Works("orders"), "orders.dlq", "*_error"))
		following := policies + "\nadopt:\n  orders.dlq: {queue: orders, then: retry}\n"
		const n = 3000
		var queues []string
		for i := range times(2, 10) {
			queue := fmt.Sprintf("pairs%d_error", i)
			queues, following = append(queues, queue), following+fmt.Sprintf("  %s: pairs%d\n", queue, i)
			v.Queue(queue, amqp.Table{"x-queue-type": []string{"quorum", "classic"}[i%2]})
			v.PublishMany(queue, n, pairs)
		}
		p.configure(following)
		kills := 2 // of killing itself
		killing(t, p, false, func(yield func(int) bool) {
			for i := range times(4, 30) {
				if kills++; !yield(i) {
					return
				}
			}
		}, l)

		p.serve()
		for i, queue := range queues {
			brokertest.Eventually(t, "all is taken", func() bool { return v.Messages(queue) == 0 })
			ids, all := idsOfPairs(p.messages(fmt.Sprintf("state:parked queue:pairs%d", i)))
			alone := 0
			for m := range n / 2 {
				of, records := ids[fmt.Sprint(m)], 0
				for _, copies := range of {
					records += copies
				}
				if len(of) == 1 {
					alone++
				}
				if records < 2 || len(of) > 2 {
					t.Errorf("the two messages %d of %s have the ids %v", m, queue, of)
				}
			}
			if alone > kills {
				t.Errorf("%d pairs of %s have one id, and a kill came between %d at most", alone, queue, kills)
			}
			t.Logf("%s: %d messages, %d duplicates, %d pairs with one id", queue, n, all-n, alone)
		}
	})
}

// Two virtual hosts have queues of one name and messages of the same ids and bodies,
// and the service of both is killed: each message is in its own, and accounted for.
func TestKillingTheServiceOfTwoVirtualHostsLosesNothing(t *testing.T) {
	brokertest.One(t, func(t *testing.T, first *brokertest.VHost) {
		second := brokertest.NewVHost(t, first.Broker)
		works := brokertest.Works("orders")
		p := newProcess(t, first.ServiceURL(works))
		second.ServiceURL(works)
		password := filepath.Join(t.TempDir(), "password")
		must(t, os.WriteFile(password, []byte(brokertest.ServicePassword), 0o600))
		p.configure(fmt.Sprintf("broker: {vhosts: [{name: %s, user: %s, password_file: %s}]}\n%s", second.Name,
			second.ServiceUser(), password, policies))
		killing(t, p, false, times(3, 8), newTally(t, first, "orders"), newTally(t, second, "orders"))
	})
}

// The machine of the service loses its power, and its disk what was not synced.
func TestCuttingThePowerLosesNothing(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		l := newTally(t, v, "orders")
		l.various = true
		cuttingPower(t, l, times(3, 20))
	})
}

// cuttingPower cuts the power of a service so often while messages of a tally fail and come
// back.
func cuttingPower(t *testing.T, l *tally, cuts iter.Seq[int]) {
	m := newMachine(t, l.v)
	m.start()
	l.inTest = func() string { return m.process().cli("queues") }
	m.waitReady() // until the exchange is there RabbitMQ drops what is dead-lettered to it
	consuming(t, l)
	for i := range cuts {
		if i%10 == 2 {
			m.waitReady()
			l.settle(m.process())
		}
		l.publish(150)
		// Any moment will do: while it opens, connects, stores, or retries.
		<-time.After(time.Duration(m.random.IntN(600)) * time.Millisecond)
		l.during(m.cutPower)
		m.start()
	}
	l.awaitAcknowledged()
	l.during(m.cutPower)
	m.start()
	l.publish(300) // what fails only now comes once, though it has just started after a cut
	l.awaitAcknowledged()
	m.waitReady()
	m.process().balances()
	l.account()
}

// machine runs the service within this process. Its store is on a disk in memory that knows
// what was synced; RabbitMQ is on another machine.
type machine struct {
	t      *testing.T
	v      *brokertest.VHost
	url    string
	random *rand.Rand
	disk   *vfs.MemFS
	log    brokertest.Output
	dying  sync.WaitGroup

	network *brokertest.Proxy
	service *server.Service
	stop    context.CancelFunc
	ended   chan error
}

func newMachine(t *testing.T, v *brokertest.VHost) *machine {
	t.Helper()
	m := &machine{t: t, v: v, random: random(t), disk: vfs.NewCrashableMem()}
	m.url = v.ServiceURL(brokertest.Works("orders"))
	t.Cleanup(func() {
		if m.service != nil {
			m.stop()
			expect.Err(t, <-m.ended, nil, "the service ended with")
		}
		m.dying.Wait()
		if text := m.log.String(); t.Failed() {
			t.Logf("the service said:\n%s", text[max(0, len(text)-4000):])
		}
	})
	return m
}

func (m *machine) start() {
	m.t.Helper()
	m.network = brokertest.NewProxy(m.t, m.v)
	c, err := config.Parse("test.yaml", []byte(policies))
	must(m.t, err)
	c.Broker.URL, c.Store.Disk, c.Listen = m.network.At(m.url), "/data", "127.0.0.1:0"
	s, err := server.New(c, server.Options{Version: "test", Log: slog.New(slog.NewTextHandler(&m.log, nil)),
		FS: roomy{m.disk}})
	must(m.t, err)
	ctx, stop := context.WithCancel(context.Background())
	m.service, m.stop, m.ended = s, stop, make(chan error, 1)
	go func(ended chan<- error) { ended <- s.Run(ctx) }(m.ended)
}

// process is how to ask the service.
func (m *machine) process() *process {
	return &process{t: m.t, listen: m.service.Addr(), Client: httpapi.Client{Addr: m.service.Addr()}}
}

func (m *machine) waitReady() {
	m.t.Helper()
	brokertest.Eventually(m.t, "the service is ready", func() bool { return len(m.service.Problems()) == 0 })
}

// cutPower leaves of the disk what was synced, and by chance some of the rest, torn writes
// too. Nothing of the service reaches RabbitMQ from then on; it ends by itself, on a disk that no
// one reads.
func (m *machine) cutPower() {
	m.network.Refuse()
	m.disk = m.disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: m.random.IntN(101), RNG: m.random})
	stop, ended := m.stop, m.ended
	m.service = nil
	m.dying.Go(func() {
		stop()
		<-ended // with whatever error
	})
}

// roomy is a disk in memory, which cannot tell how much room it has.
type roomy struct{ vfs.FS }

func (roomy) GetDiskUsage(string) (vfs.DiskUsage, error) {
	return vfs.DiskUsage{AvailBytes: 1 << 40, TotalBytes: 1 << 41}, nil
}

// A service and consumers of the library, whose RabbitMQ is killed.
func TestKillingRabbitMQLosesNothing(t *testing.T) {
	brokertest.EachPrivate(t, "", func(t *testing.T, v *brokertest.VHost, n *rabbitnode.Node) {
		theirs := newLibraryTally(t, brokertest.NewVHost(t, v.Broker))
		library(t, theirs, theirs.v.URL())
		theirs.publish(10)
		theirs.awaitAcknowledged()
		killingRabbitMQ(t, newTally(t, v, "orders"), n, times(2, 10), theirs)
		expect.Equal(t, theirs.v.Depth(wire.QueueParked), 0, "messages are parked")
	})
}

// killingRabbitMQ kills a tally's node several times and stops it once. theirs is the library's tally, or nil.
func killingRabbitMQ(t *testing.T, l *tally, n *rabbitnode.Node, kills iter.Seq[int], theirs *tally) {
	const each = 1000 // new messages each time
	v := l.v
	p := serve(t, v, policies)
	// RabbitMQ 3.10 writes the registration of a quorum queue to disk some
	// minutes after it was declared, and a kill before that loses the queue
	// for good [measured on 3.10.8: names.dets]. These queues are to be old.
	must(t, errOf(n.Eval(context.Background(), "[dets:sync(T) || T <- dets:all()].")))
	consuming(t, l)
	during := func(breaks func()) {
		l.publish(each)
		if theirs != nil {
			theirs.publish(2 * each)
		}
		<-time.After(200 * time.Millisecond)
		all := func() { l.during(func() { breaks(); p.waitReady() }) }
		if theirs == nil {
			all()
		} else {
			theirs.during(func() { all(); theirs.consumesAgain() })
		}
	}
	for range kills {
		during(func() { n.Kill(); restart(t, n) })
	}
	during(func() { must(t, errOf(n.Eval(context.Background(), "rabbit:stop(), rabbit:start()."))) })
	for _, tally := range []*tally{l, theirs} {
		if tally != nil {
			tally.awaitAcknowledged()
			p.waitReady()
			tally.end()
		}
	}
}

// restart starts a killed RabbitMQ, and again where a queue's process did not survive the
// recovery [seen on 4.3.6: noproc]: only another start helps, as for any operator.
func restart(t *testing.T, n *rabbitnode.Node) {
	t.Helper()
	for range 10 {
		must(t, n.Restart(context.Background()))
		states := ""
		brokertest.Eventually(t, "RabbitMQ has recovered its queues, or lost one of them", func() bool {
			var err error
			states, err = n.Eval(context.Background(), queueStates)
			return err == nil && !strings.Contains(states, "waits")
		})
		if !strings.Contains(states, "dead") {
			return
		}
		t.Logf("RabbitMQ has not brought all its queues back; starting it again: %s", states)
		n.Kill()
	}
	t.Fatal("RabbitMQ does not recover its own queues")
}

// queueStates asks a node which of its queues are up, wait for a leader, or are dead.
const queueStates = `[{rabbit_misc:rs(amqqueue:get_name(Q)), case amqqueue:get_pid(Q) of
		{Name, _} -> case ra:members({Name, node()}) of
			{ok, _, {_, _}} -> up;
			{error, noproc} -> dead;
			_ -> waits
		end;
		Pid when is_pid(Pid) -> case is_process_alive(Pid) of true -> up; false -> dead end;
		_ -> waits
	end} || Q <- rabbit_amqqueue:list()].`

// stayingAway keeps away what fails again, and retries though no one consumes.
const stayingAway = `policies: [{name: p, queues: ["*"], attempts: 5, backoff: {fixed: 1h}, no_consumer: retry}]`

// An operation whose service is killed at any point goes on where it was: in the end
// its account has each message once, each has come to its consumer, and what came
// twice is known by its marks.
func TestAKilledOperationReplaysEachMessageOnce(t *testing.T) {
	const messages = 3000
	brokertest.OnePrivate(t, "", func(t *testing.T, v *brokertest.VHost, n *rabbitnode.Node) {
		p := newProcess(t, v.ServiceURL(brokertest.Works("orders")))
		p.configure(stayingAway)
		want := p.park("orders", messages)
		v.Queue("orders", amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "redrive"})
		c := newCrashes(p, v, n, "orders")
		p.serve()
		ctx := context.Background()
		plan, err := p.Plan(ctx, operations.PlanRequest{Verb: actions.Replay, Query: "queue:orders state:parked"})
		if err != nil || plan.Count != messages {
			t.Fatalf("%d planned, %v", plan.Count, err)
		}
		must(t, errOf(p.Start(ctx, plan.ID, operations.Start{Rate: 2000})))
		random := random(t)
		for range times(3, 5) {
			// Any moment will do: while it opens, connects, makes due, or retries.
			<-time.After(time.Duration(random.IntN(400)) * time.Millisecond)
			p.kill()
			c.note()
			p.start()
		}
		p.waitReady()
		brokertest.Eventually(t, "all have returned", func() bool {
			o, err := p.Operation(ctx, plan.ID)
			must(t, err)
			return o.State == operations.Finished && p.count("queue:orders (state:waiting OR state:parked)") == 0
		})
		c.take()
		replayedOnce(t, p.Client, plan.ID, want, c.came, 6)
		c.account(want)
	})
}

// outcomes is the account of an operation, in which each message must be once, as done.
func outcomes(t *testing.T, client httpapi.Client, operation string) map[string]bool {
	t.Helper()
	account := map[string]bool{}
	for after := ""; ; {
		page, err := client.Outcomes(context.Background(), operation, after, 1000)
		must(t, err)
		for _, o := range page.Outcomes {
			if o.Outcome != "done" || account[o.ID] {
				t.Errorf("%s: %s %s, in the account before: %v", o.ID, o.Outcome, o.Why, account[o.ID])
			}
			account[o.ID] = true
		}
		if after = page.After; after == "" {
			return account
		}
	}
}

// replayedOnce checks that the account of an operation has each message once, as done,
// and that all have come to their queue, at most so often each.
func replayedOnce(t *testing.T, client httpapi.Client, operation string, want map[string]string, came map[string]int,
	most int) {
	t.Helper()
	duplicates := 0
	account := outcomes(t, client, operation)
	for id, body := range want {
		if !account[id] {
			t.Errorf("%s is not in the account", id)
		}
		if n := came[fmt.Sprint(id, " 0 ", body)]; n == 0 {
			t.Errorf("%s is lost, or came altered", id)
		} else if n > most {
			t.Errorf("%s came %d times", id, n)
		} else {
			duplicates += n - 1
		}
	}
	if len(account) != len(want) || len(came) != len(want) {
		t.Errorf("%d messages in the account and %d at the consumer, want %d", len(account), len(came), len(want))
	}
	t.Logf("%d messages, %d duplicates", len(want), duplicates)
}

// park writes parked messages into the data folder of a service that does not run;
// their bodies by their ids.
func (p *process) park(queue string, n int) map[string]string {
	p.t.Helper()
	s, err := diskstore.Open(p.data(), diskstore.Options{})
	must(p.t, err)
	return park(p.t, s, queue, n)
}

// park keeps parked messages in a store and closes it; their bodies by their ids.
func park(t *testing.T, s store.Store, queue string, n int) map[string]string {
	t.Helper()
	bodies := map[string]string{}
	var all []*store.Record
	for i := range n {
		now := time.Now()
		r := &store.Record{ID: uuid.Must(uuid.NewV7()), Queue: queue, State: store.Parked, Due: now, Failures: 5,
			Reason: wire.ReasonRejected,
			Error:  fmt.Sprintf("no such article: %d", i), Policy: "p", FirstFailed: now, FailedAt: now,
			ParkedFor: "it failed 5 times", Proven: true,
			Message: wire.Message{RoutingKey: queue, DeliveryMode: 2, Body: fmt.Appendf(nil, "body %d", i)}}
		bodies[r.ID.String()] = string(r.Message.Body)
		all = append(all, r)
	}
	must(t, s.Add(context.Background(), all))
	must(t, s.Close())
	return bodies
}

// taken is what a queue holds: how often each id, attempt and body.
func taken(t *testing.T, v *brokertest.VHost, queue string) map[string]int {
	t.Helper()
	ch := v.Channel()
	holds, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	must(t, err)
	in, err := ch.Consume(queue, "", true, false, false, false, nil)
	must(t, err)
	came := map[string]int{}
	for range holds.Messages {
		d := <-in
		came[arrival(d)]++
	}
	return came
}

// crashes knows which messages were in flight at each kill of a service: those that had
// come to their queue, and that the store still kept. Each of them may come once more for
// it, and no other message may.
type crashes struct {
	t        *testing.T
	p        *process
	n        *rabbitnode.Node
	ch       *amqp.Channel
	queue    string
	channels string // as RabbitMQ counts them while the service does not run

	came       map[string]int // as taken
	unfinished map[string]int // by id, at how many kills
	inFlight   int
}

// newCrashes is to be called before the service is started, with the queue declared.
func newCrashes(p *process, v *brokertest.VHost, n *rabbitnode.Node, queue string) *crashes {
	p.t.Helper()
	c := &crashes{t: p.t, p: p, n: n, ch: v.Channel(), queue: queue, came: map[string]int{},
		unfinished: map[string]int{}}
	c.channels = c.open()
	return c
}

// open is how many channels RabbitMQ has.
func (c *crashes) open() string {
	c.t.Helper()
	out, err := c.n.Eval(context.Background(), "length(rabbit_channel:list_local()).")
	must(c.t, err)
	return strings.TrimSpace(out)
}

// note is to be called when the service has been killed. What it had published is in the
// queue's log once its channels are gone.
func (c *crashes) note() {
	c.t.Helper()
	brokertest.Eventually(c.t, "RabbitMQ has ended the channels of the service", func() bool {
		return c.open() == c.channels
	})
	c.take()
	came := map[string]bool{}
	for key := range c.came {
		id, _, _ := strings.Cut(key, " ")
		came[id] = true
	}
	s, err := diskstore.Open(c.p.data(), diskstore.Options{})
	must(c.t, err)
	err = s.Scan(context.Background(), store.Range{}, func(l store.Listed) (bool, error) {
		if id := l.Record.ID.String(); came[id] {
			c.unfinished[id]++
			c.inFlight++
		}
		return true, nil
	})
	must(c.t, err)
	must(c.t, s.Close())
}

// account checks how often each message has come; want has their bodies by their ids.
func (c *crashes) account(want map[string]string) {
	c.t.Helper()
	unexplained := 0
	for id, body := range want {
		n, most := c.came[fmt.Sprint(id, " 0 ", body)], 1+c.unfinished[id]
		if n <= most {
			continue
		}
		if unexplained++; unexplained <= 10 {
			c.t.Errorf("%s came %d times, and was in flight at %d kills", id, n, most-1)
		}
	}
	c.t.Logf("%d messages were in flight at a kill, and %d came more often than that explains", c.inFlight, unexplained)
}

// take takes all that the queue's log holds, and counts it. A message of its own at the end
// tells that there is no more.
func (c *crashes) take() {
	c.t.Helper()
	must(c.t, c.ch.Publish("", c.queue, true, false, amqp.Publishing{DeliveryMode: 2, Type: "end"}))
	in, err := c.ch.Consume(c.queue, "crashes", true, true, false, false, nil)
	must(c.t, err)
	for d := range in {
		if d.Type == "end" {
			break
		}
		c.came[arrival(d)]++
	}
	must(c.t, c.ch.Cancel("crashes", false))
}

// arrival tells deliveries apart by id, attempt and body.
func arrival(d amqp.Delivery) string {
	return fmt.Sprint(d.Headers[wire.HeaderID], " ", d.Headers[wire.HeaderAttempt], " ", string(d.Body))
}

const libraryPrefetch = 200

// newLibraryTally is a tally whose queue only the library consumes.
func newLibraryTally(t *testing.T, v *brokertest.VHost) *tally {
	v.Queue("orders", amqp.Table{"x-queue-type": "quorum"})
	return emptyTally(t, v, "orders")
}

// handle is a handler whose messages fail as the tally's do.
func (t *tally) handle(_ context.Context, m *redrive.Message) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	headers := maps.Clone(amqp.Table(m.Headers))
	headers[wire.HeaderAttempt] = int64(m.Attempt - 1)
	if m.ID != "" {
		headers[wire.HeaderID] = m.ID
	}
	if m.Exchange != "" {
		t.wrong = append(t.wrong, fmt.Sprintf("%q came by the exchange %q", m.MessageID, m.Exchange))
	}
	if t.fails(amqp.Delivery{MessageId: m.MessageID, Body: m.Body, Headers: headers, RoutingKey: m.RoutingKey,
		Redelivered: m.Redelivered}) {
		return errors.New("it fails twice")
	}
	t.done(m.MessageID)
	return nil
}

// library runs a consumer until the function it returns is called, which tells
// what Consume returned.
func library(t *testing.T, l *tally, url string) (stop func() error) {
	t.Helper()
	k := redrive.Consumer{Queue: l.queue, Wait: redrive.Levels(wait), Concurrency: 50, Prefetch: libraryPrefetch,
		Policy: policy.Policy{Attempts: failures + 1, Backoff: policy.Fixed(wait)}, Handler: l.handle}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- redrive.Consume(ctx, redrive.Config{URLs: []string{url}}, k) }()
	stop = sync.OnceValue(func() error {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) { // as where it had not begun yet
			return err
		}
		return nil
	})
	t.Cleanup(func() {
		if t.Failed() { // what waits for what, while it still waits
			var stacks strings.Builder
			_ = pprof.Lookup("goroutine").WriteTo(&stacks, 1)
			t.Logf("goroutines:\n%s", &stacks)
		}
		must(t, stop())
	})
	return stop
}

// consumesAgain waits until the library has a connection again: until then its workers go
// on with what was delivered to them over the one that broke, and RabbitMQ delivers that
// again.
func (t *tally) consumesAgain() {
	t.test.Helper()
	t.mu.Lock()
	failedOnce := fmt.Sprintf("%s-%d 1", t.queue, len(t.bodies))
	t.mu.Unlock()
	t.publish(1)
	brokertest.Eventually(t.test, "the library consumes again", func() bool {
		t.mu.Lock()
		defer t.mu.Unlock()
		return !t.failed[failedOnce].IsZero() // it may be a redelivery, which seen does not count
	})
}

func TestCuttingTheLibrarysConnectionsLosesNothing(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		l := newLibraryTally(t, v)
		proxy := brokertest.NewProxy(t, v)
		library(t, l, proxy.URL)
		random := random(t)
		for range times(5, 10) {
			l.during(func() {
				cutUnderLoad(l, proxy.Proxy, random.Int64N(100_000))
				l.consumesAgain()
			})
		}
		l.awaitAcknowledged()
		l.end()
	})
}

func TestStoppingTheLibraryDuplicatesNothing(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		l := newLibraryTally(t, v)
		for range times(3, 5) {
			stop := library(t, l, v.URL())
			l.publish(500)
			<-time.After(100 * time.Millisecond) // into the middle of it
			must(t, stop())
		}
		library(t, l, v.URL())
		l.awaitAcknowledged()
		l.mu.Lock()
		for id, n := range l.acked {
			if n > 1 {
				l.wrong = append(l.wrong, fmt.Sprintf("%s succeeded %d times", id, n))
			}
		}
		l.mu.Unlock()
		l.account()
	})
}
