package cli

import (
	"encoding/csv"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/simulate"
)

// simulateFlags are the flags of simulate.
type simulateFlags struct {
	file, name, svg               string
	outage, limp, duration, fixed string
	rate, capacity, consumers     string
	failure                       string
	refusing                      float64
	seed                          uint64
}

func (p *program) simulate() *cobra.Command {
	var s simulateFlags
	c := &cobra.Command{
		Use:   "simulate --policy FILE",
		Short: "Show what a policy does when the upstream of its consumers is down",
		Long: `Show the load on an upstream that is down for a while, and the time to recover: with
messages requeued at once, with a fixed delay, with the backoff of a policy, and with that
policy's breaker and rate as well. Nothing is sent: the
policy and the throttle of the service run on a virtual clock. The same flags give the
same numbers.

Messages are published at --rate. Consumers call the upstream once per delivery, at most
--consumers times per second. While it is down all calls fail; for --limp after that a
falling share of them. It serves --capacity calls per second; calls beyond that fail and
cost nothing, or --refusing of a served call, which keeps many a real upstream down.

With --error the rules of the policy decide about a failure with that text; rules that ask for
anything else of a message do not apply.

Retries are all calls but the first of each message, which no policy can avoid.
New messages are served again when for a minute 99 % of them are served at their first
delivery. The backlog is drained when a thousandth of the outage's messages is left.

Output: table; json, everything; csv, load and backlog over time. --svg writes a plot.`,
		Example: `  redrive simulate --policy redrive.yaml --outage 1h --rate 200/s
  redrive simulate --policy redrive.yaml --name orders --outage 20m --rate 50/s --svg storm.svg`,
		Args: exactArgs(0, "no arguments: the file is --policy"),
		RunE: func(c *cobra.Command, _ []string) error {
			o, err := s.options(p.err)
			if err != nil {
				return err
			}
			r, err := simulate.Run(c.Context(), o)
			if err != nil {
				return err
			}
			if s.svg != "" {
				if err := os.WriteFile(s.svg, []byte(r.SVG()), 0o644); err != nil {
					return fmt.Errorf("the plot: %w", err)
				}
			}
			return p.simulated(r)
		},
	}
	f := c.Flags()
	f.StringVar(&s.file, "policy", "", "the config file with the policy")
	f.StringVar(&s.name, "name", "", "the policy's name (default the first)")
	f.StringVar(&s.outage, "outage", "1h", "how long the upstream is down")
	f.StringVar(&s.limp, "limp", "", "how long it fails in part after that; 0s: not (default a twelfth of the outage)")
	f.StringVar(&s.rate, "rate", "200/s", "messages published: n/s, n/min or n/h")
	f.StringVar(&s.capacity, "capacity", "", "calls that the upstream can serve (default twice the rate)")
	f.StringVar(&s.consumers, "consumers", "", "calls that the consumers make at most (default 25 times the capacity)")
	f.Float64Var(&s.refusing, "refusing", 0, "what a call beyond its capacity costs the upstream, as a part of one that it serves: 0 to 1")
	f.StringVar(&s.failure, "error", "", "what the consumers report when a call fails: the rules of the policy look at it")
	f.StringVar(&s.fixed, "fixed", "30s", "the fixed delay")
	f.StringVar(&s.duration, "duration", "", "how much time to simulate (default until the backlog is drained)")
	f.Uint64Var(&s.seed, "seed", 1, "the seed of the random numbers")
	f.StringVar(&s.svg, "svg", "", "write a plot of the load over time to this file")
	return p.withFormats(c, "table", "json", "csv")
}

// options returns those of the simulation, and writes notes for people.
func (s simulateFlags) options(notes io.Writer) (o simulate.Options, err error) {
	if s.file == "" {
		return o, fmt.Errorf("which policy? --policy FILE names a config file that has it: %w", errUsage)
	}
	for _, v := range []struct {
		flag, text string
		to         *time.Duration
	}{{"outage", s.outage, &o.Outage}, {"limp", s.limp, &o.Limp}, {"duration", s.duration, &o.Duration}, {"fixed", s.fixed, &o.Fixed}} {
		if v.text == "" {
			continue
		}
		d, err := config.ParseDuration(v.text)
		if err != nil || d < 0 || d == 0 && v.flag != "limp" {
			return o, fmt.Errorf("--%s %q: expected a duration such as 90s, 20m or 1h: %w", v.flag, v.text, errUsage)
		}
		if *v.to = d; d == 0 {
			*v.to = -1 // none
		}
	}
	for _, v := range []struct {
		flag, text string
		to         *float64
	}{{"rate", s.rate, &o.Rate}, {"capacity", s.capacity, &o.Capacity}, {"consumers", s.consumers, &o.Consumers}} {
		if v.text == "" {
			continue
		}
		var ok bool
		if *v.to, ok = config.ParseRate(v.text); !ok {
			return o, fmt.Errorf("--%s %q: expected a rate such as 200/s or 30/min: %w", v.flag, v.text, errUsage)
		}
	}
	o.Refusing, o.Seed, o.Error = s.refusing, s.seed, s.failure
	cfg, err := config.Load(s.file, func(string) string { return "" })
	if err != nil {
		return o, err
	}
	o.Policy = cfg.Policies[0]
	var names []string
	for _, p := range cfg.Policies {
		if names = append(names, p.Name); p.Name == s.name {
			o.Policy = p
		}
	}
	if s.name != "" && o.Policy.Name != s.name {
		return o, fmt.Errorf("--name %q: %s has no such policy, but %s: %w", s.name, s.file, strings.Join(names, ", "), errUsage)
	}
	o.Rules = cfg.Throttle[o.Policy.Name]
	if cfg.Ways[o.Policy.Name] != nil {
		fmt.Fprintf(notes, "policy %s waits in RabbitMQ, where no breaker and no rate apply: this shows it as if it waited on disk\n", plain(o.Policy.Name))
	}
	o.Policy.Name = plain(o.Policy.Name)
	if err := o.Fill().Validate(); err != nil {
		return o, fmt.Errorf("%w: %w", err, errUsage)
	}
	return o, nil
}

func (p *program) simulated(r *simulate.Result) error {
	switch p.format {
	case "json":
		return p.print(jsonOf(r.Report(), "  "))
	case "csv":
		return csv.NewWriter(p.out).WriteAll(r.Series())
	}
	fmt.Fprintf(p.out, "%s\n\n", r.Heading())
	w := p.tableOn(p.out)
	for _, row := range r.Table() {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	return w.Flush()
}
