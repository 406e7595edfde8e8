package redrive_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/testenv/authority"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/rabbitnode"
	"github.com/redrive-mq/redrive/wire"
)

func nothing(context.Context, *redrive.Message) error { return nil }

func fails(context.Context, *redrive.Message) error { return errDown }

func failsOnce(_ context.Context, m *redrive.Message) error {
	if m.Attempt == 1 {
		return errDown
	}
	return nil
}

// Consume says at once what a person must correct, in words that name it.
func TestConsumeReportsWhatIsMissing(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		user := "consumer-" + v.Name[len(v.Name)-8:]
		v.User(user, "pw")
		all := [3]string{".*", ".*", ".*"}
		for _, c := range []struct {
			name   string
			rights [3]string
			change func(*setup)
			want   string
		}{
			{"no queue", all, nil, "declare the work queue first"},
			{"no queue with native", all, func(c *setup) { c.Wait = redrive.Service() }, `queue "orders"`},
			{"wrong password", all, func(c *setup) { c.URLs[0] = v.URLAs(user, "wrong") }, "wrong user or password"},
			{"no virtual host", all, func(c *setup) { c.URLs[0] = strings.Replace(v.URL(), v.Name, "nowhere", 1) },
				"the virtual host does not exist"},
			{"nothing is there to verify", [3]string{"^$", ".*", ".*"}, func(c *setup) {
				v.Queue("orders", amqp.Table{"x-queue-type": "quorum"})
				c.Wait, c.Verify = redrive.Levels(7*time.Second), true
			}, `exchange "redrive.delay.7s"`},
			{"no right to declare", [3]string{"^$", ".*", ".*"}, nil, "set Config.Verify"},
			{"no right to consume", [3]string{".*", ".*", "^redrive.*$"}, nil, `consuming queue "orders"`},
		} {
			v.Grant(user, c.rights[0], c.rights[1], c.rights[2])
			cfg := config(t, v, fast(2))
			cfg.URLs[0], cfg.Handler = v.URLAs(user, "pw"), nothing
			if c.change != nil {
				c.change(&cfg)
			}
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			err := redrive.Consume(ctx, cfg.Config, cfg.Consumer)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "pw@") {
				t.Errorf("%s: %v, want %q in it", c.name, err, c.want)
			}
			cancel()
		}
	})
}

// A user without the permission to configure consumes what others have declared.
func TestVerify(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		cfg := orders(t, v, fast(3))
		settler(t, cfg)
		user := "consumer-" + v.Name[len(v.Name)-8:]
		v.User(user, "pw")
		v.Grant(user, "^$", "^redrive\\..*$", "^orders$")
		cfg.URLs[0], cfg.Verify = v.URLAs(user, "pw"), true
		consume(t, cfg, fails)
		v.Publish("", "orders", amqp.Publishing{Body: []byte("7")})
		cfg.seen.await(t, redrive.Retried, 2)
		cfg.seen.await(t, redrive.Parked, 1)
	})
	err := redrive.Consume(t.Context(), redrive.Config{URLs: []string{"amqp://localhost"}, Verify: true},
		redrive.Consumer{Queue: "q", Policy: fast(2), Wait: redrive.Dynamic(), Handler: nothing})
	expect.ErrSays(t, err, "a way that declares as it goes, with Verify", "Config.Verify")
}

// Of a cluster one node serves as well as another.
func TestAConsumerOfACluster(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		cfg := orders(t, v, fast(2))
		cfg.URLs = append(cfg.URLs, brokertest.NewProxy(t, v).URL)
		consume(t, cfg, fails)
		v.Publish("", "orders", amqp.Publishing{})
		cfg.seen.await(t, redrive.Parked, 1)
	})
	_, err := redrive.NewClient(t.Context(), redrive.Config{URLs: []string{"amqp://h1/a", "amqp://h2/b"}})
	expect.ErrSays(t, err, "brokers with two virtual hosts", `Config.URLs has the virtual host "a" at h1 and "b" at h2`)
}

