// Package howto_test runs what the guides print: their consumers, their commands,
// and the ways from each published recipe to Redrive.
package howto_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/server/servertest"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/rabbitnode"
)

// serve runs the service until the test ends, and waits until it is ready.
func serve(t *testing.T, v *brokertest.VHost, yaml string) *servertest.Service {
	t.Helper()
	return servertest.Run(t, servertest.Config(t, v, yaml)).Ready(t)
}

// recipe is one of the published ones under its own names: what it makes, and what its consumer does
// with a message that failed. Its guide leads from there to Redrive.
type recipe struct {
	section  string // of the guide, whose commands are run
	exchange string // publishers use it; fanout
	args     amqp.Table
	make     func(*testing.T, *brokertest.VHost) (stop func()) // stop ends its programs
	fail     func(*shop, amqp.Delivery) error
}

// delay is how long the recipes with one delay wait, a minute in a Long run: longer than an old queue must be
// quiet before `redrive move` deletes it.
var delay = func() time.Duration {
	if brokertest.Long() {
		return time.Minute
	}
	return 30 * time.Second
}()

// back makes queues whose messages go to a queue when they expire, after a delay for each.
func back(v *brokertest.VHost, to string, delays map[string]time.Duration) {
	for name, ttl := range delays {
		v.Queue(name, amqp.Table{"x-message-ttl": ttl.Milliseconds(),
			"x-dead-letter-exchange": "", "x-dead-letter-routing-key": to})
	}
}

// deadLetters sets the recipe's policy, and waits until RabbitMQ tells of it: that
// takes some seconds, in which enrolling would not know what to go beyond.
func deadLetters(t testing.TB, v *brokertest.VHost, queue string, definition map[string]any) {
	v.Policy("recipe", "^"+queue+"$", 0, definition)
	policy(t, v, queue, "recipe")
}

func reject(_ *shop, d amqp.Delivery) error { return d.Reject(false) }

var (
	toRetry60 = amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "work-queue-retry-60"}
	levels    = map[string]time.Duration{
		"work-queue-retry-1": time.Second, "work-queue-retry-4": 4 * time.Second, "work-queue-retry-16": 16 * time.Second}
)

