package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/retry"
)

func (p *program) adopt() *cobra.Command {
	d := action{verb: actions.Adopt}
	r := operations.PlanRequest{Verb: actions.Adopt}
	var follow, unfollow bool
	var then string
	c := p.withClient(&cobra.Command{
		Use:   "adopt [QUEUE]",
		Short: "Take over what is in a dead-letter queue that exists already",
		Long: `Without a queue it lists the dead-letter queues of the virtual host: those that other
queues dead-letter to, those named as frameworks name theirs, and those that are followed.

Messages are parked, and never retried by themselves. What they say of their failure
(x-death, the headers that frameworks add) can be searched. Each is stored before it is
acknowledged, so none is lost; what is adopted twice has the same id. As many messages are
taken as are in the queue now; the queue, its consumers and the work queues stay as they
are.

A replay goes to the work queue that the message names, or that --queue names. If that
queue is not enrolled, an administrator allows it once: redrive allow-replays QUEUE.

--dry-run touches nothing. --sample takes the first messages, shows which work queues,
errors and formats they name, and puts each back at its place. RabbitMQ marks them as
redelivered. Before 4.3 it also counts a failed delivery in a quorum queue, so --sample is
refused there if the queue has a delivery limit.

--follow has the service consume the queue until --unfollow, and park what lands there, or
retry it by the policy of its work queue (--then retry). Only an administrator may. It
does not change what the config follows (adopt).

It runs in the service: Ctrl-C here only ends the watching, and redrive ops pauses,
resumes and cancels it.`,
		Example: `  redrive adopt
  redrive adopt orders.dlq --dry-run
  redrive adopt orders.dlq --sample 100
  redrive adopt orders_error --queue orders --rate 500
  redrive adopt orders_error --queue orders --follow --then retry`,
	}, func(ctx context.Context, client httpapi.Client, args []string) error {
		if len(args) == 0 {
			return p.listDeadLetterQueues(ctx, client)
		}
		r.From, r.Reason = args[0], d.reason
		if r.Format == "auto" {
			r.Format = ""
		}
		switch {
		case unfollow:
			if err := client.Unfollow(ctx, r.From, d.reason); err != nil {
				return err
			}
			fmt.Fprintf(p.err, "The queue %q is no longer followed. What is parked or waits stays.\n", plain(r.From))
			return nil
		case follow:
			return p.followQueue(ctx, client, r, then)
		case then != "park":
			return fmt.Errorf("--then %s is for --follow; what adopt takes is parked: %w", then, errUsage)
		}
		if r.Sample > 0 {
			d.dry = true
			err := p.confirm(ctx, fmt.Sprintf("A look takes the first messages of %s (%d at most) and puts each back "+
				"at its place. RabbitMQ marks them as redelivered, and a quorum queue may count it. Look?",
				r.From, r.Sample))
			if err != nil {
				return err
			}
		}
		return p.operate(ctx, client, &d, r)
	})
	f := c.Flags()
	f.StringArrayVar(&r.WorkQueues, "queue", nil,
		"where its messages failed; may be given again (left out: as each message says)")
	f.StringVar(&r.Format, "from", "auto", "the format of its messages: auto, "+strings.Join(retry.FormatNames(), ", "))
	_ = c.RegisterFlagCompletionFunc("from",
		cobra.FixedCompletions(append(retry.FormatNames(), "auto"), noFiles))
	f.IntVar(&r.Sample, "sample", 0, "look at so many of its messages (1,000 at most), and adopt nothing")
	f.BoolVar(&follow, "follow", false, "consume it from now on, until --unfollow, as adopt in the config does")
	f.StringVar(&then, "then", "park", "with --follow: park what lands there, or retry it by its work queue's policy")
	f.BoolVar(&unfollow, "unfollow", false, "stop following it")
	f.Int64Var(&r.Limit, "limit", 0, "take so many messages at most (0 = all that are there now)")
	f.BoolVar(&r.EvenWithConsumers, "even-with-consumers", false,
		"also a queue that others consume, or that is enrolled")
	p.withAdoption(c, &d)
	c.MarkFlagsMutuallyExclusive("follow", "unfollow", "sample", "dry-run")
	for _, name := range []string{"limit", "rate", "expect-count", "from", "even-with-consumers"} {
		c.MarkFlagsMutuallyExclusive("follow", name)
	}
	return c
}

