package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/query"
)

func (p *program) unadopt() *cobra.Command {
	d := action{verb: actions.Unadopt, expect: -1}
	c := &cobra.Command{
		Use:   "unadopt QUEUE",
		Short: "Put the messages that were adopted from a dead-letter queue back into it",
		Long: `Put the messages that were adopted from a dead-letter queue back into it, and stop adopting
it. Those that are parked go back, at the tail of the queue, with the headers and the body that
they had there; not those that were replayed or discarded since.

They are published to the default exchange, with the queue's name as the routing key, and without
CC. The service's user needs write on amq.default for it.`,
		Example: "  redrive unadopt orders.dlq --dry-run",
		Args:    exactArgs(1, "the dead-letter queue"),
	}
	f := c.Flags()
	f.StringVar(&d.reason, "reason", "", "why, for the audit log")
	f.BoolVar(&d.dry, "dry-run", false, "only show what would be done")
	f.Float64Var(&d.rate, "rate", 0, "messages per second (0 = unlimited)")
	f.BoolVar(&d.detach, "detach", false, "print the operation's id, and do not watch it")
	p.withYes(c, "do not ask")
	return p.withOutput(p.withClient(c, func(ctx context.Context, client httpapi.Client, args []string) error {
		queue := args[0]
		all, err := client.Adoptions(ctx)
		if err != nil {
			return err
		}
		for i := range all.Adoptions {
			if a := &all.Adoptions[i]; a.Queue != queue || a.Ended != nil || d.dry {
				continue
			}
			if err := p.confirm(ctx, fmt.Sprintf("The queue %s is being adopted. Stop that?", queue)); err != nil {
				return err
			}
			if err := client.StopAdopting(ctx, queue, d.reason); err != nil {
				return err
			}
		}
		return p.operate(ctx, client, &d, operations.PlanRequest{Verb: d.verb, Query: adoptedFrom(queue), Reason: d.reason})
	}))
}

// adoptedFrom finds the parked messages that were adopted from a queue.
func adoptedFrom(queue string) string { return "state:parked adopted:" + query.Quote(queue) }
