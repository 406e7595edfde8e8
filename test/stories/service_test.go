// Package stories_test runs the service against real brokers, from the
// publisher's first message to the consumer's last.
package stories_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive"
	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/cli"
	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/connect"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/server/servertest"
	"github.com/redrive-mq/redrive/testenv/authority"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/redisnode"
	"github.com/redrive-mq/redrive/wire"
)

// service is a running Redrive.
type service struct{ *servertest.Service }

// start runs a service on a virtual host with policies in YAML, as a user with the
// rights that `redrive permissions` prints for them. It ends with the test.
func start(t *testing.T, v *brokertest.VHost, policies string) *service {
	return startAt(t, v, policies, t.TempDir())
}

func startAt(t *testing.T, v *brokertest.VHost, policies, data string) *service {
	t.Helper()
	return run(t, configured(t, v, policies, data))
}

func configured(t *testing.T, v *brokertest.VHost, policies, data string) *config.Config {
	t.Helper()
	c := servertest.Config(t, v, policies)
	c.Broker.Management, c.Store.Disk = "", data
	return c
}

func run(t *testing.T, c *config.Config) *service {
	t.Helper()
	return &service{servertest.Run(t, c)}
}

func (s *service) ready(t *testing.T) *service {
	t.Helper()
	s.Ready(t)
	return s
}

// wait waits for the next event of one of the kinds.
func (s *service) wait(t *testing.T, kinds ...retry.Kind) retry.Event {
	t.Helper()
	for {
		select {
		case e := <-s.Events:
			if slices.Contains(kinds, e.Kind) {
				return e
			}
		case <-time.After(brokertest.Patience):
			t.Fatalf("no event of %v came", kinds)
		}
	}
}

// says waits until the service has a problem whose text has all of these.
func (s *service) says(t *testing.T, texts ...string) {
	t.Helper()
	brokertest.Eventually(t, fmt.Sprintf("a problem says %q", texts), func() bool {
		return slices.ContainsFunc(s.Problems(), func(problem string) bool {
			return !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(problem, text) })
		})
	})
}

// begin plans an operation and starts it.
func (s *service) begin(t *testing.T, r operations.PlanRequest, o operations.Start) operations.Operation {
	t.Helper()
	p, err := s.Client.Plan(t.Context(), r)
	must(t, err)
	op, err := s.Client.Start(t.Context(), p.ID, o)
	must(t, err)
	return op
}

// end is an operation at its end, which it waits for.
func (s *service) end(t *testing.T, id string) (op operations.Operation) {
	t.Helper()
	brokertest.Eventually(t, "the operation ends", func() bool {
		var err error
		op, err = s.Client.Operation(t.Context(), id)
		must(t, err)
		return op.Ended != nil
	})
	return op
}

// redrive runs a command against the service.
func (s *service) redrive(t *testing.T, args ...string) (says string, code int) {
	var out strings.Builder
	code = cli.Run(t.Context(), append(args, "--address", s.Client.Addr), &out, &out, cli.Build{})
	return out.String(), code
}

// kept is what the service shows of a queue.
func (s *service) kept(t *testing.T, queue string) inspect.Queue {
	t.Helper()
	st, err := s.Client.Overview(context.Background())
	must(t, err)
	for _, q := range st.Queues {
		if q.Name == queue {
			return q
		}
	}
	return inspect.Queue{Name: queue}
}

// get asks the service by HTTP.
func (s *service) get(t *testing.T, path string) (code int, text string) {
	t.Helper()
	resp, err := http.Get("http://" + s.Addr() + path)
	must(t, err)
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	must(t, err)
	return resp.StatusCode, string(all)
}

