package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/console"
	"github.com/redrive-mq/redrive/internal/query"
	"github.com/redrive-mq/redrive/policy"
)

// withOutput adds the flag that chooses between people and scripts.
func withOutput(c *cobra.Command, format *string) *cobra.Command {
	c.Flags().StringVarP(format, "output", "o", "table", "table or json")
	c.PreRunE = func(*cobra.Command, []string) error {
		// Before the command runs: a replay must not happen and then count as refused.
		if *format != "json" && *format != "table" {
			return fmt.Errorf("--output %q: expected table or json: %w", *format, errUsage)
		}
		return nil
	}
	return c
}

// write shows v as JSON, or as a table.
func (p *program) write(format string, v any, table func(io.Writer)) error {
	if format == "json" {
		e := json.NewEncoder(p.out)
		e.SetIndent("", "  ")
		return e.Encode(v)
	}
	w := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
	table(w)
	return w.Flush()
}

// plain makes text of strangers safe for a terminal: no control or invisible
// characters, which could move the cursor, hide text or run commands.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '\uFFFD'
		}
		return r
	}, s)
}

// cell keeps a text to a table's width.
func cell(s string, most int) string {
	s = plain(s)
	if r := []rune(s); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	if s == "" {
		return "-"
	}
	return s
}

func (p *program) status() *cobra.Command {
	var format string
	c := &cobra.Command{
		Use:   "status",
		Short: "Show the service: connection, and per queue what waits, returns and is parked",
		Args:  exactArgs(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			st, err := p.client().Overview(c.Context())
			if err != nil {
				return err
			}
			return p.write(format, st, func(w io.Writer) { status(w, st, time.Now()) })
		},
	}
	return withOutput(p.withAddress(c), &format)
}

