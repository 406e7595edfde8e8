package howto_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/cli"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/internal/server/servertest"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/subprocess"
)

// client is a consumer of the guides, and how it is run.
type client struct {
	file    string
	command func(*testing.T) []string
}

// clients are those of the guides; Ruby's and Java's, which are slow to install, if Long.
func clients() []client {
	some := []client{{"consumer.py", python}, {"consumer.js", node("amqplib", "clients/node/consumer.js")}}
	if brokertest.Long() {
		some = append(some, client{"consumer.rb", ruby}, client{"Consumer.java", java})
	}
	return some
}

// The consumers of the guides, as they are printed there.
func TestClients(t *testing.T) {
	for _, c := range append(clients(), client{"orders.service.js", nest}) {
		t.Run(c.file, func(t *testing.T) {
			command := c.command(t)
			brokertest.One(t, func(t *testing.T, v *brokertest.VHost) { c.run(t, v, command) })
		})
	}
}

// python is one that has pika: Debian's package is for Debian's own.
func python(t *testing.T) []string {
	for _, program := range []string{"python3", "/usr/bin/python3"} {
		if exec.Command(program, "-c", "import pika").Run() == nil {
			return []string{program, "clients/python/consumer.py"}
		}
	}
	return missing(t, "pika for Python (Debian: python3-pika)")
}

func node(needs string, arguments ...string) func(*testing.T) []string {
	return func(t *testing.T) []string {
		modules := filepath.Join(subprocess.Installed(), "clients", "node_modules")
		command := []string{"env", "NODE_PATH=" + modules, "node"}
		if exec.Command(command[0], append(command[1:], "-e", "require('"+needs+"')")...).Run() == nil {
			return append(command, arguments...)
		}
		return missing(t, needs+" for Node 18 or later (Debian: nodejs, npm)")
	}
}

// nest does with the provider what NestJS does.
var nest = node("rascal", "-e", "new (require('./clients/node/orders.service.js').Orders)().onModuleInit()")

func ruby(t *testing.T) []string {
	if exec.Command("ruby", "-e", "require 'bunny'").Run() == nil {
		return []string{"ruby", "clients/ruby/consumer.rb"}
	}
	return missing(t, "bunny for Ruby (Debian: ruby-bunny)")
}

// java is compiled here: slow machines take long for that.
func java(t *testing.T) []string {
	const client = "/usr/share/java/amqp-client.jar"
	if _, err := os.Stat(client); err != nil || exec.Command("javac", "-version").Run() != nil {
		return missing(t, "a JDK and the RabbitMQ client for Java (Debian: default-jdk-headless, librabbitmq-client-java)")
	}
	dir := t.TempDir()
	if out, err := exec.Command("javac", "-cp", client, "-d", dir, "clients/java/Consumer.java").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return []string{"java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp",
		dir + ":" + client + ":/usr/share/java/slf4j-api.jar:/usr/share/java/slf4j-nop.jar", "Consumer"}
}

// missing fails the test: a client that was not run must not look tested.
func missing(t *testing.T, what string) []string {
	t.Helper()
	t.Fatalf("this needs %s: run `make install-clients`", what)
	return nil
}

const (
	fine   = 6 // succeed at once
	shaky  = 3 // succeed at the third attempt
	broken = 2 // fail until somebody repairs the payment service
	gone   = 1 // is parked at once, and succeeds after the repair
	busy   = 1 // waits as long as Retry-After says
)