var recipes = map[string]recipe{
	"fixed": {section: "Fixed back-off, by an argument", args: toRetry60, make: func(_ *testing.T, v *brokertest.VHost) func() {
		back(v, "work-queue", map[string]time.Duration{"work-queue-retry-60": delay})
		return nil
	}, fail: reject},

	"fixed by policy": {section: "Fixed back-off, by a policy",
		make: func(t *testing.T, v *brokertest.VHost) func() {
			back(v, "work-queue", map[string]time.Duration{"work-queue-retry-60": delay})
			deadLetters(t, v, "work-queue",
				map[string]any{"dead-letter-exchange": "", "dead-letter-routing-key": "work-queue-retry-60"})
			return nil
		}, fail: reject},

	"levels": {section: "Exponential levels", make: func(_ *testing.T, v *brokertest.VHost) func() {
		back(v, "work-queue", levels)
		return nil
	}, fail: func(s *shop, d amqp.Delivery) error {
		tries, _ := d.Headers["tries"].(int32)
		level := []string{"work-queue-retry-1", "work-queue-retry-4", "work-queue-retry-16"}[min(tries, 2)]
		return s.republish("", level, amqp.Publishing{Headers: amqp.Table{"tries": tries + 1}, Body: d.Body}, d)
	}},

	"dynamic": {section: "A queue per delay", fail: func(s *shop, d amqp.Delivery) error {
		_, err := s.out.QueueDeclare("queue.5000", true, false, false, false, amqp.Table{"x-message-ttl": 5000,
			"x-expires": 10000, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "work-queue"})
		if err != nil {
			return err
		}
		return s.republish("", "queue.5000", amqp.Publishing{Body: d.Body}, d)
	}},

	"message-ttl": {section: "A TTL per message", exchange: "work-exchange",
		make: func(_ *testing.T, v *brokertest.VHost) func() {
			v.Queue("retry-queue", amqp.Table{"x-dead-letter-exchange": "work-exchange"})
			v.Exchange("retry-exchange", "fanout", "retry-queue")
			return nil
		}, fail: func(s *shop, d amqp.Delivery) error {
			p := amqp.Publishing{Expiration: strconv.FormatInt(delay.Milliseconds(), 10), Body: d.Body}
			return s.republish("retry-exchange", d.RoutingKey, p, d)
		}},

	"dead-letter-service": {section: "A dead-letter service", make: func(t *testing.T, v *brokertest.VHost) func() {
		v.Queue("dead.letters", nil)
		v.Exchange("dead", "fanout", "dead.letters")
		deadLetters(t, v, "work-queue", map[string]any{"dead-letter-exchange": "dead"})
		_, stop := deadLetterService(v, delay, 100)
		return stop
	}, fail: reject},

	// Without the plugin the exchange is a fanout, and the first program keeps what the exchange would.
	"delayed-exchange": {section: "The delayed-message plugin", args: amqp.Table{"x-dead-letter-exchange": "error-exchange"},
		make: func(t *testing.T, v *brokertest.VHost) func() {
			kind, kept, ch := "fanout", delay, v.Channel()
			if hasDelayPlugin(t, v) {
				kind, kept = "x-delayed-message", 0
			}
			t.Logf("wait-exchange is of type %s", kind)
			v.Queue("error-queue", nil)
			v.Queue("requeue-queue", nil)
			v.Exchange("error-exchange", "fanout", "error-queue")
			v.Exchange("requeue-exchange", "fanout", "requeue-queue")
			must(t, ch.ExchangeDeclare("wait-exchange", kind, true, false, false, false, amqp.Table{"x-delayed-type": "fanout"}))
			must(t, ch.ExchangeBind("requeue-exchange", "", "wait-exchange", false, nil))
			waits := forward(v, "error-queue", kept, func(d *amqp.Delivery) (exchange, key string, ok bool) {
				d.Headers["x-delay"] = delay.Milliseconds()
				return "wait-exchange", "", true
			})
			requeues := forward(v, "requeue-queue", 0, func(d *amqp.Delivery) (exchange, key string, ok bool) {
				key, ok = d.Headers["x-first-death-queue"].(string)
				return "", key, ok
			})
			return func() { waits(); requeues() }
		}, fail: reject},
}

// hasDelayPlugin reports whether the delayed-message plugin is there.
func hasDelayPlugin(t testing.TB, v *brokertest.VHost) bool {
	var overview struct {
		Types []struct {
			Name string `json:"name"`
		} `json:"exchange_types"`
	}
	must(t, v.API().Call(t.Context(), "GET", "overview", nil, &overview))
	for _, e := range overview.Types {
		if e.Name == "x-delayed-message" {
			return true
		}
	}
	return false
}

// delayed returns how many messages wait in the exchange wait-exchange, which most recipes have not.
func delayed(t testing.TB, v *brokertest.VHost) int {
	var e struct {
		Delayed int `json:"messages_delayed"`
	}
	_ = v.API().Call(t.Context(), "GET", "exchanges/"+v.Name+"/wait-exchange", nil, &e)
	return e.Delayed
}

// From each recipe to Redrive by the commands that its guide prints, with a hundred messages that wait, a
// hundred that are ready, and consumers that run: none is lost, none comes twice, and the recipe is gone. Each is tried
// on one version, if Long on all: with all of them the management API of a busy 3.10.8 fails for minutes.
func TestFromEachRecipe(t *testing.T) {
	redrive := brokertest.Redrive(t)
	brokertest.EachPrivate(t, "", func(t *testing.T, v *brokertest.VHost, n *rabbitnode.Node) {
		// Where it is installed: there is none for RabbitMQ 4.3.
		_, _ = n.Shell(t.Context(), "rabbitmq-plugins enable rabbitmq_delayed_message_exchange")
		old := strings.HasPrefix(v.Version, "3.")
		for i, name := range slices.Sorted(maps.Keys(recipes)) {
			if !brokertest.Long() && old == (i%2 == 0) {
				continue
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				recipes[name].migrate(t, brokertest.NewVHost(t, v.Broker), n, redrive)
			})
		}
	})
}

