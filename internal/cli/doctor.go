package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/doctor"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/server"
	"github.com/redrive-mq/redrive/internal/store/redisstore"
)

func (p *program) doctor() *cobra.Command {
	var flags doctorFlags
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Find what is wrong with RabbitMQ, its queues and the service's rights, and how to repair it",
		Long: `Each check is ok, a warning or wrong, with why it matters and the command that repairs it;
docs/reference/doctor.md lists them all. It changes nothing, and consumes no message.

It connects to RabbitMQ by AMQP, as the service's user, and to its management API
(broker.management): the tag management is enough for most checks; those of nodes need
monitoring, the service's rights administrator. A check that cannot be made is unknown,
never ok. Where a service answers, it also checks whether that is ready.

--fix declares what is missing, as the service would: the exchange redrive with its queue,
and the retry exchanges of enrolled queues. It removes nothing and sets no policy; for
everything else copy the command.

With several virtual hosts (broker.vhosts) it checks each, or the one of --vhost.

The exit code is 0 when all is ok, 3 when there are only warnings, or checks that could
not be made, 5 when something is wrong, and 7 when RabbitMQ does not answer.`,
		Example: `  redrive doctor --config redrive.yaml
  redrive doctor --queue 'orders.*' -o json
  redrive doctor --fix --dry-run`,
	}
	c.RunE = func(*cobra.Command, []string) error {
		if flags.dry && !flags.fix {
			return fmt.Errorf("--dry-run is for --fix; without it nothing is changed anyway: %w", errUsage)
		}
		cfg, err := config.Load(p.config, p.getenv)
		if err == nil {
			err = p.locate(c, cfg)
		}
		if err != nil {
			return err
		}
		reports, err := p.examineAll(c.Context(), flags, cfg)
		if len(reports) > 0 {
			if err := p.showReports(reports); err != nil {
				return err
			}
		}
		return cmp.Or(err, verdict(reports))
	}
	p.withConfig(c, atRabbitMQ)
	c.Flags().StringArrayVar(&flags.queues, "queue", nil, "only queues of this name or pattern; may be given again")
	c.Flags().BoolVar(&flags.fix, "fix", false, "declare what is missing, and check again")
	c.Flags().BoolVar(&flags.dry, "dry-run", false, "with --fix: only show what would be declared")
	return p.withFormats(p.withAddress(c), "table", "json", "jsonl", "yaml")
}

type doctorFlags struct {
	queues   []string
	fix, dry bool
}

// examineAll looks at each virtual host. An error with one, such as a RabbitMQ that does not
// answer, does not stop the others.
func (p *program) examineAll(
	ctx context.Context, flags doctorFlags, cfg *config.Config,
) (reports []doctor.Report, err error) {
	all, err := cfg.PerVHost()
	if p.vhost != "" {
		all = make([]*config.Config, 1)
		all[0], err = cfg.ForVHost(p.vhost)
	}
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
			continue
		case len(all) > 1:
			err = exitError{codeOf(err), fmt.Errorf("virtual host %q: %w", cfg.VHost(), err)}
		}
		unreached = append(unreached, err)
	}
	return reports, errors.Join(unreached...)
}

func (p *program) doctorOptions(flags doctorFlags, cfg *config.Config) (doctor.Options, error) {
	o := doctor.Options{Config: cfg, File: p.config, Only: flags.queues, Insecure: p.getenv("REDRIVE_INSECURE") == "1",
		Redis: func(ctx context.Context) ([]redisstore.Server, bool, error) { return server.SurveyRedis(ctx, cfg) },
		Named: p.named || p.config != ""}
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

func (p *program) examineAndFix(ctx context.Context, o doctor.Options, fix, dry bool) (doctor.Report, error) {
	report, err := examine(ctx, o)
	if err != nil || !fix {
		return report, err
	}
	plan, verb := report.Plan(), "--fix does: "
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
		return report, nil
	}
	cluster, err := plan.Apply(ctx, o.Config)
	if err != nil {
		return report, err
	}
	p.report(ctx, actions.DoctorFix, plan.Queues(), func(context.Context) (actions.Place, error) {
		return actions.Place{Cluster: cluster, VHost: o.Config.VHost()}, nil
	})
	return examine(ctx, o)
}