func (client) run(t *testing.T, v *brokertest.VHost, command []string) {
	s := serve(t, v, "policies: [{name: orders, queues: [orders], attempts: 3, backoff: {fixed: 100ms}, jitter: none, "+
		"max_retry_after: 2h}]")
	v.Queue("orders", amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "redrive"})
	v.Exchange("shop", "fanout", "orders")
	pays := payments(t)
	copied := amqp.Table{"tenant": "acme", "x-redrive-id": "01900000-0000-7000-8000-000000000000", "x-redrive-attempt": int64(2),
		"x-redrive-queue": "orders", "x-redrive-exchange": "another's", "x-redrive-routing-key": "another's"}
	for i := range fine + shaky + broken + gone + busy {
		// All that a consumer must not hand on as it is, or must not lose.
		v.Publish("shop", "order.created", amqp.Publishing{Body: fmt.Appendf(nil, `{"id": "m%d"}`, i), UserId: "guest", Expiration: "3600000",
			Type: fmt.Sprintf("m%d", i), Headers: copied})
	}
	v.Publish("shop", "order.created", amqp.Publishing{Body: []byte("not JSON"), Type: "poison"})
	consumer(t, v, command, pays.URL)
	ch := v.Channel()
	brokertest.Eventually(t, "it consumes", func() bool {
		q, err := ch.QueueDeclarePassive("orders", true, false, false, false, nil)
		return err == nil && q.Consumers == 1
	})

	all := s.WaitParked(t, broken+gone+1)
	for _, m := range all {
		id := m.Type
		wantAttempt, wantReason, wantError := 3, "reported", "the card of "+id+" is refused: Übergröße €"
		switch {
		case id == "poison":
			wantReason, wantError = "rejected", ""
		case pays.kind(id) == "gone":
			wantAttempt = 1
			if m.ParkedFor != "its consumer parked it: the customer is gone" {
				t.Errorf("%s is parked, since %s", id, m.ParkedFor)
			}
		}
		if d, err := s.Client.Message(t.Context(), m.ID); err != nil {
			t.Error(err)
		} else if headers := fmt.Sprint(d.Headers); id != "poison" && !strings.Contains(headers, "{tenant string acme ") {
			t.Errorf("%s has lost its own header: %s", id, headers)
		}
		if m.Exchange != "shop" || m.RoutingKey != "order.created" {
			t.Errorf("%s was published to %q with key %q, say its headers", id, m.Exchange, m.RoutingKey)
		}
		if m.Attempt != wantAttempt || m.Reason != wantReason || strings.TrimPrefix(m.Error, "Error: ") != wantError {
			t.Errorf("%s is parked after %d attempts, %s, error %q; want %d, %s, %q",
				id, m.Attempt, m.Reason, m.Error, wantAttempt, wantReason, wantError)
		}
	}
	pays.repair()
	if n := s.Replay(t, "reason:reported"); n != broken+gone {
		t.Fatalf("%d messages were replayed, want %d", n, broken+gone)
	}
	brokertest.Eventually(t, "all orders but the busy one are paid and acknowledged", func() bool {
		return len(pays.list()) == fine+shaky+broken+gone && v.Messages("orders") == 0
	})
	waitsAnHour(t, s)
	s.WaitParked(t, 1) // what no consumer can read
	for id, calls := range pays.list() {
		if want := pays.want(id); calls != want {
			t.Errorf("%s was paid by calls of the attempts %s, want %s", id, calls, want)
		}
	}
}

// waitsAnHour checks that a message waits as long as the upstream's Retry-After asks for, and no other one waits.
func waitsAnHour(t *testing.T, s *servertest.Service) {
	t.Helper()
	brokertest.Eventually(t, "one waits as long as Retry-After says", func() bool {
		page, err := s.Client.Messages(t.Context(), "state:waiting", "", 10)
		must(t, err)
		return len(page.Messages) == 1 && page.Messages[0].Due.Sub(page.Messages[0].Failed) > 50*time.Minute
	})
}

// celery is a worker with the guide's tasks.
func celery(t *testing.T, tasks string) []string {
	if exec.Command("/usr/bin/python3", "-c", "import celery").Run() != nil {
		missing(t, "Celery for Python (Debian: python3-celery)")
	}
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "tasks.py"), []byte(tasks), 0o600))
	return []string{"/usr/bin/python3", "-m", "celery", "--workdir", dir, "-A", "tasks", "worker", "--pool", "solo",
		"--without-gossip", "--without-mingle", "--without-heartbeat"}
}

// task is a message of Celery.
func task(order string) amqp.Publishing {
	return amqp.Publishing{ContentType: "application/json", ContentEncoding: "utf-8", CorrelationId: "1",
		DeliveryMode: amqp.Persistent, Body: fmt.Appendf(nil, `[[%q], {}, {}]`, order),
		Headers: amqp.Table{"task": "tasks.pay", "id": "1", "root_id": "1", "lang": "py", "retries": 0}}
}