// metric is the value of a line of the service's metrics; "" when there is none.
func (s *service) metric(t *testing.T, series string) string {
	t.Helper()
	_, all := s.get(t, "/metrics")
	for line := range strings.Lines(all) {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// act does something to one message.
func (s *service) act(t *testing.T, act actions.Act) actions.Outcome {
	t.Helper()
	did, err := s.Client.Act(t.Context(), act)
	if err != nil || did.Done != 1 {
		t.Fatalf("%+v, %v", did, err)
	}
	return did.Outcomes[0]
}

// deadLettered declares a queue whose dead letters go to Redrive.
func deadLettered(v *brokertest.VHost, queue, kind string) {
	v.Queue(queue, amqp.Table{"x-queue-type": kind, "x-dead-letter-exchange": "redrive"})
}

func reject(t *testing.T, d amqp.Delivery) time.Time {
	t.Helper()
	must(t, d.Reject(false))
	return time.Now()
}

func TestMain(m *testing.M) {
	brokertest.AlsoByTLS()
	os.Exit(m.Run())
}

// From disk to Redis and back, as the guide says: what waits is retried with the attempts it had, and
// what fails meanwhile is in the new store.
func TestAStoreIsMovedToRedisAndBack(t *testing.T) {
	redis := redisnode.New(t, redisnode.Options{})
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		ctx := context.Background()
		deadLettered(v, "orders", "quorum")
		onDisk := configured(t, v, threeAttempts, t.TempDir())
		onRedis, again := *onDisk, *onDisk
		onRedis.Store.Redis = config.Redis{URL: redis.URL(), Prefix: v.Name, Durability: "cached"}
		again.Store.Disk = t.TempDir() + "/again"
		orders := v.ConsumeMany("orders")
		var want []string
		fails := func() {
			for range 20 {
				want = append(want, fmt.Sprint(len(want)))
				v.Publish("", "orders", amqp.Publishing{Body: []byte(want[len(want)-1])})
				reject(t, orders.Next())
			}
		}
		s := run(t, onDisk).ready(t)
		must(t, s.Client.PauseQueue(ctx, "orders", "they wait to be moved"))
		fails()
		for _, move := range [][2]*config.Config{{onDisk, &onRedis}, {&onRedis, &again}} {
			brokertest.Eventually(t, "all wait", func() bool { return s.kept(t, "orders").Waiting == int64(len(want)) })
			must(t, s.Stop())
			s = run(t, move[1]).ready(t)
			must(t, s.Client.PauseQueue(ctx, "orders", "they wait to be moved"))
			apart := *move[0]
			apart.Broker.URL = "amqp://127.0.0.1:1/" + v.Name
			old := run(t, &apart)
			fails()
			for _, already := range []bool{false, true} {
				var lines bytes.Buffer
				n, err := old.Client.Export(ctx, "state:waiting OR state:parked", "jsonl", &lines)
				must(t, err)
				im, err := s.Client.Import(ctx, &lines, actions.ImportOptions{AsIs: true})
				if err != nil || n != int64(len(want)-20) || already != (im.Count == 0) || im.Count+im.Already != n {
					t.Errorf("of %d: %+v, %v", n, im, err)
				}
			}
			must(t, old.Stop())
		}
		must(t, s.Client.ResumeQueue(ctx, "orders", ""))
		var got []string
		for range want {
			d := orders.Next()
			expect.Equal(t, d.Headers[wire.HeaderAttempt], any(int64(1)), "it came back as attempt")
			got = append(got, string(d.Body))
			must(t, d.Ack(false))
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("came back: %v", got)
		}
	})
}

// told is what a webhook is sent.
type told struct {
	Title, Message, Event, Queue, Link string
	Count                              int
}

