package cli

import (
	"context"
	"fmt"
	"net"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/app"
	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/doctor"
	"github.com/redrive-mq/redrive/internal/store/redisstore"
)

func (p *program) doctor() *cobra.Command {
	var file, format string
	var queues []string
	var fix, dry bool
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Find what is wrong with RabbitMQ, its queues and the service's rights, and how to mend it",
		Long: `Find what is wrong with RabbitMQ, its queues and the service's rights: each check
is ok, a warning or wrong, with why it matters and the command that mends it.
docs/doctor.md has them all. It changes nothing, and takes no message anywhere.

It asks RabbitMQ by AMQP, as the service's user, and by its management API
(broker.management): with the tag management there, most checks can be made; with
monitoring also those of nodes, with administrator that of the service's rights.
What it cannot find out is unknown, never ok. The service is asked whether it is
ready, where one answers.

--fix makes what is missing, as the service would: the exchange redrive with its
queue, and return exchanges of enrolled queues. It takes nothing away and sets no
policy; for all else copy the command.

The exit code is 0 when all is ok, 3 when there are only warnings, or checks that
could not be made, 5 when something is wrong, and 7 when RabbitMQ does not answer.`,
		Example: `  redrive doctor --config redrive.yaml
  redrive doctor --queue 'orders.*' -o json
  redrive doctor --fix --dry-run`,
		Args: exactArgs(0, "no arguments"),
	}
	c.RunE = func(*cobra.Command, []string) error {
		if dry && !fix {
			return fmt.Errorf("--dry-run is for --fix; without it nothing is changed anyway: %w", errUsage)
		}
		cfg, err := config.Load(file, p.getenv)
		if err != nil {
			return err
		}
		o, err := p.looking(c, cfg, file)
		if err != nil {
			return err
		}
		o.Only = queues
		report, err := examine(c.Context(), o)
		if err != nil {
			return err
		}
		if plan := report.Plan(); fix {
			if err := p.mend(c.Context(), plan, cfg.Broker.URL, dry); err != nil {
				return err
			}
			if !dry && len(plan) > 0 {
				if report, err = examine(c.Context(), o); err != nil {
					return err
				}
			}
		}
		if err := p.showReport(format, report); err != nil {
			return err
		}
		return verdict(report)
	}
	c.Flags().StringVarP(&file, "config", "c", "", "the config file (YAML)")
	c.Flags().StringArrayVar(&queues, "queue", nil, "only queues of this name or pattern; may be given again")
	c.Flags().BoolVar(&fix, "fix", false, "make what is missing, and look again")
	c.Flags().BoolVar(&dry, "dry-run", false, "with --fix: only show what would be made")
	return withFormats(p.withAddress(c), &format, "table", "json", "jsonl", "yaml")
}

// looking says where the service should be: at --address or REDRIVE_ADDRESS, else
// where its config says that it listens.
func (p *program) looking(c *cobra.Command, cfg *config.Config, file string) (doctor.Options, error) {
	o := doctor.Options{Config: cfg, File: file, Insecure: p.getenv("REDRIVE_INSECURE") == "1",
		Redis: func(ctx context.Context) ([]redisstore.Server, bool, error) { return app.SurveyRedis(ctx, cfg) },
		Named: c.Flags().Changed("address") || p.getenv("REDRIVE_ADDRESS") != "" || file != ""}
	if !c.Flags().Changed("address") && p.getenv("REDRIVE_ADDRESS") == "" {
		host, port, err := net.SplitHostPort(cfg.Listen)
		if err != nil {
			return o, err
		}
		if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
			host = "127.0.0.1" // it listens there too
		}
		p.address = net.JoinHostPort(host, port)
		if cfg.Access.HasTLS() {
			p.address = "https://" + p.address
		}
	}
	client, err := p.client()
	if err != nil {
		return o, err
	}
	o.Service, err = client.URL()
	o.HTTP = client.HTTP
	return o, err
}

func examine(ctx context.Context, o doctor.Options) (doctor.Report, error) {
	scene, err := doctor.Gather(ctx, o)
	if err != nil {
		return doctor.Report{}, ending{ExitUnreachable, err}
	}
	return doctor.Examine(ctx, scene), nil
}

// mend says what it does, and does it.
func (p *program) mend(ctx context.Context, plan doctor.Plan, url string, dry bool) error {
	verb := "--fix does: "
	if dry {
		verb = "--fix would: "
	}
	for _, step := range plan.Steps() {
		fmt.Fprintln(p.err, verb+plain(step))
	}
	if len(plan) == 0 {
		fmt.Fprintln(p.err, "--fix has nothing to do")
	}
	if dry || len(plan) == 0 {
		return nil
	}
	return plan.Apply(ctx, url)
}

// verdict is the exit code of a report.
func verdict(r doctor.Report) error {
	n := map[doctor.Status]int{}
	for _, f := range r.Findings {
		n[f.Status]++
	}
	switch r.Status {
	case doctor.Wrong:
		return endingf(ExitPrecondition, "%s wrong, %s, %s", many(n[doctor.Wrong], "thing is", "things are"), many(n[doctor.Warning], "warning", "warnings"), many(n[doctor.Unknown], "check could not be made", "checks could not be made"))
	case doctor.Warning, doctor.Unknown:
		return endingf(ExitPartly, "nothing is wrong; %s, %s", many(n[doctor.Warning], "warning", "warnings"), many(n[doctor.Unknown], "check could not be made", "checks could not be made"))
	}
	return nil
}
