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