func status(w io.Writer, st console.Overview, now time.Time) {
	fmt.Fprintf(w, "redrive %s, up %s, RabbitMQ at %s\n", plain(st.Version), policy.FormatDuration(now.Sub(st.Since).Round(time.Second)), plain(st.Broker))
	if len(st.Problems) == 0 {
		fmt.Fprintln(w, "ready: nothing is wrong")
	}
	for _, problem := range st.Problems {
		fmt.Fprintf(w, "not ready: %s\n", plain(problem))
	}
	for _, notice := range st.Notices {
		fmt.Fprintf(w, "notice: %s\n", plain(notice))
	}
	if len(st.Queues) == 0 {
		fmt.Fprintln(w, "no message has failed yet")
		return
	}
	fmt.Fprintln(w, "\nQUEUE\tPOLICY\tWAIT\tWAITING\tNEXT DUE\tOLDEST\tPARKED\tFAILED/MIN\tRETURNED/MIN\tPARKED/MIN")
	elsewhere := false
	for _, q := range st.Queues {
		next, oldest := "-", "-"
		if q.NextDue != nil {
			if next = "now"; q.NextDue.After(now) {
				next = "in " + policy.FormatDuration(q.NextDue.Sub(now).Round(100*time.Millisecond))
			}
			oldest = policy.FormatDuration(now.Sub(*q.Oldest).Round(time.Second))
		}
		waiting := strconv.FormatInt(q.Waiting, 10)
		if q.Way != "" && q.Way != "disk" {
			elsewhere, waiting = true, waiting+" + RabbitMQ's"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%d\t%d\t%d\n", cell(q.Name, 40), cell(q.Policy, 20), cell(q.Way, 20), waiting, next, oldest, q.Parked, q.Failed, q.Returned, q.ParkedIn)
	}
	if elsewhere {
		fmt.Fprintln(w, "\nWhat waits in RabbitMQ, and comes back from there, is not counted here; its queues redrive.delay.* show it.")
	}
}

func (p *program) messages() *cobra.Command {
	c := &cobra.Command{Use: "messages", Short: "Look at waiting and parked messages"}
	var format, state, queue, after string
	var limit int
	list := &cobra.Command{
		Use:   "list",
		Short: "List messages without touching them",
		Args:  exactArgs(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			if state != "" && state != "waiting" && state != "parked" {
				return fmt.Errorf("--state %q: expected waiting or parked: %w", state, errUsage)
			}
			page, err := p.client().Messages(c.Context(), find(state, queue), after, limit)
			if err != nil {
				return err
			}
			if err := p.write(format, page, func(w io.Writer) { table(w, page, time.Now()) }); err != nil {
				return err
			}
			if page.After != "" && format == "table" {
				fmt.Fprintf(p.err, "there are more: --after %s\n", page.After)
			}
			return nil
		},
	}
	list.Flags().StringVar(&state, "state", "", "waiting or parked; left out: both")
	list.Flags().StringVar(&queue, "queue", "", "of this work queue; left out: of all")
	list.Flags().StringVar(&after, "after", "", "go on after the end of the page before")
	list.Flags().IntVar(&limit, "limit", 100, "at most so many, up to 1000")
	c.AddCommand(withOutput(p.withAddress(list), &format))
	return group(c)
}

// find is the query for what has a state and a queue, where they are not empty.
func find(state, queue string) string {
	var terms []string
	if state != "" {
		terms = append(terms, "state:"+state)
	}
	if queue != "" {
		terms = append(terms, "queue:"+query.Quote(queue))
	}
	return strings.Join(terms, " ")
}

func table(w io.Writer, page console.Page, now time.Time) {
	fmt.Fprintln(w, "ID\tQUEUE\tSTATE\tATTEMPT\tDUE\tREASON\tSIZE\tWHY")
	for _, m := range page.Messages {
		due := "-"
		if m.Due != nil {
			if due = "now"; m.Due.After(now) {
				due = "in " + policy.FormatDuration(m.Due.Sub(now).Round(100*time.Millisecond))
			}
		}
		why := m.ParkedFor
		if m.Error != "" {
			why = strings.TrimPrefix(why+": "+m.Error, ": ")
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%s\t%d\t%s\n", m.ID, cell(m.Queue, 40), m.State, m.Attempt, due, cell(m.Reason, 20), m.Size, cell(why, 80))
	}
}

func (p *program) replay() *cobra.Command {
	var queue, format string
	c := &cobra.Command{
		Use:   "replay [ID…]",
		Short: "Send parked messages back to their queue now, with all attempts before them",
		RunE: func(c *cobra.Command, args []string) error {
			if (len(args) == 0) == (queue == "") {
				return fmt.Errorf("give message IDs or --queue, not both: %w", errUsage)
			}
			if queue != "" {
				return p.replayAll(c.Context(), find("parked", queue), format)
			}
			done, err := p.client().Act(c.Context(), console.Act{Verb: console.Replay, IDs: args})
			if err != nil {
				return err
			}
			return p.write(format, done, func(w io.Writer) {
				fmt.Fprintf(w, "%d messages are on their way back\n", done.Done)
				for _, o := range done.Outcomes {
					if o.Why != "" {
						fmt.Fprintf(w, "%s: %s\n", plain(o.ID), plain(o.Why))
					}
				}
			})
		},
	}
	c.Flags().StringVar(&queue, "queue", "", "all parked messages of this work queue")
	return withOutput(p.withAddress(c), &format)
}

// replayAll makes an operation of all that a query finds.
func (p *program) replayAll(ctx context.Context, query, format string) error {
	plan, err := p.client().Plan(ctx, console.PlanRequest{Verb: console.Replay, Query: query})
	if err != nil {
		return err
	}
	op, err := p.client().Start(ctx, plan.ID, console.Start{ExpectCount: &plan.Count})
	if err != nil {
		return err
	}
	return p.write(format, op, func(w io.Writer) {
		fmt.Fprintf(w, "%d messages are on their way back, as operation %s\n", op.Count, plain(op.ID))
	})
}
