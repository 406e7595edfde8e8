package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/quarantine"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/wire"
)

func (p *program) quarantine() *cobra.Command {
	c := &cobra.Command{
		Use:   "quarantine",
		Short: "Show, replay and export messages that RabbitMQ could not deliver to Redrive",
	}
	c.AddCommand(p.quarantineList(), p.quarantineReplay(), p.quarantineExport())
	return commandGroup(c)
}

const undeliverable = `RabbitMQ 3.10 ends each connection (541) that certain messages are delivered to;
those are read by its management API, which needs broker.management and a user with
the tag management. Their headers then have the types that JSON has.`

func (p *program) quarantineList() *cobra.Command {
	var limit int
	var unchecked bool
	c := &cobra.Command{
		Use:   "list",
		Short: "Show the messages in quarantine, oldest first",
		Long: `Show the messages in quarantine, oldest first. RabbitMQ shows a message only by
delivering it: each is fetched and requeued, and keeps its position. That counts towards
a delivery limit, so list refuses where a RabbitMQ policy gives redrive.quarantine one.
A list or replay that runs at the same time does not see the messages fetched here.

The queue shown is the one that the message failed in, according to its headers. On
RabbitMQ 3 a publisher can forge them, and it is shown as claimed.

` + undeliverable,
		Args: exactArgs(0, "no arguments"),
	}
	p.withQuarantine(c, func(ctx context.Context, q *quarantine.Quarantine, _ []string) error {
		all, total, err := p.inQuarantine(ctx, q, limit, unchecked)
		if len(all) > 0 || err == nil {
			err = errors.Join(err, list(p, all, all, func(m *quarantine.Message) string { return m.Queue }, func(w io.Writer) { quarantined(w, all, total, time.Now()) }))
		}
		return err
	})
	c.Flags().IntVar(&limit, "limit", 100, "the most to show")
	c.Flags().BoolVar(&unchecked, "unchecked", false, "continue although the delivery limit in force is unknown: if there is one, RabbitMQ drops a message that was listed that often")
	return p.withFormats(c, "table", "json", "jsonl", "yaml")
}

func (p *program) quarantineReplay() *cobra.Command {
	var r quarantineReplay
	c := &cobra.Command{
		Use:   "replay",
		Short: "Retry the messages in quarantine, as if they had failed now",
		Long: `Retry the messages in quarantine, as if they had failed now: each is published to
redrive.failures as a report for the queue it failed in, with its id and attempts, and is
removed from quarantine when RabbitMQ has confirmed it. The service
then does what its policy says. Reports are retried only to queues that are enrolled,
that a policy names exactly, or whose dead-letter exchange is redrive.

Shows the messages and their queues first. If the command is killed, at most one
message is in both places, and is retried twice with the same id.

On RabbitMQ 3 a publisher can forge the headers that name the queue. There replay needs
--queue, or it asks for each message, and --yes alone is refused. For messages that were
quarantined before an upgrade to RabbitMQ 4, give --queue, too.

` + undeliverable,
		Example: `  redrive quarantine replay --dry-run
  redrive quarantine replay --queue orders --limit 1 --yes`,
		Args: exactArgs(0, "no arguments"),
	}
	p.withQuarantine(c, func(ctx context.Context, q *quarantine.Quarantine, _ []string) error {
		r.program, r.from = p, q
		return r.run(ctx)
	})
	c.Flags().IntVar(&r.limit, "limit", 1000, "the most to replay")
	c.Flags().StringVar(&r.queue, "queue", "", "the queue they failed in, instead of the one in their headers")
	c.Flags().BoolVar(&r.dry, "dry-run", false, "only show what would be done")
	p.withYes(c, "do not ask")
	c.Flags().BoolVar(&r.unchecked, "unchecked", false, "continue although the delivery limit in force is unknown: if there is one, RabbitMQ drops a message that was listed that often")
	return c
}

// quarantineReplay is one replay of the messages in quarantine.
type quarantineReplay struct {
	*program
	from           *quarantine.Quarantine
	limit          int
	queue          string // "": the one in their headers
	dry, unchecked bool
	each           bool // a person is asked for each message
}

func (r *quarantineReplay) run(ctx context.Context) (err error) {
	if r.each, err = r.asksForEach(ctx); err != nil {
		return err
	}
	if r.dry || !r.yes {
		if err := r.preview(ctx); err != nil || r.dry || r.limit == 0 {
			return err
		}
	}
	n, err := r.publish(ctx)
	fmt.Fprintf(r.out, "%s replayed\n", plural(n, "message is", "messages are"))
	return err
}

// asksForEach tells whether a person is asked for each message, because its queue is only claimed.
func (r *quarantineReplay) asksForEach(ctx context.Context) (bool, error) {
	if r.queue != "" || r.dry {
		return false, nil
	}
	forgeable, err := r.from.Forgeable(ctx)
	if err == nil && forgeable && (r.yes || !isTerminal(r.in)) {
		err = fmt.Errorf("on RabbitMQ 3 a publisher can forge the queue that a message says it failed in: give --queue, or leave out --yes at a terminal, to be asked for each message: %w", errUsage)
	}
	return forgeable, err
}