// A message that can be published nowhere again stays RabbitMQ's, is said once,
// and holds up no one.
func TestAMessageThatCannotBePublishedStaysInItsQueue(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		cfg := orders(t, v, fast(2))
		stop := consume(t, cfg, fails)
		v.Publish("", "orders", amqp.Publishing{Body: []byte("large"), Headers: amqp.Table{"h": strings.Repeat("x",
			131072-100)}})
		v.Publish("", "orders", amqp.Publishing{Body: []byte("small")})
		cfg.seen.await(t, redrive.Parked, 1)
		cfg.seen.await(t, redrive.Unsettled, 1)
		must(t, stop())
		if n := strings.Count(cfg.said.String(), "neither for its retry nor to redrive.parked"); n != 1 ||
			strings.Contains(cfg.said.String(), "xxxx") {
			t.Errorf("said %d times: %.2000s", n, cfg.said.String())
		}
		brokertest.Eventually(t, "it is in its queue", func() bool { return v.Depth("orders") == 1 })
	})
}

// An outage is said once, and its end; nothing is lost meanwhile.
func TestAnOutageOfTheDelayQueueIsLoggedOnce(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		const n = 20
		var tried atomic.Int64
		cfg := orders(t, v, fast(2))
		settler(t, cfg) // declares what Verify will find
		cfg.Verify, cfg.Concurrency, cfg.Prefetch = true, n, n
		exchange := wire.ExchangeParked
		stop := consume(t, cfg, func(context.Context, *redrive.Message) error {
			tried.Add(1)
			return redrive.Park(errDown)
		})
		must(t, v.Channel().QueueUnbind(wire.QueueParked, "", exchange, nil))
		for range n {
			v.Publish("", "orders", amqp.Publishing{Body: []byte("7")})
		}
		brokertest.Eventually(t, "it is said", func() bool {
			return tried.Load() == n && strings.Contains(cfg.said.String(), "failed messages cannot be published")
		})
		must(t, v.Channel().QueueBind(wire.QueueParked, "", exchange, false, nil))
		cfg.seen.await(t, redrive.Parked, n)
		must(t, stop())
		for _, line := range []string{"failed messages cannot be published", "publishing failed messages works again"} {
			expect.Equal(t, strings.Count(cfg.said.String(), line), 1, "%q is said … times: %s", line,
				cfg.said.String())
		}
	})
}

// A lost connection is one warning, however many messages were under way.
func TestALostConnectionIsLoggedOnce(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		const n = 20
		proxy := brokertest.NewProxy(t, v)
		var begun atomic.Int64
		cfg := orders(t, v, fast(2))
		cfg.URLs[0] = proxy.URL
		cfg.Concurrency, cfg.Prefetch = n, n
		lost := make(chan struct{})
		stop := consume(t, cfg, func(context.Context, *redrive.Message) error {
			switch i := begun.Add(1); {
			case i > n:
				return nil
			case i%2 == 0:
				<-lost
				return errDown
			}
			<-lost
			return nil
		})
		for range n {
			v.Publish("", "orders", amqp.Publishing{Body: []byte("7")})
		}
		brokertest.Eventually(t, "all are under way", func() bool { return begun.Load() == n })
		proxy.Cut()
		brokertest.Eventually(t, "the connection is lost", func() bool { return cfg.seen.losses() > 0 })
		close(lost)
		brokertest.Eventually(t, "all are handled again", func() bool { return cfg.seen.count(redrive.Succeeded) >= n })
		must(t, stop())
		warnings := 0
		for line := range strings.Lines(cfg.said.String()) {
			if strings.Contains(line, "level=WARN") && !strings.Contains(line, "trying again until it works") {
				warnings++
			}
		}
		if warnings != 1 || !strings.Contains(cfg.said.String(), "messages=20") {
			t.Errorf("%d warnings:\n%s", warnings, cfg.said.String())
		}
	})
}

// A panic is logged once, with its stack, and parked with the frames of the handler alone.
func TestAPanicIsLoggedWithItsStack(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		cfg := orders(t, v, fast(1))
		stop := consume(t, cfg, func(context.Context, *redrive.Message) error { panic("no such order") })
		v.Publish("", "orders", amqp.Publishing{Body: []byte("secret")})
		cfg.seen.await(t, redrive.Parked, 1)
		_ = stop()
		why, _ := v.ConsumeMany(wire.QueueParked).Next().Headers[wire.HeaderError].(string)
		first, _, _ := strings.Cut(strings.TrimPrefix(why, "panic: no such order\n"), "\n")
		if !strings.HasPrefix(first, "github.com/redrive-mq/redrive_test.TestAPanicIsLogged") ||
			strings.Contains(why, "redrive-mq/redrive.") {
			t.Errorf("it is parked for %s", why)
		}
		if s := cfg.said.String(); strings.Count(s, "a handler panicked") != 1 ||
			!strings.Contains(s, "life_test.go") || strings.Contains(s, "secret") {
			t.Error(s)
		}
	})
}

