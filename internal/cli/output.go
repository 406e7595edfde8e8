package cli

import (
	"encoding/csv"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

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
		columns, row := columnsOf[T]()
		_ = w.Write(columns)
		for _, v := range items {
			_ = w.Write(row(v))
		}
		w.Flush()
		return w.Error()
	}
	w := p.tableOn(p.out)
	table(w)
	return w.Flush()
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

// columnsOf are the fields of a type that fit into a cell, and a value's row of
// them: harmless in a spreadsheet, and on a terminal.
func columnsOf[T any]() (names []string, row func(T) []string) {
	cells := func(row []string) []string {
		for i, c := range row {
			row[i] = plain(inspect.CSVCell(c))
		}
		return row
	}
	if _, ok := any(*new(T)).(inspect.Message); ok {
		return inspect.CSVHeader, func(v T) []string { return cells(inspect.CSVRow(any(v).(inspect.Message))) }
	}
	var at [][]int
	for _, f := range reflect.VisibleFields(reflect.TypeFor[T]()) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" || name == "-" || !isCell(f.Type) {
			continue
		}
		names, at = append(names, name), append(at, f.Index)
	}
	return names, func(v T) []string {
		row := make([]string, len(at))
		for i, index := range at {
			f := reflect.ValueOf(v).FieldByIndex(index)
			switch x := f.Interface().(type) {
			case time.Time:
				row[i] = x.UTC().Format(time.RFC3339)
			case *time.Time:
				if x != nil {
					row[i] = x.UTC().Format(time.RFC3339)
				}
			default:
				row[i] = fmt.Sprint(x)
			}
		}
		return cells(row)
	}
}

func isCell(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.String, reflect.Bool, reflect.Int, reflect.Int64, reflect.Float64:
		return true
	}
	return t == reflect.TypeFor[time.Time]() || t == reflect.TypeFor[*time.Time]()
}
