package webui

import (
	"fmt"
	"html"
	"html/template"
	"math"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/query"
)

// functions are the functions of all templates; respond.go has those that make
// URLs.
var functions = template.FuncMap{
	"count":     count,
	"size":      size,
	"when":      when,
	"since":     since,
	"clock":     func(t time.Time) template.HTML { return timeOf(t, "data-clock", t.UTC().Format("15:04:05 UTC")) },
	"between":   between,
	"minute":    func(t time.Time) template.HTML { return timeOf(t, `data-clock="short"`, t.UTC().Format("15:04")) },
	"past":      func(t *time.Time) bool { return !t.After(time.Now()) },
	"silent":    func(r inspect.Replica) bool { return r.Silent(time.Now()) },
	"clean":     clean,
	"does":      inspect.Does,
	"short":     short,
	"lines":     func(s string) []string { return strings.Split(s, "\n") },
	"command":   command,
	"columns":   func(s ...sorting) *columns { return &columns{sorted: append(s, sorting{})[0]} },
	"list":      func(v ...any) []any { return v },
	"spark":     spark,
	"percent":   func(a, b int64) float64 { return math.Round(1000*float64(a)/float64(max(b, 1))) / 10 },
	"percentOf": func(share float64) string { return strconv.Itoa(int(math.Round(100*share))) + " %" },
	"shown":     shown,
	"add":       func(a, b int64) int64 { return a + b },
	"json":      tokens,
	"join":      strings.Join,
	"lower":     strings.ToLower,
	"linked":    linked,
	"ends":      ends,
	"whys": func(all []actions.Outcome) bool {
		return slices.ContainsFunc(all, func(o actions.Outcome) bool { return o.Why != "" })
	},
	"plural": plural,
	"found":  found,
	"speed":  speed,
	"split":  strings.Fields,
	"query":  queryOf,

	"hasPrefix": strings.HasPrefix,
	"queryHelp": query.Help,
}

// count is a number with its thousands separated; "" for one that is not known.
func count(v any) string {
	if v == nil {
		return ""
	}
	return hint.Thousands(fmt.Sprint(v))
}

// columns are those of a table: its head names each once, and its cells take turns. On a narrow screen, where a
// row is a card, a cell is labelled by its column's name.
type columns struct {
	sorted sorting
	cells  []template.HTMLAttr
	next   int
}

// Head adds a column, with its class, and what its name means.
func (t *columns) Head(name string, classAndHelp ...string) template.HTML {
	class, help := "", ""
	if len(classAndHelp) > 0 {
		class = ` class="` + html.EscapeString(classAndHelp[0]) + `"`
	}
	if len(classAndHelp) > 1 {
		help = classAndHelp[1]
	}
	h, sortable := t.sorted.heads[name]
	name = html.EscapeString(name)
	t.cells = append(t.cells, template.HTMLAttr(strings.TrimPrefix(class+` data-label="`+name+`"`, " ")))
	switch {
	case sortable:
		return t.sorted.head(h, class, name, help)
	case help != "":
		name = `<abbr title="` + html.EscapeString(help) + `">` + name + `</abbr>`
	case class == ` class="box"`:
		name = `<span class="unseen">` + name + `</span>`
	}
	return template.HTML(`<th scope="col"` + class + `>` + name + `</th>`)
}

// Cell returns the attributes of the next cell.
func (t *columns) Cell() template.HTMLAttr {
	t.next++
	return t.cells[(t.next-1)%len(t.cells)]
}

// shown is what a Column returns.
func shown(v any) any {
	switch v := v.(type) {
	case string:
		return template.HTML("<bdi>" + html.EscapeString(short(160, v)) + "</bdi>")
	case time.Time:
		return when(v)
	}
	return count(v)
}

// Span returns those of a cell for n columns, all of them not known.
func (t *columns) Span(n int, label string) template.HTMLAttr {
	t.next += n
	return template.HTMLAttr(fmt.Sprintf(`class="n dim" data-label="%s" colspan="%d"`, html.EscapeString(label), n))
}

// plural is "1 message", "2 messages".
func plural(n any, one, many string) string {
	if s := fmt.Sprint(n); s == "1" {
		return "1 " + one
	}
	return count(n) + " " + many
}

// size formats a number of bytes; unknown is "–".
func size(v any) string {
	n, _ := v.(int)
	if p, ok := v.(*int); ok && p == nil {
		return "–"
	} else if ok {
		n = *p
	}
	switch {
	case n < 1<<10:
		return strconv.Itoa(n) + " B"
	case n < 1<<20:
		return strconv.FormatFloat(float64(n)/(1<<10), 'f', 1, 64) + " KiB"
	}
	return strconv.FormatFloat(float64(n)/(1<<20), 'f', 1, 64) + " MiB"
}

// moment is a time that may be absent, as a time; the zero one is "not known".
func moment(v any) time.Time {
	switch t := v.(type) {
	case time.Time:
		return t
	case *time.Time:
		if t != nil {
			return *t
		}
	}
	return time.Time{}
}

