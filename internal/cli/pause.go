package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/httpapi"
)

func (p *program) pause() *cobra.Command {
	return p.ofQueue(&cobra.Command{
		Use:   "pause QUEUE",
		Short: "Pause the retries of a queue",
		Long: `Pause the retries of a queue until you resume it. Its messages keep waiting, with their
attempts, and so do those that fail meanwhile.`,
		Example: "  redrive pause orders --reason 'the warehouse is down until 14:00'",
	}, httpapi.Client.PauseQueue, "Retries of the queue %q are paused until you run `redrive resume`.\n")
}

func (p *program) resume() *cobra.Command {
	return p.ofQueue(&cobra.Command{
		Use:   "resume QUEUE",
		Short: "Resume the retries of a queue; due messages are retried now",
	}, httpapi.Client.ResumeQueue, "Retries of the queue %q are resumed.\n")
}

// ofQueue completes a command about one queue.
func (p *program) ofQueue(c *cobra.Command, do func(c httpapi.Client, ctx context.Context, queue, reason string) error, done string) *cobra.Command {
	var reason string
	c.Args = exactArgs(1, "the queue")
	c.ValidArgsFunction = p.completeQueues
	c.Flags().StringVar(&reason, "reason", "", "why, for the audit log")
	return p.withClient(c, func(ctx context.Context, client httpapi.Client, args []string) error {
		if err := do(client, ctx, args[0], reason); err != nil {
			return err
		}
		fmt.Fprintf(p.err, done, plain(args[0]))
		return nil
	})
}

var breakerSet = map[string]string{
	"open":   "Retries of the queue %q are paused until `redrive breaker` sets it otherwise.\n",
	"closed": "Due messages of the queue %q are retried, however many fail again, until `redrive breaker` sets it otherwise.\n",
	"auto":   "The breaker of the queue %q opens and closes by itself again.\n",
}

func (p *program) breaker() *cobra.Command {
	var reason string
	c := p.withClient(&cobra.Command{
		Use:   "breaker QUEUE open|closed|auto",
		Short: "Set a queue's circuit breaker, or let it open and close by itself again",
		Long: `Set a queue's circuit breaker: open pauses its retries; closed retries all due messages,
however many fail again; auto lets it open and close by itself again. The setting
survives restarts. Waiting messages keep their attempts.`,
		Example: "  redrive breaker orders closed --reason 'the warehouse is back, I watch it'",
		Args:    exactArgs(2, "the queue, and open, closed or auto"),
		ValidArgsFunction: func(c *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 1 {
				return []string{"open", "closed", "auto"}, cobra.ShellCompDirectiveNoFileComp
			}
			return p.completeQueues(c, args, toComplete)
		},
	}, func(ctx context.Context, client httpapi.Client, args []string) error {
		done, ok := breakerSet[args[1]]
		if !ok {
			return fmt.Errorf("a breaker can be set to open, closed or auto, not to %q: %w", plain(args[1]), errUsage)
		}
		if err := client.Breaker(ctx, args[0], args[1], reason); err != nil {
			return err
		}
		fmt.Fprintf(p.err, done, plain(args[0]))
		return nil
	})
	c.Flags().StringVar(&reason, "reason", "", "why, for the audit log")
	return c
}