// One parked message is one call; fifty that are parked while the webhook is down are
// one as soon as it is up, and nothing waits for it.
func TestParkedMessagesSendNotifications(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		calls, failed := make(chan told, 100), make(chan struct{}, 100)
		var down atomic.Bool
		hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if down.Load() {
				w.WriteHeader(http.StatusServiceUnavailable)
				failed <- struct{}{}
				return
			}
			var c told
			must(t, json.NewDecoder(r.Body).Decode(&c))
			calls <- c
		}))
		defer hook.Close()
		next := func() told { return brokertest.Receive(t, calls, "a notification") }
		v.Queue("mail", nil)
		v.Queue("orders", nil)
		s := start(t, v, `
policies: [{name: p, queues: [mail, orders], attempts: 1}]
notify:
  page: https://redrive.example.com
  allow_private: [127.0.0.0/8]
  routes: [{name: hook, url: "`+strings.Replace(hook.URL, "http:", "generic+http:", 1)+`", events: [parked], group_wait: 100ms}]
`).ready(t)
		fail := func(queue string) {
			v.Publish(wire.ExchangeFailures, queue, amqp.Publishing{Body: []byte("s3cret"), Headers: amqp.Table{
				wire.HeaderError: "no stock for <!channel> @here", wire.HeaderExchange: "",
				wire.HeaderRoutingKey: queue}})
		}
		fail("mail")
		if c := next(); c.Count != 1 || c.Queue != "mail" || c.Event != "parked" ||
			!strings.Contains(c.Message, "no stock for ‹!channel› ＠here") ||
			!strings.HasPrefix(c.Link, "https://redrive.example.com/messages?q=state%3Aparked+queue%3A%22mail%22+parked%3A%3E%3D20") || strings.Contains(c.Message, "s3cret") {
			t.Errorf("it was told %+v", c)
		}
		down.Store(true)
		fail("orders")
		brokertest.Receive(t, failed, "a call of the webhook that fails")
		for range 49 {
			fail("orders")
		}
		s.WaitParked(t, 51)
		down.Store(false)
		if c := next(); c.Count != 50 || c.Queue != "orders" {
			t.Errorf("after it was down it was told %+v", c)
		}
		must(t, s.Stop())
		if len(calls) != 0 {
			t.Errorf("it was told again: %+v", <-calls)
		}
	})
}

// A service with broker.tls is the user of its certificate. While RabbitMQ's certificate
// is not to be trusted it says so, and what to do; the right file put in place is enough.
func TestAServiceWithACertificate(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		stranger, err := authority.New(t.TempDir())
		must(t, err)
		dir, user := t.TempDir(), "service-"+v.Name
		files := connect.TLS{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "cert.pem"),
			Key: filepath.Join(dir, "key.pem")}
		put(t, files.CA, stranger.CAFile())
		must(t, v.CA(t).Issue(authority.Leaf{User: user}, files.Cert, files.Key))
		c := configured(t, v, `policies: [{name: p, queues: [orders], backoff: {fixed: 50ms}}]`, t.TempDir())
		v.User(user, "s3cret")
		v.Give(user, management.ServiceRights(c.Policies))
		c.Broker.URL = v.SecureURL("", "", url.Values{"auth_mechanism": {"external"}, "cacertfile": {""}})
		c.Broker.Credentials.TLS = files
		v.Queue("orders", amqp.Table{"x-dead-letter-exchange": "redrive"})
		s := run(t, c)
		s.says(t, "intake: connecting to amqps://", "unknown authority", "broker.tls.ca")
		put(t, files.CA, v.CA(t).CAFile())
		s.ready(t)
		v.Publish("", "orders", amqp.Publishing{Body: []byte("1")})
		consumer := v.Consume("orders")
		consumer.Reject()
		s.wait(t, retry.Retried)
		consumer.Take("1")
	})
}

func put(t *testing.T, file, from string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(file, data, 0o600)
	}
	must(t, err)
}