func (r recipe) migrate(t *testing.T, v *brokertest.VHost, n *rabbitnode.Node, redrive string) {
	const each, backoff = 100, time.Second
	from := cmp.Or(r.exchange, "shop")
	v.Queue("work-queue", r.args)
	v.Exchange(from, "fanout", "work-queue")
	stop := func() {}
	if r.make != nil {
		stop = r.make(t, v)
	}
	publish := func(what string) {
		for i := range each {
			id := fmt.Appendf(nil, "%s %d", what, i)
			v.Publish(from, "order.created", amqp.Publishing{DeliveryMode: amqp.Persistent, Body: id})
		}
	}
	a := newAccount()
	old := open(t, v, "work-queue", a, r.fail)
	publish("waiting")
	brokertest.Eventually(t, "messages wait by the recipe", func() bool { return a.sum(a.failed) >= each })
	old.slow.Store(true)
	publish("ready")

	s := serve(t, v, "policies: [{name: work, queues: [work-queue, work-queue.v2], "+
		"attempts: 3, backoff: {fixed: 1s}, jitter: none}]")
	work, deployed := "work-queue", false
	for _, line := range commands(t, r.section) {
		t.Log(line)
		command, _, _ := strings.Cut(line, "#")
		words := strings.Fields(command)
		switch {
		case strings.HasPrefix(line, "# Deploy consumers"):
			old.stop(t)
			open(t, v, work, a, reject)
			deployed = true
		case strings.HasPrefix(line, "# Stop"):
			stop()
		case strings.HasPrefix(line, "redis-cli"): // the recipe's store, which is none here
		case words[0] == "redrive":
			asks := (words[1] == "enroll" || words[1] == "move") && !strings.Contains(command, "--dry-run")
			if asks { // a terminal is asked
				command += " --yes"
			}
			out, err := shell(v, redrive, s.Client.Addr, command)
			if asks && words[1] == "move" && !deployed {
				work = "work-queue.v2"
				if err == nil || !strings.Contains(out, "deploy consumers of \"work-queue.v2\"") {
					t.Fatalf("%s does not wait for consumers:\n%s", line, out)
				}
			} else if err != nil {
				t.Fatalf("%s: %v\n%s", line, err, out)
			}
		case strings.HasPrefix(command, "rabbitmqctl list_queues name messages "): // until the recipe's are empty
			brokertest.Eventually(t, line, func() bool {
				left := recipeQueues(t, v, n)
				maps.DeleteFunc(left, func(_, messages string) bool { return messages == "0" })
				return len(left) == 0 && delayed(t, v) == 0
			})
			rabbitmqctl(t, v, n, command)
		case words[0] == "rabbitmqctl":
			rabbitmqctl(t, v, n, command)
		default:
			t.Errorf("the guide has a step that is not tested: %s", line)
		}
	}

	publish("late")
	brokertest.Eventually(t, "all succeeded", func() bool { return a.sum(a.done) >= 3*each })
	// Not from the management API: that of a busy 3.10.8 may have lost a queue's statistics, and answers 500.
	brokertest.Eventually(t, "nothing is left", func() bool {
		return queues(t, v, n)[work] == "0"
	})
	brokertest.Eventually(t, "the recipe's queues are gone", func() bool {
		return len(recipeQueues(t, v, n)) == 0
	})
	s.WaitParked(t, 0)
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range each {
		for _, what := range []string{"waiting", "ready", "late"} {
			if id := fmt.Sprint(what, " ", i); a.done[id] != 1 {
				t.Errorf("%q succeeded %d times", id, a.done[id])
			}
		}
		id := fmt.Sprint("late ", i)
		if a.failed[id] != 1 || a.keys[id] != "order.created" || a.waited[id] < backoff {
			t.Errorf("%q failed %d times, and came back after %s with the routing key %q",
				id, a.failed[id], a.waited[id], a.keys[id])
		}
	}
}

