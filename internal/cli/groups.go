package cli

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/console"
)

func (p *program) groups() *cobra.Command {
	var format, text, queue, state string
	c := &cobra.Command{
		Use:   "groups [QUERY]",
		Short: "Show error groups: which messages fail for the same reason, most failures first",
		Long: `Show error groups: messages of a queue with the same error, once numbers, ids and times
are taken out; or with the same reason and type where no error is known. To see a group's messages: redrive messages list group:ID`,
		ValidArgsFunction: p.completeQuery,
		RunE: func(c *cobra.Command, args []string) error {
			q, client, err := p.finding(args, text, queue, state)
			if err != nil {
				return err
			}
			all, err := client.Groups(c.Context(), q)
			if err != nil {
				return err
			}
			return list(p, format, all, all.Groups, func(g console.Group) string { return g.ID }, func(w io.Writer) { groups(w, all.Groups, time.Now()) })
		},
	}
	withFind(p, c, &text, &queue, &state)
	c.AddCommand(p.groupsNote())
	return withOutput(p.withAddress(c), &format)
}

func groups(w io.Writer, all []console.Group, now time.Time) {
	fmt.Fprintln(w, "ID\tQUEUE\tWAITING\tPARKED\tFIRST\tLAST\tLAST 24 H\tWHAT\tNOTE")
	for _, g := range all {
		what := g.Error
		if what == "" {
			what = g.Reason
			if g.Type != "" {
				what += " " + g.Type
			}
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", plain(g.ID), cell(g.Queue, 40), count(g.Waiting), count(g.Parked), ago(&g.First, now), ago(&g.Last, now), spark(g.Hours), cell(what, 80), cell(g.Note, 60))
	}
}

// spark is numbers as bars.
func spark(hours []int64) string {
	if len(hours) == 0 {
		return "-"
	}
	most := max(slices.Max(hours), 1)
	bars := make([]rune, len(hours))
	for i, n := range hours {
		if bars[i] = '·'; n > 0 {
			bars[i] = []rune("▁▂▃▄▅▆▇█")[min(7, n*8/(most+1))]
		}
	}
	return string(bars)
}

func (p *program) groupsNote() *cobra.Command {
	return p.withAddress(&cobra.Command{
		Use:     "note GROUP TEXT",
		Short:   "Keep a note with a group, for the next person; an empty note removes it",
		Example: "  redrive groups note 5a1f0c2b9e3d4a76 'reported to the supplier: ticket 4711'",
		Args:    exactArgs(2, "the group's ID and the note"),
		RunE: func(c *cobra.Command, args []string) error {
			client, err := p.client()
			if err != nil {
				return err
			}
			if err := client.NoteGroup(c.Context(), args[0], args[1]); err != nil {
				return err
			}
			fmt.Fprintln(p.err, "The note is kept.")
			return nil
		},
	})
}
