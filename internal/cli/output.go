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
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/policy"
)

// withOutput adds the flag for the format: name is what other commands take, one per line.
func (p *program) withOutput(c *cobra.Command) *cobra.Command {
	return p.withFormats(c, "table", "json", "jsonl", "yaml", "csv", "name")
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
	_ = c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(some, noFiles))
	return c
}

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
		columns, row := inspect.CSV[T]()
		return listCSV(p, items, columns, row)
	}
	w := p.tableOn(p.out)
	table(w)
	return w.Flush()
}

func listCSV[T any](p *program, items []T, columns []string, row func(T) []string) error {
	w := csv.NewWriter(p.out)
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

type column[T any] = inspect.Column[T]

const nothingToShow = "There is nothing to show."

// listColumns prints items by list. The first column names an item for other commands.
func listColumns[T any](p *program, whole any, items []T, columns []column[T]) error {
	if len(items) == 0 && p.format == "table" && !p.watching {
		nothing := nothingToShow
		if p.query != "" {
			nothing = fmt.Sprintf("Nothing matches %.80q.", p.query)
			if !strings.Contains(p.query, ":") {
				nothing += " A word without a field is searched for in bodies and errors."
			}
		}
		fmt.Fprintln(p.err, nothing)
		return nil
	}
	return list(p, whole, items, func(v T) string { return fmt.Sprint(columns[0].Of(v)) },
		func(w io.Writer) { rows(w, columns, items, time.Now()) })
}

func rows[T any](w io.Writer, columns []column[T], all []T, now time.Time) {
	noted(w, columns, all, now, func(T) string { return "" })
}

// noted is rows with a text below each of them.
func noted[T any](w io.Writer, columns []column[T], all []T, now time.Time, note func(T) string) {
	columns = slices.DeleteFunc(slices.Clone(columns), func(c column[T]) bool {
		return c.Rare && !slices.ContainsFunc(all, func(v T) bool { return c.Of(v) != "" })
	})
	row, narrow := make([]string, len(columns)), make([]int, len(columns))
	for i, c := range columns {
		row[i], narrow[i] = strings.ToUpper(cmp.Or(c.Head, c.Field)), c.Narrow
	}
	if t, ok := w.(*tableWriter); ok {
		if t.narrow == nil {
			t.narrow = map[int][]int{}
		}
		t.narrow[t.text.Len()] = narrow
	}
	fmt.Fprintln(w, strings.Join(row, "\t"))
	for _, v := range all {
		for i, c := range columns {
			row[i] = cell(valueText(c.Of(v), now))
		}
		fmt.Fprintln(w, strings.Join(row, "\t"))
		for _, line := range wrapped(note(v), room(w, len(noteIndent))) {
			fmt.Fprintln(w, noteIndent+line)
		}
	}
}

// valueText returns a column's value for people.
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

// tableWriter aligns the columns of tables, whose cells end with tabs, and makes them fit the terminal. A line of
// one cell that is indented belongs to the row above.
type tableWriter struct {
	to     io.Writer
	width  int // of a line; 0: nothing is cut
	text   bytes.Buffer
	narrow map[int][]int // of each column of the table that begins there, its Narrow
}

// tableOn returns a writer of tables: nothing is cut where no person looks, nor with --wide.
func (p *program) tableOn(stream io.Writer) *tableWriter {
	w := &tableWriter{to: stream}
	if !p.wide {
		w.width = widthOf(stream)
	}
	return w
}

// widthOf returns the width of a terminal in characters; 0: stream is none.
func widthOf(stream io.Writer) int {
	switch to := stream.(type) {
	case *tableWriter:
		return to.width
	case *os.File:
		if width, _, err := term.GetSize(int(to.Fd())); err == nil {
			return width
		}
	}
	return 0
}

func (t *tableWriter) Write(b []byte) (int, error) { return t.text.Write(b) }

// Flush writes what was written so far.
func (t *tableWriter) Flush() error {
	var out strings.Builder
	var now table
	end := func() {
		now.write(&out, t.width)
		now = table{}
	}
	at := 0
	for line := range strings.Lines(t.text.String()) {
		narrow := t.narrow[at]
		at += len(line)
		cells := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if narrow != nil {
			end()
			now.narrow = narrow
		}
		if len(cells) > 1 || len(now.rows) > 0 && strings.HasPrefix(line, noteIndent) {
			now.rows = append(now.rows, cells)
			continue
		}
		end() // at the first line that has no cells
		out.WriteString(line)
	}
	end()
	t.text.Reset()
	clear(t.narrow)
	_, err := io.WriteString(t.to, out.String())
	return err
}

const (
	columnGap  = 2
	noteIndent = "    "
	minColumn  = 10 // what is left of a column that is cut, or its heading
	fairColumn = 24 // what is left before other columns go: a time is whole
	maxQueue   = 40 // the longest name of a queue that is never cut
	minRoom    = 20 // of text that wraps
	maxOnRow   = 300
	asUsual    = "yes" // which a line below a row need not say
	wraps      = -1    // the Narrow of a last column that wraps
)

// table is one of tableWriter's; its first row has the headings, and a row of one cell is a line by itself.
type table struct {
	rows   [][]string
	narrow []int
}

func (t *table) write(out *strings.Builder, width int) {
	var left []string
	if width > 0 {
		left = t.fit(width)
	}
	widths, _, _ := t.measure()
	for _, row := range t.rows {
		for c, text := range row {
			out.WriteString(text)
			if c < len(row)-1 {
				out.WriteString(strings.Repeat(" ", widths[c]+columnGap-utf8.RuneCountInString(text)))
			}
		}
		out.WriteByte('\n')
	}
	if len(left) > 0 {
		for _, line := range wrapped("Left out: "+strings.Join(left, ", ")+"; --wide shows all.", width) {
			fmt.Fprintln(out, line)
		}
	}
}

// measure returns how wide each column is, how narrow it may be while others can go, and at worst: ids and names of
// queues, which other commands need whole, stay.
func (t *table) measure() (widths, fair, worst []int) {
	for i, row := range t.rows {
		if len(row) == 1 {
			continue
		}
		for c, text := range row {
			if c == len(widths) {
				widths, fair, worst = append(widths, 0), append(fair, fairColumn), append(worst, minColumn)
				if len(t.narrow) > c && t.narrow[c] == inspect.Below {
					fair[c] = maxOnRow // whole, or below its row
				}
			}
			n := utf8.RuneCountInString(text)
			widths[c] = max(widths[c], n)
			if i == 0 || anID.MatchString(text) {
				worst[c] = max(worst[c], n)
			}
		}
	}
	for c := range widths {
		if head := t.rows[0]; len(head) > c && slices.Contains([]string{"ID", "HEADER", "PROPERTY"}, head[c]) {
			worst[c] = widths[c]
		} else if len(head) > c && head[c] == "QUEUE" {
			worst[c] = maxQueue
		}
		worst[c] = min(widths[c], worst[c])
		fair[c] = max(worst[c], min(widths[c], fair[c]))
	}
	return widths, fair, worst
}

func lineOf(widths []int) int {
	total := -columnGap
	for _, n := range widths {
		total += n + columnGap
	}
	return total
}

// fit makes the table as wide as a line at most: columns without a value go, those of long text go below their rows,
// others go in the order of Column.Narrow, and then the widest are cut. It returns the headings of those that are gone
// though they have values.
func (t *table) fit(width int) (left []string) {
	widths, fair, worst := t.measure()
	for lineOf(fair) > width && len(t.narrow) > 0 {
		last := slices.Max(t.narrow)
		c := slices.Index(t.narrow, last)
		if none := t.empty(); none > 0 {
			c = none
		} else if last <= 0 {
			break
		} else if last != inspect.Below {
			left = append(left, t.rows[0][c])
		}
		t.remove(c)
		widths, fair, worst = t.measure()
	}
	total := lineOf(widths)
	for _, lowest := range [][]int{fair, worst} {
		for total > width {
			widest := -1
			for c := range widths {
				if widths[c] > lowest[c] && (widest < 0 || widths[c] >= widths[widest]) {
					widest = c
				}
			}
			if widest < 0 {
				break
			}
			widths[widest]--
			total--
		}
	}
	var all [][]string
	for _, row := range t.rows {
		if len(row) == 1 {
			for _, line := range wrapped(row[0], width) {
				all = append(all, []string{line})
			}
			continue
		}
		var rest []string // of a last column that wraps
		if last := len(row) - 1; len(t.narrow) > last && t.narrow[last] == wraps {
			lines := wrapped(row[last], max(minRoom, widths[last]))
			row[last], rest = lines[0], lines[1:]
		}
		for c := range row {
			row[c] = cut(row[c], widths[c])
		}
		all = append(all, row)
		for _, text := range rest {
			row = make([]string, len(row))
			row[len(row)-1] = text
			all = append(all, row)
		}
	}
	t.rows = all
	return left
}

// empty returns the first column that has no value in any row; -1: none.
func (t *table) empty() int {
	for c := 1; c < len(t.rows[0]) && len(t.rows) > 1; c++ {
		if !slices.ContainsFunc(t.rows[1:], func(row []string) bool { return len(row) > c && row[c] != "-" }) {
			return c
		}
	}
	return -1
}

// remove takes a column away, or moves it below its rows.
func (t *table) remove(column int) {
	var all [][]string
	below, head, note := t.narrow[column] == inspect.Below, strings.ToLower(t.rows[0][column]), ""
	for i, row := range append(t.rows, nil) {
		if len(row) != 1 && note != "" { // after the other lines of its row
			all, note = append(all, []string{noteIndent + head + ": " + note}), ""
		}
		if len(row) > 1 && len(row) > column {
			if text := row[column]; below && i > 0 && text != "-" && text != asUsual {
				note = text
			}
			row = slices.Delete(row, column, column+1)
		}
		all = append(all, row)
	}
	t.rows, t.narrow = all[:len(all)-1], slices.Delete(t.narrow, column, column+1)
}

// room is how many characters of a line are left for text that wraps; 0: any number.
func room(w io.Writer, taken int) int {
	if t, ok := w.(*tableWriter); ok && t.width > 0 {
		return max(minRoom, t.width-taken)
	}
	return 0
}

// prose writes a line of text, or as many as it takes.
func prose(w io.Writer, text string) {
	for _, line := range wrapped(plain(text), room(w, 0)) {
		fmt.Fprintln(w, line)
	}
}

// wrapped returns a foreign text in lines of so many characters at most; 0: as they are. Lines keep their indentation.
func wrapped(text string, width int) (all []string) {
	for line := range strings.Lines(text) {
		line = plain(strings.ReplaceAll(strings.TrimRight(line, "\r\n"), "\t", noteIndent))
		first := len(line) - len(strings.TrimLeft(line, " "))
		if width > 0 {
			first = min(first, width/2)
			line = line[:first] + strings.TrimLeft(line, " ")
		}
		for r := []rune(line); ; r = []rune(line) {
			if width <= 0 || len(r) <= width {
				all = append(all, line)
				break
			}
			at := width
			for at > first && r[at] != ' ' {
				at--
			}
			if at <= first {
				at = width
			}
			all = append(all, strings.TrimRight(string(r[:at]), " "))
			line = line[:first] + strings.TrimLeft(string(r[at:]), " ")
		}
	}
	return all
}

func cut(s string, maximum int) string {
	if r := []rune(s); len(r) > maximum {
		return string(r[:maximum-1]) + "…"
	}
	return s
}

// yamlOf returns v as YAML, with the names and the order of its JSON.
func yamlOf(v any) (string, error) {
	text, err := jsonOf(v, "")
	if err != nil {
		return "", err
	}
	var ordered any
	if err := yaml.UnmarshalWithOptions([]byte(text), &ordered, yaml.UseOrderedMap()); err != nil {
		return "", err
	}
	node, err := yaml.ValueToNode(ordered, yaml.IndentSequence(true))
	if err != nil {
		return "", err
	}
	if _, list := node.(*ast.SequenceNode); list {
		node.AddColumn(-2)
	}
	ast.Walk(quoting{}, node)
	return node.String() + "\n", nil
}

// quoting quotes texts that the library leaves bare, for it writes characters that control a terminal as they are.
type quoting struct{}

func (q quoting) Visit(n ast.Node) ast.Visitor {
	s, ok := n.(*ast.StringNode)
	if !ok || bare.MatchString(s.Value) {
		return q
	}
	text := s.Value
	if strings.HasPrefix(text, `"`) { // by the library
		text, _ = strconv.Unquote(text)
	}
	s.Value = strconv.Quote(text)
	return q
}

// bare is text that needs no quotes in YAML, if the library gave it none.
var bare = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_/-]*$`)

// plain makes foreign text safe for a terminal: no control or invisible
// characters, which could move the cursor, hide text or run commands.
func plain(s string) string { return plainLines(blanks.Replace(s)) }

// blanks are shown on one line as what they mean.
var blanks = strings.NewReplacer("\r\n", " ⏎ ", "\n", " ⏎ ", "\t", " ")

// cell is a text in a table, which tableWriter cuts where it does not fit.
func cell(s string) string {
	if s == "" {
		return "-"
	}
	return cut(plain(strings.TrimRight(s, "\r\n")), maxOnRow)
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

// jsonOf returns v as harmless JSON that ends its line.
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

// lineWriter passes on each whole line, with its end.
type lineWriter struct {
	to   func(line []byte) error
	line []byte // so far
}

func (w *lineWriter) Write(b []byte) (int, error) {
	for part := range bytes.Lines(b) {
		if w.line = append(w.line, part...); !bytes.HasSuffix(part, []byte("\n")) {
			break
		}
		if err := w.to(w.line); err != nil {
			return 0, err
		}
		w.line = w.line[:0]
	}
	return len(b), nil
}

func plainLines(s string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && !unicode.IsPrint(r) {
			return '\uFFFD'
		}
		return r
	}, s)
}

// plural returns "1 message" or "1,204 messages".
func plural[N int | int64](n N, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return count(n) + " " + more
}

func messages[N int | int64](n N) string { return plural(n, "message", "messages") }

func count[N int | int64](n N) string { return hint.Thousands(fmt.Sprint(n)) }

func timeText(t *time.Time) string {
	if t == nil || t.IsZero() {
		return "-"
	}
	return t.UTC().Format("2006-01-02 15:04:05 UTC")
}

func ago(t *time.Time, now time.Time) string {
	switch {
	case t == nil || t.IsZero():
		return "-"
	case t.After(now):
		return "in " + span(t.Sub(now).Round(100*time.Millisecond))
	case now.Sub(*t) < time.Second:
		return "now"
	}
	return span(now.Sub(*t).Round(time.Second)) + " ago"
}

// span returns a duration in six characters at most.
func span(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d >= 10*day:
		d = d.Round(day)
	case d >= 10*time.Hour:
		d = d.Round(time.Hour)
	case d >= 10*time.Minute:
		d = d.Round(time.Minute)
	case d >= time.Minute:
		d = d.Round(time.Second)
	}
	return policy.FormatDuration(d)
}

// untilText returns how far a time is ahead or past. Up to 5 s past is now.
func untilText(t *time.Time, now time.Time) string {
	if t != nil && t.Before(now) && now.Sub(*t) < 5*time.Second {
		return "now"
	}
	return ago(t, now)
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

// minWatch keeps a typing error from asking the service thousands of times a second.
const minWatch = 100 * time.Millisecond

// watched adds --watch to a command that shows something: it runs again and again until Ctrl-C, or until it says that
// p is watching no more. A service that does not answer for a while ends it only at its first answer.
func (p *program) watched(c *cobra.Command) *cobra.Command {
	var every time.Duration
	c.Flags().DurationVar(&every, "watch", 0, "show it again and again until Ctrl-C, this often")
	c.Flags().Lookup("watch").NoOptDefVal = "2s"
	once := c.RunE
	c.RunE = func(c *cobra.Command, args []string) error {
		if !c.Flags().Changed("watch") {
			return once(c, args)
		}
		if every < minWatch {
			return fmt.Errorf("--watch=%s: expected %s or more: %w", every, minWatch, errUsage)
		}
		return p.repeat(c.Context(), every, func() error { return once(c, args) })
	}
	return c
}

func (p *program) repeat(ctx context.Context, every time.Duration, show func() error) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	p.watching = true
	for first := true; ; first = false {
		if isTerminal(p.out) {
			fmt.Fprint(p.out, "\x1b[H\x1b[2J") // the cursor to the top left, and nothing below
		}
		err := show()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && first:
			return err
		case err != nil:
			p.printError(err)
		case !p.watching:
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
