package retry_test

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"

	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/storetest"
	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/wire"
)

// newScheduler returns a scheduler without limits and listeners.
func newScheduler(s retry.Store, to retry.BatchSender) *retry.Scheduler {
	return schedulerHeard(s, to, none, func(store.Lane, error) {})
}

// schedulerHeard returns a scheduler without limits.
func schedulerHeard(s retry.Store, to retry.BatchSender, events retry.Listener, report func(store.Lane, error)) *retry.Scheduler {
	return retry.NewScheduler(s, to, open(), retry.NewWakeup(), events, slog.New(slog.DiscardHandler), report)
}

// runs runs a scheduler until stop is called, which waits for its end.
func runs(t *testing.T, scheduler *retry.Scheduler) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { scheduler.Run(ctx, time.Second) })
	return func() { cancel(); running.Wait() }
}

func newFakeSender(answer func(body string, nth int) retry.Result) *fakeSender {
	return &fakeSender{began: time.Now(), answer: answer, nth: map[string]int{}}
}

func none(retry.Event) {}

// inTime runs a subtest in fake time.
func inTime(t *testing.T, name string, test func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}

// connected returns an intake whose connection has just begun.
func connected(t *testing.T, s store.Store) *retry.Intake {
	t.Helper()
	f := newIntake(s)
	must(t, f.Connected(t.Context()))
	return f
}

// idsOf counts the records of each id.
func idsOf(t *testing.T, s store.Store) map[string]int {
	t.Helper()
	ids := map[string]int{}
	for _, l := range kept(t, s) {
		ids[l.Record.ID.String()]++
	}
	return ids
}

func deadLetter(queue, body string) wire.Delivery {
	return wire.Delivery{Message: wire.Message{Exchange: wire.ExchangeDeadLetters, Body: []byte(body), Headers: amqp.Table{
		"x-death": []any{amqp.Table{"queue": queue, "reason": "rejected", "exchange": "shop", "routing-keys": []any{"key"}, "count": int64(99)}}}}}
}

// retriedFrom is a dead letter that came to its queue by a retry.
func retriedFrom(queue, body string) wire.Delivery {
	d := deadLetter(queue, body)
	d.Message.Headers[wire.HeaderQueue] = queue
	d.Message.Headers["x-death"].([]any)[0].(amqp.Table)["exchange"] = wire.RetryExchange(queue)
	return d
}

func newIntake(s store.Store) *retry.Intake {
	return listeningIntake(s, none)
}

func listeningIntake(s store.Store, events retry.Listener) *retry.Intake {
	return retry.NewIntake(s, retry.NewInForce(retry.Rules{Policies: policy.Set{{Name: "p", Queues: []string{"*"}, Attempts: 3, Backoff: policy.Fixed(time.Second)}}}), nil, nil, nil, events)
}

func kept(t *testing.T, s store.Store) []store.Listed {
	t.Helper()
	return storetest.Listed(t, s, store.Range{Body: true})
}

var must, errOf = expect.NoError, expect.ErrOf

// newest returns the records stored after the first n, in order.
func newest(t *testing.T, s store.Store, n int) (all []*store.Record) {
	t.Helper()
	listed := kept(t, s)
	slices.SortFunc(listed, func(a, b store.Listed) int { return a.Record.FailedAt.Compare(b.Record.FailedAt) })
	for _, l := range listed[n:] {
		all = append(all, l.Record)
	}
	return all
}

// faultyBroker has the faults that a real broker does not make on demand.
type faultyBroker struct {
	blocked  bool
	hangs    chan struct{} // not nil: a Send hangs until it is closed
	answer   error
	of       map[string]error // the answer by the body of a message, besides
	after    time.Duration    // when the answers come
	stuck    string           // messages of this work queue have no answer
	gone     bool             // the work queues are
	bound    []string
	declared int
	sent     []wire.Outgoing
}

func (f *faultyBroker) Ready() bool { return !f.blocked }

func (f *faultyBroker) BindRetryExchange(_ context.Context, queue string) error {
	if f.bound = append(f.bound, queue); f.gone {
		return wire.ErrQueueGone
	}
	return nil
}

func (f *faultyBroker) RemoveRetryExchange(context.Context, string) error { return nil }

// impatient parks messages at once when their queue is gone.
func impatient(string) time.Duration { return 0 }

