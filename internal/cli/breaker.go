package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/httpapi"
)

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
