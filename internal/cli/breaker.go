package cli

import (
	"fmt"

	"github.com/spf13/cobra"
)

var breakerSet = map[string]string{
	"open":   "Nothing returns to the queue %q until `redrive breaker` says otherwise.\n",
	"closed": "Messages return to the queue %q, whatever comes of it, until `redrive breaker` says otherwise.\n",
	"auto":   "The breaker of the queue %q finds out by itself again.\n",
}

func (p *program) breaker() *cobra.Command {
	var reason string
	c := &cobra.Command{
		Use:   "breaker QUEUE open|closed|auto",
		Short: "Set a queue's circuit breaker, or let it find out by itself again",
		Long: `Set a queue's circuit breaker: open, nothing returns; closed, all that is due
returns, whatever comes of it; auto, it finds out by itself again. It stays as it
is set over restarts. What waits keeps its attempts.`,
		Example: "  redrive breaker orders closed --reason 'the warehouse is back, I watch it'",
		Args:    exactArgs(2, "the queue, and open, closed or auto"),
		RunE: func(c *cobra.Command, args []string) error {
			done, ok := breakerSet[args[1]]
			if !ok {
				return fmt.Errorf("a breaker can be set to open, closed or auto, not to %q: %w", plain(args[1]), errUsage)
			}
			client, err := p.client()
			if err != nil {
				return err
			}
			if err := client.Breaker(c.Context(), args[0], args[1], reason); err != nil {
				return err
			}
			fmt.Fprintf(p.err, done, plain(args[0]))
			return nil
		},
		ValidArgsFunction: func(c *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 1 {
				return []string{"open", "closed", "auto"}, cobra.ShellCompDirectiveNoFileComp
			}
			return p.completeQueues(c, args, toComplete)
		},
	}
	c.Flags().StringVar(&reason, "reason", "", "why, for the audit log")
	return p.withAddress(c)
}