func examine(ctx context.Context, o doctor.Options) (doctor.Report, error) {
	scene, err := doctor.Gather(ctx, o)
	if err != nil {
		return doctor.Report{}, exitError{ExitUnreachable, err}
	}
	return doctor.Examine(scene), nil
}

// verdict returns the exit code of reports.
func verdict(reports []doctor.Report) error {
	n := map[doctor.Status]int{}
	for _, r := range reports {
		for _, f := range r.Findings {
			n[f.Status]++
		}
	}
	var rest []string
	if w := n[doctor.Warning]; w > 0 {
		rest = append(rest, plural(w, "warning", "warnings"))
	}
	if u := n[doctor.Unknown]; u > 0 {
		rest = append(rest, plural(u, "check could not be made", "checks could not be made"))
	}
	switch {
	case n[doctor.Wrong] > 0:
		rest = slices.Insert(rest, 0, plural(n[doctor.Wrong], "thing is", "things are")+" wrong")
		return exitErrorf(ExitPrecondition, "%s", strings.Join(rest, ", "))
	case len(rest) > 0:
		return exitErrorf(ExitPartly, "nothing is wrong; %s", strings.Join(rest, ", "))
	}
	return nil
}

// showReports writes what the doctor found; in a table, the checks that are ok are one line.
func (p *program) showReports(reports []doctor.Report) error {
	switch {
	case p.format != "table" && len(reports) == 1:
		r := reports[0]
		return list(p, r, r.Findings, func(f doctor.Finding) string { return f.Check }, nil)
	case p.format != "table":
		return list(p, reports, reports, func(r doctor.Report) string { return r.VHost }, nil)
	}
	var b strings.Builder
	colour := isTerminal(p.out) && p.getenv("NO_COLOR") == "" && p.getenv("TERM") != "dumb"
	for i, r := range reports {
		if i > 0 {
			b.WriteString("\n")
		}
		(&diagnosis{&b, p.tableOn(p.out).width, colour, map[string]bool{}}).write(r)
	}
	return p.print(b.String(), nil)
}

type diagnosis struct {
	w      io.Writer
	width  int // of the terminal; 0: none
	colour bool
	shown  map[string]bool // reasons that were written, by check
}

func (d *diagnosis) paint(s doctor.Status, text string) string {
	if !d.colour {
		return text
	}
	return "\x1b[" + map[doctor.Status]string{doctor.OK: "32", doctor.Unknown: "36", doctor.Warning: "33",
		doctor.Wrong: "31;1"}[s] + "m" + text + "\x1b[0m"
}

func (d *diagnosis) write(r doctor.Report) {
	queues := ""
	if r.Queues != nil {
		queues = fmt.Sprintf(": %s, %d enrolled", plural(*r.Queues, "queue", "queues"), *r.Enrolled)
	}
	d.line("", "  ", fmt.Sprintf("RabbitMQ %s at %s, virtual host %q%s", cmp.Or(r.Version, "(version unknown)"),
		r.Broker, r.VHost, queues))
	ok := map[string]bool{}
	var unknown []doctor.Finding
	var groups []queueFindings
	for _, f := range r.Findings {
		switch n := len(groups); {
		case f.Status == doctor.OK:
			ok[f.Check] = true
		case f.Status == doctor.Unknown:
			unknown = append(unknown, f)
		case n > 0 && groups[n-1].queues[0] == f.Queue:
			groups[n-1].findings = append(groups[n-1].findings, f)
		default:
			groups = append(groups, queueFindings{[]string{f.Queue}, []doctor.Finding{f}})
		}
	}
	for _, g := range mergeAlike(groups) {
		d.group(g)
	}
	d.unknown(unknown)
	well := d.paint(doctor.OK, "ok")
	if r.Status == doctor.OK {
		fmt.Fprintf(d.w, "%s all %s\n", well, plural(len(ok), "check", "checks"))
	} else {
		fmt.Fprintf(d.w, "\n%s %s of %d\n", well, plural(len(ok), "check", "checks"), len(doctor.Checks))
	}
}

