// Package mask hides what a caller's role may not see of messages: values at paths of bodies and headers,
// and parts of any text that match a pattern. Read it in this order:
//
//	mask.go      the rules of a config, and what they say of one message
//	document.go  documents of JSON: masked, and put back after an edit
//	pattern.go   the patterns
package mask

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/policy"
)

// Hidden stands where something is masked; in a document it has a number.
const Hidden = "[masked]"

// Level is what a role sees of messages.
type Level uint8

// Levels.
const (
	NoBody Level = iota // no body; the rest masked
	Masked              // what the rules leave of it; no body that no rule is for
	All                 // everything
)

// Levels are the levels' names in a config.
var Levels = map[string]Level{"hidden": NoBody, "masked": Masked, "shown": All}

func (l Level) String() string {
	for name, is := range Levels {
		if is == l {
			return name
		}
	}
	return ""
}

// Bodies are the levels of all roles.
type Bodies [auth.Admin + 1]Level

// DefaultBodies are those that a config does not change.
func DefaultBodies() Bodies {
	return Bodies{auth.Viewer: Masked, auth.Operator: Masked, auth.Editor: Masked, auth.Admin: All}
}

// Entry is an entry of a config's mask.
type Entry struct {
	Paths    []string // body.customer.email, body..iban, header.authorization
	Patterns []string // names of built-in patterns, and /regular expressions/
	Queues   []string // patterns; nil: all
	Types    []string // patterns of the type property; nil: all. Error texts are masked whatever the type.
}

// Rules decide what is masked for whom. Nil masks nothing. They are immutable.
type Rules struct {
	entries []entry
	levels  Bodies
	show    []auth.Role
}

type entry struct {
	Entry
	body, header []string // what follows the first word of each path, in small letters
	patterns     []pattern
}

// New compiles rules of valid entries: see CheckPath and CheckPattern. The roles in show may see single messages whole.
func New(entries []Entry, levels Bodies, show ...auth.Role) *Rules {
	r := &Rules{levels: levels, show: show}
	for _, e := range entries {
		c := entry{Entry: e}
		for _, p := range e.Paths {
			p = strings.ToLower(p)
			if rest, ok := strings.CutPrefix(p, "header"); ok {
				c.header = append(c.header, rest)
			} else {
				c.body = append(c.body, strings.TrimPrefix(p, "body"))
			}
		}
		for _, p := range e.Patterns {
			if compiled, err := compile(p); err == nil {
				c.patterns = append(c.patterns, compiled)
			}
		}
		r.entries = append(r.entries, c)
	}
	return r
}

// CheckPath returns what is wrong with a path.
func CheckPath(p string) error {
	rest, ok := strings.CutPrefix(p, "body")
	if ok && rest == "" {
		return nil // the whole body
	}
	if !ok {
		rest, ok = strings.CutPrefix(p, "header")
	}
	if !ok || !strings.HasPrefix(rest, ".") || strings.HasSuffix(rest, ".") || strings.Contains(rest, "...") {
		return fmt.Errorf("%q is no path: expected one such as body.customer.email, body..iban or header.authorization",
			p)
	}
	return nil
}

// Sees reports whether a role sees everything.
func (r *Rules) Sees(role auth.Role) bool { return r == nil || r.levels[role] == All }

// Shows reports whether a role may see single messages whole, for a reason.
func (r *Rules) Shows(role auth.Role) bool { return r.Sees(role) || slices.Contains(r.show, role) }

// String says in words who sees what, for the log.
func (r *Rules) String() string {
	var all []string
	for role := auth.Viewer; role <= auth.Admin; role++ {
		all = append(all, role.String()+": "+r.levels[role].String())
	}
	s := "bodies of messages, by role: " + strings.Join(all, ", ")
	for i, role := range r.show {
		s += []string{"; single ones for a reason: ", ", "}[min(i, 1)] + role.String()
	}
	if len(r.entries) == 0 {
		return s + "; without a rule in mask, masked is hidden"
	}
	return s + fmt.Sprintf("; rules of mask: %d", len(r.entries))
}

// Text masks a text that is about a message of a queue, such as an error; "": of any.
func (r *Rules) Text(queue, s string) string {
	if r == nil || s == "" {
		return s
	}
	for i := range r.entries {
		if e := &r.entries[i]; queue == "" || matches(e.Queues, queue) {
			for _, p := range e.patterns {
				s = p.mask(s, hide)
			}
		}
	}
	return s
}

func hide(string) string { return Hidden }

func matches(patterns []string, name string) bool {
	return patterns == nil || slices.ContainsFunc(patterns, func(p string) bool { return policy.MatchQueue(p, name) })
}

// Of is what the rules say of the messages of a queue and a type, for a role.
type Of struct {
	body, header []string
	patterns     []pattern
	covered      bool // a rule is for its body
}

// Of returns what to mask in a message of a queue and a type. It is not called for who sees everything.
func (r *Rules) Of(role auth.Role, queue, kind string) Of {
	var of Of
	for i := range r.entries {
		if e := &r.entries[i]; matches(e.Queues, queue) && matches(e.Types, kind) {
			of.body, of.header = append(of.body, e.body...), append(of.header, e.header...)
			of.patterns = append(of.patterns, e.patterns...)
		}
	}
	of.covered = r.levels[role] == Masked && len(of.body)+len(of.patterns) > 0
	return of
}

// HidesBody reports whether nothing is shown of the body.
func (of *Of) HidesBody() bool { return !of.covered || slices.Contains(of.body, "") }

