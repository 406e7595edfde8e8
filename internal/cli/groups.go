package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/inspect"
)

func (p *program) groups() *cobra.Command {
	c := p.withQuery(&cobra.Command{
		Use:   "groups [QUERY]",
		Short: "Show error groups: messages that failed with the same error, those with the most kept messages first",
		Long: `Show error groups: messages of a queue with the same error, once numbers, ids and times
are taken out; or with the same reason and type where no error is known. To see a group's messages: redrive messages list group:ID`,
	}, func(ctx context.Context, client httpapi.Client, query string) error {
		all, err := client.Groups(ctx, query)
		if err != nil {
			return err
		}
		return listColumns(p, all, all.Groups, groupColumns)
	})
	c.AddCommand(p.groupsNote())
	return p.watched(p.withOutput(c))
}

var groupColumns = []column[inspect.Group]{
	{Field: "ID"}, {Field: "Queue"}, {Field: "Waiting"}, {Field: "Parked"}, {Field: "First"}, {Field: "Last"},
	{Head: "Last 24 h", Field: "Hours"},
	{Head: "What", Value: func(g inspect.Group) any {
		return cmp.Or(g.Error, strings.TrimSuffix(g.Reason+" "+g.Type, " "))
	}},
	{Field: "Note"},
}

// spark draws numbers as bars.
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
	return p.withClient(&cobra.Command{
		Use:     "note GROUP TEXT",
		Short:   "Keep a note with a group, for the next person; an empty note removes it",
		Example: "  redrive groups note 5a1f0c2b9e3d4a76 'reported to the supplier: ticket 4711'",
		Args:    exactArgs(2, "the group's ID and the note"),
	}, func(ctx context.Context, client httpapi.Client, args []string) error {
		if err := client.NoteGroup(ctx, args[0], args[1]); err != nil {
			return err
		}
		fmt.Fprintln(p.err, "The note is kept.")
		return nil
	})
}
