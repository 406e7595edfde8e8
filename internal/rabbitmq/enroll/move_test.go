package enroll_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"

	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/rabbitmq/enroll"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/rabbitnode"
	"github.com/redrive-mq/redrive/wire"
)

// TestMain makes this binary a move of its own when a test starts it so, to kill it.
func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		os.Exit(child())
	}
	idle := goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop") // kept for the next request
	goleak.VerifyTestMain(m, idle, goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"))
}

// old declares the queue that is moved: its dead-letter exchange is an argument, a
// policy applies, and it is bound to exchanges of several types.
func old(v *brokertest.VHost, kind string) {
	v.Queue("dead", amqp.Table{"x-queue-type": "classic"})
	v.Exchange("dlx", "fanout", "dead")
	v.Queue("old", amqp.Table{"x-queue-type": kind, "x-dead-letter-exchange": "dlx", "x-max-length": int64(1_000_000)})
	v.Queue("other", nil)
	v.Exchange("direct", "direct", "old", "other")
	v.Exchange("topic", "topic", "other")
	v.Exchange("headers", "headers")
	v.Exchange("fan", "fanout", "old")
	v.Policy("theirs", "^old$", 5, map[string]any{"max-length-bytes": 500_000_000})
	ch := v.Channel()
	for _, err := range []error{
		ch.QueueBind("old", "a.#", "topic", false, nil),
		ch.QueueBind("old", "*.b", "topic", false, nil), // a.b matches both, and comes once
		ch.QueueBind("old", "", "headers", false, amqp.Table{"x-match": "all", "for": "old"}),
		ch.ExchangeBind("direct", "a.#", "topic", false, nil),
	} {
		if err != nil {
			panic(err)
		}
	}
}

// mover is a move of old to new that says what it does to the test.
func mover(t *testing.T, v *brokertest.VHost, url string) *enroll.Move {
	return &enroll.Move{From: "old", To: "new", Quiet: time.Second, API: v.API(), Broker: broker.Config{URL: url, Name: "move"},
		Report: func(s string) { t.Log(s) }, Progress: func(int) {}}
}

// all takes all messages of a queue, in order.
func all(t *testing.T, v *brokertest.VHost, queue string) (got []amqp.Delivery) {
	t.Helper()
	ch := v.Channel()
	for {
		d, ok, err := ch.Get(queue, true)
		must(t, err)
		if !ok {
			return got
		}
		got = append(got, d)
	}
}

func TestAQueueIsMovedWhileItIsPublishedTo(t *testing.T) {
	t.Parallel()
	for _, kinds := range [][2]string{{"classic", "classic"}, {"quorum", "quorum"}, {"classic", "quorum"}} {
		t.Run(strings.Join(kinds[:], " to "), func(t *testing.T) {
			brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
				old(v, kinds[0])
				l := newLedger(t, v)
				l.publish("direct", "old", 3000)
				m := mover(t, v, v.URL())
				if kinds[0] != kinds[1] {
					m.Type = kinds[1]
				}
				stop := l.publishOn()
				must(t, m.Run(t.Context()))
				stop()
				l.check(0)

				q, err := v.API().Queue(t.Context(), "new")
				must(t, err)
				if q.Type != kinds[1] || q.Arguments["x-dead-letter-exchange"] != nil || q.Arguments["x-max-length"] != 1e6 ||
					q.Effective["dead-letter-exchange"] != "redrive" || q.Effective["max-length-bytes"] != 5e8 {
					t.Errorf("the new queue is %+v", q)
				}
				if s, err := m.Look(t.Context()); err != nil || s.Old != nil || s.Detour {
					t.Errorf("after it: %+v, %v", s, err)
				}
				expect.Err(t, m.Run(t.Context()), nil, "once more")
				bound, err := v.API().QueueBindings(t.Context(), "new")
				if err != nil || len(bound) != 6 { // direct, fan, headers, two of topic, its retry exchange
					t.Errorf("%d bindings, %v: %+v", len(bound), err, bound)
				}
			})
		})
	}
}

