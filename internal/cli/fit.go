package cli

import (
	"bytes"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	"golang.org/x/term"
)

// tableWriter aligns the columns of tables, whose cells end with tabs, and cuts the widest of them
// until a line fits.
type tableWriter struct {
	to    io.Writer
	width int // of a line; 0: nothing is cut
	text  bytes.Buffer
}

// tableOn returns a writer of tables for one of the program's streams: nothing is cut where no
// person looks, nor with --wide.
func (p *program) tableOn(stream io.Writer) *tableWriter {
	w := &tableWriter{to: stream}
	if f, ok := stream.(*os.File); ok && !p.wide {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil {
			w.width = width
		}
	}
	return w
}

func (t *tableWriter) Write(b []byte) (int, error) { return t.text.Write(b) }

// Flush writes what was written so far.
func (t *tableWriter) Flush() error {
	lines := strings.SplitAfter(t.text.String(), "\n")
	t.text.Reset()
	w := tabwriter.NewWriter(t.to, 0, 0, columnGap, ' ', 0)
	for len(lines) > 0 {
		// A table ends with the first line that has no cells.
		end := slices.IndexFunc(lines, func(line string) bool { return !strings.Contains(line, "\t") })
		if end < 0 {
			end = len(lines)
		}
		table := make([][]string, end)
		for i, line := range lines[:end] {
			table[i] = strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		}
		if t.width > 0 {
			fit(table, t.width)
		}
		for _, row := range table {
			if _, err := io.WriteString(w, strings.Join(row, "\t")+"\n"); err != nil {
				return err
			}
		}
		if end < len(lines) {
			if _, err := io.WriteString(w, lines[end]); err != nil {
				return err
			}
			end++
		}
		lines = lines[end:]
	}
	return w.Flush()
}

const (
	columnGap    = 2
	leastColumn  = 10 // what is left of a column that is cut, or its heading
	longestOnRow = 300
)

// fit cuts the cells of a table, whose first row has its headings, to a width: those of the widest
// column first, and no ids, which other commands need whole.
func fit(table [][]string, width int) {
	var widths, least []int
	total := -columnGap
	for i, row := range table {
		for c, text := range row {
			if c == len(widths) {
				widths, least = append(widths, 0), append(least, leastColumn)
			}
			n := utf8.RuneCountInString(text)
			if widths[c] = max(widths[c], n); i == 0 || anID.MatchString(text) {
				least[c] = max(least[c], n)
			}
		}
	}
	for c := range widths {
		total += widths[c] + columnGap
		if len(table[0]) > c && table[0][c] == "ID" {
			least[c] = widths[c]
		}
	}
	for total > width {
		widest := -1
		for c := range widths {
			if widths[c] > least[c] && (widest < 0 || widths[c] >= widths[widest]) {
				widest = c
			}
		}
		if widest < 0 {
			break
		}
		widths[widest]--
		total--
	}
	for _, row := range table {
		for c := range row {
			row[c] = cut(row[c], widths[c])
		}
	}
}

// cut shortens a text that is longer than most.
func cut(s string, most int) string {
	if r := []rune(s); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return s
}