// HidesPath reports whether a query's path in the body, or in the headers, leads to what is masked by its path.
func (of *Of) HidesPath(path string, header bool) bool {
	rems := of.body
	if header {
		rems = of.header
	}
	for _, name := range strings.Split(strings.ToLower(path), ".") {
		next, masked := step(rems, name)
		if masked {
			return true
		}
		rems = append(next, rems...) // a number may be an index, and a name may have dots
	}
	return false
}

// HidesPath reports whether a path leads to what is masked for a role in the messages of some queue or type.
func (r *Rules) HidesPath(role auth.Role, path string, header bool) bool {
	any, covered := Of{}, false
	for i := range r.entries {
		e := &r.entries[i]
		any.body, any.header = append(any.body, e.body...), append(any.header, e.header...)
		covered = covered || len(e.body)+len(e.patterns) > 0
	}
	if !header && (!covered || r.levels[role] != Masked || slices.Contains(any.body, "")) {
		return true
	}
	return any.HidesPath(path, header)
}

// Text masks a text of the message.
func (of *Of) Text(s string) string {
	for _, p := range of.patterns {
		s = p.mask(s, hide)
	}
	return s
}

// Why a body is not shown as it is.
const (
	whyHidden  = "Hidden: your role does not see this body"
	whyNoPaths = "Hidden: the body has no fields by which it could be masked"
	whyLong    = "Hidden: the body is too long to be masked"
	whyMasked  = "Masked for your role"
)

// Body masks a decoded body.
func (of *Of) Body(r *decode.Result) *decode.Result {
	if r == nil || r.Format == "empty" {
		return r
	}
	out := &decode.Result{Size: r.Size, Steps: []decode.Step{}, Format: "hidden"}
	if out.Masked = whyHidden; of.HidesBody() {
		return out
	}
	named := r.Value != nil && (r.Format != "protobuf" || r.Schema != "") // its fields have names
	_, isTable := r.Value.(map[string]any)
	_, isList := r.Value.([]any)
	switch text, _, err := of.document(r.Text); {
	case r.Truncated:
		out.Masked = whyLong
		return out
	case named && (isTable || isList || len(of.body) == 0) && err == nil:
		d := json.NewDecoder(strings.NewReader(text))
		d.UseNumber()
		if err := d.Decode(&out.Value); err != nil {
			return out
		}
		out.Text = text
	case len(of.body) > 0 || named:
		out.Masked = whyNoPaths
		return out
	case r.Format == "text" || r.Format == "xml":
		out.Text = of.Text(r.Text)
	default:
		return out
	}
	out.Format, out.Schema, out.Masked = r.Format, r.Schema, whyMasked
	for _, s := range r.Steps { // what it found may quote the body
		out.Steps = append(out.Steps, decode.Step{Decoder: s.Decoder, Size: s.Size})
	}
	return out
}

// Headers masks headers.
func (of *Of) Headers(t amqp.Table) amqp.Table {
	if t == nil || len(of.header)+len(of.patterns) == 0 {
		return t
	}
	return of.table(t, of.header)
}

func (of *Of) table(t amqp.Table, rems []string) amqp.Table {
	out := amqp.Table{}
	for name, v := range t {
		next, masked := step(rems, strings.ToLower(name))
		if masked {
			v = Hidden
		} else {
			v = of.value(v, next)
		}
		out[of.Text(name)] = v
	}
	return out
}

func (of *Of) value(v any, rems []string) any {
	switch v := v.(type) {
	case amqp.Table:
		return of.table(v, rems)
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			if next, masked := step(rems, fmt.Sprint(i)); masked {
				out[i] = Hidden
			} else {
				out[i] = of.value(e, append(next, rems...))
			}
		}
		return out
	case string:
		if of.hidesInner(v, rems) {
			return Hidden
		}
		return of.Text(v)
	case []byte:
		if of.hidesInner(string(v), rems) || !utf8.Valid(v) && of.Text(string(v)) != string(v) {
			return Hidden
		}
		if masked := of.Text(string(v)); masked != string(v) {
			return []byte(masked)
		}
		return v
	}
	if s := fmt.Sprint(v); of.Text(s) != s {
		return Hidden
	}
	return v
}

// hidesInner reports whether a text is a document by itself, in which something is masked.
func (of *Of) hidesInner(s string, rems []string) bool {
	if t := strings.TrimSpace(s); len(rems) == 0 || t == "" || !strings.ContainsAny(t[:1], "{[") {
		return false
	}
	inner := Of{body: rems, patterns: of.patterns}
	_, parts, err := inner.document(s)
	return err == nil && len(parts) > 0
}

// step returns what is left of paths behind a name, and whether one of them ends there. Each begins with one dot,
// or with two where any number of names may come before.
func step(rems []string, name string) (next []string, masked bool) {
	add := func(rem string) {
		if !slices.Contains(next, rem) {
			next = append(next, rem)
		}
	}
	try := func(rem, name string) {
		switch rest, found := strings.CutPrefix(strings.TrimPrefix(rem, "."), name); {
		case found && rest == "" && name != "":
			masked = true
		case found && rest != "" && rest[0] == '.':
			add(rest)
		}
	}
	for _, rem := range rems {
		if !strings.HasPrefix(rem, "..") {
			try(rem, name)
			continue
		}
		add(rem)
		try(rem[1:], name)
		for i := range name { // it may have dots
			if name[i] == '.' {
				try(rem[1:], name[i+1:])
			}
		}
	}
	return next, masked
}

func decodeBase64(s string) string {
	b, _ := base64.StdEncoding.DecodeString(s)
	return string(b)
}