// Without RabbitMQ's statistics, and with a policy above the one in force that the queue's type does not have.
func TestAQueueIsMovedWithoutStatistics(t *testing.T) {
	config := "management_agent.disable_metrics_collector = true\nmanagement.disable_stats = true"
	brokertest.OnePrivate(t, config, func(t *testing.T, v *brokertest.VHost, _ *rabbitnode.Node) {
		old(v, "classic")
		v.Policy("other-type", "^old$", 9, map[string]any{"max-length": 7, "stream-max-segment-size-bytes": 1000})
		v.Queue("old-retry", amqp.Table{"x-queue-type": "classic", "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "old", "x-message-ttl": int64(1000)})
		l := newLedger(t, v)
		l.publish("direct", "old", 300)
		m := mover(t, v, v.URL())
		ch := v.Channel()
		for queue, says := range map[string]string{"old": "name no consumers", "old-retry": "as it has consumers"} {
			_, err := ch.Consume(queue, "theirs", false, false, false, false, nil)
			must(t, err)
			err = m.Run(t.Context())
			if !errors.Is(err, enroll.ErrConsumers) || !strings.Contains(err.Error(), says) {
				t.Errorf("with a consumer of %q: %v", queue, err)
			}
			must(t, ch.Close())
			ch = v.Channel()
		}
		must(t, m.Run(t.Context()))
		l.check(0)
		q, err := v.API().QueueInForce(t.Context(), "new")
		if err != nil || q.Effective["dead-letter-exchange"] != "redrive" || q.Effective["max-length-bytes"] != 5e8 || q.Effective["max-length"] != nil {
			t.Errorf("the new queue is %+v, %v", q, err)
		}
	})
}

// What a message was published with comes along, and it is persistent; RabbitMQ's own counts do not,
// nor a user-id that RabbitMQ would refuse.
func TestAMessageIsMovedAsItIs(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"classic", "quorum"} {
		t.Run(kind, func(t *testing.T) {
			brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
				old(v, kind)
				want := amqp.Publishing{Headers: amqp.Table{"n": int8(-3), "CC": []any{"other"}, "nested": amqp.Table{"list": []any{int32(1), "a", nil, amqp.Table{}}},
					"when": time.Unix(7, 0), "bytes": []byte{0, 255}, "for": "old", "x-death": []any{amqp.Table{"queue": "old", "reason": "rejected", "count": int64(2), "exchange": "x", "routing-keys": []any{"k"}}}},
					ContentType: "text/plain", ContentEncoding: "gzip", DeliveryMode: 2, Priority: 7, CorrelationId: "c", ReplyTo: "r",
					Expiration: "86400000", MessageId: "m", Timestamp: time.Unix(9, 0), Type: "t", AppId: "a", Body: []byte{0, 1, 255}}
				without := maps.Clone(want.Headers)
				delete(without, "CC") // the first time it copies, as it should
				first := want
				first.Headers = without
				v.Publish("direct", "old", first)
				big := amqp.Publishing{DeliveryMode: 2, Body: bytes.Repeat([]byte("x"), 300_000)}
				v.Publish("direct", "old", big)
				v.Publish("direct", "old", amqp.Publishing{UserId: "guest", DeliveryMode: 1})
				c := v.Consume("old") // a failure before, that a quorum queue counts
				must(t, c.Next().Nack(false, true))
				must(t, c.Channel.Close())
				before := look(t, v, "old", 3)
				must(t, mover(t, v, v.URL()).Run(t.Context()))
				after := all(t, v, "new")
				for _, d := range after {
					if n, _ := d.Headers["x-delivery-count"].(int64); n > 0 {
						t.Errorf("message %q has a delivery count of %d", d.MessageId, n)
					}
				}
				if len(after) != 3 {
					t.Fatalf("%d messages are there", len(after))
				}
				for _, some := range [][]amqp.Delivery{before, after} {
					for i := range some { // RabbitMQ's own, again at each delivery
						delete(some[i].Headers, "x-delivery-count")
						delete(some[i].Headers, "x-acquired-count")
						some[i].DeliveryMode = amqp.Persistent
						if len(some[i].Headers) == 0 {
							some[i].Headers = nil
						}
					}
				}
				ignore := cmpopts.IgnoreFields(amqp.Delivery{}, "Acknowledger", "DeliveryTag", "ConsumerTag", "Redelivered", "Exchange", "MessageCount")
				expect.Equal(t, cmp.Diff(before, after, ignore), "", "(-before +after)\n")
				if n := len(all(t, v, "other")); n > 0 {
					t.Errorf("%d copies are elsewhere", n)
				}
			})
		})
	}
}