// queueFindings are the findings of one queue, or of several with the same findings; queues[0] is "" for the service.
type queueFindings struct {
	queues   []string
	findings []doctor.Finding
}

func mergeAlike(groups []queueFindings) (all []queueFindings) {
	at := map[string]int{}
	for _, g := range groups {
		var key strings.Builder
		for _, f := range g.findings {
			fmt.Fprintf(&key, "%s\x00%s\x00%s\x00%s\x00", f.Check, f.Status, f.What, f.Remedy)
		}
		i, ok := at[key.String()]
		if queue := g.queues[0]; ok && queue != "" {
			all[i].queues = append(all[i].queues, queue)
			for j := range g.findings {
				f := &all[i].findings[j]
				f.Commands = together(slices.Clone(f.Commands), g.findings[j].Commands, queue)
			}
			continue
		}
		at[key.String()] = len(all)
		all = append(all, g)
	}
	return all
}

// together adds the commands for a queue to those of others; enroll gets the queue as one more argument.
func together(all, more []string, queue string) []string {
	for i, c := range more {
		one, last := strings.CutSuffix(c, " "+doctor.Quote(queue))
		if last && i < len(all) && strings.Contains(one, " enroll ") && strings.HasPrefix(all[i], one+" ") {
			all[i] += " " + doctor.Quote(queue)
		} else if !slices.Contains(all, c) {
			all = append(all, c)
		}
	}
	return all
}

func (d *diagnosis) group(g queueFindings) {
	title := "RabbitMQ and the service"
	if n := len(g.queues); n > 1 {
		title = fmt.Sprintf("%d queues: %s", n, hint.Few(g.queues, 5))
	} else if g.queues[0] != "" {
		title = "queue " + g.queues[0]
	}
	fmt.Fprintln(d.w)
	d.line("", "  ", title)
	width := 0
	for _, f := range g.findings {
		width = max(width, len(f.Check))
	}
	slices.SortStableFunc(g.findings, func(a, b doctor.Finding) int { return rank(b.Status) - rank(a.Status) })
	for _, f := range g.findings {
		d.line(fmt.Sprintf("  %s  ", d.paint(f.Status, fmt.Sprintf("%-7s", f.Status))), indent,
			fmt.Sprintf("%-*s  %s", width, f.Check, f.What))
		if !d.shown[f.Check+f.Why] {
			wrap(d.w, indent, f.Why)
			d.shown[f.Check+f.Why] = true
		}
		wrap(d.w, indent, f.Remedy)
		for _, c := range f.Commands {
			fmt.Fprintf(d.w, "%s$ %s\n", indent, plain(c))
		}
	}
}

// line writes one line, or at a terminal as many as it takes.
func (d *diagnosis) line(head, next, text string) {
	room := d.width
	if room > 0 {
		room = max(minRoom, room-len(indent))
	}
	for _, line := range wrapped(plain(text), room) {
		fmt.Fprintln(d.w, head+line)
		head = next
	}
}

func rank(s doctor.Status) int { return slices.Index([]doctor.Status{doctor.Warning, doctor.Wrong}, s) }

// unknown writes each reason once, with the checks that it prevented.
func (d *diagnosis) unknown(all []doctor.Finding) {
	if len(all) == 0 {
		return
	}
	fmt.Fprintf(d.w, "\nnot checked, or only in part\n")
	var reasons []string
	checks := map[string][]string{} // by reason
	for _, f := range all {
		name := f.Check
		if f.Why == "" {
			name += ": " + f.What
		}
		if checks[f.Why] == nil {
			reasons = append(reasons, f.Why)
		}
		checks[f.Why] = append(checks[f.Why], name)
	}
	for _, why := range reasons {
		d.line(fmt.Sprintf("  %s  ", d.paint(doctor.Unknown, "unknown")), indent, strings.Join(checks[why], ", "))
		wrap(d.w, indent, why)
	}
}

const (
	lineWidth = 80
	indent    = "           " // of what is said about a finding
)

// wrap writes a text in lines that fit.
func wrap(w io.Writer, indent, text string) {
	for _, line := range wrapped(strings.Join(strings.Fields(text), " "), lineWidth-len(indent)) {
		fmt.Fprintln(w, indent+line)
	}
}
