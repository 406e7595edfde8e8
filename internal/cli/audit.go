package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/audit"
	"github.com/redrive-mq/redrive/internal/httpapi"
)

func (p *program) audit() *cobra.Command {
	var after string
	var limit int
	c := p.withClient(&cobra.Command{
		Use:   "audit",
		Short: "Show the audit log: who did what, newest first",
		Long: `Show the audit log, newest first. Only administrators may. The store keeps the entries of 90
days, at most 64 MiB; the service also logs each action when it ends.`,
	}, func(ctx context.Context, client httpapi.Client, _ []string) error {
		page, err := client.Audit(ctx, after, limit)
		if err != nil {
			return err
		}
		err = list(p, page, page.Entries, func(e audit.Entry) string { return fmt.Sprint(e.N) },
			func(w io.Writer) { rows(w, auditColumns, page.Entries, time.Now()) })
		if err == nil {
			p.more(page.After)
		}
		return err
	})
	c.Flags().StringVar(&after, "after", "", "continue after the previous page")
	c.Flags().IntVar(&limit, "limit", 100, "the most to show, up to 1000")
	return p.withOutput(c)
}

var auditColumns = []column[audit.Entry]{
	{Head: "At", Value: func(e audit.Entry) any { return timeText(&e.At) }},
	{Field: "Who"}, {Field: "From"}, {Head: "By", Field: "Interface"}, {Field: "Did"}, {Field: "Count"},
	{Field: "Outcome"}, {Field: "On"}, {Field: "Why"},
}