// What no client can publish again stops the move, and stays where it is.
func TestAMessageThatCannotBePublishedAgainStaysInItsQueue(t *testing.T) {
	t.Parallel()
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		old(v, "quorum")
		table := brokertest.TextField("deep", "enough")
		for range 40 {
			table = brokertest.Field("t", 'F', brokertest.Sized(table))
		}
		v.Publish("direct", "old", amqp.Publishing{Body: []byte("before")})
		v.Raw(v.URL()).Publish("direct", "old", table, "deep")
		v.Publish("direct", "old", amqp.Publishing{Body: []byte("behind")})
		err := mover(t, v, v.URL()).Run(t.Context())
		if !errors.Is(err, wire.ErrUnacceptable) || !strings.Contains(err.Error(), "nested more than 32 deep") || hint.Of(err) != "remove it by hand" {
			t.Errorf("the move ends with %v, hint %q", err, hint.Of(err))
		}
		brokertest.Eventually(t, "each is in one of the queues", func() bool { return v.Depth("old") == 2 && v.Depth("new") == 1 })
	})
}

// look looks at the first n messages of a queue.
func look(t *testing.T, v *brokertest.VHost, queue string, n int) (got []amqp.Delivery) {
	t.Helper()
	ch := v.Channel()
	for range n {
		d, ok, err := ch.Get(queue, false)
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		got = append(got, d)
	}
	must(t, ch.Nack(0, true, true))
	return got
}

// What arrives while a quorum queue is deleted is moved, and counted.
func TestWhatIsMovedAtTheEndIsCounted(t *testing.T) {
	t.Parallel()
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		old(v, "quorum")
		l := newLedger(t, v)
		l.publish("", "old", 300)
		v.Queue("new", nil)
		v.Exchange(wire.RetryExchange("new"), "fanout", "new")
		c, err := broker.NewMover(t.Context(), broker.Config{URL: v.URL(), Name: "move"}, "lock")
		must(t, err)
		defer c.Close()
		counted := 0
		brokertest.Eventually(t, "the queue is deleted", func() bool {
			moved, err := c.DeleteQuorum(t.Context(), "old", wire.RetryExchange("new"))
			if counted += moved; err != nil && !errors.Is(err, broker.ErrNotEmpty) && !errors.Is(err, broker.ErrInUse) {
				t.Fatal(err)
			}
			return err == nil
		})
		expect.Equal(t, counted, 300, "messages are counted")
		l.check(0)
	})
}

// The window shrinks for large messages, while more come; nothing under way then is
// acknowledged with what is.
func TestMessagesOfManySizesAreMoved(t *testing.T) {
	t.Parallel()
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		old(v, "quorum")
		l := newLedger(t, v)
		for range 20 {
			l.publish("direct", "old", 200)
			l.body = make([]byte, 1<<20)
			l.publish("direct", "old", 3)
			l.body = nil
		}
		stop := l.publishOn()
		err := mover(t, v, v.URL()).Run(t.Context())
		stop()
		must(t, err)
		l.check(0)
	})
}

func TestTwoDoNotMoveOneQueue(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		old(v, "classic")
		c, err := broker.NewMover(t.Context(), broker.Config{URL: v.URL(), Name: "first"}, wire.MoveExchange("old"))
		must(t, err)
		defer c.Close()
		if _, err := broker.NewMover(t.Context(), broker.Config{URL: v.URL(), Name: "second"}, wire.MoveExchange("old")); !errors.Is(err, broker.ErrLocked) {
			t.Errorf("the second: %v", err)
		}
	})
}