// To a handler of the Go library a message that a person has replayed is the one that was parked:
// as first published, with the id under which people know it, and so it stays if it fails again.
func TestAHandlerKnowsAReplayedMessage(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		deadLettered(v, "orders", "quorum")
		v.Must("PUT", "exchanges/"+v.Name+"/shop", map[string]any{"type": "topic"})
		v.Must("POST", "bindings/"+v.Name+"/e/shop/q/orders", map[string]any{"routing_key": "order.*"})
		s := managed(t, v, oneAttempt, t.TempDir())
		attempts := make(chan redrive.Message, 1)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() {
			ended <- redrive.Consume(ctx, redrive.Config{URLs: []string{v.URL()}}, redrive.Consumer{Queue: "orders",
				Wait: redrive.Service(), Handler: func(_ context.Context, m *redrive.Message) error {
					attempts <- *m
					return errors.New("no stock")
				}})
		}()
		v.Publish("shop", "order.eu", amqp.Publishing{Body: []byte("1"), Headers: amqp.Table{"n": int32(1)}})
		if first := <-attempts; first.Attempt != 1 || first.ID != "" {
			t.Errorf("the first attempt is number %d of id %q", first.Attempt, first.ID)
		}
		id := s.WaitParked(t, 1)[0].ID
		for n := range 2 {
			s.act(t, actions.Act{Verb: actions.Replay, IDs: []string{id}})
			m := <-attempts
			if m.Attempt != 1 || m.Replays != n+1 || m.ID != id || m.FirstFailed.IsZero() || m.LastError != "no stock" {
				t.Errorf("replayed %d times, it is attempt %d of replay %d of id %q, first failed %s, last error %q; want 1 of %q", n+1, m.Attempt, m.Replays, m.ID, m.FirstFailed, m.LastError, id)
			}
			if m.Exchange != "shop" || m.RoutingKey != "order.eu" || len(m.Headers) != 1 || m.Headers["n"] != int32(1) {
				t.Errorf("replayed, it was published to %q with the key %q and has the headers %v", m.Exchange,
					m.RoutingKey, m.Headers)
			}
			if parked := s.WaitParked(t, 1)[0]; parked.ID != id || parked.Replays != n+1 {
				t.Errorf("failed again, its id is %q with %d replays, want %q with %d", parked.ID, parked.Replays, id,
					n+1)
			}
		}
		stop()
		must(t, <-ended)
	})
}

// testVHost is one virtual host of a service with several, and what its consumer got. All
// have a queue of one name, and messages of the same ids and bodies in it; only a header
// of the test's own says whose a message is.
type testVHost struct {
	*brokertest.VHost
	api httpapi.Client
	t   *testing.T

	mu        sync.Mutex
	delivered map[string]int // by id
	acked     map[string]int
	wrong     []string
}

const inEach = 60 // messages

// consume fails every third message once, every third twice, and every third until it is
// replayed.
func (v *testVHost) consume() {
	var consuming sync.WaitGroup
	v.t.Cleanup(consuming.Wait) // once the connection has ended
	in, err := v.Channel().Consume("orders", "", false, false, false, false, nil)
	must(v.t, err)
	consuming.Go(func() {
		for d := range in {
			v.take(d)
		}
	})
}

func (v *testVHost) take(d amqp.Delivery) {
	v.mu.Lock()
	defer v.mu.Unlock()
	id := d.MessageId
	v.delivered[id]++
	n := -1
	_, _ = fmt.Sscanf(id, "m%d", &n)
	if d.Headers["of"] != v.Name || string(d.Body) != "body of "+id || d.RoutingKey != "orders" {
		v.wrong = append(v.wrong, fmt.Sprintf("%s came to %s: %q, headers %v", id, v.Name, d.Body, d.Headers))
	}
	fails := n%3 + 1 // and is parked after the third
	if v.delivered[id] <= fails {
		_ = d.Reject(false)
		return
	}
	v.acked[id]++
	_ = d.Ack(false)
}

func (v *testVHost) publish() {
	for i := range inEach {
		id := fmt.Sprintf("m%d", i)
		v.Publish("", "orders", amqp.Publishing{MessageId: id, Body: []byte("body of " + id), DeliveryMode: 2,
			Headers: amqp.Table{"of": v.Name}})
	}
}

