package redrive_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/wire"
)

func nothing(context.Context, *redrive.Message) error { return nil }

// Consume says at once what a person must correct, in words that name it.
func TestConsumeReportsWhatIsMissing(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		user := "consumer-" + v.Name[len(v.Name)-8:]
		v.User(user, "pw")
		for _, c := range []struct {
			name                   string
			configure, write, read string
			prepare                func()
			change                 func(*setup)
			want                   string
		}{
			{"no queue", ".*", ".*", ".*", func() {}, nil, "declare the work queue first"},
			{"no queue with native", ".*", ".*", ".*", func() {}, func(c *setup) { c.Wait = redrive.Service() }, `queue "orders"`},
			{"wrong password", ".*", ".*", ".*", func() {}, func(c *setup) { c.URLs[0] = v.URLAs(user, "wrong") }, "wrong user or password"},
			{"no virtual host", ".*", ".*", ".*", func() {}, func(c *setup) { c.URLs[0] = strings.Replace(v.URL(), v.Name, "nowhere", 1) }, "the virtual host does not exist"},
			{"nothing is there to verify", "^$", ".*", ".*", func() { v.Queue("orders", amqp.Table{"x-queue-type": "quorum"}) },
				func(c *setup) { c.Wait, c.Verify = redrive.Levels(7*time.Second), true }, `exchange "redrive.delay.7s"`},
			{"no right to declare", "^$", ".*", ".*", func() {}, nil, "set Config.Verify"},
			{"no right to consume", ".*", ".*", "^redrive.*$", func() {}, nil, `consuming queue "orders"`},
		} {
			v.Grant(user, c.configure, c.write, c.read)
			c.prepare()
			cfg := config(t, v, fast(2))
			cfg.URLs[0] = v.URLAs(user, "pw")
			if c.change != nil {
				c.change(&cfg)
			}
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			cfg.Handler = nothing
			if err := redrive.Consume(ctx, cfg.Config, cfg.Consumer); err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "pw@") {
				t.Errorf("%s: %v, want %q in it", c.name, err, c.want)
			}
			cancel()
		}
	})
}

// A user without the permission to configure consumes what others have declared.
func TestVerify(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("orders", amqp.Table{"x-queue-type": "quorum"})
		var seen outcomes
		cfg := config(t, v, fast(3))
		if err := consume(t, cfg, nothing)(); err != nil { // it is stopped while it begins
			t.Fatal(err)
		}
		settler(t, cfg)
		user := "consumer-" + v.Name[len(v.Name)-8:]
		v.User(user, "pw")
		v.Grant(user, "^$", "^redrive\\..*$", "^orders$")
		cfg.URLs[0], cfg.Verify, cfg.Metrics = v.URLAs(user, "pw"), true, seen.metrics()
		consume(t, cfg, func(context.Context, *redrive.Message) error { return errDown })
		v.Publish("", "orders", amqp.Publishing{Body: []byte("7")})
		brokertest.Eventually(t, "it is parked", func() bool { return seen.count(redrive.Retried) == 2 && seen.count(redrive.Parked) == 1 })
	})
	err := redrive.Consume(t.Context(), redrive.Config{URLs: []string{"amqp://localhost"}, Verify: true}, redrive.Consumer{Queue: "q", Policy: fast(2), Wait: redrive.Dynamic(), Handler: nothing})
	if err == nil || !strings.Contains(err.Error(), "Config.Verify") {
		t.Errorf("a way that declares as it goes, with Verify: %v", err)
	}
}

// Of a cluster one node serves as well as another.
func TestAConsumerOfACluster(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("orders", amqp.Table{"x-queue-type": "quorum"})
		var seen outcomes
		cfg := config(t, v, fast(2))
		cfg.URLs, cfg.Metrics = append(cfg.URLs, brokertest.NewProxy(t, v).URL), seen.metrics()
		consume(t, cfg, func(context.Context, *redrive.Message) error { return errDown })
		v.Publish("", "orders", amqp.Publishing{})
		brokertest.Eventually(t, "it is parked", func() bool { return seen.count(redrive.Parked) == 1 })
	})
	_, err := redrive.NewClient(t.Context(), redrive.Config{URLs: []string{"amqp://h1/a", "amqp://h2/b"}})
	if err == nil || !strings.Contains(err.Error(), `Config.URLs has the virtual host "a" at h1 and "b" at h2`) {
		t.Errorf("brokers with two virtual hosts: %v", err)
	}
}