// A move that loses its connection, and finds that another has the queue then, ends: the other
// one does what is left.
func TestAMoveLeavesTheQueueToAnother(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		old(v, "classic")
		newLedger(t, v).publish("direct", "old", 10)
		proxy := brokertest.NewProxy(t, v)
		m := mover(t, v, proxy.URL)
		m.Quiet = time.Hour
		m.ReconnectFor(3 * time.Second)
		m.Progress = func(int) { proxy.CutAfter(1) }
		var other *broker.Mover
		m.Report = func(s string) { // before it tries again
			t.Log(s)
			for other == nil && proxy.Cuts() > 0 {
				other, _ = broker.NewMover(t.Context(), broker.Config{URL: v.URL(), Name: "second"}, wire.MoveExchange("old"))
			}
		}
		err := m.Run(t.Context())
		if other == nil {
			t.Fatalf("there is no other move; the first: %v", err)
		}
		defer other.Close()
		if !errors.Is(err, broker.ErrLocked) || !strings.Contains(err.Error(), `queue "old" is being moved by another process`) {
			t.Errorf("the first: %v", err)
		}
	})
}

// ledger knows each message that RabbitMQ confirmed.
type ledger struct {
	t    *testing.T
	v    *brokertest.VHost
	ch   *amqp.Channel
	sent int // ids are 0, 1, …
	body []byte
	// disorder: what was under way from a quorum queue may come later after a kill or a cut.
	disorder bool
}

func newLedger(t *testing.T, v *brokertest.VHost) *ledger {
	l := &ledger{t: t, v: v, ch: v.Channel()}
	must(t, l.ch.Confirm(false))
	return l
}

// publish publishes n messages, and waits for RabbitMQ's confirms.
func (l *ledger) publish(exchange, key string, n int) {
	var confirms []*amqp.DeferredConfirmation
	for range n {
		c, err := l.ch.PublishWithDeferredConfirm(exchange, key, true, false, amqp.Publishing{DeliveryMode: amqp.Persistent, MessageId: fmt.Sprint(l.sent),
			Headers: amqp.Table{"for": "old"}, Body: l.body})
		if err != nil {
			l.t.Errorf("publishing: %v", err)
			runtime.Goexit()
		}
		confirms = append(confirms, c)
		l.sent++
	}
	for _, c := range confirms {
		if !c.Wait() {
			l.t.Error("RabbitMQ did not confirm")
		}
	}
}

// publishOn publishes by each exchange in turn, some 100 messages a second, until it is stopped.
func (l *ledger) publishOn() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for pace := time.Tick(80 * time.Millisecond); ctx.Err() == nil; <-pace {
			l.publish("direct", "old", 2)
			l.publish("topic", "a.b", 2)
			l.publish("headers", "", 2)
			l.publish("fan", "", 2)
		}
	}()
	stop = func() { cancel(); <-done }
	l.t.Cleanup(stop)
	return stop
}

// check accounts for each message: in the new queue once, or twice for at most
// doubles of them; the others in no queue.
func (l *ledger) check(doubles int) {
	l.t.Helper()
	count := make([]int, l.sent)
	twice, last := 0, -1
	for _, d := range all(l.t, l.v, "new") {
		var id int
		if _, err := fmt.Sscan(d.MessageId, &id); err != nil {
			l.t.Fatal(err)
		}
		if count[id]++; count[id] > 1 {
			twice++
			continue
		}
		if d.Exchange == wire.RetryExchange("new") && d.Headers["x-death"] == nil { // it was moved
			if id < last && !l.disorder {
				l.t.Errorf("message %d was moved after %d", id, last)
			}
			last = id
		}
	}
	lost := 0
	for id, n := range count {
		if n == 0 {
			lost++
			l.t.Logf("message %d is lost", id)
		}
	}
	if dead := len(all(l.t, l.v, "dead")); lost > 0 || twice > doubles || dead > 0 {
		l.t.Errorf("of %d messages %d are lost, %d came twice (at most %d may), %d are dead letters", l.sent, lost, twice, doubles, dead)
	}
	l.t.Logf("%d messages, %d twice", l.sent, twice)
}

// childEnv makes the test's binary a move of its own: AMQP URL, management URL,
// virtual host and after how many steps it kills itself.
const childEnv = "REDRIVE_TEST_MOVE"