// done tells how many messages were acknowledged, and each once.
func (v *testVHost) done() (n int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return len(v.acked)
}

func (v *testVHost) parked() int {
	v.t.Helper()
	n, err := v.api.Count(context.Background(), "state:parked")
	must(v.t, err)
	return int(n.Count)
}

// checkDeliveries checks for each id where and how often it was delivered, and that there are no others.
func (v *testVHost) checkDeliveries() {
	v.t.Helper()
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, w := range v.wrong {
		v.t.Error(w)
	}
	expect.Equal(v.t, len(v.delivered), inEach, "%s: ids came", v.Name)
	for i := range inEach {
		id := fmt.Sprintf("m%d", i)
		if v.acked[id] != 1 || v.delivered[id] != i%3+2 {
			v.t.Errorf("%s: %s was delivered %d times and acknowledged %d times", v.Name, id, v.delivered[id],
				v.acked[id])
		}
	}
}

func newTestVHost(t *testing.T, v *brokertest.VHost, addr string) *testVHost {
	return &testVHost{VHost: v, api: httpapi.Client{Addr: addr + httpapi.Base(v.Name)}, t: t,
		delivered: map[string]int{}, acked: map[string]int{}}
}

// twoVHosts is a configuration of two virtual hosts, the second with a user of its own
// that has no right in the first, and the first's none in the second.
func twoVHosts(t *testing.T, first, second *brokertest.VHost, policies string) *config.Config {
	t.Helper()
	c := configured(t, first, policies, t.TempDir())
	second.ServiceURL(c.Policies)
	c.Broker.VHosts = []config.VHost{{Name: second.Name, User: second.ServiceUser(),
		Password: brokertest.ServicePassword}}
	return c
}

// Two virtual hosts have the same queues, ids and bodies: each message comes back in its
// own, and none in the other, whatever is done in that one.
func TestTwoVirtualHostsAreIsolated(t *testing.T) {
	t.Run("disk", func(t *testing.T) {
		brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
			second := brokertest.NewVHost(t, v.Broker)
			neverMeet(t, v, second, twoVHosts(t, v, second, threeAttempts), 1)
		})
	})
	t.Run("Redis, two replicas", func(t *testing.T) {
		redis := redisnode.New(t, redisnode.Options{})
		brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
			second := brokertest.NewVHost(t, v.Broker)
			c := twoVHosts(t, v, second, threeAttempts)
			c.Store.Redis.URL, c.Store.Redis.Prefix = redis.URL(), v.Name
			neverMeet(t, v, second, c, 2)
		})
	})
}

