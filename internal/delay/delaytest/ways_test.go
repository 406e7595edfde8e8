package delaytest

import (
	"context"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/headers"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/wire"
)

// suiteWay is a way in the suite.
type suiteWay struct {
	name string // that of its function in ways.go, where it has one
	way  delay.Way
	// delays are what it is tested with, shortest first.
	delays []time.Duration
	// queue are the arguments of work queues.
	queue amqp.Table
	// keeps: it dead-letters at-least-once.
	keeps bool
	// elsewhere: something else brings the message back, and has its own tests.
	elsewhere bool
	// needs returns what a broker lacks for it; nil: nothing.
	needs func(*testing.T, *brokertest.VHost) string
}

const ms = time.Millisecond

var quorum = amqp.Table{"x-queue-type": "quorum"}

// suiteWays has one for each way there is.
var suiteWays = []suiteWay{
	{name: "Levels", way: made(delay.NewLevels(delay.Quorum, 200*ms, 400*ms, 900*ms, killDelay)), delays: []time.Duration{0, 150 * ms, 400 * ms, 900 * ms}, queue: quorum, keeps: true},
	{name: "ClassicLevels", way: made(delay.NewLevels(delay.Classic, 200*ms, 400*ms, 900*ms, killDelay)), delays: []time.Duration{0, 150 * ms, 400 * ms, 900 * ms}, queue: quorum},
	{name: "Fixed", way: made(delay.NewFixed(delay.Quorum, 300*ms)), delays: []time.Duration{300 * ms}, queue: quorum, keeps: true},
	{name: "Dynamic", way: made(delay.NewDynamic(100 * ms)), delays: []time.Duration{0, 150 * ms, 400 * ms, 900 * ms}, queue: quorum},
	{name: "MessageTTL", way: delay.NewMessageTTL(delay.Quorum, false), delays: []time.Duration{0, 150 * ms, 400 * ms, 900 * ms}, queue: quorum, keeps: true},
	{name: "MixedMessageTTL", way: delay.NewMessageTTL(delay.Quorum, true), delays: []time.Duration{0, 150 * ms, 400 * ms, 900 * ms}, queue: quorum, keeps: true},
	{name: "Binary", way: made(delay.NewLadder(10 * ms)), delays: []time.Duration{0, 1 * ms, 155 * ms, 400 * ms, 900 * ms}, queue: quorum, keeps: true},
	{name: "DelayedExchange", way: delay.Plugin{}, delays: []time.Duration{0, 150 * ms, 400 * ms, 900 * ms}, queue: quorum, needs: thePlugin},
	// The first failure waits 300 ms, the second twice as long.
	{name: "Native", way: delay.Native{}, delays: []time.Duration{300 * ms}, queue: delay.NativeArguments(300*ms, 10*time.Second), needs: delayedRetry},
	{name: "Service", way: delay.Report{}, elsewhere: true},
}

// A consumer with the rights that `redrive permissions` lists may declare what each way needs.
func TestAConsumerMayDeclareWhatItsWayNeeds(t *testing.T) {
	may := regexp.MustCompile(management.GoConsumerRights("orders").Configure)
	for _, s := range suiteWays {
		if s.elsewhere {
			continue
		}
		needs := s.way.Topology("orders")
		for _, d := range s.delays {
			if ticket, err := s.way.Ticket("orders", d); err != nil {
				t.Error(err)
			} else if ticket.DeclareFirst != nil {
				needs = needs.With(*ticket.DeclareFirst)
			}
		}
		for _, e := range needs.Exchanges {
			if !may.MatchString(e.Name) {
				t.Errorf("%s needs the exchange %q, and a consumer may only declare %s", s.name, e.Name, may)
			}
		}
		for _, q := range needs.Queues {
			if !may.MatchString(q.Name) {
				t.Errorf("%s needs the queue %q, and a consumer may only declare %s", s.name, q.Name, may)
			}
		}
	}
}

func made[W delay.Way](w W, err error) delay.Way {
	if err != nil {
		panic(err)
	}
	return w
}