// After a retry Celery publishes its own to the retry exchange. A user with the rights of a reporter may;
// one with fewer loses no task where publishes are confirmed, as in the guide: what it may not report it
// rejects. Where messages wait in RabbitMQ the task names its queue.
func TestCelery(t *testing.T) {
	tasks, err := os.ReadFile("clients/python/tasks.py")
	must(t, err)
	for _, c := range []struct {
		name          string
		rights        management.Rights
		policy, tasks string
	}{
		{"with the right", management.ReporterRights("orders"), "",
			strings.ReplaceAll(string(tasks), `"confirm_publish": True`, "")},
		{"confirmed", management.Rights{Configure: "^$", Write: "^$", Read: "^orders$"}, "", string(tasks)},
		{"by the queue's name", management.Rights{Configure: "^$", Write: `^amq\.default$`, Read: "^orders$"},
			", wait: {levels: [100ms]}",
			strings.Replace(string(tasks), "countdown=1", `countdown=1, queue="orders"`, 1)},
	} {
		t.Run(c.name, func(t *testing.T) {
			worker := celery(t, c.tasks)
			brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
				serve(t, v, "policies: [{name: orders, queues: [orders], attempts: 4, backoff: {fixed: 100ms}, jitter: none"+c.policy+"}]")
				v.Queue("orders", amqp.Table{"x-queue-type": "classic", "x-dead-letter-exchange": "redrive"})
				user := "celery-" + uuid.NewString()
				v.User(user, "s3cret")
				v.Give(user, c.rights)
				var calls atomic.Int32
				pays := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					w.WriteHeader([]int{402, 503, 200, 200}[min(calls.Add(1)-1, 3)])
				}))
				defer pays.Close()
				consumer(t, v, append([]string{"env", "AMQP_URL=" + v.URLAs(user, "s3cret")}, worker...), pays.URL)
				v.Publish("", "orders", task("m1"))
				brokertest.Eventually(t, "it is paid", func() bool { return calls.Load() == 3 && v.Messages("orders") == 0 })
			})
		})
	}
}

// failing rejects all as Rascal's documentation says to, so that its error is in the dead letter.
const failing = `const R = require('rascal');
R.BrokerAsPromised.create(R.withDefaultConfig({
  vhosts: { shop: { connection: process.env.AMQP_URL, queues: { orders: { assert: false } } } },
  subscriptions: { orders: { vhost: 'shop', queue: 'orders' } },
})).then((broker) => broker.subscribe('orders')).then((orders) => orders.on('message', (message, content, ackOrNack) =>
  ackOrNack(new Error('no stock'), { strategy: 'republish', immediateNack: true })).on('error', console.error));`

// A team has a dead-letter queue that a framework has filled. Redrive takes it over or follows it, and a replay
// or retry reaches the consumer as it expects it. What fails then is reported with its error, and with what
// the consumer says of Retry-After and of messages that are to be parked at once.
func TestFrameworks(t *testing.T) {
	tasks, err := os.ReadFile("clients/python/tasks.py")
	must(t, err)
	for _, f := range []struct {
		name            string
		fills, consumer func(*testing.T) []string
		message         func(order string) amqp.Publishing
		says            string // of the message in the dead-letter queue
		kind            string // of error
	}{
		// Celery's error is in no message: what it does not report it only rejects.
		{"celery", func(t *testing.T) []string { return celery(t, string(tasks)) },
			func(t *testing.T) []string { return celery(t, string(tasks)) }, task, "rejected ", "RuntimeError"},
		{"rascal", node("rascal", "-e", failing), nest, func(order string) amqp.Publishing {
			return amqp.Publishing{DeliveryMode: amqp.Persistent, Body: fmt.Appendf(nil, "%q", order)}
		}, "rejected no stock", "Error"},
	} {
		test := func(t *testing.T, followed bool) {
			brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
				v.Queue("orders.dlq", amqp.Table{"x-queue-type": "quorum"})
				v.Queue("orders", amqp.Table{"x-queue-type": "classic", "x-dead-letter-exchange": "",
					"x-dead-letter-routing-key": "orders.dlq"})
				var stock, paid atomic.Int32
				pays := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					order, _ := io.ReadAll(r.Body)
					switch {
					case stock.Load() == 0:
						w.WriteHeader(http.StatusPaymentRequired)
					case strings.Contains(string(order), "gone"):
						w.WriteHeader(http.StatusGone)
					case strings.Contains(string(order), "busy"):
						w.Header().Set("Retry-After", "3600")
						w.WriteHeader(http.StatusTooManyRequests)
					default:
						paid.Add(1)
					}
					fmt.Fprint(w, "no stock")
				}))
				defer pays.Close()
				v.Publish("", "orders", f.message("late"))
				ctx, stop := context.WithCancel(t.Context())
				old, out := program(ctx, v, f.fills(t), pays.URL), &brokertest.Output{}
				old.Stdout, old.Stderr = out, out
				must(t, old.Start())
				defer func() {
					if t.Failed() {
						t.Logf("the framework said:\n%s", out)
					}
				}()
				brokertest.Eventually(t, "it is a dead letter", func() bool { return v.Depth("orders.dlq") == 1 })
				stop()
				_ = old.Wait()

				// Retries wait longer than the test; those of the followed queue do not.
				yaml := "{name: orders, queues: [orders], backoff: {fixed: 1m}, max_retry_after: 2h}]"
				if followed {
					yaml = "{name: orders, queues: [orders], backoff: {fixed: 100ms}, max_retry_after: 2h}]\n" +
						"adopt: {orders.dlq: {queue: orders, then: retry}}"
				}
				config := servertest.Config(t, v, "policies: ["+yaml)
				v.Give(v.ServiceUser(), management.ServiceRights(brokertest.Works("orders"), "orders.dlq"))
				s := servertest.Run(t, config).Ready(t)
				var m inspect.Message
				if !followed {
					var said strings.Builder
					args := []string{"adopt", "orders.dlq", "--queue", "orders", "--yes", "--address", s.Client.Addr}
					if code := cli.Run(t.Context(), args, &said, &said, cli.Build{}); code != 0 {
						t.Fatalf("redrive adopt: exit code %d: %s", code, &said)
					}
					m = s.WaitParked(t, 1)[0]
					if m.Queue != "orders" || m.Reason+" "+m.Error != f.says {
						t.Errorf("it is parked as %+v, and should say %q", m, f.says)
					}
					if n := s.Replay(t, "queue:orders"); n != 1 {
						t.Fatalf("%d messages were replayed, want 1", n)
					}
				}
				stock.Store(1)
				consumer(t, v, f.consumer(t), pays.URL)
				brokertest.Eventually(t, "the old one is paid", func() bool {
					return paid.Load() == 1 && v.Messages("orders") == 0
				})

				v.Publish("", "orders", f.message("gone"))
				v.Publish("", "orders", f.message("busy"))
				m = s.WaitParked(t, 1)[0]
				if m.ParkedFor != "its consumer parked it: the customer is gone" || m.Error != f.kind+": no stock" {
					t.Errorf("it is parked as %+v", m)
				}
				waitsAnHour(t, s)
			})
		}
		t.Run(f.name, func(t *testing.T) { test(t, false) })
		t.Run(f.name+", followed", func(t *testing.T) { test(t, true) })
	}
}