func child() int {
	args := strings.Fields(os.Getenv(childEnv))
	api, err := management.New(args[1], args[2])
	if err != nil {
		panic(err)
	}
	left, err := strconv.Atoi(args[3])
	if err != nil {
		panic(err)
	}
	step := func() {
		if left--; left == 0 {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
	m := &enroll.Move{From: "old", To: "new", Quiet: time.Second, API: api, Broker: broker.Config{URL: args[0], Name: "move"},
		Report: func(s string) { fmt.Println(s); step() }, Progress: func(int) { step() }}
	if err := m.Run(context.Background()); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// start starts a move that kills itself after so many steps; 0: not.
func start(t *testing.T, v *brokertest.VHost, steps int) *exec.Cmd {
	t.Helper()
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %s %d", childEnv, v.URL(), v.Management, v.Name, steps))
	c.Stdout = os.Stderr
	must(t, c.Start())
	return c
}

// ended waits for a move, and reports whether it was done, rather than killed.
func ended(t *testing.T, c *exec.Cmd) bool {
	t.Helper()
	err := c.Wait()
	if status := c.ProcessState.Sys().(syscall.WaitStatus); err != nil && status.Signal() != syscall.SIGKILL {
		t.Fatalf("the move ended: %v", err)
	}
	return err == nil
}

// killed moves old while it is published to, by moves that are killed: kill starts
// one after the other until one is done, and tells how many were not. Each message
// is there then, at most a window of them twice for each kill, those also that were in a queue
// which leads to the old one by its name.
func killed(t *testing.T, kill func(*testing.T, *brokertest.VHost) int) {
	for _, kind := range []string{"classic", "quorum"} {
		t.Run(kind, func(t *testing.T) {
			brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
				if v.Since4() != (kind == "quorum") && !brokertest.Long() {
					return // classic on 3.10 and quorum on 4.3 are enough for each change
				}
				old(v, kind)
				l := newLedger(t, v)
				l.disorder = true
				v.Queue("later", amqp.Table{"x-message-ttl": int64(8000), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "old"})
				l.publish("", "later", 50)
				l.publish("direct", "old", 300)
				stop := l.publishOn()
				kills := kill(t, v)
				stop()
				l.check(kills * 32)
				t.Logf("killed %d times", kills)
			})
		})
	}
}

// Killed after each step that it says, and each batch of messages.
func TestAMoveThatIsKilledAtEachStepGoesOn(t *testing.T) {
	t.Parallel()
	killed(t, func(t *testing.T, v *brokertest.VHost) (kills int) {
		for !ended(t, start(t, v, kills+1)) {
			kills++
		}
		if kills < 5 {
			t.Errorf("it was killed %d times only", kills)
		}
		return kills
	})
}

func TestAMoveThatIsKilledAtAnyMomentLosesNothing(t *testing.T) {
	t.Parallel()
	killed(t, func(t *testing.T, v *brokertest.VHost) (kills int) {
		most := 4
		if brokertest.Long() {
			most = 20
		}
		for range most {
			c := start(t, v, 0)
			time.AfterFunc(100*time.Millisecond+rand.N(1500*time.Millisecond), func() { _ = c.Process.Kill() })
			if ended(t, c) {
				return kills
			}
			kills++
		}
		if !ended(t, start(t, v, 0)) {
			t.Error("it did not end")
		}
		return kills
	})
}

// Cut at any byte, a move goes on by itself.
func TestAMoveWhoseConnectionsAreCutGoesOn(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"classic", "quorum"} {
		t.Run(kind, func(t *testing.T) {
			brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
				if v.Since4() != (kind == "quorum") && !brokertest.Long() {
					return // classic on 3.10 and quorum on 4.3 are enough for each change
				}
				old(v, kind)
				l := newLedger(t, v)
				l.disorder = kind == "quorum"
				l.publish("direct", "old", 2000)
				proxy := brokertest.NewProxy(t, v)
				m := mover(t, v, proxy.URL)
				cuts := 0
				cut := func() {
					if cuts++; cuts <= 10 {
						proxy.CutAfter(rand.Int64N(60_000))
					}
				}
				m.Report = func(s string) { t.Log(s); cut() }
				// Not while the first connection opens: the client takes that for a wrong
				// password, and the person who starts a move learns that.
				proxy.CutAfter(8_000 + rand.Int64N(60_000))
				stop := l.publishOn()
				err := m.Run(t.Context())
				stop()
				must(t, err)
				l.check(proxy.Cuts() * 32)
				t.Logf("cut %d times", proxy.Cuts())
			})
		})
	}
}

var must, errOf = expect.NoError, expect.ErrOf
