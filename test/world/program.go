package world

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive"
	"github.com/redrive-mq/redrive/wire"
)

// program is a consumer program in Go: one Client, with a consumer for each queue that is its.
type program struct {
	world   *World
	network *network
	stop    context.CancelFunc
	ended   sync.WaitGroup
	busy    atomic.Int32              // how many handlers are at work
	dead    atomic.Bool               // it was killed: whatever it still says is of no account
	stopped atomic.Pointer[time.Time] // when it began to stop
}

// programFault is what happens to the consumer program.
type programFault int

const (
	cutProgram programFault = 1 + iota
	stopProgram
	killProgram
	removeBinding // in front of a queue that the library publishes to
	programFaults
)

func (p programFault) String() string {
	return [...]string{"", "cut a connection of the consumer program", "stop the consumer program and start it", "kill the consumer program", "a person removes a binding"}[p]
}

// startProgram starts the consumers that are written with the library, with their policies as they
// were deployed last.
func (w *World) startProgram() {
	w.program = nil
	var all []*workQueue
	for _, q := range w.scenario.queues {
		if q.library != nil {
			all = append(all, q)
		}
	}
	if len(all) == 0 {
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	p := &program{world: w, network: &network{dial: w.broker.Dial}, stop: stop}
	w.program = p
	closes := w.random.IntN(2) == 0
	p.ended.Go(func() { p.run(ctx, all, closes) })
}

// run consumes until ctx ends. closes: it is stopped by Client.Close, and else by its consumers' context.
func (p *program) run(ctx context.Context, all []*workQueue, closes bool) {
	log := slog.New(&settledLog{p.world.service.Handler(), p.world.ledger})
	client, err := redrive.NewClient(ctx, redrive.Config{URLs: []string{"amqp://guest:guest@model/%2F"}, AMQP: amqp.Config{Dial: p.network.Dial}, Log: log, Metrics: redrive.Metrics{Attempt: p.world.ledger.attempted}})
	if err != nil {
		if ctx.Err() == nil {
			p.broken(fmt.Errorf("the consumer program: %w", err))
		}
		return
	}
	consuming := ctx
	if closes {
		consuming = context.WithoutCancel(ctx)
	}
	var consumers sync.WaitGroup
	for _, q := range all {
		consumers.Go(func() {
			err := client.Consume(consuming, p.consumer(q))
			if err != nil || ctx.Err() == nil {
				p.broken(fmt.Errorf("the consumer of %s ended: %w", q.name, err))
			}
		})
	}
	<-ctx.Done()
	if consuming == ctx {
		consumers.Wait()
	}
	client.Close()
	consumers.Wait()
}

func (p *program) broken(err error) {
	if !p.dead.Load() {
		p.world.broken(err)
	}
}

func (p *program) consumer(q *workQueue) redrive.Consumer {
	l := q.library
	policy := q.policy
	policy.Attempts = p.world.ledger.allows(q)
	c := redrive.Consumer{Queue: q.name, Policy: policy, Wait: l.way, Concurrency: l.concurrency, Prefetch: l.prefetch, Timeout: l.timeout, Shutdown: l.shutdown,
		Retry: func(err error) bool { return !errors.Is(err, errNotRetried) }}
	h := &handler{p, q}
	if l.batch == 0 {
		c.Handler = h.handle
	} else {
		c.Batch = redrive.Batch{Size: l.batch, Handler: h.handleBatch}
	}
	return c
}

// slack is how much longer than its handlers may take a program may take to stop.
const slack = 10 * time.Second

// endProgram stops the program in order: it may take as long as its consumers may, and loses nothing.
// A copy is allowed only where it did not have the time to publish what failed.
func (w *World) endProgram() error {
	p := w.program
	if p == nil {
		return nil
	}
	longest, shortest := time.Duration(0), time.Hour
	for _, q := range w.scenario.queues {
		if q.library != nil {
			longest, shortest = max(longest, q.library.shutdown), min(shortest, q.library.shutdown)
		}
	}
	began := time.Now()
	p.stopped.Store(&began)
	p.stop()
	p.ended.Wait()
	took := time.Since(began)
	if took >= shortest {
		w.ledger.stopped()
	}
	if took > longest+slack {
		return fmt.Errorf("the consumer program took %s to stop, and its consumers may take %s", took, longest)
	}
	return nil
}

// kill ends the program at this instant.
func (p *program) kill() {
	p.dead.Store(true)
	p.network.end()
	p.world.ledger.cut()
	p.world.old.Go(func() {
		p.stop()
		p.ended.Wait()
	})
}

// failProgram makes a fault of the consumer program happen.
func (w *World) failProgram(f fault) error {
	switch {
	case w.program == nil:
		return nil
	case f.program == cutProgram:
		f.cut(w.program.network, w.ledger.cut)
		return nil
	case f.program == removeBinding:
		return w.removeBinding(f.unbound())
	case f.program == killProgram:
		w.program.awaitBusy()
		w.program.kill()
	default:
		w.program.awaitBusy()
		if err := w.endProgram(); err != nil {
			return err
		}
	}
	w.program = nil
	time.Sleep(f.away)
	w.startProgram()
	return nil
}

// awaitBusy waits a while for a moment at which a handler is at work: to stop then is what may go wrong.
func (p *program) awaitBusy() {
	for began := time.Now(); p.busy.Load() == 0 && time.Since(began) < 30*time.Second; {
		time.Sleep(50 * time.Millisecond)
	}
}

// unbound is the queue whose binding a person removes. The exchange before it has its name.
func (f fault) unbound() string {
	all := []string{wire.QueueParked, wire.DelayPrefix + "1s", wire.DelayPrefix + "10s", wire.DelayPrefix + "16s", wire.DelayPrefix + "1s.classic", wire.DelayPrefix + "16s.classic", wire.DelayPrefix + "5m"}
	return all[f.conn%len(all)]
}

// removeBinding is a person who removes the binding of a queue. What is published then is returned as
// unroutable, until the library or the service has declared it again.
func (w *World) removeBinding(name string) error {
	w.ledger.trouble()
	conn, err := amqp.DialConfig("amqp://guest:guest@model/%2F", amqp.Config{Dial: w.broker.Dial})
	if err != nil {
		w.say("RabbitMQ is away: %v", err)
		return nil
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	err = ch.QueueUnbind(name, "", name, nil)
	if refused := (*amqp.Error)(nil); errors.As(err, &refused) && refused.Code == amqp.NotFound {
		w.say("there is no queue %s", name)
		return nil
	}
	return err
}

// redeploy starts the program again, with another number of attempts for one of its queues.
func (w *World) redeploy(a action) error {
	if err := w.endProgram(); err != nil {
		return err
	}
	w.reload(a)
	w.startProgram()
	return nil
}

// settledLog is the log of a consumer program. It tells the ledger which failures have ended.
type settledLog struct {
	slog.Handler
	ledger *ledger
}

// failedText is what the handlers' errors say.
var failedText = regexp.MustCompile(`failure \d+ of (\S+)`)

// Enabled implements slog.Handler.
func (*settledLog) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements slog.Handler.
func (l *settledLog) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == "an attempt failed" {
		r.Attrs(func(a slog.Attr) bool {
			if found := failedText.FindStringSubmatch(a.Value.String()); found != nil {
				l.ledger.certain(inLibrary, found[1:])
			}
			return true
		})
	}
	if !l.Handler.Enabled(ctx, r.Level) {
		return nil
	}
	return l.Handler.Handle(ctx, r)
}

// attempted counts what the library says of an attempt.
func (l *ledger) attempted(e redrive.AttemptEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.outcomes[e.Outcome]++
}

// WithAttrs implements slog.Handler.
func (l *settledLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &settledLog{l.Handler.WithAttrs(attrs), l.ledger}
}
