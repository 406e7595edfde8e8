package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/enroll"
	"github.com/redrive-mq/redrive/internal/management"
)

// withManagement gives run a client of the management API.
func (p *program) withManagement(c *cobra.Command, run func(*management.Client, string) error) *cobra.Command {
	var file string
	c.Args = exactArgs(1, "the queue")
	c.RunE = func(_ *cobra.Command, args []string) error {
		cfg, err := config.Load(file, p.getenv)
		if err != nil {
			return err
		}
		m, err := management.New(cfg.Broker.Management, cfg.VHost())
		if err != nil {
			return err
		}
		return run(m, args[0])
	}
	c.Flags().StringVarP(&file, "config", "c", "", "the config file (YAML), for broker.management")
	return c
}

func (p *program) enroll() *cobra.Command {
	var yes, dry, atLeastOnce bool
	c := &cobra.Command{
		Use:   "enroll QUEUE",
		Short: "Point an existing queue's dead-lettering at Redrive, by a RabbitMQ policy",
		Long: `Point an existing queue's dead-lettering at Redrive, by a RabbitMQ policy set
through the management API. Shows first what it will set; keys of the policy
that applies now are kept. The user needs the tag policymaker.

A queue that is declared with x-dead-letter-exchange: redrive needs none of
this: it is enrolled at its first dead letter.`,
	}
	p.withManagement(c, func(m *management.Client, queue string) error {
		plan, err := enroll.Make(c.Context(), m, queue, atLeastOnce)
		if err != nil {
			return err
		}
		plan.Write(p.out)
		if dry {
			return nil
		}
		if !yes {
			if err := p.confirm(c.Context(), "Set it?"); err != nil {
				return err
			}
		}
		if err := plan.Apply(c.Context(), m); err != nil {
			return err
		}
		fmt.Fprintf(p.out, "queue %q is enrolled; `redrive unenroll` undoes it\n", queue)
		return nil
	})
	c.Flags().BoolVar(&yes, "yes", false, "do not ask")
	c.Flags().BoolVar(&dry, "dry-run", false, "only show what would be set")
	c.Flags().BoolVar(&atLeastOnce, "at-least-once", false, "also make a quorum queue's dead-lettering at-least-once (overflow becomes reject-publish)")
	return c
}

func (p *program) unenroll() *cobra.Command {
	c := &cobra.Command{
		Use:   "unenroll QUEUE",
		Short: "Undo enroll: take the policy away, so that the one before applies again",
		Long: `Undo enroll: take the policy away, so that the one before applies again. The
queue's return exchange stays, since messages that wait still have to come back.`,
	}
	return p.withManagement(c, func(m *management.Client, queue string) error {
		if err := enroll.Undo(c.Context(), m, queue); err != nil {
			return err
		}
		fmt.Fprintf(p.out, "queue %q is no longer enrolled by a policy; waiting messages still return to it\n", queue)
		return nil
	})
}