// A message that can be published nowhere again stays RabbitMQ's, is said once,
// and holds up no one.
func TestAMessageThatCannotBePublishedStaysInItsQueue(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("orders", amqp.Table{"x-queue-type": "quorum"})
		var seen outcomes
		var log safeLog
		cfg := config(t, v, fast(2))
		cfg.Metrics, cfg.Log = seen.metrics(), slog.New(slog.NewTextHandler(&log, nil))
		stop := consume(t, cfg, func(_ context.Context, m *redrive.Message) error { return errDown })
		v.Publish("", "orders", amqp.Publishing{Body: []byte("large"), Headers: amqp.Table{"h": strings.Repeat("x", 131072-100)}})
		v.Publish("", "orders", amqp.Publishing{Body: []byte("small")})
		brokertest.Eventually(t, "the other is parked", func() bool { return seen.count(redrive.Parked) == 1 && seen.count(redrive.Unsettled) == 1 })
		if err := stop(); err != nil {
			t.Error(err)
		}
		if n := strings.Count(log.String(), "neither for its retry nor to redrive.parked"); n != 1 || strings.Contains(log.String(), "xxxx") {
			t.Errorf("said %d times: %.2000s", n, log.String())
		}
		brokertest.Eventually(t, "it is in its queue", func() bool { return v.Depth("orders") == 1 })
	})
}

// An outage is said once, and its end; nothing is lost meanwhile.
func TestAnOutageOfTheDelayQueueIsLoggedOnce(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("orders", amqp.Table{"x-queue-type": "quorum"})
		const n = 20
		var seen outcomes
		var log safeLog
		var tried atomic.Int64
		cfg := config(t, v, fast(2))
		settler(t, cfg) // declares what Verify will find
		cfg.Verify, cfg.Metrics, cfg.Log, cfg.Concurrency, cfg.Prefetch = true, seen.metrics(), slog.New(slog.NewTextHandler(&log, nil)), n, n
		exchange := wire.ExchangeParked
		stop := consume(t, cfg, func(context.Context, *redrive.Message) error { tried.Add(1); return redrive.Park(errDown) })
		if err := v.Channel().QueueUnbind(wire.QueueParked, "", exchange, nil); err != nil {
			t.Fatal(err)
		}
		for range n {
			v.Publish("", "orders", amqp.Publishing{Body: []byte("7")})
		}
		brokertest.Eventually(t, "it is said", func() bool {
			return tried.Load() == n && strings.Contains(log.String(), "failed messages cannot be published")
		})
		if err := v.Channel().QueueBind(wire.QueueParked, "", exchange, false, nil); err != nil {
			t.Fatal(err)
		}
		brokertest.Eventually(t, "all are parked", func() bool { return seen.count(redrive.Parked) == n })
		if err := stop(); err != nil {
			t.Error(err)
		}
		for _, line := range []string{"failed messages cannot be published", "failed messages are published again"} {
			if got := strings.Count(log.String(), line); got != 1 {
				t.Errorf("%q is said %d times: %s", line, got, log.String())
			}
		}
	})
}

// safeLog is a log that is read while it is written.
type safeLog struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *safeLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *safeLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// A panic is logged once, with its stack.
func TestAPanicIsLoggedWithItsStack(t *testing.T) {
	v := brokertest.NewVHost(t, brokertest.All(t)[0])
	v.Queue("orders", amqp.Table{"x-queue-type": "quorum"})
	var seen outcomes
	var log safeLog
	cfg := config(t, v, fast(1))
	cfg.Metrics, cfg.Log = seen.metrics(), slog.New(slog.NewTextHandler(&log, nil))
	stop := consume(t, cfg, func(context.Context, *redrive.Message) error { panic("no such order") })
	v.Publish("", "orders", amqp.Publishing{Body: []byte("secret")})
	brokertest.Eventually(t, "it is parked", func() bool { return seen.count(redrive.Parked) == 1 })
	_ = stop()
	if s := log.String(); strings.Count(s, "a handler panicked") != 1 || !strings.Contains(s, "life_test.go") || strings.Contains(s, "secret") {
		t.Error(s)
	}
}

