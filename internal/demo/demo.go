package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/app"
	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/rabbitnode"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/policy"
)

// ErrUnaccounted: messages are missing or came twice.
var ErrUnaccounted = errors.New("not every message is accounted for")

// Options of a demo.
type Options struct {
	Broker   string        // an AMQP URL; "" starts a private RabbitMQ
	For      time.Duration // 0: until it is interrupted
	Out      io.Writer
	Terminal bool // Out is one
	Version  string
}

// demoPolicy grows quickly, so that its waits can be watched.
func demoPolicy() policy.Policy {
	return policy.Policy{Name: "demo", Queues: []string{"redrive-demo.*"}, Attempts: 7, Backoff: policy.Exponential(time.Second, 2, 4*time.Second)}
}

// Run shows the demo, ends all it started, and leaves nothing behind.
func Run(ctx context.Context, o Options) (err error) {
	data, err := os.MkdirTemp("", "redrive-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(data)) }()
	url := o.Broker
	if url == "" {
		fmt.Fprintln(o.Out, "starting a private RabbitMQ on loopback …")
		node, err := rabbitnode.Start(ctx, rabbitnode.Options{})
		if err != nil {
			return err
		}
		defer node.Stop()
		url = node.URL()
	}

	d := newDisplay(o.Out, o.Terminal)
	c := config.Default()
	c.Broker.URL, c.Store.Disk, c.Listen = url, data, "127.0.0.1:0"
	c.Policies = policy.Set{demoPolicy()}
	level := slog.LevelWarn // the display tells the rest
	service, err := app.New(c, app.Options{Version: o.Version, Events: d.redrive, Log: slog.New(slog.NewTextHandler(o.Out, &slog.HandlerOptions{Level: level}))})
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
	if err := until(ctx, 30*time.Second, func() bool { return len(service.Problems()) == 0 }); err != nil {
		return fmt.Errorf("the service is not ready: %v", service.Problems())
	}
	s, err := openShop(ctx, url, d.say)
	if err != nil {
		return err
	}
	defer s.close()
	return play(ctx, o, d, s, service)
}

// until asks until it is so.
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

// play runs the shop, and then gives what is still on its way the time to arrive.
func play(ctx context.Context, o Options, d *display, s *shop, service *app.Service) error {
	hint := "Ctrl-C ends it. Meanwhile, in another terminal: redrive status --address " + service.Addr()
	if !o.Terminal {
		fmt.Fprintln(o.Out, hint)
	}
	drawing, stopDrawing := context.WithCancel(context.Background())
	var drawer sync.WaitGroup
	if o.Terminal {
		drawer.Go(func() {
			tick := time.NewTicker(200 * time.Millisecond)
			defer tick.Stop()
			for drawing.Err() == nil {
				d.draw(hint)
				select {
				case <-drawing.Done():
				case <-tick.C:
				}
			}
		})
	}
	defer func() { stopDrawing(); drawer.Wait() }()

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
	settle := context.WithoutCancel(ctx)
	longest := 2*demoPolicy().Backoff.Max()*time.Duration(demoPolicy().Attempts) + 5*time.Second
	var a account
	_ = until(settle, longest, func() bool {
		a = s.account(parkedIDs(settle, service))
		return a.missing == 0
	})
	stopDrawing()
	drawer.Wait()
	return summary(o.Out, a)
}

// parkedIDs are the message ids of what is parked.
func parkedIDs(ctx context.Context, service *app.Service) map[string]bool {
	ids := map[string]bool{}
	for after := ""; ; {
		page, err := service.List(ctx, store.Filter{State: store.Parked, After: after, Limit: 1000})
		if err != nil {
			return ids
		}
		for _, l := range page.Records {
			ids[l.Record.Message.MessageID] = true
		}
		if after = page.After; after == "" {
			return ids
		}
	}
}

func summary(out io.Writer, a account) error {
	fmt.Fprintf(out, "\n%d messages published: %d succeeded, %d parked (the one nobody can process), %d lost, %d duplicates\n",
		a.published, a.done, a.parked, a.missing, a.duplicates)
	if a.missing > 0 || a.duplicates > 0 {
		return ErrUnaccounted
	}
	return nil
}
