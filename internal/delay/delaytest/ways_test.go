package delaytest

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/delay/binary"
	"github.com/redrive-mq/redrive/internal/delay/native"
	"github.com/redrive-mq/redrive/internal/delay/plugin"
	"github.com/redrive-mq/redrive/internal/delay/report"
	"github.com/redrive-mq/redrive/internal/delay/ttlqueue"
	"github.com/redrive-mq/redrive/internal/rabbitmq/permissions"
	"github.com/redrive-mq/redrive/testenv/brokertest"
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
	{name: "Levels", way: made(ttlqueue.NewLevels(ttlqueue.Quorum, 200*ms, 400*ms, 900*ms, killDelay)), delays: []time.Duration{0, 150 * ms, 400 * ms, 900 * ms}, queue: quorum, keeps: true},
	{name: "ClassicLevels", way: made(ttlqueue.NewLevels(ttlqueue.Classic, 200*ms, 400*ms, 900*ms, killDelay)), delays: []time.Duration{0, 150 * ms, 400 * ms, 900 * ms}, queue: quorum},
	{name: "Fixed", way: made(ttlqueue.NewFixed(ttlqueue.Quorum, 300*ms)), delays: []time.Duration{300 * ms}, queue: quorum, keeps: true},
	{name: "Dynamic", way: made(ttlqueue.NewDynamic(100 * ms)), delays: []time.Duration{0, 150 * ms, 400 * ms, 900 * ms}, queue: quorum},
	{name: "MessageTTL", way: ttlqueue.NewMessageTTL(ttlqueue.Quorum, false), delays: []time.Duration{0, 150 * ms, 400 * ms, 900 * ms}, queue: quorum, keeps: true},
	{name: "MixedMessageTTL", way: ttlqueue.NewMessageTTL(ttlqueue.Quorum, true), delays: []time.Duration{0, 150 * ms, 400 * ms, 900 * ms}, queue: quorum, keeps: true},
	{name: "Binary", way: made(binary.New(10 * ms)), delays: []time.Duration{0, 1 * ms, 155 * ms, 400 * ms, 900 * ms}, queue: quorum, keeps: true},
	{name: "DelayedExchange", way: plugin.Way{}, delays: []time.Duration{0, 150 * ms, 400 * ms, 900 * ms}, queue: quorum, needs: thePlugin},
	// The first failure waits 300 ms, the second twice as long.
	{name: "Native", way: native.Way{}, delays: []time.Duration{300 * ms}, queue: native.Arguments(300*ms, 10*time.Second), needs: delayedRetry},
	{name: "Service", way: report.Way{}, elsewhere: true},
}

// A consumer with the rights that `redrive permissions` lists may declare what each way needs.
func TestAConsumerMayDeclareWhatItsWayNeeds(t *testing.T) {
	may := regexp.MustCompile(permissions.Consumer("orders").Configure)
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
	if err := v.API().Call(t.Context(), "GET", "overview", nil, &overview); err != nil {
		t.Fatal(err)
	}
	for _, e := range overview.Types {
		if e.Name == "x-delayed-message" {
			return ""
		}
	}
	return "the broker has no plugin rabbitmq_delayed_message_exchange"
}

func delayedRetry(_ *testing.T, v *brokertest.VHost) string {
	if err := (native.Way{}).Limits().CheckVersion(v.Version); err != nil {
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
var reported struct {
	sync.Mutex
	rows map[string][]string
}

func ran(name, version, what string) {
	reported.Lock()
	defer reported.Unlock()
	key := fmt.Sprintf("%-16s on RabbitMQ %s", name, version)
	if reported.rows == nil {
		reported.rows = map[string][]string{}
	}
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
	if err != nil {
		t.Fatal(err)
	}
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
	packages := map[string]bool{}
	for _, l := range suiteWays {
		if l.name != "Fixed" { // which only the configuration makes; in Go it is Levels with one delay
			have = append(have, l.name)
		}
		typ := reflect.TypeOf(l.way)
		if typ.Kind() == reflect.Pointer {
			typ = typ.Elem()
		}
		packages[path.Base(typ.PkgPath())] = true
	}
	slices.Sort(makers)
	slices.Sort(have)
	if len(makers) == 0 || !slices.Equal(makers, have) {
		t.Errorf("ways.go makes %v, and the suite runs %v", makers, have)
	}
	dirs, err := os.ReadDir("..")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range dirs {
		if d.IsDir() && d.Name() != "delaytest" && !packages[d.Name()] {
			t.Errorf("internal/delay/%s has no line in the suite", d.Name())
		}
	}
}