// thePlugin: a broker either has the type of exchange, or reports clearly that it has not.
func thePlugin(t *testing.T, v *brokertest.VHost) string {
	var overview struct {
		Types []struct {
			Name string `json:"name"`
		} `json:"exchange_types"`
	}
	must(t, v.API().Call(t.Context(), "GET", "overview", nil, &overview))
	for _, e := range overview.Types {
		if e.Name == "x-delayed-message" {
			return ""
		}
	}
	return "the broker has no plugin rabbitmq_delayed_message_exchange"
}

func delayedRetry(_ *testing.T, v *brokertest.VHost) string {
	if err := (delay.Native{}).Limits().CheckVersion(v.Version); err != nil {
		return err.Error()
	}
	return ""
}

// each runs a test for every way on every broker, all beside each other.
func each(t *testing.T, test func(*testing.T, *suite)) {
	t.Parallel()
	for _, l := range suiteWays {
		if l.elsewhere {
			continue
		}
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
				if l.needs != nil {
					if lacks := l.needs(t, v); lacks != "" {
						ran(l.name, v.Version, "not run: "+lacks)
						t.Skip("not run: " + lacks)
					}
				}
				t.Cleanup(func() {
					if t.Failed() {
						ran(l.name, v.Version, "FAILED "+t.Name())
					} else {
						ran(l.name, v.Version, "ok")
					}
				})
				test(t, newSuite(t, v, l))
			})
		})
	}
}

// reported is what ran where.
var reported = struct {
	sync.Mutex
	rows map[string][]string
}{rows: map[string][]string{}}

func ran(name, version, what string) {
	reported.Lock()
	defer reported.Unlock()
	key := fmt.Sprintf("%-16s on RabbitMQ %s", name, version)
	if rows := reported.rows[key]; !slices.Contains(rows, what) {
		reported.rows[key] = append(rows, what)
	}
}

// These tests wait far more than they work.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "24"); err != nil {
		panic(err)
	}
	code := m.Run()
	fmt.Println("The suite of the ways to wait:")
	for _, key := range slices.Sorted(maps.Keys(reported.rows)) {
		fmt.Println(" ", key+":", strings.Join(reported.rows[key], "; "))
	}
	os.Exit(code)
}

// A way without a line was never tried.
func TestEveryWayIsInTheSuite(t *testing.T) {
	const root = "../../.."
	f, err := parser.ParseFile(token.NewFileSet(), root+"/ways.go", nil, 0)
	must(t, err)
	var makers, have []string
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Recv != nil || !fn.Name.IsExported() || fn.Type.Results == nil {
			continue
		}
		if id, ok := fn.Type.Results.List[0].Type.(*ast.Ident); ok && id.Name == "Way" {
			makers = append(makers, fn.Name.Name)
		}
	}
	tried := map[string]bool{}
	for _, l := range suiteWays {
		if l.name != "Fixed" { // which only the configuration makes; in Go it is Levels with one delay
			have = append(have, l.name)
		}
		typ := reflect.TypeOf(l.way)
		if typ.Kind() == reflect.Pointer {
			typ = typ.Elem()
		}
		tried[typ.Name()] = true
	}
	slices.Sort(makers)
	slices.Sort(have)
	if len(makers) == 0 || !slices.Equal(makers, have) {
		t.Errorf("ways.go makes %v, and the suite runs %v", makers, have)
	}
	files, err := filepath.Glob("../*.go")
	must(t, err)
	found := 0
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		must(t, err)
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv != nil && fn.Name.Name == "Ticket" {
				found++
				if way := strings.TrimPrefix(types.ExprString(fn.Recv.List[0].Type), "*"); !tried[way] {
					t.Errorf("delay.%s has no line in the suite", way)
				}
			}
		}
	}
	if found < 7 {
		t.Errorf("%d ways were found in internal/delay", found)
	}
}

// suite is one way in one virtual host.
type suite struct {
	suiteWay
	t *testing.T
	v *brokertest.VHost
	p *broker.Publisher
}

func newSuite(t *testing.T, v *brokertest.VHost, l suiteWay) *suite {
	t.Helper()
	return &suite{suiteWay: l, t: t, v: v, p: publisher(t, v.URL())}
}

