package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/policy"
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
		return hint.Thousands(fmt.Sprint(v))
	case time.Time:
		return ago(&v, now)
	case *time.Time:
		return ago(v, now)
	case inspect.Ahead:
		return untilText(v.Time, now)
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

// yamlOf is v as YAML, with the names and the order of its JSON. Texts are quoted as in JSON,
// which YAML reads. (Libraries write characters that control a terminal unescaped.)
func yamlOf(v any) (string, error) {
	text, err := jsonOf(v, "")
	if err != nil {
		return "", err
	}
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	var out strings.Builder
	if err := yamlValue(&out, d, "", true); err != nil {
		return "", err
	}
	return strings.TrimPrefix(out.String(), "\n"), nil
}

// yamlValue writes the next value of d. What has several lines begins with a new
// one, except in a list (at its dash).
func yamlValue(out *strings.Builder, d *json.Decoder, indent string, fresh bool) error {
	t, err := d.Token()
	if err != nil {
		return err
	}
	open, isOpen := t.(json.Delim)
	if !isOpen {
		fmt.Fprintf(out, " %s\n", yamlScalar(t))
		return nil
	}
	empty := " {}\n"
	if open == '[' {
		empty = " []\n"
	}
	for first := true; d.More(); first = false {
		empty = ""
		switch {
		case first && fresh:
			out.WriteString("\n" + indent)
		case first:
			out.WriteString(" ")
		default:
			out.WriteString(indent)
		}
		if open == '[' {
			out.WriteString("-")
			err = yamlValue(out, d, indent+"  ", false)
		} else {
			var name json.Token
			if name, err = d.Token(); err == nil {
				out.WriteString(yamlScalar(name) + ":")
				err = yamlValue(out, d, indent+"  ", true)
			}
		}
		if err != nil {
			return err
		}
	}
	out.WriteString(empty)
	_, err = d.Token() // its end
	return err
}