// The queue is deleted and declared again: consuming goes on, and failed messages
// still find it.
func TestADeletedQueueIsConsumedAgain(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		cfg := orders(t, v, fast(2))
		stop := consume(t, cfg, failsOnce)
		cfg.seen.await(t, consuming(true), 1)
		v.Must("DELETE", "queues/"+v.Name+"/orders", nil)
		// Declared again before this, RabbitMQ 3.10 forgets the consumers of a quorum
		// queue and tells no client. [measured on 3.10.8]
		brokertest.Eventually(t, "it is told", func() bool { return cfg.seen.losses() > 0 })
		v.Queue("orders", amqp.Table{"x-queue-type": "quorum"})
		cfg.seen.await(t, consuming(true), 2)
		v.Publish("", "orders", amqp.Publishing{})
		cfg.seen.await(t, redrive.Succeeded, 1)
		must(t, stop())
	})
}

// What was prefetched goes back as if it had never been delivered, the handler
// under way finishes, and a failure is published to its delay queue.
func TestAConsumerFinishesItsMessagesBeforeItStops(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		cfg := orders(t, v, fast(1))
		cfg.Prefetch = 20
		for i := range 20 {
			v.Publish("", "orders", amqp.Publishing{Body: fmt.Append(nil, i)})
		}
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
		must(t, <-ended)
		expect.Equal(t, cfg.seen.losses(), cfg.seen.connections(), "ends of connections")
		n := cfg.seen.count(redrive.Parked)
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
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		cfg := orders(t, v, fast(2))
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
		expect.ErrSays(t, stop(), "stopping", "1 of 2 handlers")
		close(end)
		if !polite.Load() {
			t.Error("the context of a handler did not end")
		}
		brokertest.Eventually(t, "both are in their queue", func() bool { return v.Depth("orders") == 2 })
		expect.Equal(t, v.Depth(wire.QueueParked), 0, "messages are parked")
	})
}

// A slow handler does not hold up the next connection.
func TestASlowHandlerDelaysNoOther(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		proxy := brokertest.NewProxy(t, v)
		cfg := orders(t, v, fast(2))
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
			brokertest.Receive(t, quick, "a delivery on the next connection")
		}
		close(end)
		must(t, stop())
		expect.Equal(t, v.Depth("orders")+v.Depth("redrive.delay.50ms"), 0, "messages are left")
	})
}

// queues declares n of them.
func queues(v *brokertest.VHost, n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprint("queue-", i))
		v.Queue(names[i], amqp.Table{"x-queue-type": "quorum"})
	}
	return names
}

// consumeAll consumes queues with one client. Each message fails once. wait waits for all
// consumers to end.
func consumeAll(t *testing.T, client *redrive.Client, c setup, names []string, seen *counter) (wait func()) {
	var running sync.WaitGroup
	for _, name := range names {
		k := c.Consumer
		k.Queue = name
		k.Handler = func(_ context.Context, m *redrive.Message) error {
			if m.Attempt == 1 {
				return errDown
			}
			expect.Equal(t, m.Queue, name, "%q came to the handler of", m.Body)
			seen.add(string(m.Body))
			return nil
		}
		running.Go(func() {
			expect.Err(t, client.Consume(context.Background(), k), nil, "%s", name)
		})
	}
	return running.Wait
}

// connections are the names of those that RabbitMQ has of a client.
func connections(t *testing.T, v *brokertest.VHost, of string) (names []string) {
	t.Helper()
	var all []struct {
		Properties struct {
			Name string `json:"connection_name"`
		} `json:"client_properties"`
	}
	must(t, v.API().Call(context.Background(), http.MethodGet, "connections", nil, &all))
	for _, c := range all {
		if strings.HasPrefix(c.Properties.Name, of+" (") {
			names = append(names, c.Properties.Name)
		}
	}
	return names
}

