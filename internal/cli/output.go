package cli

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/digits"
	"github.com/redrive-mq/redrive/internal/inspect"
)

// formats of all that is listed: name is what other commands take, one per line.
var formats = []string{"table", "json", "jsonl", "yaml", "csv", "name"}

// withOutput adds the flag that chooses between people and scripts.
func (p *program) withOutput(c *cobra.Command) *cobra.Command {
	return p.withFormats(c, formats...)
}

// withFormats is withOutput for a command that has some formats only; the first is the default.
func (p *program) withFormats(c *cobra.Command, some ...string) *cobra.Command {
	expected := strings.Join(some[:len(some)-1], ", ") + " or " + some[len(some)-1]
	format := c.Flags().StringP("output", "o", some[0], expected)
	if slices.Contains(some, "table") {
		c.Flags().BoolVar(&p.wide, "wide", false, "do not cut columns to the width of the terminal")
	}
	c.PreRunE = func(*cobra.Command, []string) error {
		// Before the command runs: a replay must not happen and then count as refused.
		if !slices.Contains(some, *format) {
			return fmt.Errorf("--output %q: expected %s: %w", *format, expected, errUsage)
		}
		p.format = *format
		return nil
	}
	_ = c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(some, cobra.ShellCompDirectiveNoFileComp))
	return c
}

// write shows one value.
func write[T any](p *program, v T, name func(T) string, table func(io.Writer)) error {
	return list(p, v, []T{v}, name, table)
}

// list shows items in the format of --output: whole is the answer that has them.
func list[T any](p *program, whole any, items []T, name func(T) string, table func(io.Writer)) error {
	switch p.format {
	case "json":
		return p.print(jsonOf(whole, "  "))
	case "yaml":
		return p.print(yamlOf(whole))
	case "jsonl":
		for _, v := range items {
			if err := p.print(jsonOf(v, "")); err != nil {
				return err
			}
		}
		return nil
	case "name":
		for _, v := range items {
			if err := p.print(plain(name(v))+"\n", nil); err != nil {
				return err
			}
		}
		return nil
	case "csv":
		w := csv.NewWriter(p.out)
		columns, row := inspect.CSV[T]()
		_ = w.Write(columns)
		for _, v := range items {
			cells := row(v)
			for i, c := range cells {
				cells[i] = plain(c)
			}
			_ = w.Write(cells)
		}
		w.Flush()
		return w.Error()
	}
	w := p.tableOn(p.out)
	table(w)
	return w.Flush()
}

type column[T any] = inspect.Column[T]

// listColumns prints items by list. The first column names an item for other commands.
func listColumns[T any](p *program, whole any, items []T, columns []column[T]) error {
	return list(p, whole, items, func(v T) string { return fmt.Sprint(columns[0].Of(v)) },
		func(w io.Writer) { rows(w, columns, items, time.Now()) })
}

// rows writes a table.
func rows[T any](w io.Writer, columns []column[T], all []T, now time.Time) {
	row := make([]string, len(columns))
	for i, c := range columns {
		row[i] = strings.ToUpper(cmp.Or(c.Head, c.Field))
	}
	fmt.Fprintln(w, strings.Join(row, "\t"))
	for _, v := range all {
		for i, c := range columns {
			row[i] = cell(valueText(c.Of(v), now))
		}
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
}

// valueText is a column's value for people.
func valueText(v any, now time.Time) string {
	switch v := v.(type) {
	case nil:
		return "?"
	case int, int64:
		return digits.Group(fmt.Sprint(v))
	case time.Time:
		return ago(&v, now)
	case *time.Time:
		return ago(v, now)
	case []int64:
		return spark(v)
	}
	return fmt.Sprint(v)
}

// more prints how to see the next page, unless the output has that itself.
func (p *program) more(after string) {
	if after != "" && p.format != "json" && p.format != "yaml" {
		fmt.Fprintf(p.err, "there are more: --after %s\n", plain(after))
	}
}

func (p *program) print(text string, err error) error {
	if err == nil {
		_, err = io.WriteString(p.out, text)
	}
	return err
}
