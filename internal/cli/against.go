package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/whatif"
)

// against prints what a configuration would have done with the failures of a running service.
func (p *program) against(ctx context.Context, cfg *config.Config, ago string) error {
	d, err := config.ParseDuration(ago)
	if err != nil || d <= 0 {
		return fmt.Errorf("--against %q: expected a duration such as 12h or 7d: %w", ago, errUsage)
	}
	if cfg, err = cfg.ForVHost(p.vhost); err != nil {
		return err
	}
	client, err := p.client()
	if err != nil {
		return err
	}
	r, err := whatif.Run(ctx, cfg, client, time.Now().Add(-d))
	if err != nil {
		return err
	}
	w := p.tableOn(p.out)
	writeWhatIf(w, r)
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(p.out, "\nLatest failures of %s since %s, as far as the service remembers them: messages that it keeps, and the\nnewest 200,000 retries. Earlier failures of a message are not counted, nor what a rule has discarded at once.\n",
		plural(r.Messages, "message", "messages"), timeText(&r.Since))
	if r.Bounded {
		fmt.Fprintln(p.out, "There are more messages than were looked at.")
	}
	for _, row := range r.Rows {
		if row.Would.Unknown > 0 {
			fmt.Fprintln(p.out, "Not known: a rule asks for a header, a property or a body that the service has no more, or for too many messages to show.")
			break
		}
	}
	return nil
}

func writeWhatIf(w io.Writer, r *whatif.Result) {
	fmt.Fprintln(w, "POLICY\tRULE\tWOULD PARK\tRETRY\tDISCARD\tFORWARD\tNOT KNOWN\tDID PARK\tRETRY\tDISCARD\tFORWARD")
	for _, row := range r.Rows {
		a, b := row.Would, row.Did
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", cell(row.Policy), cell(row.Rule), count(a.Park), count(a.Retry), count(a.Discard), count(a.Forward), count(a.Unknown),
			count(b.Park), count(b.Retry), count(b.Discard), count(b.Forward))
	}
}