// A program with ten queues has two connections.
func TestTenConsumersTwoConnections(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		c := config(t, v, fast(3))
		c.AMQP.Properties = amqp.Table{"connection_name": v.Name}
		client := connect(t, c.Config)
		names := queues(v, 10)
		var seen counter
		wait := consumeAll(t, client, c, names, &seen)
		for _, name := range names {
			v.Publish("", name, amqp.Publishing{Body: []byte(name)})
		}
		brokertest.Eventually(t, "each queue is consumed", func() bool {
			for _, name := range names {
				if seen.count(name) != 1 {
					return false
				}
			}
			return true
		})
		brokertest.Eventually(t, "RabbitMQ's statistics have the connections", func() bool {
			return len(connections(t, v, v.Name)) >= 2
		})
		if got := connections(t, v, v.Name); len(got) != 2 || got[0] == got[1] {
			t.Errorf("the connections are %q", got)
		}
		client.Close()
		wait()
		if err := client.Consume(t.Context(), c.Consumer); err == nil {
			t.Error("a closed client consumes")
		}
		expect.ErrSays(t, errOf(client.NewSettler(t.Context(), c.Consumer)), "a closed client makes a settler",
			"closed")
	})
}

// Whatever ends a consumer, the others go on, over the same connection.
func TestAConsumerThatStopsStopsNoOther(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		// The last is classic: consuming a quorum queue while it is deleted or declared ends the connection, with 541.
		// [3.10.8]
		names, classic := append(queues(v, 2), "classic"), amqp.Table{"x-queue-type": "classic"}
		v.Queue(names[2], classic)
		c := config(t, v, fast(3))
		c.AMQP.Properties = amqp.Table{"connection_name": v.Name}
		var stays, cancelled counter
		m, n := stays.metrics(), cancelled.metrics()
		c.Metrics.Consumer = func(e redrive.ConsumerEvent) {
			switch e.Queue {
			case names[0]:
				m.Consumer(e)
			case names[2]:
				n.Consumer(e)
			}
		}
		client := connect(t, c.Config)
		var seen counter
		wait := consumeAll(t, client, c, []string{names[0], names[2]}, &seen)
		stays.await(t, consuming(true), 1)
		cancelled.await(t, consuming(true), 1)

		missing := c.Consumer
		missing.Queue, missing.Handler = "missing", nothing
		expect.Err(t, client.Consume(t.Context(), missing), wire.ErrQueueGone, "a queue that is missing")
		late := c.Consumer
		late.Queue, late.Handler = names[0], nothing
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		expect.Err(t, client.Consume(ended, late), context.Canceled, "a consumer that is stopped before it begins")
		expect.Err(t, redrive.Consume(ended, c.Config, late), context.Canceled,
			"a consumer that is stopped before it is connected")
		ended, cancel = context.WithCancel(t.Context())
		other := c.Consumer
		other.Queue, other.Handler = names[1], func(context.Context, *redrive.Message) error { cancel(); return nil }
		v.Publish("", names[1], amqp.Publishing{})
		expect.Err(t, client.Consume(ended, other), nil, "a consumer that is stopped")
		v.Must("DELETE", "queues/"+v.Name+"/"+names[2], nil)
		brokertest.Eventually(t, "RabbitMQ has cancelled one", func() bool {
			return cancelled.losses() == 1 && strings.Contains(c.said.String(), "RabbitMQ cancelled the consumer")
		})

		v.Publish("", names[0], amqp.Publishing{Body: []byte("after")})
		seen.await(t, "after", 1)
		v.Queue(names[2], classic)
		v.Publish("", names[2], amqp.Publishing{Body: []byte("again")})
		seen.await(t, "again", 1)
		if stays.connections() != 1 || stays.losses() != 0 {
			t.Errorf("the one that should go on began %d times, and ended %d times", stays.connections(),
				stays.losses())
		}
		client.Close()
		wait()
	})
}

// All consumers of a client go on after its connections were cut, and nothing is lost. (That nothing
// of it is left after Close, TestMain sees.)
func TestAClientReconnectsAllItsConsumers(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		names := queues(v, 5)
		proxy := brokertest.NewProxy(t, v)
		c := config(t, v, fast(3))
		c.URLs[0] = proxy.URL
		client := connect(t, c.Config)
		var seen counter
		wait := consumeAll(t, client, c, names, &seen)
		for cut := range 4 {
			for _, name := range names {
				v.Publish("", name, amqp.Publishing{Body: fmt.Append(nil, name, cut)})
			}
			brokertest.Eventually(t, fmt.Sprint("all are handled after cut ", cut), func() bool {
				for _, name := range names {
					if seen.count(fmt.Sprint(name, cut)) == 0 {
						return false
					}
				}
				return true
			})
			if cut < 3 {
				proxy.Cut()
			}
		}
		if n := c.seen.connections(); n < 4*len(names) {
			t.Errorf("consumers began %d times, of %d queues and 3 cuts", n, len(names))
		}
		client.Close()
		wait()
	})
}

