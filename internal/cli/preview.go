package cli

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/operations"
)

// tableToStderr writes a table to standard error.
func (p *program) tableToStderr(table func(io.Writer)) error {
	w := p.tableOn(p.err)
	table(w)
	return w.Flush()
}

// question is what a person is asked.
func question(p operations.Plan) string {
	q := p.Verb.Title() + " " + messages(p.Count)
	if len(p.Queues) > 1 {
		q += " of " + count(len(p.Queues)) + " queues"
	} else if len(p.Queues) == 1 {
		q += " of " + p.Queues[0].Queue
	}
	if p.At != nil {
		q += " at " + timeText(p.At)
	}
	if p.To != "" {
		q += " to " + p.To
	}
	return q + "?"
}

// preview writes a plan as the page shows it.
func preview(w io.Writer, p operations.Plan, now time.Time) {
	what := p.Query
	if p.RestOf != "" {
		what = "the rest of operation " + p.RestOf
	}
	fmt.Fprintf(w, "%s Nothing is done yet.\n%s\n", plain(question(p)), plain(what))
	if p.Count > 0 {
		fmt.Fprintf(w, "They failed between %s and %s; messages that fail later are not included.\n", timeText(p.Oldest), timeText(p.Newest))
		fmt.Fprintln(w, "\nQUEUE\tMESSAGES\tAT RABBITMQ\tCONSUMERS\tREADY")
		for _, q := range p.Queues {
			there, consumers, ready := "there", count(q.Consumers), count(q.Ready)
			switch {
			case !q.Known:
				there, consumers, ready = "not known", "?", "?"
			case !q.Exists:
				there, consumers = "not there", "none"
			case q.Consumers == 0:
				consumers = "none"
			}
			if q.Paused {
				there += ", paused"
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", cell(q.Queue), count(q.Count), there, consumers, ready)
		}
	}
	if len(p.Skipped) > 0 {
		fmt.Fprintln(w, "\nLeft out:")
		for _, s := range p.Skipped {
			fmt.Fprintf(w, "  %s %s\n", count(s.Count), plain(s.Why))
		}
	}
	if len(p.Samples) > 0 {
		fmt.Fprintln(w, "\nSome of them:\nID\tSTATE\tFAILED\tWHAT WENT WRONG")
		for _, m := range p.Samples {
			why := cmp.Or(m.Error, m.Reason)
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", plain(m.ID), plain(m.State), ago(&m.Failed, now), cell(why))
		}
	}
	if p.SuggestedCanary > 0 {
		fmt.Fprintf(w, "\nThese are many: with --canary %d the others follow only if none of the first fails again.\n", p.SuggestedCanary)
	}
	section(w, "Before you start:", p.Warnings)
	section(w, "It cannot start:", p.Blocked)
}

func section(w io.Writer, title string, lines []string) {
	if len(lines) > 0 {
		fmt.Fprintln(w, "\n"+title)
	}
	for _, s := range lines {
		fmt.Fprintln(w, "  "+strings.TrimSpace(plain(s)))
	}
}
