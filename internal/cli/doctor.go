package cli

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/doctor"
	"github.com/redrive-mq/redrive/internal/server"
	"github.com/redrive-mq/redrive/internal/store/redisstore"
)

func (p *program) doctor() *cobra.Command {
	var flags doctorFlags
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Find what is wrong with RabbitMQ, its queues and the service's rights, and how to repair it",
		Long: `Find what is wrong with RabbitMQ, its queues and the service's rights: each check
is ok, a warning or wrong, with why it matters and the command that repairs it.
docs/reference/doctor.md lists them all. It changes nothing, and consumes no message.

It connects to RabbitMQ by AMQP, as the service's user, and to its management API
(broker.management): a user with the tag management is enough for most checks, monitoring
also for those of nodes, administrator also for the service's rights. A check that cannot
be made is unknown, never ok. Where a service answers, it also checks whether that is
ready.

--fix declares what is missing, as the service would: the exchange redrive with its
queue, and the retry exchanges of enrolled queues. It removes nothing and sets no policy;
for everything else copy the command.

With several virtual hosts (broker.vhosts) it checks each, or the one of --vhost.

The exit code is 0 when all is ok, 3 when there are only warnings, or checks that
could not be made, 5 when something is wrong, and 7 when RabbitMQ does not answer.`,
		Example: `  redrive doctor --config redrive.yaml
  redrive doctor --queue 'orders.*' -o json
  redrive doctor --fix --dry-run`,
		Args: exactArgs(0, "no arguments"),
	}
	c.RunE = func(*cobra.Command, []string) error {
		if flags.dry && !flags.fix {
			return fmt.Errorf("--dry-run is for --fix; without it nothing is changed anyway: %w", errUsage)
		}
		flags.named = c.Flags().Changed("address") || p.getenv("REDRIVE_ADDRESS") != ""
		cfg, err := config.Load(p.config, p.getenv)
		if err != nil {
			return err
		}
		reports, err := p.examineAll(c.Context(), flags, cfg)
		if len(reports) > 0 {
			if err := p.showReports(reports); err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
		return verdict(reports)
	}
	p.withConfig(c, "the config file (YAML)")
	c.Flags().StringArrayVar(&flags.queues, "queue", nil, "only queues of this name or pattern; may be given again")
	c.Flags().BoolVar(&flags.fix, "fix", false, "declare what is missing, and check again")
	c.Flags().BoolVar(&flags.dry, "dry-run", false, "with --fix: only show what would be declared")
	return p.withFormats(p.withAddress(c), "table", "json", "jsonl", "yaml")
}

// doctorFlags are what the flags of doctor ask for.
type doctorFlags struct {
	queues   []string
	fix, dry bool
	named    bool // the service's address is given
}

// examineAll looks at each virtual host. An error with one, such as a RabbitMQ that does not
// answer, does not stop the others.
func (p *program) examineAll(ctx context.Context, flags doctorFlags, cfg *config.Config) (reports []doctor.Report, err error) {
	all, err := p.virtualHosts(cfg)
	if err != nil {
		return nil, err
	}
	var unreached []error
	for _, cfg := range all {
		if len(all) > 1 {
			p.vhost = cfg.VHost() // its page and API are asked
		}
		o, err := p.doctorOptions(flags, cfg)
		if err != nil {
			return nil, err
		}
		report, err := p.examineAndFix(ctx, o, flags.fix, flags.dry)
		switch {
		case err == nil:
			reports = append(reports, report)
		case len(all) > 1:
			unreached = append(unreached, exitError{codeOf(err), fmt.Errorf("virtual host %q: %w", cfg.VHost(), err)})
		default:
			unreached = append(unreached, err)
		}
	}
	return reports, errors.Join(unreached...)
}

// doctorOptions says where the service should be: at --address or REDRIVE_ADDRESS, else
// where its config says that it listens.
func (p *program) doctorOptions(flags doctorFlags, cfg *config.Config) (doctor.Options, error) {
	o := doctor.Options{Config: cfg, File: p.config, Only: flags.queues, Insecure: p.getenv("REDRIVE_INSECURE") == "1",
		Redis: func(ctx context.Context) ([]redisstore.Server, bool, error) { return server.SurveyRedis(ctx, cfg) },
		Named: flags.named || p.config != ""}
	if !flags.named {
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
	if p.vhost != "" {
		o.Call = "redrive --vhost " + doctor.Quote(p.vhost)
	}
	o.Service, err = client.URL()
	o.HTTP = client.HTTP
	return o, err
}

// virtualHosts are the virtual hosts to look at: the one of --vhost, or all.
func (p *program) virtualHosts(cfg *config.Config) ([]*config.Config, error) {
	if p.vhost == "" {
		return cfg.PerVHost()
	}
	one, err := cfg.ForVHost(p.vhost)
	return []*config.Config{one}, err
}

// examineAndFix looks at a virtual host, repairs it if that is wanted, and looks again.
func (p *program) examineAndFix(ctx context.Context, o doctor.Options, fix, dry bool) (doctor.Report, error) {
	report, err := examine(ctx, o)
	if err != nil || !fix {
		return report, err
	}
	plan := report.Plan()
	if err := p.repair(ctx, plan, o.Config, dry); err != nil || dry || len(plan) == 0 {
		return report, err
	}
	return examine(ctx, o)
}

func examine(ctx context.Context, o doctor.Options) (doctor.Report, error) {
	scene, err := doctor.Gather(ctx, o)
	if err != nil {
		return doctor.Report{}, exitError{ExitUnreachable, err}
	}
	return doctor.Examine(scene), nil
}

// repair writes the steps of a plan, and executes them unless dry.
func (p *program) repair(ctx context.Context, plan doctor.Plan, cfg *config.Config, dry bool) error {
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
	return plan.Apply(ctx, cfg)
}

// verdict is the exit code of reports.
func verdict(reports []doctor.Report) error {
	n := map[doctor.Status]int{}
	for _, r := range reports {
		for _, f := range r.Findings {
			n[f.Status]++
		}
	}
	switch {
	case n[doctor.Wrong] > 0:
		return exitErrorf(ExitPrecondition, "%s wrong, %s, %s", plural(n[doctor.Wrong], "thing is", "things are"), plural(n[doctor.Warning], "warning", "warnings"), plural(n[doctor.Unknown], "check could not be made", "checks could not be made"))
	case n[doctor.Warning]+n[doctor.Unknown] > 0:
		return exitErrorf(ExitPartly, "nothing is wrong; %s, %s", plural(n[doctor.Warning], "warning", "warnings"), plural(n[doctor.Unknown], "check could not be made", "checks could not be made"))
	}
	return nil
}