func neverMeet(t *testing.T, first, second *brokertest.VHost, c *config.Config, replicas int) {
	ctx := context.Background()
	var services []*service
	for range replicas {
		one := *c
		one.Store.Disk = t.TempDir()
		services = append(services, run(t, &one).ready(t))
	}
	s := services[0]
	a, b := newTestVHost(t, first, s.Addr()), newTestVHost(t, second, s.Addr())
	both := []*testVHost{a, b}
	for _, v := range both {
		deadLettered(v.VHost, "orders", "quorum")
		v.consume()
		v.publish()
	}
	// Of each, a third is parked, and all else comes back.
	for _, v := range both {
		brokertest.Eventually(t, "all but a third came back in "+v.Name, func() bool {
			return v.done() == 2*inEach/3 && v.parked() == inEach/3
		})
	}
	must(t, b.api.PauseQueue(ctx, "orders", "only here"))
	must(t, b.api.Breaker(ctx, "orders", "open", "and here"))
	plan, err := a.api.Plan(ctx, operations.PlanRequest{Verb: actions.Replay, Query: "queue:orders state:parked"})
	if err != nil || plan.Count != inEach/3 {
		t.Fatalf("a plan has %d messages, want %d: %v", plan.Count, inEach/3, err)
	}
	if _, err := b.api.GetPlan(ctx, plan.ID); err == nil {
		t.Error("the plan is seen in the other virtual host")
	}
	must(t, errOf(a.api.Start(ctx, plan.ID, operations.Start{})))
	brokertest.Eventually(t, "what was replayed came back", func() bool { return a.done() == inEach })
	a.checkDeliveries()
	if n := b.parked(); n != inEach/3 || b.done() != 2*inEach/3 {
		t.Errorf("in the other %d are parked and %d came back", n, b.done())
	}
	if ops, err := b.api.Operations(ctx); err != nil || len(ops.Operations) != 0 {
		t.Errorf("the other has operations %+v, %v", ops.Operations, err)
	}
	// There it is paused, and by that breaker; here it is neither.
	for v, want := range map[*testVHost]bool{a: false, b: true} {
		st, err := v.api.Overview(ctx)
		if err != nil || len(st.Queues) != 1 {
			t.Fatal(st.Queues, err)
		}
		if q := st.Queues[0]; (q.Pause != nil) != want || (q.Throttle != nil) != want {
			t.Errorf("%s: paused by %+v, throttle %+v", v.Name, q.Pause, q.Throttle)
		}
	}
	must(t, b.api.Breaker(ctx, "orders", "auto", "over"))
	must(t, b.api.ResumeQueue(ctx, "orders", "over"))
	page, err := b.api.Messages(ctx, "state:parked", "", 1000)
	must(t, err)
	act := actions.Act{Verb: actions.Replay}
	for _, m := range page.Messages {
		act.IDs = append(act.IDs, m.Key)
	}
	if did, err := a.api.Act(ctx, act); err == nil && did.Done > 0 {
		t.Errorf("%d messages of one virtual host were replayed in the other", did.Done)
	}
	if did, err := b.api.Act(ctx, act); err != nil || did.Done != inEach/3 {
		t.Fatalf("%d were replayed, %v", did.Done, err)
	}
	brokertest.Eventually(t, "what was replayed there came back", func() bool { return b.done() == inEach })
	for _, v := range both {
		v.checkDeliveries()
		v.checkLedger(t, services)
	}
}

// checkLedger checks ledger and metrics: each has what is of this virtual host, and nothing else.
func (v *testVHost) checkLedger(t *testing.T, services []*service) {
	t.Helper()
	ctx := context.Background()
	const failed = inEach/3*1 + inEach/3*2 + inEach/3*3
	brokertest.Eventually(t, "the ledger of "+v.Name+" has "+fmt.Sprint(failed)+" failures, and nothing is left",
		func() bool {
			l, err := v.api.Ledger(ctx, true)
			must(t, err)
			return len(l.Queues) == 1 && l.Queues[0].Queue == "orders" && l.Queues[0].Off == 0 &&
				l.Queues[0].In == failed && l.Queues[0].Retried == failed
		})
	retried := 0.0
	for _, s := range services {
		n, _ := strconv.ParseFloat(s.metric(t, fmt.Sprintf(`redrive_retried_total{queue="orders",vhost="%s"}`, v.Name)),
			64)
		retried += n
	}
	expect.Equal(t, retried, float64(failed), "%s: retries in the metrics", v.Name)
	for _, s := range services {
		_, text := s.get(t, httpapi.Base(v.Name)+"/metrics")
		if strings.Count(text, `vhost="`) != strings.Count(text, `vhost="`+v.Name+`"`) ||
			strings.Contains(text, "go_goroutines") || !strings.Contains(text, `redrive_ready{vhost="`+v.Name+`"} 1`) {
			t.Errorf("the metrics of %s are not its own:\n%s", v.Name, text)
		}
	}
}