// bare is text that needs no quotes in YAML, unless it is one of yamlWords.
var bare = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_/-]*$`)

var yamlWords = regexp.MustCompile(`(?i)^(null|true|false|yes|no|on|off|y|n)$`)

func yamlScalar(t json.Token) string {
	switch t := t.(type) {
	case nil:
		return "null"
	case string:
		if bare.MatchString(t) && !yamlWords.MatchString(t) {
			return t
		}
		text, _ := jsonOf(t, "")
		return beyond.ReplaceAllStringFunc(strings.TrimSuffix(text, "\n"), func(pair string) string {
			var high, low rune
			_, _ = fmt.Sscanf(pair, `\u%04x\u%04x`, &high, &low)
			return fmt.Sprintf(`\U%08x`, (high-0xd800)<<10+(low-0xdc00)+0x10000)
		})
	}
	return fmt.Sprint(t)
}

// beyond is a character beyond 0xffff as JSON escapes it, and YAML does not.
var beyond = regexp.MustCompile(`\\u[dD][89abAB][0-9a-f]{2}\\u[dD][c-fC-F][0-9a-f]{2}`)

// plain makes foreign text safe for a terminal: no control or invisible
// characters, which could move the cursor, hide text or run commands.
func plain(s string) string { return strings.ReplaceAll(plainLines(s), "\n", "\uFFFD") }

// cell is a text in a table, which tableWriter cuts where it does not fit.
func cell(s string) string {
	if s == "" {
		return "-"
	}
	return cut(plain(s), longestOnRow)
}

// lines writes a text of several lines, each of them plain.
func lines(w io.Writer, text string) error {
	for line := range strings.Lines(text) {
		line = strings.ReplaceAll(strings.TrimRight(line, "\r\n"), "\t", "    ")
		if _, err := fmt.Fprintln(w, plain(line)); err != nil {
			return err
		}
	}
	return nil
}

// harmless escapes in JSON all characters that control a terminal: encoding/json leaves some
// of them, and those that change the direction of text. The JSON means the same.
func harmless(s string) string {
	var out strings.Builder
	for _, c := range s {
		switch {
		case c == '\n' || unicode.IsPrint(c):
			out.WriteRune(c)
		case c > 0xffff:
			high, low := utf16.EncodeRune(c)
			fmt.Fprintf(&out, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&out, `\u%04x`, c)
		}
	}
	return out.String()
}

// jsonOf is v as harmless JSON that ends its line.
func jsonOf(v any, indent string) (string, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", indent)
	if err := e.Encode(v); err != nil {
		return "", err
	}
	return harmless(b.String()), nil
}

func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// harmlessWriter passes text through to, which makes it harmless, whole characters at a time.
type harmlessWriter struct {
	w    io.Writer
	to   func(string) string
	part []byte // of a character
}

func (h *harmlessWriter) Write(b []byte) (int, error) {
	text := append(h.part, b...)
	whole := len(text)
	for i := 1; i < utf8.UTFMax && i <= len(text); i++ {
		if tail := text[len(text)-i:]; utf8.RuneStart(tail[0]) && !utf8.FullRune(tail) {
			whole = len(text) - i
			break
		}
	}
	h.part = bytes.Clone(text[whole:])
	if _, err := io.WriteString(h.w, h.to(string(text[:whole]))); err != nil {
		return 0, err
	}
	return len(b), nil
}

// plainLines is plain for a text of lines.
func plainLines(s string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && !unicode.IsPrint(r) {
			return '\uFFFD'
		}
		return r
	}, s)
}

// plural is "1 message", "1,204 messages".
func plural[N int | int64](n N, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return count(n) + " " + more
}

func messages[N int | int64](n N) string { return plural(n, "message", "messages") }

// count is a number with its thousands separated.
func count[N int | int64](n N) string { return hint.Thousands(fmt.Sprint(n)) }

// timeText is a time for people, to the second.
func timeText(t *time.Time) string {
	if t == nil || t.IsZero() {
		return "-"
	}
	return t.UTC().Format("2006-01-02 15:04:05 UTC")
}

// ago is how long ago a time was, or how far ahead it is.
func ago(t *time.Time, now time.Time) string {
	switch {
	case t == nil || t.IsZero():
		return "-"
	case t.After(now):
		return untilText(t, now)
	case now.Sub(*t) < time.Second:
		return "now"
	}
	return policy.FormatDuration(now.Sub(*t).Round(time.Second)) + " ago"
}

// untilText is how far ahead a time is; what was due in the past is due now.
func untilText(t *time.Time, now time.Time) string {
	switch {
	case t == nil:
		return "-"
	case !t.After(now):
		return "now"
	}
	return "in " + policy.FormatDuration(t.Sub(now).Round(100*time.Millisecond))
}

// parseWhen reads a time: "in 10m", or as RFC 3339, which has a time zone.
func parseWhen(text string) (*time.Time, error) {
	if text == "" {
		return nil, nil
	}
	if s, ok := strings.CutPrefix(text, "in "); ok {
		if d, err := config.ParseDuration(strings.TrimSpace(s)); err == nil && d > 0 {
			t := time.Now().Add(d)
			return &t, nil
		}
	} else if t, err := time.Parse(time.RFC3339, text); err == nil {
		return &t, nil
	}
	return nil, fmt.Errorf("--at %q: expected a time such as 2026-11-21T18:30:00Z, or \"in 10m\": %w", text, errUsage)
}

// doneText says what was done to n messages.
func doneText(verb actions.Verb, n int64, t *time.Time) string {
	if t != nil && t.After(time.Now()) {
		return plural(n, "message is", "messages are") + " due at " + timeText(t)
	}
	v := verb.Info()
	return plural(n, v.One, v.More)
}

// shortestWatch keeps a typing error from asking the service thousands of times a second.
const shortestWatch = 100 * time.Millisecond

// clearScreen moves a terminal's cursor to its top left, and removes what is below.
const clearScreen = "\x1b[H\x1b[2J"

// watched adds --watch to a command that shows something: it runs again and again until Ctrl-C. A
// service that does not answer for a while ends it only at its first answer.
func (p *program) watched(c *cobra.Command) *cobra.Command {
	var every time.Duration
	c.Flags().DurationVar(&every, "watch", 0, "show it again and again until Ctrl-C, this often")
	c.Flags().Lookup("watch").NoOptDefVal = "2s"
	once := c.RunE
	c.RunE = func(c *cobra.Command, args []string) error {
		if !c.Flags().Changed("watch") {
			return once(c, args)
		}
		if every < shortestWatch {
			return fmt.Errorf("--watch=%s: expected %s or more: %w", every, shortestWatch, errUsage)
		}
		return p.repeat(c.Context(), every, func() error { return once(c, args) })
	}
	return c
}

func (p *program) repeat(ctx context.Context, every time.Duration, show func() error) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for first := true; ; first = false {
		if isTerminal(p.out) {
			fmt.Fprint(p.out, clearScreen)
		}
		err := show()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && first:
			return err
		case err != nil:
			p.printError(err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
