package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/httpapi"
)

func (p *program) hold() *cobra.Command {
	return p.ofQueue(&cobra.Command{
		Use:   "hold QUEUE",
		Short: "Pause the returns to a queue until it is released",
		Long: `Pause the returns to a queue until it is released: what waits for it goes on
waiting, with its attempts, and what fails meanwhile waits too.`,
		Example: "  redrive hold orders --reason 'the warehouse is down until 14:00'",
	}, httpapi.Client.PauseQueue, "Nothing returns to the queue %q until `redrive release` says so.\n")
}

func (p *program) release() *cobra.Command {
	return p.ofQueue(&cobra.Command{
		Use:   "release QUEUE",
		Short: "Let messages return to a held queue again; what is due returns now",
	}, httpapi.Client.ResumeQueue, "Messages return to the queue %q again.\n")
}

// ofQueue completes a command about one queue.
func (p *program) ofQueue(c *cobra.Command, do func(c httpapi.Client, ctx context.Context, queue, reason string) error, done string) *cobra.Command {
	var reason string
	c.Args = exactArgs(1, "the queue")
	c.ValidArgsFunction = p.completeQueues
	c.RunE = func(c *cobra.Command, args []string) error {
		client, err := p.client()
		if err != nil {
			return err
		}
		if err := do(client, c.Context(), args[0], reason); err != nil {
			return err
		}
		fmt.Fprintf(p.err, done, plain(args[0]))
		return nil
	}
	c.Flags().StringVar(&reason, "reason", "", "why, for the audit log")
	return p.withAddress(c)
}
