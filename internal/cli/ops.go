package cli

import (
	"fmt"
	"io"
	"math"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/console"
)

func (p *program) ops() *cobra.Command {
	c := &cobra.Command{Use: "ops", Short: "Operations on many messages: watch, pause, resume, cancel them"}
	c.AddCommand(p.opsList(), p.opsShow(), p.opsWatch(),
		p.opsOrder(console.Pause, "Pause an operation; nothing is undone"),
		p.opsOrder(console.Resume, "Resume a paused operation"),
		p.opsOrder(console.Cancel, "Cancel an operation; the remaining messages stay as they are"))
	return group(c)
}

func (p *program) opsList() *cobra.Command {
	var format string
	c := &cobra.Command{
		Use:   "list",
		Short: "List operations, newest first",
		Args:  exactArgs(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			client, err := p.client()
			if err != nil {
				return err
			}
			all, err := client.Operations(c.Context())
			if err != nil {
				return err
			}
			return list(p, format, all, all.Operations, opID, func(w io.Writer) { operations(w, all.Operations, time.Now()) })
		},
	}
	return withOutput(p.withAddress(c), &format)
}

func operations(w io.Writer, all []console.Operation, now time.Time) {
	fmt.Fprintln(w, "ID\tWHAT\tSTATE\tDONE\tOF\tSKIPPED\tFAILED\tSTARTED\tBY\tQUERY\tWHY")
	for _, o := range all {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", plain(o.ID), plain(string(o.Verb)), plain(o.State), count(o.Done), count(o.Count), count(o.SkippedN), count(o.Failed), ago(&o.Started, now), cell(o.StartedBy, 20), cell(o.Query, 60), cell(o.Why, 80))
	}
}

func (p *program) opsShow() *cobra.Command {
	var format, after string
	var limit int
	var problems bool
	c := &cobra.Command{
		Use:               "show ID",
		Short:             "Show the result for each message of an operation",
		Args:              exactArgs(1, "the operation's ID"),
		ValidArgsFunction: p.completeOps,
		RunE: func(c *cobra.Command, args []string) error {
			client, err := p.client()
			if err != nil {
				return err
			}
			op, err := client.Operation(c.Context(), args[0])
			if err != nil {
				return err
			}
			if limit <= 0 {
				limit = math.MaxInt
			}
			whole := operationShown{Operation: op, Outcomes: []console.Outcome{}, After: after}
			for {
				page, err := client.Outcomes(c.Context(), op.ID, whole.After, min(limit-len(whole.Outcomes), mostOnAPage))
				if err != nil {
					return err
				}
				for _, o := range page.Outcomes {
					if !problems || o.Outcome != "done" {
						whole.Outcomes = append(whole.Outcomes, o)
					}
				}
				if whole.After = page.After; page.After == "" || len(whole.Outcomes) >= limit {
					break
				}
			}
			err = list(p, format, whole, whole.Outcomes, func(o console.Outcome) string { return o.ID }, func(w io.Writer) {
				operations(w, []console.Operation{op}, time.Now())
				fmt.Fprintln(w, "\nID\tQUEUE\tOUTCOME\tAT\tNEW\tWHY")
				for _, o := range whole.Outcomes {
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", plain(o.ID), cell(o.Queue, 40), plain(o.Outcome), at(&o.At), cell(o.New, 36), cell(o.Why, 120))
				}
			})
			if err == nil && whole.After != "" && format != "json" && format != "yaml" {
				fmt.Fprintf(p.err, "there are more: --after %s\n", plain(whole.After))
			}
			return err
		},
	}
	c.Flags().StringVar(&after, "after", "", "continue after the previous page")
	c.Flags().IntVar(&limit, "limit", 100, "the most results to show; 0: all")
	c.Flags().BoolVar(&problems, "problems", false, "only messages that were not processed")
	return withOutput(p.withAddress(c), &format)
}

// operationShown is an operation and what came of its messages.
type operationShown struct {
	console.Operation
	Outcomes []console.Outcome `json:"outcomes"`
	After    string            `json:"after,omitempty"`
}

func (p *program) opsWatch() *cobra.Command {
	var format string
	c := &cobra.Command{
		Use:   "watch ID",
		Short: "Watch an operation until it ends; Ctrl-C stops only the watching",
		Long: `Watch an operation until it ends: a progress bar on a terminal, elsewhere one line of JSON
per second on standard error. Ctrl-C stops the watching, not the operation. The exit code
is that of the operation.`,
		Args:              exactArgs(1, "the operation's ID"),
		ValidArgsFunction: p.completeOps,
		RunE: func(c *cobra.Command, args []string) error {
			client, err := p.client()
			if err != nil {
				return err
			}
			op, err := client.Operation(c.Context(), args[0])
			if err != nil {
				return err
			}
			return p.toTheEnd(c.Context(), client, format, op)
		},
	}
	return withOutput(p.withAddress(c), &format)
}

func (p *program) opsOrder(order console.Order, short string) *cobra.Command {
	var format string
	c := &cobra.Command{
		Use:               string(order) + " ID",
		Short:             short,
		Args:              exactArgs(1, "the operation's ID"),
		ValidArgsFunction: p.completeOps,
		RunE: func(c *cobra.Command, args []string) error {
			client, err := p.client()
			if err != nil {
				return err
			}
			op, err := client.Order(c.Context(), args[0], order)
			if err != nil {
				return err
			}
			return write(p, format, op, opID, func(w io.Writer) {
				fmt.Fprintf(w, "operation %s is %s; %s of %s are done\n", plain(op.ID), plain(op.State), count(op.Done), messages(op.Count))
			})
		},
	}
	return withOutput(p.withAddress(c), &format)
}