// when is a time as a page shows it: how long ago, and the moment itself. A list has
// hundreds, and a template would take most of the page's time for them.
func when(v any) template.HTML {
	t := moment(v).UTC()
	if t.IsZero() {
		return `<span class="dim">not known</span>`
	}
	return timeOf(t, "data-when", relative(t, time.Now()))
}

// since formats a time in a sentence about the past.
func since(v any) template.HTML {
	text := relative(moment(v), time.Now())
	if text == "now" {
		text = "just now"
	}
	return timeOf(moment(v), `data-when="past"`, text)
}

// between formats a span of time.
func between(from, to *time.Time) string {
	a, b := from.UTC(), to.UTC()
	start, end := a.Format(time.DateTime), b.Format(time.DateTime)
	switch {
	case start == end:
		return "at " + end + " UTC"
	case start[:len(time.DateOnly)] == end[:len(time.DateOnly)]:
		end = b.Format(time.TimeOnly)
	}
	return "between " + start + " and " + end + " UTC"
}

// timeOf is a time as a text, and in UTC on hover. The page's script adds the reader's own time there.
func timeOf(t time.Time, kind, text string) template.HTML {
	t = t.UTC()
	return template.HTML(`<time ` + kind + ` datetime="` + t.Format("2006-01-02T15:04:05.000Z07:00") + `" title="` +
		t.Format("2006-01-02 15:04:05 UTC") + `">` + text + `</time>`)
}

// relative is how long ago a time was, or how far ahead it is. The page's script
// says the same, as time goes by.
func relative(t, now time.Time) string {
	d := now.Sub(t)
	ahead := d < 0
	d = d.Abs()
	var s string
	switch {
	case d < 2*time.Second:
		return "now"
	case d < 2*time.Minute:
		s = fmt.Sprintf("%d s", int(d.Seconds()))
	case d < 2*time.Hour:
		s = fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		s = fmt.Sprintf("%d h", int(d.Hours()))
	default:
		s = fmt.Sprintf("%d d", int(d.Hours()/24))
	}
	if ahead {
		return "in " + s
	}
	return s + " ago"
}