func (f *faultyBroker) RetryExchangeExists(context.Context, string) (bool, error) { return false, nil }

func (f *faultyBroker) Declare(context.Context, delay.Topology) error { f.declared++; return nil }

func (f *faultyBroker) Send(_ context.Context, out []wire.Outgoing) func(context.Context) []error {
	if f.hangs != nil {
		<-f.hangs
	}
	f.sent = append(f.sent, out...)
	errs := make([]error, len(out))
	for i := range errs {
		errs[i] = cmp.Or(f.of[string(out[i].Message.Body)], f.answer)
	}
	return func(ctx context.Context) []error {
		time.Sleep(f.after)
		for i := range out {
			if f.stuck != "" && out[i].Message.Headers[wire.HeaderQueue] == f.stuck {
				<-ctx.Done()
				errs[i] = wire.ErrNoAnswer
			}
		}
		return errs
	}
}

// failing refuses to keep records.
type failing struct {
	store.Store
	err error
}

func (f *failing) Add(ctx context.Context, r []*store.Record) error {
	if f.err != nil {
		return f.err
	}
	return f.Store.Add(ctx, r)
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeSender notes when each message was sent, and answers as the test chooses.
type fakeSender struct {
	mu     sync.Mutex
	began  time.Time
	sent   []string // the beginning of the body, and time since began
	queues []string // of each batch
	sizes  []int
	answer func(body string, nth int) retry.Result
	nth    map[string]int
	slow   time.Duration // how long a batch waits for its answer
}

func (*fakeSender) IsBinding(string) bool { return false }

func (g *fakeSender) Send(_ context.Context, queue string, claims []store.Claim) func(context.Context) []retry.Result {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.queues, g.sizes = append(g.queues, queue), append(g.sizes, len(claims))
	var results []retry.Result
	for _, c := range claims {
		body := string(c.Record.Message.Body)
		g.sent = append(g.sent, fmt.Sprintf("%.20s %s", body, time.Since(g.began)))
		g.nth[body]++
		results = append(results, g.answer(body, g.nth[body]))
	}
	slow := g.slow
	return func(context.Context) []retry.Result { time.Sleep(slow); return results }
}

func record(queue, body string, due time.Time) *store.Record {
	return &store.Record{ID: uuid.New(), Queue: queue, State: store.Waiting, Due: due, Message: wire.Message{Body: []byte(body)}}
}

// open is a throttle without limits.
func open() *throttle.Throttle {
	return throttle.New(func(string) throttle.Rules { return throttle.Rules{} }, rand.Float64, func(throttle.Transition) {})
}

// laneReports are what was reported of lanes.
type laneReports struct {
	mu  sync.Mutex
	all []string
}

func (r *laneReports) add(lane store.Lane, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, fmt.Sprintf("%s: %v", lane, err))
}

func (r *laneReports) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.all, "; ")
}

func done(string, int) retry.Result { return retry.Result{Done: true} }

// run runs a loop for so long, of the fake clock.
func run(t *testing.T, scheduler *retry.Scheduler, length time.Duration) {
	t.Helper()
	stop := runs(t, scheduler)
	time.Sleep(length)
	stop()
}

// slowBroker answers after a while whether a queue has a retry exchange.
type slowBroker struct {
	faultyBroker
	mu      sync.Mutex
	latency time.Duration
	there   map[string]bool
	lookups map[string]int
	at, top int // questions at once
}

func (b *slowBroker) RetryExchangeExists(ctx context.Context, queue string) (bool, error) {
	b.mu.Lock()
	b.lookups[queue]++
	b.at++
	b.top = max(b.top, b.at)
	b.mu.Unlock()
	defer func() { b.mu.Lock(); b.at--; b.mu.Unlock() }()
	select {
	case <-time.After(b.latency):
	case <-ctx.Done():
		return false, wire.ErrNoAnswer
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.there[queue], nil
}

func anyQueue() policy.Set {
	return policy.Set{{Name: "p", Queues: []string{"*"}, Attempts: 3, Backoff: policy.Fixed(time.Second)}}
}

func claim(queue string, proven bool) []store.Claim {
	return []store.Claim{{Record: &store.Record{ID: uuid.New(), Queue: queue, State: store.Waiting, Due: time.Now(), Proven: proven}}}
}