// golang is the consumer by AMQP 1.0.
func golang(t *testing.T) string {
	program := filepath.Join(t.TempDir(), "consumer")
	if out, err := exec.Command("go", "build", "-o", program, "./clients/go").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

// A consumer by AMQP 1.0 annotates what it settles as modified: one message is parked at once, one waits as long as
// it asks, and one shows its error, at each attempt. A replay has nothing of that.
func TestAConsumerByAMQP10(t *testing.T) {
	program := golang(t)
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		if !v.Since4() {
			return // AMQP 1.0 is a plugin there
		}
		v.Queue("orders", amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "redrive"})
		s := serve(t, v, "policies: [{name: orders, queues: [orders], attempts: 2, backoff: {fixed: 100ms}, "+
			"max_retry_after: 2h}]")
		var calls, paid atomic.Int32
		pays := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			order, _ := io.ReadAll(r.Body)
			switch string(order) {
			case "gone":
				if paid.Load() > 0 {
					paid.Add(1)
					return
				}
				w.WriteHeader(http.StatusGone)
			case "busy":
				w.Header().Set("Retry-After", "3600")
				w.WriteHeader(http.StatusTooManyRequests)
			case "refused":
				calls.Add(1)
				w.WriteHeader(http.StatusPaymentRequired)
			default:
				paid.Add(1)
			}
			fmt.Fprintf(w, "the card of %s is refused: Übergröße €", order)
		}))
		defer pays.Close()
		consumer(t, v, []string{"env", "AMQP_VHOST=" + v.Name, program}, pays.URL)
		for _, order := range []string{"gone", "busy", "refused"} {
			v.Publish("", "orders", amqp.Publishing{Body: []byte(order), Type: order})
		}

		for _, m := range s.WaitParked(t, 2) {
			attempt, why := 1, "its consumer parked it: the customer is gone"
			if m.Type == "refused" {
				attempt, why = 2, `it failed 2 times, and policy "orders" allows 2 attempts`
			}
			says := "the card of " + m.Type + " is refused: Übergröße €"
			if m.Attempt != attempt || m.ParkedFor != why || m.Error != says || m.Reason != "rejected" {
				t.Errorf("%s is parked as %+v", m.Type, m)
			}
			var shown strings.Builder
			args := []string{"messages", "show", m.ID, "--address", s.Client.Addr}
			code := cli.Run(t.Context(), args, &shown, &shown, cli.Build{})
			if code != 0 || !strings.Contains(shown.String(), says) {
				t.Errorf("redrive messages show: exit code %d: %s", code, &shown)
			}
		}
		if n := calls.Load(); n != 2 {
			t.Errorf("%d attempts were made, want 2", n)
		}
		brokertest.Eventually(t, "one waits as long as Retry-After says", func() bool {
			page, err := s.Client.Messages(t.Context(), "state:waiting", "", 10)
			must(t, err)
			return len(page.Messages) == 1 && page.Messages[0].Type == "busy" &&
				page.Messages[0].Due.Sub(page.Messages[0].Failed) > 50*time.Minute
		})
		// The same order is fine now.
		paid.Store(1)
		if n := s.Replay(t, `why:"customer is gone"`); n != 1 {
			t.Fatalf("%d messages were replayed, want 1", n)
		}
		brokertest.Eventually(t, "it is paid and acknowledged", func() bool {
			return paid.Load() == 2 && v.Messages("orders") == 0
		})
	})
}

