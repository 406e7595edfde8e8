package notify

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/redrive-mq/redrive/internal/hint"
)

// Message is one notification.
type Message struct {
	Kind     Kind // "" in a digest of several kinds
	At       time.Time
	Severity Severity
	Items    []Item
	Link     string
	VHost    string // the virtual host, if there are several
	Digest   bool   // of quiet hours
	Test     bool
	Open     int // present conditions of Kind, sent or not
}

// Item is a queue's part of a notification, or the service's if Queue is "".
type Item struct {
	Kind         Kind
	Queue        string
	Target       string // of ForwardStopped: where the queue forwards to; of GroupReopened: the group
	N            int64  // messages
	Since, Until time.Time
	Text         string // why; may be hostile
	Errors       []ErrorCount
	Resolved     bool
	Again        bool // sent before, and still lasting
	// for an alert
	Severity Severity
	Link     string
}

// ErrorCount is an error group's text, hostile, and its count.
type ErrorCount struct {
	Error string
	N     int64
}

const (
	maxShown  = 10 // items in a text
	maxErrors = 3  // of an item in a text
	// for machines, some of which refuse large requests
	maxItems      = 100
	maxItemErrors = 5
)

// format writes hostile text so that it does not become a service's markup.
type format func(string) string

func plainText(s string) string { return s }

// Resolved reports whether all items are over.
func (m *Message) Resolved() bool {
	return len(m.Items) > 0 && !slices.ContainsFunc(m.Items, func(i Item) bool { return !i.Resolved })
}

func (m *Message) total() (n int64) {
	for _, i := range m.Items {
		n += i.N
	}
	return n
}

// queue returns the only queue it is about, or "".
func (m *Message) queue() string {
	if len(m.Items) == 1 {
		return m.Items[0].Queue
	}
	return ""
}

// title returns one line.
func (m *Message) title(f format) string {
	what, who := "", "Redrive: "
	if m.VHost != "" {
		who = fmt.Sprintf("Redrive (%s): ", f(clean(m.VHost, maxQueueLen)))
	}
	switch {
	case m.Test:
		what = "a test"
	case m.Digest:
		what = fmt.Sprintf("what happened in quiet hours (%d)", len(m.Items))
	case len(m.Items) == 1:
		what = m.Items[0].line(f, nil)
	case m.Kind.counted():
		what = fmt.Sprintf("%s %s in %d queues", number(m.total()), meaningOf(m.Kind).Means, len(m.Items))
	case m.Resolved():
		what = fmt.Sprintf("resolved: %s (%d queues)", meaningOf(m.Kind).Over, len(m.Items))
	default:
		what = fmt.Sprintf("%s (%d queues)", meaningOf(m.Kind).Means, len(m.Items))
	}
	return who + what
}

