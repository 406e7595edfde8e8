package stories_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/redisnode"
	"github.com/redrive-mq/redrive/wire"
)

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
		v.Publish("", "orders", amqp.Publishing{MessageId: id, Body: []byte("body of " + id), DeliveryMode: 2, Headers: amqp.Table{"of": v.Name}})
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
			v.t.Errorf("%s: %s was delivered %d times and acknowledged %d times", v.Name, id, v.delivered[id], v.acked[id])
		}
	}
}

func newTestVHost(t *testing.T, v *brokertest.VHost, addr string) *testVHost {
	return &testVHost{VHost: v, api: httpapi.Client{Addr: addr + httpapi.Base(v.Name)}, t: t, delivered: map[string]int{}, acked: map[string]int{}}
}

// twoVHosts is a configuration of two virtual hosts, the second with a user of its own
// that has no right in the first, and the first's none in the second.
func twoVHosts(t *testing.T, first, second *brokertest.VHost, policies string) *config.Config {
	t.Helper()
	c := configured(t, first, policies, t.TempDir())
	second.ServiceURL(c.Policies)
	c.Broker.VHosts = []config.VHost{{Name: second.Name, User: second.ServiceUser(), Password: brokertest.ServicePassword}}
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
		brokertest.Eventually(t, "all but a third came back in "+v.Name, func() bool { return v.done() == 2*inEach/3 && v.parked() == inEach/3 })
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
	brokertest.Eventually(t, "the ledger of "+v.Name+" has "+fmt.Sprint(failed)+" failures, and nothing is left", func() bool {
		l, err := v.api.Ledger(ctx, true)
		must(t, err)
		return len(l.Queues) == 1 && l.Queues[0].Queue == "orders" && l.Queues[0].Off == 0 && l.Queues[0].In == failed && l.Queues[0].Retried == failed
	})
	retried := 0.0
	for _, s := range services {
		n, _ := strconv.ParseFloat(s.metric(t, fmt.Sprintf(`redrive_retried_total{queue="orders",vhost="%s"}`, v.Name)), 64)
		retried += n
	}
	if want := float64(failed); retried != want {
		t.Errorf("%s: the metrics have %v retries, want %v", v.Name, retried, want)
	}
	for _, s := range services {
		_, text := s.get(t, httpapi.Base(v.Name)+"/metrics")
		if strings.Count(text, `vhost="`) != strings.Count(text, `vhost="`+v.Name+`"`) || strings.Contains(text, "go_goroutines") || !strings.Contains(text, `redrive_ready{vhost="`+v.Name+`"} 1`) {
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
		if slices.ContainsFunc(s.Problems(), func(p string) bool { return strings.HasPrefix(p, "virtual host "+first.Name) }) {
			t.Errorf("the other has problems: %q", s.Problems())
		}
		for path, want := range map[string]int{"/readyz": 503, httpapi.Base(second.Name) + "/readyz": 503, httpapi.Base(first.Name) + "/readyz": 200, "/healthz": 200} {
			if code, text := s.get(t, path); code != want || path == "/readyz" && !strings.Contains(text, "virtual host "+second.Name+": intake") {
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
		brokertest.Eventually(t, "it goes on there", func() bool { return !says("intake")() && !says("parked")() && !says("retries")() })
		must(t, b.ResumeQueue(ctx, "orders", ""))
		again := second.Consume("orders")
		if d := again.Take("before"); d.Headers[wire.HeaderAttempt] != int64(1) {
			t.Errorf("it came with %v", d.Headers)
		}
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
			return slices.ContainsFunc(p, func(p string) bool { return strings.HasPrefix(p, wrong) && strings.Contains(p, "internal") }) &&
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