// commands are the lines of the blocks in a section of the guide, in their order.
func commands(t *testing.T, section string) (lines []string) {
	t.Helper()
	_, after, found := strings.Cut(pages(t)["recipes.md"], "\n## "+section+"\n")
	if !found {
		t.Fatalf("recipes.md has no section %q", section)
	}
	after, _, _ = strings.Cut(after, "\n## ")
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(after, -1) {
		for line := range strings.Lines(block[1]) {
			if line = strings.TrimSpace(line); line != "" {
				lines = append(lines, line)
			}
		}
	}
	return lines
}

// rabbitmqctl runs a command of the node's administrator, in the virtual host.
func rabbitmqctl(t *testing.T, v *brokertest.VHost, n *rabbitnode.Node, command string) string {
	t.Helper()
	out, err := n.Shell(t.Context(), "rabbitmqctl() { command rabbitmqctl -q -p "+v.Name+" \"$@\"; }; "+command)
	must(t, err)
	return out
}

// queues are the messages of each queue by its name, as `rabbitmqctl list_queues name messages` says.
func queues(t *testing.T, v *brokertest.VHost, n *rabbitnode.Node) map[string]string {
	t.Helper()
	out, err := n.Eval(t.Context(), fmt.Sprintf(`[{Name, Messages} || [{name, {_, _, _, Name}}, {messages, Messages}] <-
		rabbit_amqqueue:info_all(<<%q>>, [name, messages])].`, v.Name))
	must(t, err)
	all := map[string]string{}
	for _, q := range regexp.MustCompile(`<<"(.*?)">>,\s*(\d+)`).FindAllStringSubmatch(out, -1) {
		all[q[1]] = q[2]
	}
	return all
}

// recipeQueues are those that are neither Redrive's nor a work queue.
func recipeQueues(t *testing.T, v *brokertest.VHost, n *rabbitnode.Node) map[string]string {
	t.Helper()
	all := queues(t, v, n)
	maps.DeleteFunc(all, func(name, _ string) bool {
		return name == "work-queue" || name == "work-queue.v2" || strings.HasPrefix(name, "redrive.")
	})
	return all
}

// account is of messages by their ids, over all consumers.
type account struct {
	mu           sync.Mutex
	failed, done map[string]int
	failedAt     map[string]time.Time
	waited       map[string]time.Duration // of those that succeeded
	keys         map[string]string
}

func newAccount() *account {
	return &account{failed: map[string]int{}, done: map[string]int{}, failedAt: map[string]time.Time{},
		waited: map[string]time.Duration{}, keys: map[string]string{}}
}

func (a *account) sum(of map[string]int) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(of)
}

// shop is a consumer of a work queue: each message fails until Redrive has retried it.
type shop struct {
	*account
	ch    *amqp.Channel
	out   *amqp.Channel // its own: the client mixes up the answers to two requests at once on one channel
	fail  func(*shop, amqp.Delivery) error
	slow  atomic.Bool // its work takes a while
	ended chan struct{}
}

func open(t *testing.T, v *brokertest.VHost, queue string, a *account, fail func(*shop, amqp.Delivery) error) *shop {
	t.Helper()
	s := &shop{account: a, ch: v.Channel(), out: v.Channel(), fail: fail, ended: make(chan struct{})}
	must(t, s.out.Confirm(false))
	must(t, s.ch.Qos(10, 0, false))
	in, err := s.ch.Consume(queue, "shop", false, false, false, false, nil)
	must(t, err)
	go func() {
		defer close(s.ended)
		for d := range in {
			if err := s.handle(d); err != nil && !s.ch.IsClosed() {
				t.Errorf("the consumer: %v", err)
			}
		}
	}()
	t.Cleanup(func() { s.ch.Close(); <-s.ended })
	return s
}

func (s *shop) handle(d amqp.Delivery) error {
	id := string(d.Body)
	if s.slow.Load() {
		time.Sleep(50 * time.Millisecond)
	}
	attempt, _ := d.Headers["x-redrive-attempt"].(int64)
	s.mu.Lock()
	if attempt == 0 {
		s.failed[id]++
		s.failedAt[id] = time.Now()
		s.mu.Unlock()
		return s.fail(s, d)
	}
	s.done[id]++
	s.waited[id] = time.Since(s.failedAt[id])
	s.keys[id] = d.RoutingKey
	s.mu.Unlock()
	return d.Ack(false)
}

