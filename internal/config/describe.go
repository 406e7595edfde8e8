package config

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/policy"
)

// Describe writes for each policy its real waits, where messages wait if that is RabbitMQ, and what
// happens after the last attempt; then Protobuf types by queue, routes of notifications, and what
// else differs from the defaults.
func Describe(w io.Writer, c *Config) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if err := describeVHosts(table, c); err != nil {
		return err
	}
	for i := range c.Policies {
		p := &c.Policies[i]
		what := waits(p, c.Ways[p.Name])
		if limits := c.Throttle[p.Name].String(); limits != "" {
			what += " (throttle: " + limits + ")"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\n", p.Name, strings.Join(p.Queues, " "), what+describeMore(p)+describeFor(c.policyVHosts[p.Name]))
		for i := range p.Rules {
			r := &p.Rules[i]
			when := "always"
			if r.When != nil {
				when = fmt.Sprint("when ", r.When)
			}
			fmt.Fprintf(table, "\t\trule %s, %s: %s\n", r.Name, when, r.Outcome())
		}
	}
	for _, from := range slices.Sorted(maps.Keys(c.Redirects)) {
		fmt.Fprintf(table, "redirect\t%s\tretried to %s\n", from, c.Redirects[from])
	}
	for _, q := range c.Decode.Protobuf.Queues {
		fmt.Fprintf(table, "protobuf\t%s\t%s\n", strings.Join(q.Queues, " "), q.Message)
	}
	if who := describeNotify(&c.Notify, c.routeVHosts); who != "" {
		fmt.Fprintln(table, who)
	}
	if c.Store.Restorable != Default().Store.Restorable {
		fmt.Fprintf(table, "\nwhat is discarded can be restored for %s\n", policy.FormatDuration(c.Store.Restorable))
	}
	if who := c.Access.describe(); who != "" {
		fmt.Fprintf(table, "\n%s\n", who)
	}
	return table.Flush()
}

// describeMore is what a policy has beyond its waits and limits.
func describeMore(p *policy.Policy) (s string) {
	if p.MaxAge > 0 {
		s += ", retried for " + policy.FormatDuration(p.MaxAge) + " at most"
	}
	if p.Retention > 0 {
		s += ", parked for " + policy.FormatDuration(p.Retention) + ", then discarded"
	}
	if p.RetryPriority != nil {
		s += fmt.Sprintf(", retries with priority %d", *p.RetryPriority)
	}
	return s
}

// maxShownWaits is how many different waits are written out.
const maxShownWaits = 12

func waits(p *policy.Policy, way delay.Way) string {
	all := rounded(p, way)
	var total time.Duration
	for _, w := range all {
		total += w
		if total < 0 {
			total = policy.LongestDelay // past any calendar
		}
	}
	var parts []string
	for i := 0; i < len(all) && len(parts) <= maxShownWaits; {
		n := 1
		for i+n < len(all) && all[i+n] == all[i] {
			n++
		}
		part := policy.FormatDuration(all[i])
		if n > 2 {
			part += fmt.Sprintf(" ×%d", n)
		} else {
			n = 1
		}
		if len(parts) == maxShownWaits {
			part = "…"
		}
		parts = append(parts, part)
		i += n
	}
	then := map[policy.Action]string{policy.Park: "parked", policy.Discard: "discarded", policy.Forward: "forwarded to " + p.Exhausted.Destination.String()}[p.Exhausted.Action]
	if len(all) == 0 {
		return then + " after the first attempt"
	}
	s := fmt.Sprintf("%s, %s after %s", strings.Join(parts, ", "), then, policy.FormatDuration(total))
	if j := p.Jitter.String(); j != "none" && slices.Max(all) > 0 {
		s += " (jitter " + j + ")"
	}
	if way != nil {
		s += " (waits in RabbitMQ: " + way.Limits().Name + ")"
	}
	return s
}
