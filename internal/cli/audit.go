package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/audit"
	"github.com/redrive-mq/redrive/internal/config"
)

func (p *program) audit() *cobra.Command {
	c := &cobra.Command{Use: "audit", Short: "Check the log of who did what"}
	c.AddCommand(p.auditVerify())
	return group(c)
}

func (p *program) auditVerify() *cobra.Command {
	var file, format string
	var want audit.Expected
	c := &cobra.Command{
		Use:   "verify [PATH…]",
		Short: "Find the first line of the audit log that was changed, removed or moved",
		Long: `Walk the chain of hashes through the audit log: a folder of it, or its files,
oldest first. It needs no service. Without PATH it is where the config says.

It finds each change of a line, lines that are missing between others or out of
order, and a file that ends within a line. What no look at the files alone can find
is lines cut off at the end, or the log written anew from some line on: keep the
mark that it prints somewhere else, and give it with --mark the next time.`,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				cfg, err := config.Load(file, p.getenv)
				if err != nil {
					return err
				}
				args = []string{cfg.Audit()}
			}
			var files []string
			for _, path := range args {
				some, err := audit.Files(path)
				if errors.Is(err, fs.ErrNotExist) {
					return fmt.Errorf("there is no audit log at %s: give its folder, or --config", path)
				}
				if err != nil {
					return err
				}
				files = append(files, some...)
			}
			r, err := audit.Verify(files, want)
			for _, m := range r.Mended {
				fmt.Fprintf(p.err, "note: %s\n", plain(m))
			}
			if err != nil {
				if r.Last > 0 {
					fmt.Fprintf(p.err, "entries %d to %d are whole\n", r.First, r.Last)
				}
				return err
			}
			return p.write(format, verified{r.First, r.Last, r.Files, len(r.Mended), r.Mark}, func(w io.Writer) {
				fmt.Fprintf(w, "entries %d to %d are whole\nmark %s\n", r.First, r.Last, r.Mark)
			})
		},
	}
	c.Flags().StringVarP(&file, "config", "c", "", "the config file (YAML)")
	c.Flags().Int64Var(&want.From, "from", 1, "the entry the log begins with, where older files were put elsewhere")
	c.Flags().StringVar(&want.Mark, "mark", "", "an entry it must have, as an earlier verification or the service's log says it")
	return withOutput(c, &format)
}

// verified is what is printed of a log that is whole.
type verified struct {
	First  int64  `json:"first"`
	Last   int64  `json:"last"`
	Files  int    `json:"files"`
	Mended int    `json:"mended"`
	Mark   string `json:"mark"`
}