// preview shows the messages and asks; the limit is then what was shown.
func (r *quarantineReplay) preview(ctx context.Context) error {
	all, total, err := r.inQuarantine(ctx, r.from, r.limit, r.unchecked)
	if err != nil {
		return err
	}
	for _, m := range all {
		r.correct(m)
	}
	table := func(w io.Writer) { quarantined(w, all, total, time.Now()) }
	if r.dry {
		return list(r.program, all, all, nil, table)
	}
	if err := r.tableToStderr(table); err != nil {
		return err
	}
	if r.limit = len(all); r.limit == 0 || r.each {
		return nil
	}
	return r.confirm(ctx, fmt.Sprintf("Replay %s?", messages(len(all))))
}

// correct gives a message the queue of --queue.
func (r *quarantineReplay) correct(m *quarantine.Message) {
	if r.queue != "" {
		m.Queue, m.Claimed = r.queue, false
	}
}

// publish publishes the messages as reports, one by one.
func (r *quarantineReplay) publish(ctx context.Context) (int, error) {
	publishing, stop := context.WithCancel(ctx)
	at := r.from.Broker
	at.Log, at.Strict = slog.New(slog.DiscardHandler), true
	publisher := broker.NewPublisher(at)
	ended := make(chan error, 1)
	go func() { ended <- publisher.Run(publishing); stop() }()
	var made quarantine.Replayer
	n, err := r.from.Remove(ctx, r.limit, func(m *quarantine.Message) error {
		r.correct(m)
		if m.Queue == "" {
			return exitErrorf(ExitPartly, "%w", hint.Errorf("give --queue, or export it: redrive quarantine export FILE --limit 1", "the next message does not say which queue it failed in"))
		}
		if r.each {
			if err := r.confirm(ctx, fmt.Sprintf("Replay the message of %d bytes that claims to have failed in the queue %s?", m.Size, m.Queue)); err != nil {
				return err
			}
		}
		if m.ByAPI {
			fmt.Fprintf(r.err, "RabbitMQ ends each connection that the message of queue %s is delivered to; it is read by the management API\n", plain(m.Queue))
		}
		answer := publisher.Send(publishing, []wire.Outgoing{made.Report(m)})
		return answer(publishing)[0]
	})
	stop()
	return n, errors.Join(err, <-ended)
}

func (p *program) quarantineExport() *cobra.Command {
	var limit int
	c := &cobra.Command{
		Use:   "export FILE",
		Short: "Move the messages in quarantine to a file that import reads",
		Long: `Move the messages in quarantine to a new file: lines of JSON, as those of redrive
export, which redrive import reads. Each is removed from quarantine when it is synced to
disk. On RabbitMQ 3 a note says that its queue is only claimed: check it before you import.

` + undeliverable,
		Args: exactArgs(1, "a file that does not exist yet"),
	}
	p.withQuarantine(c, func(ctx context.Context, q *quarantine.Quarantine, args []string) error {
		f, err := os.OpenFile(args[0], os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return fmt.Errorf("the export: %w", err)
		}
		defer f.Close()
		var r quarantine.Replayer
		n, err := q.Remove(ctx, limit, func(m *quarantine.Message) error {
			line, err := actions.ExportLine(r.Record(m, time.Now()))
			if err != nil {
				return err
			}
			if _, err = f.Write(line); err != nil {
				return err
			}
			return f.Sync()
		})
		fmt.Fprintf(p.err, "%s exported to %s, and no longer in quarantine\n", plural(n, "message is", "messages are"), plain(args[0]))
		return errors.Join(err, f.Close())
	})
	c.Flags().IntVar(&limit, "limit", 1000, "the most to export")
	return c
}

// withQuarantine is withManagement for the commands above.
func (p *program) withQuarantine(c *cobra.Command, run func(context.Context, *quarantine.Quarantine, []string) error) {
	p.withManagement(c, func(ctx context.Context, m *management.Client, cfg *config.Config, args []string) error {
		err := run(ctx, &quarantine.Quarantine{Broker: broker.Config{URL: cfg.Broker.URL, Credentials: cfg.Broker.Credentials, Name: "redrive quarantine"}, API: m}, args)
		if errors.Is(err, wire.ErrQueueGone) {
			return exitErrorf(ExitNotFound, "the virtual host %q has no queue %s: no service has run there", cfg.VHost(), wire.QueueQuarantine)
		}
		return err
	})
}

func (p *program) inQuarantine(ctx context.Context, q *quarantine.Quarantine, limit int, unchecked bool) ([]*quarantine.Message, int, error) {
	if !unchecked {
		if err := q.CheckLimit(ctx); err != nil {
			return nil, 0, err
		}
	}
	return q.List(ctx, limit)
}

func quarantined(w io.Writer, all []*quarantine.Message, total int, now time.Time) {
	if total == 0 {
		fmt.Fprintln(w, "nothing is in quarantine")
		return
	}
	fmt.Fprintln(w, "QUEUE\tREASON\tATTEMPT\tSINCE\tBYTES\tEXCHANGE\tROUTING KEY\tBY AMQP")
	for _, m := range all {
		amqp, queue := "yes", cell(cmp.Or(m.Queue, "?"))
		if m.ByAPI {
			amqp = "no"
		}
		if m.Claimed {
			queue += " (claimed)"
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%d\t%s\t%s\t%s\n", queue, cell(m.Reason), m.Attempt, ago(&m.Since, now), m.Size, cell(m.Exchange), cell(m.RoutingKey), amqp)
	}
	if total > len(all) {
		fmt.Fprintf(w, "%d of %d; raise --limit to see more\n", len(all), total)
	}
}
