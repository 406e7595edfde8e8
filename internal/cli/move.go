package cli

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/internal/rabbitmq/move"
)

func (p *program) move() *cobra.Command {
	m := &move.Move{}
	var dry bool
	c := &cobra.Command{
		Use:   "move QUEUE --to NEWNAME",
		Short: "Give a queue a new name, without its x-dead-letter-exchange, with its messages",
		Long: `Give a queue a new name, without its x-dead-letter-exchange, which RabbitMQ cannot change:
a new queue gets its other arguments, the policy in force (dead-lettering to Redrive), its
bindings and its messages, and then the old queue is deleted. Each step is shown first.

If the old queue has consumers, the command stops after it has declared the new one. Deploy
consumers of the new name (they may consume both), and run the same command again: it
continues. Run it again after Ctrl-C or a crash, too. No message is lost; after a crash or
a lost connection at most 32 are duplicated. What waits in queues that dead-letter to the old
one by its name, such as a retry queue, is waited for and moved, too.

The user needs the tag policymaker, and over AMQP: configure, write and read on both
queues and on redrive.*, read on the exchanges they are bound to, and from RabbitMQ 4.3 any
right on the queues that dead-letter to the old one.`,
		Example: `  redrive move orders --to orders.v2 --dry-run
  redrive move orders --to orders.v2 --type quorum`,
		Args: exactArgs(1, "the queue"),
	}
	p.withManagement(c, func(ctx context.Context, api *management.Client, cfg *config.Config, args []string) error {
		if m.Type != "" && m.Type != "classic" && m.Type != "quorum" || m.To == "" {
			return fmt.Errorf("%s needs --to, and --type is classic or quorum: %w", c.CommandPath(), errUsage)
		}
		m.From, m.API = args[0], api
		m.Broker = broker.Config{URL: cfg.Broker.URL, Credentials: cfg.Broker.Credentials, Name: "redrive move " + m.From, Log: slog.New(slog.DiscardHandler)}
		m.Report = func(s string) { fmt.Fprintln(p.err, plain(s)) }
		s, err := m.Look(ctx)
		if err != nil {
			return continues(err)
		}
		m.Write(p.out, s)
		if dry {
			return nil
		}
		if err := p.confirm(ctx, fmt.Sprintf("Move it to %q?", m.To)); err != nil {
			return err
		}
		return p.runMove(ctx, m)
	})
	f := c.Flags()
	f.StringVar(&m.To, "to", "", "the name of the new queue")
	f.StringVar(&m.Type, "type", "", "the type of the new queue, classic or quorum (default that of the old one)")
	f.BoolVar(&m.Keep, "keep", false, "keep the old queue, empty and without bindings")
	f.BoolVar(&m.WithoutConsumers, "without-consumers", false, "continue although the new queue has no consumers yet")
	f.DurationVar(&m.Quiet, "quiet", 10*time.Second, "delete the old queue when it has received nothing for this long")
	p.withYes(c, "do not ask")
	f.BoolVar(&dry, "dry-run", false, "only show the steps")
	return c
}

func (p *program) runMove(ctx context.Context, m *move.Move) error {
	meter := p.meter()
	var moved string
	m.Progress = func(n int) { moved = messages(n) + " moved"; meter.show(moved, false) }
	err := m.Run(ctx)
	if moved != "" {
		meter.show(moved, true)
	}
	meter.end()
	if err != nil {
		return continues(err)
	}
	if n := m.LostUserIDs(); n > 0 {
		fmt.Fprintf(p.err, "%s without their user-id now: RabbitMQ takes it from that user only\n", plural(n, "message is", "messages are"))
	}
	fmt.Fprintf(p.out, "queue %q is moved to %q\n", m.From, m.To)
	return nil
}