// The rules of the page for NServiceBus decide by what it writes to the error queue that is followed.
func TestRulesDecideByTheErrorOfAFramework(t *testing.T) {
	rules := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindStringSubmatch(pages(t)["nservicebus.md"])
	if rules == nil {
		t.Fatal("the page shows no rules")
	}
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		for _, queue := range []string{"orders", "orders.error"} {
			v.Queue(queue, amqp.Table{"x-queue-type": "quorum"})
		}
		config := servertest.Config(t, v, rules[1]+"adopt: {orders.error: {queue: orders, then: retry}}")
		v.Give(v.ServiceUser(), management.ServiceRights(brokertest.Works("orders"), "orders.error"))
		s := servertest.Run(t, config).Ready(t)
		for _, exception := range []string{"Shop.InvalidOrder", "Shop.Busy"} {
			v.Publish("", "orders.error", amqp.Publishing{DeliveryMode: amqp.Persistent, MessageId: exception,
				Headers: amqp.Table{"NServiceBus.FailedQ": "orders", "NServiceBus.ExceptionInfo.Message": "no",
					"NServiceBus.ExceptionInfo.ExceptionType": exception}})
		}
		if m := s.WaitParked(t, 1)[0]; m.Error != "Shop.InvalidOrder: no" || m.Rule == "" {
			t.Errorf("it is parked as %+v", m)
		}
		brokertest.Eventually(t, "the other one waits as its rule says", func() bool {
			page, err := s.Client.Messages(t.Context(), "state:waiting", "", 10)
			must(t, err)
			return len(page.Messages) == 1 && page.Messages[0].Rule != "" && page.Messages[0].Error == "Shop.Busy: no"
		})
	})
}

// What no queue takes is not acknowledged: here nothing is bound to redrive.failures.
func TestClientsKeepWhatTheyCannotReport(t *testing.T) {
	for _, c := range clients() {
		t.Run(c.file, func(t *testing.T) {
			command := c.command(t)
			brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
				v.Queue("orders", nil)
				v.Exchange("redrive.failures", "topic")
				v.Publish("", "orders", amqp.Publishing{Body: []byte(`{"id": "m99"}`)})
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
				defer cancel()
				out, err := program(ctx, v, command, payments(t).URL).CombinedOutput()
				if err == nil || ctx.Err() != nil {
					t.Errorf("%v ended with %v, and should have ended with an error:\n%s", command, err, out)
				}
				brokertest.Eventually(t, "the message is in its queue again", func() bool { return v.Depth("orders") == 1 })
			})
		})
	}
}

// program is a consumer to be run.
func program(ctx context.Context, v *brokertest.VHost, command []string, payments string) *exec.Cmd {
	p := exec.CommandContext(ctx, command[0], command[1:]...)
	p.Env = append(os.Environ(), "AMQP_URL="+v.URL(), "PAYMENTS_URL="+payments)
	return p
}