// stop ends it in order, as a deployment does: nothing is delivered any more, and
// what was taken is finished.
func (s *shop) stop(t *testing.T) {
	t.Helper()
	must(t, s.ch.Cancel("shop", false))
	<-s.ended
	// All that was acknowledged is, when RabbitMQ answers what was asked after it.
	must(t, s.ch.Close())
}

// republish is what recipes do that wait by themselves: here as safe as it can be,
// with a confirm before the acknowledgement.
func (s *shop) republish(exchange, key string, p amqp.Publishing, d amqp.Delivery) error {
	p.DeliveryMode = amqp.Persistent
	c, err := s.out.PublishWithDeferredConfirm(exchange, key, true, false, p)
	if err != nil {
		return err
	}
	if !c.Wait() {
		return fmt.Errorf("%s%s did not take the message", exchange, key)
	}
	return d.Ack(false)
}

// shell runs a command line as it is printed, with Redrive's command for a virtual host and a service.
func shell(v *brokertest.VHost, program, address, line string) (string, error) {
	c := exec.Command("sh", "-c", line)
	c.Env = append(os.Environ(), "PATH="+filepath.Dir(program)+":"+os.Getenv("PATH"),
		"REDRIVE_BROKER_URL="+v.URL(), "REDRIVE_MANAGEMENT_URL="+v.Management, "REDRIVE_ADDRESS="+address)
	out, err := c.CombinedOutput()
	return string(out), err
}

// run runs a command of Redrive's against a virtual host.
func run(t *testing.T, v *brokertest.VHost, program string, args ...string) string {
	t.Helper()
	c := exec.CommandContext(context.Background(), program, args...)
	c.Env = append(os.Environ(), "REDRIVE_BROKER_URL="+v.URL(), "REDRIVE_MANAGEMENT_URL="+v.Management)
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("redrive %v: %v\n%s", args, err, out)
	}
	return string(out)
}

// The tutorial, step by step as it is printed: its config, its commands, and by AMQP what it does
// with rabbitmqadmin. It ends with the replayed message.
func TestTheTutorial(t *testing.T) {
	text, err := os.ReadFile("../tutorial/first-queue.md")
	must(t, err)
	config := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindStringSubmatch(string(text))[1]
	program := brokertest.Redrive(t)
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		file := filepath.Join(t.TempDir(), "redrive.yaml")
		must(t, os.WriteFile(file, []byte(config), 0o600))
		s := serve(t, v, config)
		var last string
		redrive := func(args ...string) string { return run(t, v, program, args...) }
		asks := func(line string) string { return redrive(append(strings.Fields(line), "--address", s.Client.Addr)...) }
		consume := func(times int, do func(*brokertest.Consumer)) {
			c := v.Consume("orders")
			for range times {
				do(c)
			}
			must(t, c.Channel.Close())
		}
		steps := 0
		for _, section := range strings.Split(string(text), "\n## ")[1:] {
			for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(section, -1) {
				for line := range strings.Lines(block[1]) {
					steps++
					switch line = strings.TrimSpace(line); {
					case line == "make build", strings.HasPrefix(line, "bin/redrive serve "), line == "bin/redrive open":
					case line == "bin/redrive check redrive.yaml":
						if out := redrive("check", file); !strings.Contains(out, "2s, 10s, parked after 12s") {
							t.Errorf("check says\n%s", out)
						}
					case line == "rabbitmqadmin declare queue name=orders durable=true":
						v.Queue("orders", nil)
					case line == "bin/redrive enroll orders":
						redrive("enroll", "orders", "--yes") // a terminal is asked
						policy(t, v, "orders", "redrive.orders")
					case strings.HasPrefix(line, "rabbitmqadmin publish routing_key=orders payload="):
						v.Publish("", "orders", amqp.Publishing{Body: []byte(`{"id": 1}`)})
					case line == "rabbitmqadmin get queue=orders ackmode=reject_requeue_false":
						times := 1
						if strings.HasPrefix(section, "4.") { // "two more times"
							times = 2
						}
						consume(times, func(c *brokertest.Consumer) { c.Reject() })
					case line == "rabbitmqadmin get queue=orders ackmode=ack_requeue_false":
						consume(1, func(c *brokertest.Consumer) {
							if d := c.Take(`{"id": 1}`); d.Headers["x-redrive-attempt"] != int64(0) {
								t.Errorf("it is replayed with %v", d.Headers)
							}
						})
						last = "replayed"
					case strings.HasPrefix(line, "bin/redrive messages list"):
						state := "waiting"
						if strings.HasSuffix(line, "state:parked") {
							state = "parked"
						}
						brokertest.Eventually(t, "the message is "+state, func() bool {
							return strings.Contains(asks(strings.TrimPrefix(line, "bin/redrive ")), " "+state+" ")
						})
					case line == "bin/redrive replay 'queue:orders'":
						asks("replay queue:orders")
					default:
						t.Errorf("the tutorial has a step that is not tested: %s", line)
					}
				}
			}
		}
		if last != "replayed" || steps < 12 {
			t.Errorf("it ends after %d steps, without the replayed message", steps)
		}
	})
}

