package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/redrive-mq/redrive/internal/doctor"
)

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
		(&diagnosis{&b, colour, map[string]bool{}}).write(r)
	}
	return p.print(b.String(), nil)
}

type diagnosis struct {
	w      io.Writer
	colour bool
	shown  map[string]bool // reasons that were written, by check
}

func (d *diagnosis) paint(s doctor.Status, text string) string {
	code := map[doctor.Status]string{doctor.OK: "32", doctor.Unknown: "36", doctor.Warning: "33", doctor.Wrong: "31;1"}[s]
	if !d.colour || code == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

func (d *diagnosis) write(r doctor.Report) {
	queues := ""
	if r.Queues != nil {
		queues = fmt.Sprintf(": %s, %d enrolled", plural(*r.Queues, "queue", "queues"), *r.Enrolled)
	}
	fmt.Fprintf(d.w, "RabbitMQ %s at %s, virtual host %s%s\n", orNot(r.Version), plain(r.Broker), plain(fmt.Sprintf("%q", r.VHost)), queues)
	ok := map[string]bool{}
	var unknown []doctor.Finding
	var groups []queueFindings
	for _, f := range r.Findings {
		switch f.Status {
		case doctor.OK:
			ok[f.Check] = true
			continue
		case doctor.Unknown:
			unknown = append(unknown, f)
			continue
		}
		if n := len(groups); n > 0 && groups[n-1].queue == f.Queue {
			groups[n-1].findings = append(groups[n-1].findings, f)
		} else {
			groups = append(groups, queueFindings{queue: f.Queue, findings: []doctor.Finding{f}})
		}
	}
	for _, g := range mergeAlike(groups) {
		d.group(g)
	}
	d.unknown(unknown)
	if r.Status == doctor.OK {
		fmt.Fprintf(d.w, "%s all %s\n", d.paint(doctor.OK, "ok"), plural(len(ok), "check", "checks"))
	} else {
		fmt.Fprintf(d.w, "\n%s %s of %d\n", d.paint(doctor.OK, "ok"), plural(len(ok), "check", "checks"), len(doctor.Checks))
	}
}

// queueFindings are the findings of one queue, or of several with the same findings.
type queueFindings struct {
	queue    string
	others   []string
	findings []doctor.Finding
}

// mergeAlike merges queues with the same findings.
func mergeAlike(groups []queueFindings) (all []queueFindings) {
	at := map[string]int{}
	for _, g := range groups {
		var key strings.Builder
		for _, f := range g.findings {
			fmt.Fprintf(&key, "%s\x00%s\x00%s\x00", f.Check, f.Status, f.What)
		}
		if i, ok := at[key.String()]; ok && g.queue != "" {
			all[i].others = append(all[i].others, g.queue)
			continue
		}
		at[key.String()] = len(all)
		all = append(all, g)
	}
	return all
}

func (d *diagnosis) group(g queueFindings) {
	title := "RabbitMQ and the service"
	if g.queue != "" {
		title = "queue " + plain(g.queue)
	}
	if len(g.others) > 0 {
		const most = 5
		shown := g.others[:min(most, len(g.others))]
		title = fmt.Sprintf("%s, and %d more alike: %s", title, len(g.others), plain(strings.Join(shown, ", ")))
		if len(g.others) > most {
			title += ", …"
		}
	}
	fmt.Fprintf(d.w, "\n%s\n", title)
	width := 0
	for _, f := range g.findings {
		width = max(width, len(f.Check))
	}
	slices.SortStableFunc(g.findings, func(a, b doctor.Finding) int { return rank(b.Status) - rank(a.Status) })
	indent := strings.Repeat(" ", 11)
	for _, f := range g.findings {
		fmt.Fprintf(d.w, "  %s  %-*s  %s\n", d.paint(f.Status, fmt.Sprintf("%-7s", f.Status)), width, f.Check, plain(f.What))
		if !d.shown[f.Check+f.Why] {
			d.wrap(indent, f.Why)
			d.shown[f.Check+f.Why] = true
		}
		d.wrap(indent, f.Remedy)
		for _, c := range f.Commands {
			fmt.Fprintf(d.w, "%s$ %s\n", indent, plain(c))
		}
	}
}

func rank(s doctor.Status) int { return slices.Index([]doctor.Status{doctor.Warning, doctor.Wrong}, s) }

// unknown writes each reason once, with the checks that it prevented.
func (d *diagnosis) unknown(all []doctor.Finding) {
	if len(all) == 0 {
		return
	}
	fmt.Fprintf(d.w, "\nnot looked at, or not wholly\n")
	for len(all) > 0 {
		why := all[0].Why
		var checks []string
		all = slices.DeleteFunc(all, func(f doctor.Finding) bool {
			same := f.Why == why
			if same {
				name := f.Check
				if why == "" {
					name += ": " + f.What
				}
				checks = append(checks, name)
			}
			return same
		})
		fmt.Fprintf(d.w, "  %s  %s\n", d.paint(doctor.Unknown, "unknown"), plain(strings.Join(checks, ", ")))
		d.wrap("           ", why)
	}
}

const lineWidth = 100

// wrap writes a text in lines that fit.
func (d *diagnosis) wrap(indent, text string) {
	line := ""
	for _, word := range strings.Fields(plain(text)) {
		if line != "" && len(indent)+len(line)+1+len(word) > lineWidth {
			fmt.Fprintf(d.w, "%s%s\n", indent, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	if line != "" {
		fmt.Fprintf(d.w, "%s%s\n", indent, line)
	}
}

func orNot(version string) string {
	if version == "" {
		return "(version unknown)"
	}
	return plain(version)
}