// A virtual host that is deleted is a problem of its own: the other goes on. When it is
// made again it goes on there, with what waited meanwhile.
func TestAVirtualHostThatIsCreatedAgainIsServedAgain(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, first *brokertest.VHost) {
		second := brokertest.NewVHost(t, first.Broker)
		c := twoVHosts(t, first, second, threeAttempts)
		s := run(t, c).ready(t)
		deadLettered(first, "orders", "quorum")
		deadLettered(second, "orders", "quorum")
		b := httpapi.Client{Addr: s.Addr() + httpapi.Base(second.Name)}
		ctx := context.Background()
		must(t, b.PauseQueue(ctx, "orders", "until it is made again"))
		second.Publish("", "orders", amqp.Publishing{Body: []byte("before")})
		consumer := second.Consume("orders")
		consumer.Reject()
		brokertest.Eventually(t, "it waits", func() bool {
			n, err := b.Count(ctx, "state:waiting")
			return err == nil && n.Count == 1
		})
		second.Must("DELETE", "vhosts/"+second.Name, nil)
		says := func(what string) func() bool {
			return func() bool {
				return slices.ContainsFunc(s.Problems(), func(p string) bool {
					return strings.HasPrefix(p, "virtual host "+second.Name+": ") && strings.Contains(p, what)
				})
			}
		}
		brokertest.Eventually(t, "the service says that it is gone", says("intake"))
		if slices.ContainsFunc(s.Problems(), func(p string) bool {
			return strings.HasPrefix(p, "virtual host "+first.Name)
		}) {
			t.Errorf("the other has problems: %q", s.Problems())
		}
		for path, want := range map[string]int{"/readyz": 503, httpapi.Base(second.Name) + "/readyz": 503,
			httpapi.Base(first.Name) + "/readyz": 200, "/healthz": 200} {
			if code, text := s.get(t, path); code != want || path == "/readyz" &&
				!strings.Contains(text, "virtual host "+second.Name+": intake") {
				t.Errorf("%s: %d %s", path, code, text)
			}
		}
		orders := first.Consume("orders")
		for i := range 20 {
			body := fmt.Sprint("while it is gone ", i)
			orders.Fail(body)
			orders.Take(body)
		}

		second.Must("PUT", "vhosts/"+second.Name, map[string]any{})
		second.Grant("guest", ".*", ".*", ".*")
		second.ServiceURL(c.Policies)
		deadLettered(second, "orders", "quorum")
		brokertest.Eventually(t, "it goes on there", func() bool {
			return !says("intake")() && !says("parked")() && !says("retries")()
		})
		must(t, b.ResumeQueue(ctx, "orders", ""))
		again := second.Consume("orders")
		expect.Equal(t, again.Take("before").Headers[wire.HeaderAttempt], any(int64(1)), "it came with attempt")
		again.Fail("after")
		again.Take("after")
	})
}

// What ends a service of one virtual host is reported for one of several, and tried again; the
// others go on.
func TestAFailureOfOneVirtualHostStopsNoOther(t *testing.T) {
	brokertest.One(t, func(t *testing.T, first *brokertest.VHost) {
		second := brokertest.NewVHost(t, first.Broker)
		c := twoVHosts(t, first, second, threeAttempts)
		second.Exchange(wire.ExchangeDeadLetters, "fanout") // anyone can publish to it
		s := run(t, c)
		wrong := "virtual host " + second.Name + ": intake: "
		brokertest.Eventually(t, "the service says what is wrong", func() bool {
			p := s.Problems()
			return slices.ContainsFunc(p, func(p string) bool {
				return strings.HasPrefix(p, wrong) && strings.Contains(p, "internal")
			}) &&
				!slices.ContainsFunc(p, func(p string) bool { return strings.HasPrefix(p, "virtual host "+first.Name) })
		})
		deadLettered(first, "orders", "quorum")
		orders := first.Consume("orders")
		orders.Fail("a")
		orders.Take("a")
		second.Must("DELETE", "exchanges/"+second.Name+"/"+wire.ExchangeDeadLetters, nil)
		s.ready(t)
		deadLettered(second, "orders", "quorum")
		there := second.Consume("orders")
		there.Fail("b")
		there.Take("b")
	})
}