// The consumer runs on all the time; what waits when it is undone still returns.
func TestAddingToARunningSystemAndUndo(t *testing.T) {
	program := brokertest.Redrive(t)
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("orders", nil)
		deadLetters(t, v, "orders", map[string]any{"max-length": 1000})
		work := v.Consume("orders")
		v.Publish("", "orders", amqp.Publishing{Body: []byte("before")})
		work.Take("before")

		s := serve(t, v, "policies: [{name: orders, queues: [orders], attempts: 3, backoff: {fixed: 10s}, jitter: none}]")
		run(t, v, program, "enroll", "orders", "--dry-run")
		policy(t, v, "orders", "recipe")
		run(t, v, program, "enroll", "orders", "--yes")
		policy(t, v, "orders", "redrive.orders")
		failed := time.Now()
		v.Publish("", "orders", amqp.Publishing{Body: []byte("fails")})
		work.Reject()
		brokertest.Eventually(t, "it waits", func() bool {
			page, err := s.Client.Messages(context.Background(), "state:waiting queue:orders", "", 10)
			return err == nil && len(page.Messages) == 1
		})

		for _, look := range [][]string{{"status"}, {"queues"}, {"messages", "list", "queue:orders state:waiting"}, {"export", "queue:orders"}} {
			if out := run(t, v, program, append(look, "--address", s.Client.Addr)...); !strings.Contains(out, "orders") {
				t.Errorf("redrive %v does not show the queue:\n%s", look, out)
			}
		}

		run(t, v, program, "unenroll", "orders")
		policy(t, v, "orders", "recipe")
		if d := work.Take("fails"); d.Headers["x-redrive-attempt"] != int64(1) || time.Since(failed) < 10*time.Second {
			t.Errorf("it came back after %s with %v", time.Since(failed), d.Headers)
		}
		s.WaitParked(t, 0)
	})
}

// policy waits until RabbitMQ tells that a policy is in force.
func policy(t testing.TB, v *brokertest.VHost, queue, name string) {
	t.Helper()
	brokertest.Eventually(t, "the policy "+name+" is in force", func() bool {
		q, err := v.API().Queue(context.Background(), queue)
		return err == nil && q.Policy == name
	})
}

// forward takes messages from a queue, keeps each for a while, and publishes it as it is where send says, if
// anywhere. stop ends it in order.
func forward(v *brokertest.VHost, queue string, wait time.Duration,
	send func(*amqp.Delivery) (exchange, key string, ok bool)) (stop func()) {
	in, out, done := v.ConsumeMany(queue), v.Channel(), make(chan struct{})
	if err := out.Confirm(false); err != nil {
		panic(err)
	}
	type due struct {
		amqp.Delivery
		at time.Time
	}
	kept := make(chan due, 1000)
	go func() {
		defer close(kept)
		for d := range in.In {
			kept <- due{d, time.Now().Add(wait)}
		}
	}()
	go func() {
		defer close(done)
		for d := range kept {
			<-time.After(time.Until(d.at))
			if exchange, key, ok := send(&d.Delivery); ok {
				p := amqp.Publishing{Headers: d.Headers, Body: d.Body, DeliveryMode: amqp.Persistent}
				c, err := out.PublishWithDeferredConfirm(exchange, key, false, false, p)
				if err != nil || !c.Wait() {
					return
				}
			}
			if err := d.Ack(false); err != nil {
				return
			}
		}
	}()
	return func() { in.Channel.Close(); <-done }
}

