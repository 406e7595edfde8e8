package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/delay/ttlqueue"
	"github.com/redrive-mq/redrive/internal/rabbitmq/enroll"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
)

// arrangement is what a topology of RabbitMQ alone needs, policies too.
type arrangement interface {
	Topology() delay.Topology
	Policies() []management.Policy
	Plan(context.Context, *management.Client) (*enroll.Plan, error)
	Warnings() []string
}

const recipeHelp = `

Names of exchanges and queues are yours: --names PART=TEMPLATE, with {queue} for the work
queue. An exchange can be shared by several work queues if its name does not have {queue}.
Names that are there twice, RabbitMQ's and Redrive's own, and with --apply those of
exchanges and queues that exist and are different, are refused. The parts:

`

func (p *program) topologyRetryQueue() *cobra.Command {
	var delays []time.Duration
	c := &cobra.Command{
		Use:   "retry-queue --queue QUEUE --delay 60s",
		Short: "Recipe: rejected messages go to a retry queue with a TTL, and back",
		Long: `The published recipe "work queue, dead-letter exchange, retry queue with a TTL, back": a
policy dead-letters the work queue to an exchange, which routes to a retry queue; messages
that expire there go back to the work queue. With several delays there is a retry queue for
each: rejected messages wait in the first, consumers publish to the others.

What it lacks is printed as warnings; ` + "`redrive topology fixed`" + ` is the same with an exchange
that parks messages whose queue no longer exists.` + recipeHelp + parts(enroll.RetryQueue) + `

The template of retry-queue also has {seconds} and {ms}.`,
	}
	c.Flags().DurationSliceVar(&delays, "delay", []time.Duration{time.Minute}, "how long a message waits; several: 1s,10s,60s")
	return p.recipe(c, true, func(o *enroll.RecipeOptions) (*enroll.Recipe, error) {
		o.Delays = delays
		return enroll.NewRecipe(enroll.RetryQueue, *o)
	})
}

func (p *program) topologyRetryExchange() *cobra.Command {
	c := &cobra.Command{
		Use:   "retry-exchange --queue QUEUE",
		Short: "Recipe: consumers publish to a retry exchange, each message with a TTL of its own",
		Long: `The published recipe "work exchange, retry exchange, TTL per message": a consumer that fails
publishes the message to the retry exchange with its delay as expiration; when it expires,
it goes to the work exchange, and so to the work queue.

What it lacks is printed as warnings.` + recipeHelp + parts(enroll.RetryExchange),
	}
	return p.recipe(c, false, func(o *enroll.RecipeOptions) (*enroll.Recipe, error) {
		return enroll.NewRecipe(enroll.RetryExchange, *o)
	})
}

func (p *program) topologyWaitExchange() *cobra.Command {
	var plugin bool
	c := &cobra.Command{
		Use:   "wait-exchange --queue QUEUE",
		Short: "Recipe: error, wait and requeue exchanges, with a program that sets the delay",
		Long: `The published recipe "error, wait and requeue exchanges": a policy dead-letters the work
queue to an error queue; a program of yours publishes its messages to the wait exchange,
each with its delay; when that ends, they go to the requeue exchange, and so to the work
queue. They wait in a queue, by expiration, or with --plugin in the exchange itself, by the
header x-delay.

What it lacks is printed as warnings.` + recipeHelp + parts(enroll.WaitExchange),
	}
	c.Flags().BoolVar(&plugin, "plugin", false, "the wait exchange delays by rabbitmq_delayed_message_exchange, which must be installed")
	return p.recipe(c, true, func(o *enroll.RecipeOptions) (*enroll.Recipe, error) {
		o.Plugin = plugin
		return enroll.NewRecipe(enroll.WaitExchange, *o)
	})
}

// parts lists a recipe's parts for its help.
func parts(kind enroll.RecipeKind) string {
	var b strings.Builder
	for _, part := range enroll.PartsOf(kind) {
		fmt.Fprintf(&b, "  %s\n", part)
	}
	return strings.TrimRight(b.String(), "\n")
}

// recipe prints or sets a published arrangement; policy: it has one, which --undo removes.
func (p *program) recipe(c *cobra.Command, policy bool, make func(*enroll.RecipeOptions) (*enroll.Recipe, error)) *cobra.Command {
	var apply, undo bool
	var names map[string]string
	p.withTopologyFlags(c, func(at topologyFlags, cfg *config.Config, kind ttlqueue.Type) error {
		if apply && undo {
			return fmt.Errorf("--apply or --undo, not both: %w", errUsage)
		}
		if undo {
			return p.undoArrangement(c.Context(), cfg, at, enroll.UndoRecipe)
		}
		r, err := make(&enroll.RecipeOptions{Queue: at.queue, Names: names, Type: kind})
		if err != nil {
			return fmt.Errorf("%s: %w: %w", c.Name(), err, errUsage)
		}
		done := fmt.Sprintf("done: %s\n", r.Usage())
		if !apply {
			fmt.Fprintf(p.err, "note: %s\n", r.Usage())
		}
		return p.arrange(c.Context(), cfg, at, r, apply, done)
	})
	c.Flags().StringToStringVar(&names, "names", nil, "names of your own: PART=TEMPLATE, separated by commas or repeated")
	c.Flags().BoolVar(&apply, "apply", false, "set it through the management API")
	if policy {
		c.Flags().BoolVar(&undo, "undo", false, "remove the policy of --apply")
	}
	p.withYes(c, "with --apply: do not ask")
	return c
}

// arrange prints what an arrangement needs, or with apply shows what it will set, asks, and sets it.
func (p *program) arrange(ctx context.Context, cfg *config.Config, at topologyFlags, a arrangement, apply bool, done string) error {
	for _, w := range a.Warnings() {
		fmt.Fprintf(p.err, "warning: %s\n", w)
	}
	if !apply {
		if len(a.Policies()) > 0 {
			fmt.Fprintln(p.err, "warning: if a policy applies to the queue already, this one would replace it or be ignored: use --apply, which merges them")
		}
		return p.define(management.Define(at.vhost, a.Topology(), a.Policies()...))
	}
	m, err := cfg.Broker.API(at.vhost)
	if err != nil {
		return err
	}
	plan, err := a.Plan(ctx, m)
	if err != nil {
		return err
	}
	plan.Write(p.out)
	if err := p.confirm(ctx, "Set it?"); err != nil {
		return err
	}
	if err := plan.Apply(ctx, m); err != nil {
		return err
	}
	fmt.Fprint(p.out, done)
	return nil
}

// undoArrangement removes the policy that dead-letters a queue to a delay queue.
func (p *program) undoArrangement(ctx context.Context, cfg *config.Config, at topologyFlags, undo func(context.Context, *management.Client, string) error) error {
	m, err := cfg.Broker.API(at.vhost)
	if err != nil {
		return err
	}
	if err := undo(ctx, m, at.queue); err != nil {
		return err
	}
	fmt.Fprintf(p.out, "queue %q no longer dead-letters to a delay queue; waiting messages are still retried\n", at.queue)
	return nil
}