// consumer runs a program until the test ends.
func consumer(t *testing.T, v *brokertest.VHost, command []string, payments string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	p, out := program(ctx, v, command, payments), &brokertest.Output{}
	p.Stdout, p.Stderr = out, out
	must(t, p.Start())
	ended := make(chan struct{})
	go func() { _ = p.Wait(); close(ended) }()
	t.Cleanup(func() {
		select {
		case <-ended:
			t.Errorf("%v ended before the test did", command)
		default:
		}
		cancel()
		<-ended
		if t.Failed() {
			t.Logf("%v said:\n%s", command, out)
		}
	})
}

// upstream is the payment service, which keeps account of who called with which
// attempt.
type upstream struct {
	*httptest.Server
	mu       sync.Mutex
	repaired bool
	calls    map[string]string // attempts, "+" after one that was paid
}

func payments(t *testing.T) *upstream {
	u := &upstream{calls: map[string]string{}}
	u.Server = httptest.NewServer(u)
	t.Cleanup(u.Close)
	return u
}

func (u *upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var order struct{ ID string }
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(body, &order)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	attempt := r.Header.Get("X-Attempt")
	u.mu.Lock()
	defer u.mu.Unlock()
	u.calls[order.ID] += attempt
	switch kind := u.kind(order.ID); {
	case kind == "busy":
		w.Header().Set("Retry-After", "3600")
		w.WriteHeader(http.StatusTooManyRequests)
	case kind == "gone" && !u.repaired:
		w.WriteHeader(http.StatusGone)
	case kind == "shaky" && attempt != "2":
		w.WriteHeader(http.StatusServiceUnavailable)
	case kind == "broken" && !u.repaired:
		w.WriteHeader(http.StatusPaymentRequired)
	default:
		u.calls[order.ID] += "+"
		return
	}
	fmt.Fprintf(w, "the card of %s is refused: Übergröße €", order.ID)
}

func (u *upstream) kind(id string) string {
	var n int
	_, _ = fmt.Sscanf(id, "m%d", &n)
	switch {
	case n < fine:
		return "fine"
	case n < fine+shaky:
		return "shaky"
	case n < fine+shaky+broken:
		return "broken"
	case n < fine+shaky+broken+gone:
		return "gone"
	}
	return "busy"
}

// want is the account of a message of which nothing was lost or came twice.
func (u *upstream) want(id string) string {
	return map[string]string{"fine": "0+", "shaky": "012+", "broken": "0120+", "gone": "00+"}[u.kind(id)]
}

func (u *upstream) repair() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.repaired = true
}

// list are the paid ones, with all their calls.
func (u *upstream) list() map[string]string {
	u.mu.Lock()
	defer u.mu.Unlock()
	paid := map[string]string{}
	for id, calls := range u.calls {
		if strings.Contains(calls, "+") {
			paid[id] = calls
		}
	}
	return paid
}

// pages are all guides.
func pages(t *testing.T) map[string]string {
	t.Helper()
	names, err := filepath.Glob("*.md")
	if err != nil || len(names) < 2 {
		t.Fatalf("guides: %q, %v", names, err)
	}
	all := map[string]string{}
	for _, name := range names {
		text, err := os.ReadFile(name)
		must(t, err)
		all[name] = string(text)
	}
	return all
}

// What a page shows of a consumer are lines of the file that is run, with its indentation; it links the whole.
func TestThePagesShowTheConsumersThatAreRun(t *testing.T) {
	block := regexp.MustCompile("(?s)<!-- (clients/\\S+) -->\n\n```\\w+\n(.*?)\n```\n")
	shown := map[string]bool{}
	for name, text := range pages(t) {
		for _, m := range block.FindAllStringSubmatch(text, -1) {
			code, err := os.ReadFile(m[1])
			must(t, err)
			shown[m[1]] = shown[m[1]] || strings.Contains(text, "]("+m[1]+")")
			for _, excerpt := range strings.Split(m[2], "\n\n") {
				first, _, _ := strings.Cut(excerpt, "\n")
				at := regexp.MustCompile(`(?m)^([ \t]*)` + regexp.QuoteMeta(first) + "$").FindSubmatch(code)
				if at == nil || !strings.Contains("\n"+string(code),
					"\n"+string(at[1])+strings.ReplaceAll(excerpt, "\n", "\n"+string(at[1]))+"\n") {
					t.Errorf("%s shows what %s does not have:\n%s", name, m[1], excerpt)
				}
			}
		}
	}
	files, err := filepath.Glob("clients/*/*")
	must(t, err)
	if len(files) < 8 {
		t.Errorf("only the consumers %q were found", files)
	}
	for _, file := range files {
		if !shown[file] {
			t.Errorf("no page shows and links %s", file)
		}
	}
}