// publisher runs one until the test ends.
func publisher(t *testing.T, url string) *broker.Publisher {
	t.Helper()
	p := broker.NewPublisher(broker.Config{URL: url, Name: "redrive delaytest", Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(context.Background())
	var run sync.WaitGroup
	run.Go(func() {
		if err := p.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); run.Wait() })
	return p
}

// work declares a work queue, and what it needs so that its messages can wait.
func (b *suite) work(queue string) *brokertest.Consumer {
	b.t.Helper()
	b.v.Queue(queue, b.queue)
	b.declare(queue)
	return b.v.Consume(queue)
}

func (b *suite) declare(queue string) {
	b.t.Helper()
	must(b.t, b.p.Declare(b.t.Context(), b.way.Topology(queue)))
}

// delayedMessage is a message that waits.
type delayedMessage struct {
	since time.Time // before it was passed
	asked time.Duration
	delay.Ticket
}

// fail does with a delivery what the library does.
func (b *suite) fail(d amqp.Delivery, queue string, wait time.Duration) delayedMessage {
	b.t.Helper()
	h := b.wait(queue, wait, broker.Received(&d))
	if h.Requeue {
		must(b.t, d.Reject(true))
	} else {
		must(b.t, d.Ack(false))
	}
	return h
}

// wait makes a message wait, unless its own queue is to delay it.
func (b *suite) wait(queue string, wait time.Duration, m wire.Message) delayedMessage {
	b.t.Helper()
	h := delayedMessage{since: time.Now(), asked: wait}
	var err error
	if h.Ticket, err = b.way.Ticket(queue, wait); err == nil && !h.Requeue {
		err = b.hold(h.Ticket, queue, m)
	}
	must(b.t, err)
	return h
}

// hold publishes a message to where it waits.
func (b *suite) hold(ticket delay.Ticket, queue string, m wire.Message) error {
	if ticket.DeclareFirst != nil {
		if err := b.p.Declare(b.t.Context(), *ticket.DeclareFirst); err != nil {
			return err
		}
	}
	return b.p.Send(b.t.Context(), []wire.Outgoing{outgoing(ticket, queue, m)})(b.t.Context())[0]
}

// waitMany makes many messages wait, and returns when each body, the queue and a number, was published.
func (b *suite) waitMany(queue string, wait time.Duration, many int) map[string]time.Time {
	b.t.Helper()
	ticket, err := b.way.Ticket(queue, wait)
	if err == nil && ticket.DeclareFirst != nil {
		err = b.p.Declare(b.t.Context(), *ticket.DeclareFirst)
	}
	must(b.t, err)
	sent := make(map[string]time.Time, many)
	answers := make([]func(context.Context) []error, 0, many)
	for i := range many {
		body := fmt.Sprint(queue, " ", i)
		out := outgoing(ticket, queue, wire.Message{Body: []byte(body)})
		sent[body] = time.Now()
		answers = append(answers, b.p.Send(b.t.Context(), []wire.Outgoing{out}))
	}
	for _, answer := range answers {
		must(b.t, answer(b.t.Context())[0])
	}
	return sent
}

func outgoing(ticket delay.Ticket, queue string, m wire.Message) wire.Outgoing {
	tr := headers.History{ID: uuid.NewString(), Failures: 1, Queue: queue, FirstFailed: time.Now(), Reason: wire.ReasonReported, Error: "no reason but a test"}
	return ticket.Outgoing(tr.ID, tr.ApplyTo(m))
}

// back waits for a message to come back, which must not be early.
func (b *suite) back(c *brokertest.Consumer, body string, h delayedMessage) amqp.Delivery {
	b.t.Helper()
	d := c.Next()
	took := time.Since(h.since)
	if string(d.Body) != body {
		b.t.Fatalf("%q came back, want %q", d.Body, body)
	}
	if took < h.asked {
		b.t.Errorf("%q was asked to wait %s and came back after %s", body, h.asked, took)
	}
	if h.Delay < h.asked {
		b.t.Errorf("%q was asked to wait %s, and its ticket says %s", body, h.asked, h.Delay)
	}
	return d
}
