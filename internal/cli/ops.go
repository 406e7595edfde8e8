package cli

import (
	"context"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/operations"
)

func (p *program) ops() *cobra.Command {
	c := &cobra.Command{Use: "ops", Short: "Operations on many messages: watch, pause, resume, cancel them"}
	c.AddCommand(p.opsList(), p.opsShow(), p.opsWatch(),
		p.opsOrder(operations.Pause, "Pause an operation; nothing is undone"),
		p.opsOrder(operations.Resume, "Resume a paused operation"),
		p.opsOrder(operations.Cancel, "Cancel an operation; the remaining messages stay as they are"))
	return commandGroup(c)
}

func (p *program) opsList() *cobra.Command {
	return p.watched(p.withOutput(p.withClient(&cobra.Command{
		Use:   "list",
		Short: "List operations, newest first",
		Args:  exactArgs(0, "no arguments"),
	}, func(ctx context.Context, client httpapi.Client, _ []string) error {
		all, err := client.Operations(ctx)
		if err != nil {
			return err
		}
		return listColumns(p, all, all.Operations, operationColumns)
	})))
}

var operationColumns = []column[operations.Operation]{
	{Field: "ID"}, {Head: "What", Field: "Verb"}, {Field: "State"}, {Field: "Done"}, {Head: "Of", Field: "Count"},
	{Head: "Skipped", Field: "SkippedN"}, {Field: "Failed"}, {Field: "Started"}, {Head: "By", Field: "StartedBy"},
	{Field: "Query"}, {Field: "Why"},
}

var outcomeColumns = []column[actions.Outcome]{
	{Field: "ID"}, {Field: "Queue"}, {Field: "Outcome"},
	{Head: "At", Value: func(o actions.Outcome) any { return timeText(&o.At) }},
	{Field: "New"}, {Field: "Why"},
}

// withOperation completes a command about one operation.
func (p *program) withOperation(c *cobra.Command, run func(ctx context.Context, client httpapi.Client, id string) error) *cobra.Command {
	c.Args = exactArgs(1, "the operation's ID")
	c.ValidArgsFunction = p.completeOps
	return p.withOutput(p.withClient(c, func(ctx context.Context, client httpapi.Client, args []string) error {
		return run(ctx, client, args[0])
	}))
}

func (p *program) opsShow() *cobra.Command {
	var after string
	var limit int
	var problems bool
	c := p.withOperation(&cobra.Command{
		Use:   "show ID",
		Short: "Show the result for each message of an operation",
	}, func(ctx context.Context, client httpapi.Client, id string) error {
		op, err := client.Operation(ctx, id)
		if err != nil {
			return err
		}
		whole := operationShown{Operation: op, Outcomes: []actions.Outcome{}, After: after}
		if err := whole.fetch(ctx, client, limit, problems); err != nil {
			return err
		}
		err = list(p, whole, whole.Outcomes, func(o actions.Outcome) string { return o.ID }, whole.table)
		if err == nil {
			p.more(whole.After)
		}
		return err
	})
	c.Flags().StringVar(&after, "after", "", "continue after the previous page")
	c.Flags().IntVar(&limit, "limit", 100, "the most results to show; 0: all")
	c.Flags().BoolVar(&problems, "problems", false, "only messages that were not processed")
	return c
}

// operationShown is an operation and what came of its messages.
type operationShown struct {
	operations.Operation
	Outcomes []actions.Outcome `json:"outcomes"`
	After    string            `json:"after,omitempty"`
}

// fetch adds the outcomes after After, page by page: at most limit, or all if that is 0.
func (s *operationShown) fetch(ctx context.Context, client httpapi.Client, limit int, problems bool) error {
	if limit <= 0 {
		limit = math.MaxInt
	}
	for {
		page, err := client.Outcomes(ctx, s.ID, s.After, min(limit-len(s.Outcomes), mostOnAPage))
		if err != nil {
			return err
		}
		for _, o := range page.Outcomes {
			if !problems || o.Outcome != "done" {
				s.Outcomes = append(s.Outcomes, o)
			}
		}
		if s.After = page.After; page.After == "" || len(s.Outcomes) >= limit {
			return nil
		}
	}
}

func (s *operationShown) table(w io.Writer) {
	now := time.Now()
	rows(w, operationColumns, []operations.Operation{s.Operation}, now)
	fmt.Fprintln(w)
	rows(w, outcomeColumns, s.Outcomes, now)
}

func (p *program) opsWatch() *cobra.Command {
	return p.withOperation(&cobra.Command{
		Use:   "watch ID",
		Short: "Watch an operation until it ends; Ctrl-C stops only the watching",
		Long: `Watch an operation until it ends: a progress bar on a terminal, elsewhere one line of JSON
per second on standard error. Ctrl-C stops the watching, not the operation. The exit code
tells how the operation ended.`,
	}, func(ctx context.Context, client httpapi.Client, id string) error {
		op, err := client.Operation(ctx, id)
		if err != nil {
			return err
		}
		return p.toTheEnd(ctx, client, op)
	})
}

func (p *program) opsOrder(order operations.Order, short string) *cobra.Command {
	return p.withOperation(&cobra.Command{Use: string(order) + " ID", Short: short}, func(ctx context.Context, client httpapi.Client, id string) error {
		op, err := client.Order(ctx, id, order)
		if err != nil {
			return err
		}
		return write(p, op, opID, func(w io.Writer) {
			fmt.Fprintf(w, "operation %s is %s; %s of %s are done\n", plain(op.ID), plain(op.State), count(op.Done), messages(op.Count))
		})
	})
}