// A person's error reaches the caller of NewClient, once, and at once.
func TestNewClientReturnsErrorsThatAPersonMustFix(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		var log brokertest.Output
		user := "consumer-" + v.Name[len(v.Name)-8:]
		v.User(user, "pw")
		v.Grant(user, ".*", ".*", ".*")
		stranger, err := authority.New(t.TempDir())
		must(t, err)
		for _, c := range []struct {
			url  string
			want error
		}{
			{v.URLAs(user, "wrong"), wire.ErrForbidden},
			{strings.Replace(v.URL(), v.Name, "nowhere", 1), wire.ErrNoVHost},
			{v.SecureURL("guest", "guest", url.Values{"cacertfile": {stranger.CAFile()}}), wire.ErrTLS},
		} {
			_, err := redrive.NewClient(t.Context(), redrive.Config{URLs: []string{c.url}, Log: slogTo(&log)})
			if !errors.Is(err, c.want) || strings.Count(err.Error(), c.want.Error()) != 1 {
				t.Errorf("%v, want %v", err, c.want)
			}
		}
		expect.Equal(t, log.String(), "", "it is logged as well")
	})
}

// SASL, the dialer and the virtual host are those of Config.AMQP, for each connection.
func TestTheClientsOwnAMQPConfig(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		var dialed atomic.Int32
		c := orders(t, v, fast(2))
		c.URLs[0] = strings.Replace(v.URLAs("stranger", "wrong"), v.Name, "nowhere", 1)
		c.AMQP = amqp.Config{Vhost: v.Name, SASL: []amqp.Authentication{&amqp.PlainAuth{Username: "guest",
			Password: "guest"}},
			Dial: func(network, addr string) (net.Conn, error) { dialed.Add(1); return net.Dial(network, addr) }}
		came := make(chan int, 2)
		stop := consume(t, c, func(_ context.Context, m *redrive.Message) error { came <- m.Attempt; return nil })
		v.Publish("", "orders", amqp.Publishing{})
		<-came
		must(t, stop())
		expect.Equal(t, dialed.Load(), 2, "its dialer was called … times")
	})
}

// What takes a whole node is tried on one, in turn.
func TestOnANodeOfItsOwn(t *testing.T) {
	brokertest.OnePrivate(t, "", func(t *testing.T, own *brokertest.VHost, n *rabbitnode.Node) {
		for name, test := range map[string]func(*testing.T, *brokertest.VHost, *rabbitnode.Node){
			"consuming goes on after a reconnect during an alarm": consumingGoesOnAfterAReconnectDuringAnAlarm,
			"a forward target that hangs delays nothing else":     aForwardTargetThatHangsDelaysNothingElse,
		} {
			t.Run(name, func(t *testing.T) { test(t, brokertest.NewVHost(t, own.Broker), n) })
		}
	})
}

// A consumer whose publishing connection an alarm blocks goes on consuming after its other
// connection was lost; what failed is retried when the alarm is over.
func consumingGoesOnAfterAReconnectDuringAnAlarm(t *testing.T, v *brokertest.VHost, n *rabbitnode.Node) {
	const good = 100
	v.Queue("orders", amqp.Table{"x-queue-type": "quorum"})
	for range 2 {
		v.Publish("", "orders", amqp.Publishing{Body: []byte("fails")})
	}
	for i := range good {
		v.Publish("", "orders", amqp.Publishing{Body: fmt.Append(nil, i)})
	}
	over := brokertest.Alarm(t, n)
	var handled counter
	again := make(chan struct{}) // closed when it is connected again
	cfg := config(t, v, fast(2))
	cfg.Concurrency = 3
	stop := consume(t, cfg, func(ctx context.Context, m *redrive.Message) error {
		if string(m.Body) == "fails" {
			if m.Attempt > 1 {
				handled.add("retried")
			}
			return failsOnce(ctx, m)
		}
		select {
		case <-again:
		case <-ctx.Done():
		}
		handled.add(string(m.Body))
		return nil
	})
	brokertest.Eventually(t, "the publishing connection is blocked", func() bool {
		return strings.Contains(cfg.said.String(), "RabbitMQ has an alarm")
	})
	brokertest.Eventually(t, "the consuming connection is closed", func() bool {
		return closeConnection(t, v, "redrive (consumes)")
	})
	cfg.seen.await(t, consuming(true), 2)
	close(again)
	for i := range good {
		brokertest.Eventually(t, fmt.Sprint(i, " is handled during the alarm"), func() bool {
			return handled.count(fmt.Sprint(i)) > 0
		})
	}
	over()
	brokertest.Eventually(t, "what failed is retried", func() bool { return handled.count("retried") >= 2 })
	must(t, stop())
}

