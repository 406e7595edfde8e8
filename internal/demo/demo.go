package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/mask"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/server"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/policy"
)

// ErrUnaccounted is returned when messages are missing or were processed twice.
var ErrUnaccounted = errors.New("not every message is accounted for")

// Options of a demo.
type Options struct {
	Broker     string        // an AMQP URL
	Management string        // the URL of its management API; "": without
	For        time.Duration // 0: until it is interrupted
	Out        io.Writer
	Terminal   bool // Out is a terminal
	// Public is an address where everybody is a viewer, and the demo begins again within For, or an hour; "": on this
	// machine alone.
	Public  string
	Proxies auth.Proxies // of a public one: whose X-Forwarded-For is believed
	Version string
}

// policies have delays so short that they can be watched. They name their queues exactly, so that
// what consumers report is retried before anything was dead-lettered.
func policies() policy.Set {
	fewer := []time.Duration{time.Second, 3 * time.Second}
	return policy.Set{
		{Name: "payments", Queues: []string{orders, mail}, Attempts: 7,
			Backoff: policy.Exponential(time.Second, 2, 4*time.Second)},
		{Name: "invoices", Queues: []string{invoices}, Attempts: len(fewer) + 1, Backoff: policy.List(fewer...)},
	}
}

// limits pause retries soon after they begin to fail, so that a breaker can be watched.
func limits() map[string]throttle.Rules {
	return map[string]throttle.Rules{"payments": {Settle: time.Second,
		Breaker: &throttle.Breaker{FailureRatio: 0.5, MinRetries: 4, Window: 10 * time.Second, Wait: 3 * time.Second,
			MaxWait: 5 * time.Second, Probes: 1, Ramp: 4 * time.Second}}}
}

// longest returns how long a message can take until it is processed or parked.
func longest() time.Duration {
	p, b := policies()[0], limits()["payments"].Breaker
	return 2*p.Backoff.Max()*time.Duration(p.Attempts) + 2*b.MaxWait + b.Ramp + 5*time.Second
}