// deadLetterService is the recipe of that name: it publishes what died to its queue again when it is due,
// with its headers, until x-death counts most deaths.
func deadLetterService(v *brokertest.VHost, delay time.Duration, most int64) (gaveUp <-chan string, stop func()) {
	given := make(chan string, 1000)
	return given, forward(v, "dead.letters", delay, func(d *amqp.Delivery) (exchange, key string, ok bool) {
		deaths, _ := d.Headers["x-death"].([]any)
		death, _ := deaths[0].(amqp.Table)
		if count, _ := death["count"].(int64); count >= most {
			given <- string(d.Body)
			return "", "", false
		}
		queue, _ := death["queue"].(string)
		return "", queue, true
	})
}

// What counts by x-death and publishes again stops after three deaths on RabbitMQ
// 3, and never on 4. Redrive parks the message after three attempts on both.
func TestTheDeadLetterServiceRetriesForEverOn4(t *testing.T) {
	program := brokertest.Redrive(t)
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("orders", nil)
		v.Queue("dead.letters", nil)
		v.Exchange("dead", "fanout", "dead.letters")
		deadLetters(t, v, "orders", map[string]any{"dead-letter-exchange": "dead"})
		gaveUp, _ := deadLetterService(v, time.Millisecond, 3)
		work := v.Consume("orders")
		v.Publish("", "orders", amqp.Publishing{Body: []byte("broken")})
		work.Reject()
		work.Reject()
		work.Reject()
		if !v.Since4() {
			brokertest.Receive(t, gaveUp, "the recipe did not give up after three deaths")
			if n := v.Depth("orders"); n != 0 {
				t.Fatalf("%d messages are in orders", n)
			}
			v.Publish("", "orders", amqp.Publishing{Body: []byte("broken")})
		} else {
			for range 30 {
				work.Reject() // ten times as many as the recipe allows
			}
			select {
			case id := <-gaveUp:
				t.Fatalf("the recipe gave %q up", id)
			default:
			}
		}

		s := serve(t, v, "policies: [{name: orders, queues: [orders], attempts: 3, backoff: {fixed: 100ms}, jitter: none}]")
		run(t, v, program, "enroll", "orders", "--yes")
		// RabbitMQ may still take the recipe's way once, just after a policy was set.
		brokertest.Eventually(t, "the message is parked", func() bool {
			select {
			case d := <-work.In:
				must(t, d.Reject(false))
			default:
			}
			return len(s.Parked(t)) == 1
		})
		if m := s.Parked(t)[0]; m.Attempt != 3 {
			t.Errorf("it is parked after %d attempts, want 3", m.Attempt)
		}
	})
}

// What goes round inside RabbitMQ alone is counted on as before.
func TestXDeathStillCountsInALoopOfTheBrokerAlone(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("orders", amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders.retry"})
		back(v, "orders", map[string]time.Duration{"orders.retry": time.Millisecond})
		v.Publish("", "orders", amqp.Publishing{Body: []byte("broken")})
		work := v.Consume("orders")
		for i := range int64(5) {
			d := work.Next()
			count := int64(0)
			if deaths, _ := d.Headers["x-death"].([]any); len(deaths) > 0 {
				for _, death := range deaths {
					if e := death.(amqp.Table); e["queue"] == "orders" {
						count, _ = e["count"].(int64)
					}
				}
			}
			if count != i {
				t.Fatalf("x-death counts %d deaths in orders after %d: %s", count, i, fmt.Sprint(d.Headers))
			}
			must(t, d.Reject(false))
		}
	})
}

var must = expect.NoError