// closeConnection has RabbitMQ close the connection of a name, and reports whether it knew one.
func closeConnection(t *testing.T, v *brokertest.VHost, name string) (closed bool) {
	t.Helper()
	var all []struct {
		Name       string `json:"name"`
		Properties struct {
			Name string `json:"connection_name"`
		} `json:"client_properties"`
	}
	must(t, v.API().Call(context.Background(), http.MethodGet, "connections", nil, &all))
	for _, c := range all {
		if c.Properties.Name == name {
			closed = v.API().Call(context.Background(), http.MethodDelete, "connections/"+url.PathEscape(c.Name), nil,
				nil) == nil || closed
		}
	}
	return closed
}

// A forward target whose leader hangs holds up neither the retries of the consumer that
// forwards to it, as long as it has a free handler, nor those of the client's others.
func aForwardTargetThatHangsDelaysNothingElse(t *testing.T, v *brokertest.VHost, n *rabbitnode.Node) {
	queues := []string{"orders", "others"}
	for _, q := range append(queues, "target") {
		v.Queue(q, amqp.Table{"x-queue-type": "quorum"})
	}
	c := config(t, v, fast(2))
	c.Concurrency = 4
	c.Policy.Exhausted = policy.Exhausted{Action: policy.Forward, Destination: policy.Destination{RoutingKey: "target"}}
	client := connect(t, c.Config)
	var seen counter
	var running sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	defer running.Wait()
	defer cancel()
	for _, q := range queues {
		k := c.Consumer
		k.Queue, k.Handler = q, func(_ context.Context, m *redrive.Message) error {
			if m.Attempt == 1 || string(m.Body) == "stuck" {
				return errDown
			}
			seen.add(string(m.Body))
			return nil
		}
		running.Go(func() { expect.Err(t, client.Consume(ctx, k), nil, "%s", q) })
	}
	// Through the consumer once, so that its delay queue is known to work.
	v.Publish("", "orders", amqp.Publishing{Body: []byte("before")})
	seen.await(t, "before", 1)
	v.Leader(n, "suspend", "target")
	for range 3 {
		v.Publish("", "orders", amqp.Publishing{Body: []byte("stuck")})
	}
	brokertest.Eventually(t, "three are to be forwarded", func() bool {
		return c.seen.count(redrive.Retried) == 4 && v.Depth("redrive.delay.50ms") == 0
	})
	for i := range 20 {
		for _, q := range queues {
			v.Publish("", q, amqp.Publishing{Body: fmt.Append(nil, q, i)})
		}
	}
	brokertest.Eventually(t, "the others of both queues are retried", func() bool {
		for i := range 20 {
			for _, q := range queues {
				if seen.count(fmt.Sprint(q, i)) != 1 {
					return false
				}
			}
		}
		return true
	})
	expect.Equal(t, c.seen.count(redrive.Forwarded), 0, "are forwarded to a queue that hangs")
	v.Leader(n, "resume", "target")
	brokertest.Eventually(t, "three are forwarded", func() bool {
		return c.seen.count(redrive.Forwarded) == 3 && v.Depth("target") == 3
	})
}

// crashEnv makes the test's binary a consumer of the queue orders at that URL. It prints what its
// handler gets, and ends at "poison", as a process does that runs out of memory.
const crashEnv = "REDRIVE_TEST_CRASH"