// Run shows the demo, ends all that it started, and deletes all that it made. A public one then begins again, so that
// what it keeps is bounded.
func Run(ctx context.Context, o Options) error {
	if o.Public == "" {
		return once(ctx, o)
	}
	o.For = cmp.Or(o.For, time.Hour)
	for ctx.Err() == nil {
		if err := once(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

func (o *Options) config(data string) *config.Config {
	c := config.Default()
	c.Broker.URL, c.Broker.Management = o.Broker, o.Management
	c.Store.Disk = filepath.Join(data, "store")
	if o.Public == "" {
		c.Listen = freeAddress(c.Listen)
	} else {
		c.Listen, c.Access.ReadOnly, c.Access.Proxies = o.Public, true, o.Proxies
		c.Access.Bodies[auth.Viewer] = mask.All // they are made up
	}
	return c
}

func once(ctx context.Context, o Options) (err error) {
	conn, err := amqp.Dial(o.Broker)
	if err != nil {
		return hint.Errorf("start one, such as `docker run -p 5672:5672 rabbitmq:4`, or name yours with --broker",
			"no RabbitMQ for the demo: %w", err)
	}
	defer conn.Close()
	data, err := os.MkdirTemp("", "redrive-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(data)) }()
	d := newDisplay(o.Out, o.Terminal)
	c := o.config(data)
	c.Policies, c.Throttle = policies(), limits()
	schema := filepath.Join(data, "invoice.proto")
	if err := os.WriteFile(schema, invoiceProto, 0o600); err != nil {
		return err
	}
	c.Decode.Protobuf = decode.Protobuf{Files: []string{schema}, ImportPaths: []string{data},
		Queues: []decode.QueueType{{Queues: []string{invoices}, Message: "shop.Invoice"}}}
	decoder, err := decode.New(c.Decode)
	if err != nil {
		return err
	}
	log := slog.NewTextHandler(o.Out, &slog.HandlerOptions{Level: slog.LevelWarn,
		ReplaceAttr: hint.Attr}) // the display tells the rest
	service, err := server.New(c, server.Options{Version: o.Version, Visitors: o.Public != "", Events: d.redrive,
		Log: slog.New(log)})
	if err != nil {
		return err
	}
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	var failure error
	running.Go(func() { failure = service.Run(serving) })
	defer func() {
		stop()
		running.Wait()
		err = errors.Join(err, failure)
	}()
	if err := until(ctx, 3*time.Minute, func() bool { return len(service.Problems()) == 0 }); err != nil {
		return fmt.Errorf("the service is not ready: %v", service.Problems())
	}
	s, err := openShop(ctx, conn, decoder, d.say)
	if err != nil {
		return err
	}
	defer s.close()
	return play(ctx, o, d, s, service)
}

// until waits until a condition is true, for most at most.
func until(ctx context.Context, most time.Duration, is func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	for !is() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

// play runs the shop, and then waits for the messages that are not processed yet.
func play(ctx context.Context, o Options, d *display, s *shop, service *server.Service) error {
	hint := "The page: http://" + service.Addr() + "/   In another terminal: redrive messages list"
	if usual := config.Default().Listen; service.Addr() != usual {
		hint += " --address " + service.Addr()
	}
	hint += "\nCtrl-C ends it."
	if !o.Terminal {
		fmt.Fprintln(o.Out, hint)
	}
	drawing, cancel := context.WithCancel(context.Background())
	var drawer sync.WaitGroup
	stopDrawing := func() {
		cancel()
		drawer.Wait()
	}
	defer stopDrawing()
	if o.Terminal {
		drawer.Go(func() {
			for drawing.Err() == nil {
				if kept, err := service.Counts(drawing); err == nil {
					d.draw(hint, kept)
				}
				select {
				case <-drawing.Done():
				case <-time.After(200 * time.Millisecond):
				}
			}
		})
	}

	shopping := ctx
	if o.For > 0 {
		var cancel context.CancelFunc
		shopping, cancel = context.WithTimeout(ctx, o.For*2/3)
		defer cancel()
	}
	if err := s.run(shopping); err != nil {
		return err
	}
	s.outage(false)
	// Also after Ctrl-C: a summary that leaves messages out would prove nothing.
	lasting := context.WithoutCancel(ctx)
	var a account
	_ = until(lasting, longest(), func() bool {
		a = s.account(keptIDs(lasting, service))
		return a.missing == 0
	})
	stopDrawing()
	fmt.Fprintf(o.Out, "\n%d messages published: %d succeeded, %d parked (those that no consumer can process), %d "+
		"lost, %d duplicates\n", a.published, a.done, a.parked, a.missing, a.duplicates)
	if a.missing > 0 || a.duplicates > 0 {
		return ErrUnaccounted
	}
	return nil
}

// keptIDs returns the message ids of what is parked, or was discarded by a person.
func keptIDs(ctx context.Context, service *server.Service) map[string]bool {
	ids := map[string]bool{}
	// After an error it returns those found so far: the caller calls it again.
	_ = service.Scan(ctx, store.Range{}, func(l store.Listed) (bool, error) {
		if l.Record.State != store.Waiting {
			ids[l.Record.Message.MessageID] = true
		}
		return true, nil
	})
	return ids
}

// freeAddress returns an address where nothing listens yet: the usual one if it is free, so that
// the commands find the service by themselves.
func freeAddress(usual string) string {
	l, err := net.Listen("tcp", usual)
	if err != nil {
		return "127.0.0.1:0"
	}
	l.Close()
	return usual
}

// event is one line of the display.
type event struct {
	at    time.Time
	kind  string // of colours
	queue string
	text  string
}

// display shows what happens: on a terminal as a picture that is drawn again and again, elsewhere
// as lines. Its methods are safe for concurrent use.
type display struct {
	out      io.Writer
	terminal bool
	began    time.Time

	mu     sync.Mutex
	recent []event
	queues map[string]*counts
	down   bool
}

type counts struct {
	waiting, parked            int // as the service says: people act on them too
	failed, retried, succeeded int
}

func newDisplay(out io.Writer, terminal bool) *display {
	d := &display{out: out, terminal: terminal, began: time.Now(), queues: map[string]*counts{}}
	for _, q := range queues {
		d.queues[q] = &counts{}
	}
	return d
}

const recentLines = 14

// colours, on a terminal, of each kind of event.
var colours = map[string]string{"fails": "31", "waits": "33", "is retried": "36", "succeeds": "32", "is parked": "35",
	"breaker": "1;34", "goes down": "1;31", "recovers": "1;32"}

func (d *display) say(e event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	e.at = time.Now()
	switch e.kind {
	case "goes down", "recovers":
		d.down = e.kind == "goes down"
	case "failed":
		d.queues[e.queue].failed++
	case "is retried":
		d.queues[e.queue].retried++
	case "succeeds":
		d.queues[e.queue].succeeded++
	}
	if e.text == "" {
		return // it is counted, and not shown
	}
	d.recent = append(d.recent, e)
	d.recent = d.recent[max(0, len(d.recent)-recentLines):]
	if !d.terminal {
		fmt.Fprintln(d.out, d.line(e))
	}
}

func (d *display) redrive(e retry.Event) {
	if d.queues[e.Queue] == nil {
		return
	}
	kind, text := "breaker", ""
	switch e.Kind {
	case retry.Failed:
		kind = "failed" // the consumer says why
	case retry.Waiting:
		kind, text = "waits", fmt.Sprintf("%s before attempt %d",
			policy.FormatDuration(e.Delay.Round(10*time.Millisecond)), e.Failures+1)
	case retry.Retried:
		kind, text = "is retried", fmt.Sprintf("for attempt %d", e.Failures+1)
	case retry.Parked:
		kind, text = "is parked", e.Why
	case retry.Opened:
		text = "open: " + e.Why + ", so retries are paused"
	case retry.HalfOpened:
		text = "half-open: " + e.Why
	case retry.Ramping:
		text = "ramp: " + e.Why
	case retry.Closed:
		text = "closed: " + e.Why
	}
	d.say(event{kind: kind, queue: e.Queue, text: text})
}

func (d *display) line(e event) string {
	who := strings.TrimPrefix(e.queue, "redrive-demo.")
	if who == "" {
		who = "upstream"
	}
	what := fmt.Sprintf("%-10s", e.kind)
	if d.terminal {
		what = "\x1b[" + colours[e.kind] + "m" + what + "\x1b[0m"
	}
	return fmt.Sprintf("%6.1fs  %-10s %s  %s", e.at.Sub(d.began).Seconds(), who, what, e.text)
}

// draw draws the picture, with what the service keeps.
func (d *display) draw(hint string, kept []store.QueueCount) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.queues {
		c.waiting, c.parked = 0, 0
	}
	for _, k := range kept {
		if c := d.queues[k.Queue]; c != nil {
			c.waiting, c.parked = int(k.Waiting), int(k.Parked)
		}
	}
	var b strings.Builder
	b.WriteString("\x1b[H\x1b[J")
	state := "\x1b[32mup\x1b[0m"
	if d.down {
		state = "\x1b[1;31mDOWN\x1b[0m"
	}
	fmt.Fprintf(&b, "\x1b[1mRedrive demo\x1b[0m  %s   payment service: %s\n\n",
		policy.FormatDuration(time.Since(d.began).Round(time.Second)), state)
	fmt.Fprintf(&b, "  %-10s %8s %8s %9s %10s %8s   waiting now\n", "queue", "failed", "waiting", "retried",
		"succeeded", "parked")
	for _, q := range slices.Sorted(slices.Values(queues)) {
		c := d.queues[q]
		fmt.Fprintf(&b, "  %-10s %8d \x1b[33m%8d\x1b[0m %9d \x1b[32m%10d\x1b[0m \x1b[35m%8d\x1b[0m   "+
			"\x1b[33m%s\x1b[0m\n", strings.TrimPrefix(q, "redrive-demo."),
			c.failed, c.waiting, c.retried, c.succeeded, c.parked, strings.Repeat("▪", min(c.waiting, 24)))
	}
	b.WriteString("\n")
	for _, e := range d.recent {
		b.WriteString("  " + d.line(e) + "\n")
	}
	b.WriteString("\n" + hint + "\n")
	io.WriteString(d.out, b.String())
}
