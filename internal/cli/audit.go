package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/audit"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/httpapi"
)

func (p *program) audit() *cobra.Command {
	var after string
	var limit int
	c := p.withClient(&cobra.Command{
		Use:   "audit",
		Short: "Show the audit log: who did what, newest first",
		Long: `Show the audit log, newest first. Only administrators may. An action has one line when
it begins and another, which names the first, when it has ended.`,
	}, func(ctx context.Context, client httpapi.Client, _ []string) error {
		page, err := client.Audit(ctx, after, limit)
		if err != nil {
			return err
		}
		err = list(p, page, page.Entries, func(e audit.Entry) string { return fmt.Sprint(e.N) }, func(w io.Writer) { entries(w, page.Entries) })
		if err == nil {
			p.more(page.After)
		}
		return err
	})
	c.Flags().StringVar(&after, "after", "", "continue after the previous page")
	c.Flags().IntVar(&limit, "limit", 100, "the most to show, up to 1000")
	c.AddCommand(p.auditVerify())
	return commandGroup(p.withOutput(c))
}

func entries(w io.Writer, all []audit.Entry) {
	fmt.Fprintln(w, "N\tAT\tWHO\tFROM\tBY\tDID\tCOUNT\tOUTCOME\tOF\tON\tWHY")
	for _, e := range all {
		of := "-"
		if e.Of > 0 {
			of = fmt.Sprint(e.Of)
		}
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", e.N, timeText(&e.At), cell(e.Who), cell(e.From), cell(e.Interface), cell(e.Did), count(e.Count), cell(e.Outcome), of, cell(e.On), cell(e.Why))
	}
}

func (p *program) auditVerify() *cobra.Command {
	var want audit.Expected
	c := &cobra.Command{
		Use:   "verify [PATH…]",
		Short: "Find the first line of the audit log that was changed, removed or moved",
		Long: `Verify the chain of hashes of an audit log: its folder, or its files, oldest first. You
need no running service. Without PATH the config names the folder.

It finds changed lines, lines that are missing between others or out of order, and a
file that ends within a line. The files alone cannot show that lines were cut off at
the end, or that the log was rewritten from some line on: keep the mark that the command
prints somewhere else, and give it with --mark the next time.`,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				cfg, err := p.load()
				if err != nil {
					return err
				}
				args = []string{cfg.Audit()}
			}
			var files []string
			for _, path := range args {
				some, err := audit.Files(path)
				if errors.Is(err, fs.ErrNotExist) {
					return hint.Errorf("give its folder, or --config", "there is no audit log at %s", path)
				}
				if err != nil {
					return err
				}
				files = append(files, some...)
			}
			r, err := audit.Verify(files, want)
			for _, m := range r.Repaired {
				fmt.Fprintf(p.err, "note: %s\n", plain(m))
			}
			if err != nil {
				if r.Last > 0 {
					fmt.Fprintf(p.err, "entries %d to %d are whole\n", r.First, r.Last)
				}
				return err
			}
			return write(p, verified{r.First, r.Last, r.Files, len(r.Repaired), r.Mark}, func(v verified) string { return v.Mark }, func(w io.Writer) {
				fmt.Fprintf(w, "entries %d to %d are whole\nmark %s\n", r.First, r.Last, r.Mark)
			})
		},
	}
	p.withConfig(c, "the config file (YAML)")
	c.Flags().Int64Var(&want.From, "from", 1, "the entry the log begins with, where older files were put elsewhere")
	c.Flags().StringVar(&want.Mark, "mark", "", "an entry it must have, as an earlier verification or the service's log says it")
	return p.withOutput(withVHost(c))
}

// verified is what is printed of a log that is whole.
type verified struct {
	First    int64  `json:"first"`
	Last     int64  `json:"last"`
	Files    int    `json:"files"`
	Repaired int    `json:"repaired"`
	Mark     string `json:"mark"`
}