// followQueue asks, and has the service follow a dead-letter queue.
func (p *program) followQueue(ctx context.Context, client httpapi.Client, r operations.PlanRequest, then string) error {
	q := operations.FollowRequest{Then: then, Reason: r.Reason}
	of := "the work queue that dead-letters there"
	switch len(r.WorkQueues) {
	case 0:
	case 1:
		q.Queue, of = r.WorkQueues[0], r.WorkQueues[0]
	default:
		return fmt.Errorf("--follow takes one --queue at most: %w", errUsage)
	}
	does := "parks what is in it and whatever comes"
	if then == "retry" {
		does = "has what is in it, and whatever comes, retried to " + of
	}
	err := p.confirm(ctx, fmt.Sprintf("The service follows the queue %s from now on: it %s. Follow it?", r.From, does))
	if err != nil {
		return err
	}
	if err := client.Follow(ctx, r.From, q); err != nil {
		return err
	}
	fmt.Fprintf(p.err, "The queue %q is followed within seconds; `redrive adopt` shows its state.\n", plain(r.From))
	return nil
}

// withAdoption adds the flags that adopt and unadopt share.
func (p *program) withAdoption(c *cobra.Command, d *action) *cobra.Command {
	f := c.Flags()
	rateFlag(c, "rate", "messages per second, or n/s, n/min, n/h (default unlimited)", &d.rate)
	f.StringVar(&d.reason, "reason", "", "why, for the audit log")
	f.BoolVar(&d.dry, "dry-run", false, "only show what would be done; it touches nothing")
	f.Int64Var(&d.expect, "expect-count", -1, "refuse to act on another number of messages")
	f.BoolVar(&d.detach, "detach", false, "print the operation's id, and do not watch it")
	c.Flags().BoolVar(&p.yes, "yes", false, "do not ask")
	return p.withOutput(c)
}

func (p *program) unadopt() *cobra.Command {
	d := action{verb: actions.Unadopt}
	r := operations.PlanRequest{Verb: actions.Unadopt}
	c := p.withClient(&cobra.Command{
		Use:   "unadopt QUEUE",
		Short: "Put back into a dead-letter queue what was adopted from it and is still parked",
		Long: `The messages go back in the order in which they were parked, with body and headers as they
came. What was replayed, discarded or edited stays so; to put back the original of an
edited message, restore it first. Messages are persistent then, and without the user-id of
another user, CC, BCC and RabbitMQ's counts of deliveries.

Each message is removed here once RabbitMQ has confirmed it, so nothing is lost. A crash
may put up to 256 messages into the queue twice. A queue that is deleted, or full with the
overflow reject-publish, stops it; what is left stays parked. The plan says what the
queue's TTL and limits will do to them.

It runs in the service: Ctrl-C here only ends the watching, and redrive ops pauses,
resumes and cancels it.`,
		Example: `  redrive unadopt orders.dlq --dry-run
  redrive unadopt orders.dlq --rate 500`,
	}, func(ctx context.Context, client httpapi.Client, args []string) error {
		r.To, r.Reason = args[0], d.reason
		return p.operate(ctx, client, &d, r)
	})
	c.Flags().BoolVar(&r.EvenWithConsumers, "even-with-consumers", false, "also into a queue that others consume")
	return p.withAdoption(c, &d)
}

func (p *program) listDeadLetterQueues(ctx context.Context, client httpapi.Client) error {
	all, err := client.DeadLetterQueues(ctx)
	if err != nil {
		return err
	}
	name := func(q operations.DeadLetterQueue) string { return q.Queue }
	return list(p, all, all.Queues, name, func(w io.Writer) {
		if len(all.Queues) == 0 {
			fmt.Fprintln(w, "No queue looks like a dead-letter queue. You can still name one: redrive adopt QUEUE.")
			return
		}
		rows(w, deadLetterColumns, all.Queues, time.Now())
	})
}

var deadLetterColumns = []column[operations.DeadLetterQueue]{
	{Field: "Queue"}, {Field: "Ready"}, {Field: "Consumers"}, {Head: "Type", Field: "Kind"},
	{Head: "Dead letters of", Narrow: inspect.Below, Value: func(q operations.DeadLetterQueue) any {
		return cmp.Or(strings.Join(q.WorkQueues, ", "), "not known")
	}},
	{Head: "Followed", Value: func(q operations.DeadLetterQueue) any {
		if q.Follow == nil {
			return "no"
		}
		return q.Follow.State + ", " + q.Follow.Then
	}},
	{Field: "Why", Narrow: inspect.Below, Value: func(q operations.DeadLetterQueue) any {
		if q.Follow == nil {
			return q.Why
		}
		return cmp.Or(q.Follow.Why, q.Why)
	}},
}

func (p *program) allowReplays() *cobra.Command {
	return p.ofQueue(&cobra.Command{
		Use:   "allow-replays QUEUE",
		Short: "Allow replays to a work queue that is not enrolled",
		Long: `It declares the queue's retry exchange and binds the queue to it. The queue's dead letters
go where they went; failures that consumers report for it are retried from then on. To
take it back: redrive unenroll --replays QUEUE.`,
		Example: "  redrive allow-replays orders",
	}, httpapi.Client.AllowReplays, "Messages can be replayed to the queue %q.\n")
}