// The queue is deleted and declared again: consuming goes on, and failed messages
// still find it.
func TestADeletedQueueIsConsumedAgain(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("orders", amqp.Table{"x-queue-type": "quorum"})
		var seen outcomes
		cfg := config(t, v, fast(2))
		cfg.Metrics = seen.metrics()
		stop := consume(t, cfg, func(_ context.Context, m *redrive.Message) error {
			if m.Attempt == 1 {
				return errDown
			}
			return nil
		})
		brokertest.Eventually(t, "it consumes", func() bool { return seen.connections() == 1 })
		v.Must("DELETE", "queues/"+v.Name+"/orders", nil)
		// Declared again before this, RabbitMQ 3.10 forgets the consumers of a quorum
		// queue and tells no client. [measured on 3.10.8]
		brokertest.Eventually(t, "it is told", func() bool { return seen.losses() > 0 })
		v.Queue("orders", amqp.Table{"x-queue-type": "quorum"})
		brokertest.Eventually(t, "it consumes again", func() bool { return seen.connections() == 2 })
		v.Publish("", "orders", amqp.Publishing{})
		brokertest.Eventually(t, "it is handled", func() bool { return seen.count(redrive.Succeeded) == 1 })
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// What was prefetched goes back as if it had never been delivered, the handler
// under way finishes, and a failure is published to its delay queue.
func TestAConsumerFinishesItsMessagesBeforeItStops(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("orders", amqp.Table{"x-queue-type": "quorum"})
		for i := range 20 {
			v.Publish("", "orders", amqp.Publishing{Body: fmt.Append(nil, i)})
		}
		var seen outcomes
		cfg := config(t, v, fast(1))
		cfg.Metrics, cfg.Prefetch = seen.metrics(), 20
		began, end := make(chan struct{}, 20), make(chan struct{})
		stop := consume(t, cfg, func(ctx context.Context, m *redrive.Message) error {
			began <- struct{}{}
			<-end
			if ctx.Err() != nil {
				t.Error("the context of a handler under way ended")
			}
			return errDown
		})
		<-began
		ended := make(chan error)
		go func() { ended <- stop() }()
		close(end)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if seen.losses() != seen.connections() {
			t.Errorf("connected %d times, and not %d times", seen.connections(), seen.losses())
		}
		n := seen.count(redrive.Parked)
		if n == 0 || v.Depth(wire.QueueParked) != n {
			t.Errorf("%d parked, %d in redrive.parked", n, v.Depth(wire.QueueParked))
		}
		brokertest.Eventually(t, "the others are in their queue", func() bool { return v.Depth("orders") == 20-n })
		d := v.Consume("orders").Next()
		if count, _ := d.Headers["x-delivery-count"].(int64); v.Since4() && count != 0 {
			t.Errorf("what was only prefetched has the delivery count %d", count)
		}
	})
}

// A handler that ignores its context does not hang Run.
func TestAStopDoesNotWaitForAHandlerThatHangs(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("orders", amqp.Table{"x-queue-type": "quorum"})
		cfg := config(t, v, fast(2))
		cfg.Shutdown, cfg.Concurrency = 50*time.Millisecond, 2
		began, end := make(chan struct{}, 2), make(chan struct{})
		var polite atomic.Bool
		stop := consume(t, cfg, func(ctx context.Context, m *redrive.Message) error {
			began <- struct{}{}
			if string(m.Body) == "polite" {
				<-ctx.Done()
				polite.Store(true)
				return ctx.Err()
			}
			<-end
			return nil
		})
		v.Publish("", "orders", amqp.Publishing{Body: []byte("polite")})
		v.Publish("", "orders", amqp.Publishing{Body: []byte("deaf")})
		<-began
		<-began
		if err := stop(); err == nil || !strings.Contains(err.Error(), "1 of 2 handlers") {
			t.Error(err)
		}
		close(end)
		if !polite.Load() {
			t.Error("the context of a handler did not end")
		}
		brokertest.Eventually(t, "both are in their queue", func() bool { return v.Depth("orders") == 2 })
		if n := v.Depth(wire.QueueParked); n != 0 {
			t.Errorf("%d messages are parked", n)
		}
	})
}

// A slow handler does not hold up the next connection.
func TestASlowHandlerDelaysNoOther(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("orders", amqp.Table{"x-queue-type": "quorum"})
		proxy := brokertest.NewProxy(t, v)
		cfg := config(t, v, fast(2))
		cfg.URLs[0], cfg.Concurrency = proxy.URL, 2
		began, end, quick := make(chan struct{}, 3), make(chan struct{}), make(chan struct{}, 3)
		var once sync.Once
		stop := consume(t, cfg, func(ctx context.Context, m *redrive.Message) error {
			slow := false
			once.Do(func() { slow = true })
			if !slow {
				quick <- struct{}{}
				return nil
			}
			began <- struct{}{}
			<-end
			return errors.New("too late to matter")
		})
		v.Publish("", "orders", amqp.Publishing{Body: []byte("slow")})
		<-began
		proxy.Cut()
		v.Publish("", "orders", amqp.Publishing{Body: []byte("quick")})
		for range 2 { // the slow one comes again
			select {
			case <-quick:
			case <-time.After(30 * time.Second):
				t.Fatal("nothing came on the next connection")
			}
		}
		close(end)
		if err := stop(); err != nil {
			t.Error(err)
		}
		if n := v.Depth("orders") + v.Depth("redrive.delay.50ms"); n != 0 {
			t.Errorf("%d messages are left", n)
		}
	})
}