func crasher() int {
	var running atomic.Int32
	handle := func(_ context.Context, m *redrive.Message) error {
		alone := running.Add(1) == 1
		defer running.Add(-1)
		fmt.Println(string(m.Body), alone)
		if string(m.Body) == "poison" {
			os.Exit(9)
		}
		return nil
	}
	url, kind, _ := strings.Cut(os.Getenv(crashEnv), " ")
	c := redrive.Consumer{Queue: "orders", Policy: fast(3), Wait: redrive.Levels(), Concurrency: 4, Prefetch: 12}
	if kind == "batches" {
		c.Batch = redrive.Batch{Size: 3, Handler: func(ctx context.Context,
			batch []*redrive.Message) map[*redrive.Message]error {
			for _, m := range batch {
				_ = handle(ctx, m)
			}
			return nil
		}}
	} else {
		c.Handler = handle
	}
	fmt.Println(redrive.Consume(context.Background(), redrive.Config{URLs: []string{url}}, c))
	return 1
}

// crash runs one such process until it ends by itself, or enough says so. saw gets what it prints.
func crash(t *testing.T, env string, saw func(body, alone string), enough func() bool) {
	t.Helper()
	c := exec.CommandContext(t.Context(), os.Args[0])
	c.Env, c.Stderr = append(os.Environ(), crashEnv+"="+env), os.Stderr
	out, err := c.StdoutPipe()
	must(t, err)
	must(t, c.Start())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			body, alone, _ := strings.Cut(lines.Text(), " ")
			saw(body, alone)
		}
	}()
	brokertest.Eventually(t, "the process ends", func() bool {
		select {
		case <-ended:
			return true
		default:
			return enough()
		}
	})
	_ = c.Process.Kill()
	<-ended
	_ = c.Wait()
}

// A message that ends its process each time is parked before RabbitMQ drops it, and those that
// were prefetched beside it are handled.
func TestAMessageThatEndsItsProcessIsParked(t *testing.T) {
	for kind, at := range map[string]int{"one by one": 6, "batches": 7} { // the second of its batch
		t.Run(kind, func(t *testing.T) {
			brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
				v.Queue("orders", amqp.Table{"x-queue-type": "quorum"})
				for i := range 30 {
					body := fmt.Sprint(i)
					if i == at {
						body = "poison"
					}
					forged := amqp.Table{"x-delivery-count": int64(50)} // it counts only on what was redelivered, where RabbitMQ writes its own
					v.Publish("", "orders", amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte(body),
						Headers: forged})
				}
				handled, crashes := map[string]bool{}, 0
				over := func() bool {
					q, _ := v.State(wire.QueueParked)
					return q.Messages > 0 && v.Messages("orders") == 0
				}
				for {
					poison := false
					crash(t, v.URL()+" "+kind, func(body, alone string) {
						handled[body], poison = true, poison || body == "poison"
						if body == "poison" && crashes > 3 && alone != "true" {
							t.Errorf("after %d crashes it is not handled alone", crashes)
						}
					}, over)
					if !poison {
						break
					}
					if crashes++; crashes > 15 { // RabbitMQ 4 drops it at 20
						t.Fatal("it ends its process for ever")
					}
				}
				if crashes < 10 {
					t.Errorf("it ended its process %d times", crashes)
				}
				d := parked(v)
				if reason, _ := d.Headers[wire.HeaderParkReason].(string); string(d.Body) != "poison" ||
					!strings.Contains(reason, "too often") {
					t.Errorf("parked is %q: %q", d.Body, reason)
				}
				expect.Equal(t, v.Depth(wire.QueueParked), 0, "more are parked")
				for i := range 30 {
					if i != at && !handled[fmt.Sprint(i)] {
						t.Errorf("message %d was never handled", i)
					}
				}
			})
		})
	}
}

// A classic queue counts nothing: the message at fault is handled alone, and harms no other.
func TestAClassicQueueHandlesWhatWasRedeliveredAlone(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("orders", amqp.Table{"x-queue-type": "classic"})
		v.Publish("", "orders", amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte("poison")})
		for i := range 20 {
			v.Publish("", "orders", amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte(fmt.Sprint(i))})
		}
		for n := range 4 {
			crash(t, v.URL()+" one by one", func(body, alone string) {
				if body == "poison" && n > 0 && alone != "true" {
					t.Errorf("start %d: it is not handled alone", n)
				}
			}, func() bool { return false })
		}
	})
}