// text returns the rest: a line for each item, its errors below.
func (m *Message) text(f format, zone *time.Location) string {
	var b strings.Builder
	shown := m.Items[:min(len(m.Items), maxShown)]
	for _, i := range shown {
		b.WriteString("• " + i.line(f, zone) + "\n")
		for _, e := range i.Errors[:min(len(i.Errors), maxErrors)] {
			fmt.Fprintf(&b, "    %s× %s\n", number(e.N), f(clean(e.Error, maxErrorLen)))
		}
	}
	if more := len(m.Items) - len(shown); more > 0 {
		fmt.Fprintf(&b, "and %d more", more)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// line returns the text of an item, with its times if zone is not nil.
func (i *Item) line(f format, zone *time.Location) string {
	k := meaningOf(i.Kind)
	where := ""
	if i.Queue != "" {
		where = f(clean(key{i.Kind, i.Queue, i.Target}.lane(), maxQueueLen)) + ": "
	}
	if i.Kind.counted() {
		means := k.Means
		if i.N == 1 {
			means = strings.Replace(means, "messages", "message", 1)
		}
		s := fmt.Sprintf("%s%s %s", where, number(i.N), means)
		if zone != nil && i.Until.Sub(i.Since) >= time.Minute {
			s += fmt.Sprintf(" from %s to %s", moment(i.Since, zone), moment(i.Until, zone))
		}
		return s
	}
	s := where + k.Means
	switch {
	case i.Resolved:
		s = "resolved: " + where + k.Over
	case i.Again:
		s += ", still"
	}
	if i.Text != "" && !i.Resolved {
		s += ": " + f(clean(i.Text, maxTextLen))
	}
	if zone != nil && i.Resolved {
		s += fmt.Sprintf(" (it was from %s to %s)", moment(i.Since, zone), moment(i.Until, zone))
	} else if zone != nil {
		s += fmt.Sprintf(" (since %s)", moment(i.Since, zone))
	}
	return s
}

func moment(t time.Time, zone *time.Location) string {
	return t.In(zone).Format("2006-01-02 15:04 MST")
}

func number(n int64) string { return hint.Thousands(fmt.Sprint(n)) }

// fields returns the notification for machines. Its texts are clean too.
func (m *Message) fields() map[string]any {
	items := []map[string]any{}
	for _, i := range m.Items[:min(len(m.Items), maxItems)] {
		item := map[string]any{"event": i.Kind, "queue": clean(i.Queue, 255), "since": i.Since.UTC(),
			"resolved": i.Resolved}
		if i.Target != "" {
			item["target"] = clean(i.Target, 255)
		}
		if i.Kind.counted() {
			errs := []map[string]any{}
			for _, e := range i.Errors[:min(len(i.Errors), maxItemErrors)] {
				errs = append(errs, map[string]any{"error": clean(e.Error, maxErrorLen), "count": e.N})
			}
			item["count"], item["errors"] = i.N, errs
		}
		if i.Text != "" {
			item["text"] = clean(i.Text, maxTextLen)
		}
		if !i.Until.IsZero() {
			item["until"] = i.Until.UTC()
		}
		items = append(items, item)
	}
	text := m.text(plainText, time.UTC)
	if m.Link != "" {
		text += "\n" + m.Link
	}
	event := string(m.Kind)
	if m.Digest {
		event = "digest"
	}
	return map[string]any{"vhost": clean(m.VHost, 255), "title": m.title(plainText), "message": text, "event": event,
		"severity": m.Severity.String(), "queue": clean(m.queue(), 255),
		"count": m.total(), "link": m.Link, "resolved": m.Resolved(), "test": m.Test, "at": m.At.UTC(), "items": items,
		"more_items": len(m.Items) - len(items)}
}

// link returns the URL of the page that lists what a message is about.
func link(page string, m *Message) string {
	if page == "" {
		return ""
	}
	page = strings.TrimSuffix(page, "/")
	switch m.Kind {
	case IntakeStopped, BrokerBlocked, ForwardStopped:
		return page + "/health"
	case FollowStopped:
		return page + "/" // lists followed queues
	case QueueStanding, QueueLong, QueueUnacked: // keep no messages here
		if q := m.queue(); q != "" && q != otherQueues {
			return page + "/queues/" + url.PathEscape(q)
		}
		return page + "/"
	case GroupReopened:
		if len(m.Items) == 1 && m.Items[0].Target != "" {
			return page + "/groups/" + url.PathEscape(m.Items[0].Target)
		}
		return page + "/groups"
	case NoConsumer, QueuePaused, BreakerOpen, LedgerOff:
		return page + "/queues"
	}
	state := "state:parked"
	if m.Kind == OldestWaiting {
		state = "state:waiting"
	}
	parked := func(i Item) bool { return i.Kind.counted() || i.Kind == ParkedBurst }
	if m.Digest && !slices.ContainsFunc(m.Items, parked) {
		return page + "/health"
	}
	terms := []string{state}
	if q := m.queue(); q != "" && q != otherQueues {
		terms = append(terms, `queue:"`+strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(q)+`"`)
	}
	var from time.Time
	for _, i := range m.Items {
		if i.Kind.counted() && (from.IsZero() || i.Since.Before(from)) {
			from = i.Since
		}
	}
	if !from.IsZero() && m.Kind.counted() {
		terms = append(terms, "parked:>="+from.UTC().Truncate(time.Minute).Format("2006-01-02T15:04Z"))
	}
	return page + "/messages?" + url.Values{"q": {strings.Join(terms, " ")}}.Encode()
}

// inOrder sorts conditions that are on before those that are over, then the largest count first.
func inOrder(items []Item) {
	slices.SortFunc(items, func(a, b Item) int {
		switch {
		case b.Resolved && !a.Resolved:
			return -1
		case a.Resolved && !b.Resolved:
			return 1
		}
		return cmp.Or(cmp.Compare(b.N, a.N), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Queue, b.Queue),
			cmp.Compare(a.Target, b.Target))
	})
}

const (
	maxErrorLen = 200 // characters
	maxQueueLen = 120
	maxTextLen  = 300
)

// clean makes hostile text one harmless line of at most limit characters, without control, invisible or
// direction-changing characters, mentions (@here, <!channel>) and links. A service's markup is left to its format.
func clean(s string, limit int) string {
	if len(s) > 8*limit { // 4 bytes a character, and as many to leave out
		s = s[:8*limit]
	}
	var b strings.Builder
	n, space, marks := 0, false, 0
	for _, r := range strings.ToValidUTF8(s, "\uFFFD") {
		if unicode.IsSpace(r) {
			space = n > 0
			continue
		}
		if unicode.Is(unicode.Mn, r) || unicode.Is(unicode.Me, r) {
			if marks++; marks > 2 || n == 0 {
				continue // they pile up over other lines
			}
		} else {
			marks = 0
		}
		switch {
		case unicode.Is(unicode.Cf, r):
			continue
		case r == '@':
			r = '＠'
		case r == '<': // <!channel>, <b>
			r = '‹'
		case r == '>':
			r = '›'
		case !unicode.IsPrint(r):
			r = '\uFFFD'
		}
		if space {
			b.WriteByte(' ')
			n, space = n+1, false
		}
		if n >= limit {
			return unlinked(b.String()) + "…"
		}
		b.WriteRune(r)
		n++
	}
	return unlinked(b.String())
}

// unlinked keeps services from making links of a message's text.
func unlinked(s string) string { return strings.ReplaceAll(s, "://", "[:]//") }