// clean makes what cannot be seen visible, and keeps text from turning the text
// around it: control characters, marks of direction, what has no width.
func clean(s string) string {
	odd := func(r rune) bool {
		if r < utf8.RuneSelf { // nearly all are
			return r < ' ' && r != '\n' && r != '\t' || r == 0x7f
		}
		return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || unicode.Is(unicode.Zl, r) ||
			unicode.Is(unicode.Zp, r) || r == unicode.ReplacementChar
	}
	if !strings.ContainsFunc(s, odd) {
		return s
	}
	var b strings.Builder
	for i, r := range s {
		switch {
		case r == unicode.ReplacementChar && !strings.HasPrefix(s[i:], "\uFFFD"):
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case r == unicode.ReplacementChar:
			b.WriteRune(r)
		case odd(r) && r < 0x80:
			fmt.Fprintf(&b, `\x%02x`, r)
		case odd(r):
			fmt.Fprintf(&b, `\u{%x}`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// short is the first of a text, on one line.
func short(n int, s string) string {
	s = clean(strings.Join(strings.Fields(s), " "))
	if r := []rune(s); len(r) > n {
		return string(r[:n]) + "…"
	}
	return s
}

// speed is messages per second; below ten with at most one decimal.
func speed(perSecond float64) string {
	if perSecond < 10 {
		return strconv.FormatFloat(math.Round(10*perSecond)/10, 'f', -1, 64)
	}
	return count(int64(perSecond))
}

// found returns what a decoder found, without the decoder's name, which the page shows beside it.
func found(decoder, text string) string {
	if n := len(decoder); len(text) > n && strings.EqualFold(text[:n], decoder) {
		return strings.TrimLeft(text[n:], ", ")
	}
	return text
}

func queueURL(name string) string { return "/queues/" + url.PathEscape(name) }

func messageURL(id string) string { return "/messages/" + url.PathEscape(id) }

func operationURL(id string) string { return "/operations/" + url.PathEscape(id) }

func groupURL(id string) string { return "/groups/" + id }

// messagesURL is the list for a query, with its columns and sorted by one of them.
func messagesURL(query string, columnsAndSort ...string) string {
	values := url.Values{"q": {query}}
	for i, value := range columnsAndSort {
		if value != "" {
			values.Set([]string{"columns", "sort"}[i], value)
		}
	}
	return "/messages?" + values.Encode()
}

// findURL is the list for a query made of pairs of field and value.
func findURL(pairs ...string) string { return messagesURL(queryOf(pairs...)) }

// queryOf is a query made of pairs of field and value.
func queryOf(pairs ...string) string {
	var terms []string
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			terms = append(terms, pairs[i]+":"+quoteValue(pairs[i+1]))
		}
	}
	return strings.Join(terms, " ")
}

// quoteValue quotes a value for the query language where that is needed.
func quoteValue(s string) string {
	if plain(s, "._-/") {
		return s
	}
	return query.Quote(s)
}

// svgPath is numbers as an SVG path in a box.
func svgPath(numbers []int64, most int64, width, height float64) string {
	var b strings.Builder
	step := width / float64(max(len(numbers)-1, 1))
	for i, n := range numbers {
		fmt.Fprintf(&b, "%c%.1f,%.1f", "ML"[min(i, 1)], float64(i)*step,
			height-float64(n)/float64(max(most, 1))*(height-2)-1)
	}
	return b.String()
}

// sparkline is the failures of the last hours, as bars: one SVG path, since a template
// takes long for each of its steps, and there are hundreds of these on a page.
type sparkline struct {
	Bars  string
	Width int
	Text  string // for those who cannot see it
}

const sparkHeight = 20

func spark(hours []int64) sparkline {
	s := sparkline{Width: 4 * len(hours)}
	var most, sum int64
	for _, n := range hours {
		most, sum = max(most, n), sum+n
	}
	var b []byte
	for i, n := range hours {
		h := 1.0 // an empty hour is a line, not a gap
		if n > 0 {
			h = 2 + float64(sparkHeight-2)*float64(n)/float64(most)
		}
		b = append(strconv.AppendInt(append(b, 'M'), int64(4*i), 10), ",20h3v-"...)
		b = append(strconv.AppendFloat(b, h, 'f', 1, 64), "h-3z"...)
	}
	s.Bars = string(b)
	s.Text = fmt.Sprintf("%s in the last %d hours, at most %s in one", plural(sum, "failure", "failures"), len(hours),
		count(most))
	return s
}

// policyView is a policy with its waits as bars; it stands for its neighbours that differ only in name and queues.
type policyView struct {
	inspect.PolicyInForce
	Names      []string
	Bars       []waitBar
	More       int  // waits without a bar
	Same       bool // these are like the last
	Drawn      bool // what it does in an outage; each takes up to a second
	Simulation template.HTML
}

// Outage returns the link to the page with its picture.
func (v policyView) Outage() string {
	u := url.URL{Path: "/policies", RawQuery: "outage=" + url.QueryEscape(v.Name), Fragment: "p-" + v.Name}
	return u.String()
}

type waitBar struct {
	inspect.Wait
	Least, Most float64 // of the longest wait, in percent
}

// minBars are drawn at least, and more while the waits still change.
const minBars = 10

func policyBars(p inspect.PolicyInForce) policyView {
	v := policyView{PolicyInForce: p, Names: []string{p.Name}}
	drawn := p.Waits[:min(len(p.Waits), max(p.Settled, minBars))]
	v.More, v.Same = p.Attempts-1-len(drawn), p.Settled <= len(drawn)
	var longest time.Duration
	for _, w := range drawn {
		longest = max(longest, duration(w.Most))
	}
	for _, w := range drawn {
		share := func(s string) float64 { return 100 * float64(duration(s)) / float64(max(longest, 1)) }
		v.Bars = append(v.Bars, waitBar{w, share(w.Least), max(share(w.Most), 0.5)})
	}
	return v
}

// like reports whether two policies differ only in name and queues.
func (v policyView) like(p inspect.PolicyInForce) bool {
	p.Name, p.Queues = v.Name, v.Queues
	if len(p.Rules) == 0 {
		p.Failures, p.NoError = v.Failures, v.NoError // these are shown with rules alone
	}
	return reflect.DeepEqual(p, v.PolicyInForce)
}

// duration reads a duration as policies write it, such as "1m 4s"; 0 for what is none.
func duration(s string) time.Duration {
	d, _ := query.ParseDuration(strings.ReplaceAll(s, " ", ""))
	return d
}

// command is a command line with its words quoted for a shell: people paste it.
func command(words ...string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = shellWord(w)
	}
	return strings.Join(quoted, " ")
}

// positional is a query as an argument: one that begins with a - is no flag.
func positional(query string) []string {
	switch {
	case query == "":
		return nil
	case strings.HasPrefix(query, "-"):
		return []string{"--", query}
	}
	return []string{query}
}

// plain reports whether a text has only letters of ASCII, digits and some other characters.
func plain(s, others string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune(others, r)
	})
}

// shellWord quotes a word for a shell, if it has to be.
func shellWord(s string) string {
	switch {
	case plain(s, "._-/:=,@%+"):
		return s
	case clean(s) == s && !strings.ContainsAny(s, "\n\t"):
		return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
	}
	// A terminal acts on control characters as they are pasted, quoted or not.
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\'' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c < 0x20 || c >= 0x7f:
			fmt.Fprintf(&b, `\x%02x`, c)
		default:
			b.WriteByte(c)
		}
	}
	return "$'" + b.String() + "'"
}
