package actions

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/rogpeppe/go-internal/diff"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/headers"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/mask"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/wire"
)

// EditRequest replaces a message by an edited one, which is replayed; the original
// is discarded and linked.
type EditRequest struct {
	ID string `json:"id"`
	// Body, when not nil, is the new body, byte for byte.
	Body *[]byte `json:"body,omitempty" contentEncoding:"base64"`
	// Document, when not nil, is a JSON document that takes the place of what the
	// decoders found, and goes back through their steps (base64, compression,
	// Protobuf…) to bytes.
	Document *string `json:"document,omitempty"`
	// SetHeaders sets headers to texts; a name that was of another type keeps its
	// type, or the edit is refused.
	SetHeaders    map[string]string `json:"set_headers,omitempty"`
	RemoveHeaders []string          `json:"remove_headers,omitempty"`
	At            *time.Time        `json:"at,omitempty" doc:"When it is retried; left out: now."`
	Reason        string            `json:"reason,omitempty" maxLength:"500"`
	DryRun        bool              `json:"dry_run,omitempty" doc:"Only show the difference."`
}

// Edited is the result of an edit.
type Edited struct {
	New    string   `json:"new,omitempty" doc:"The id of the edited message; absent with dry_run."`
	Bytes  string   `json:"bytes" doc:"The difference of the bodies, in hex, as a unified diff."`
	Fields []Change `json:"fields" doc:"The differences of decoded body and headers."`
	Checks []string `json:"checks,omitempty" doc:"What the schema says about the new body."`
}

// Change is a field that differs.
type Change struct {
	Path   string `json:"path"`
	Before string `json:"before,omitempty"`
	After  string `json:"after,omitempty"`
}

// Edit replaces a message by an edited one, which is retried and starts again at attempt 1. The
// original is discarded, so that it can be restored, and each names the other. Both happen in
// one step, or nothing does.
func (a *Actions) Edit(ctx context.Context, by auth.Caller, e EditRequest) (Edited, error) {
	if err := a.Permit(by, auth.Editor, "edit", e.ID, ""); err != nil {
		return Edited{}, err
	}
	l, why, err := a.find(ctx, by, e.ID)
	switch {
	case err != nil:
		return Edited{}, err
	case why != "":
		return Edited{}, fmt.Errorf("%w: %.100q: %s", inspect.ErrNotFound, e.ID, why)
	case l.Record.State == store.Discarded:
		if made := l.Record.MadeInto; made != uuid.Nil {
			return Edited{}, fmt.Errorf("%w: message %s is discarded: restore it first; message %s was made of it",
				inspect.ErrPrecondition, e.ID, made)
		}
		return Edited{}, fmt.Errorf("%w: message %s is discarded: restore it first", inspect.ErrPrecondition, e.ID)
	}
	edited, body, table, err := a.applyEdit(ctx, l.Record, e, a.Inspect.Masked(by, l.Record))
	if err != nil || e.DryRun {
		return edited, err
	}
	notes, err := store.GroupNotes(ctx, a.Store)
	if err != nil {
		return Edited{}, err
	}
	end, err := a.Begin(by, "edit", l.Record.Queue+": "+e.ID, 1, e.Reason)
	if err != nil {
		return Edited{}, err
	}
	now := a.now()
	var carried []store.Entry
	made, unreadable := uuid.Nil, error(nil)
	_, err = a.Store.Change(context.WithoutCancel(ctx), []store.Key{l.Key},
		func(_ store.Key, r *store.Record) store.Edit {
			if r != nil && r.Unreadable != nil {
				unreadable = r.Unreadable
			}
			if r == nil || r.State != l.Record.State || r.Held(now) {
				return store.Edit{}
			}
			n := copyOf(r, dueAt(e.At, now))
			n.Message.Body, n.Message.Headers, n.Envelope = body, table, nil
			n.ID = headers.NewID(&n.Message)
			made = n.ID
			r.State, r.Due, r.MadeInto = store.Discarded, now.Add(a.Restorable), n.ID
			done := store.Edit{Keep: true, Add: []*store.Record{n}}
			carried = carry(r, done, notes, now)
			return done
		}, func(int) []store.Entry { return carried })
	if err == nil {
		err = unreadable
	}
	if err == nil && made == uuid.Nil {
		err = fmt.Errorf("%w: message %s: %s", inspect.ErrPrecondition, e.ID, gone)
	}
	if err != nil {
		end(err, 0)
		return Edited{}, err
	}
	edited.New = made.String()
	a.event(retry.Event{Kind: retry.Edited, Queue: l.Record.Queue, ID: l.Record.ID, N: 1, By: by.Name})
	end(nil, 1)
	return edited, nil
}

// applyEdit returns the edited body and headers of a record, and the differences. Masked values stay as they are,
// and are not among the differences.
func (a *Actions) applyEdit(
	ctx context.Context, r *store.Record, e EditRequest, masked *mask.Of,
) (done Edited, body []byte, headers amqp.Table, err error) {
	if e.Body != nil && e.Document != nil {
		return done, nil, nil, hint.Errorf("give one", "%w: the body is given both as bytes and as a document",
			inspect.ErrInvalid)
	}
	if err = keepMasked(masked, r.Message.Headers, &e); err != nil {
		return done, nil, nil, err
	}
	if headers, err = editHeaders(r.Message.Headers, e); err != nil {
		return done, nil, nil, fmt.Errorf("%w: %w", inspect.ErrInvalid, err)
	}
	shown := inspect.BodyOf(r)
	body = shown.Bytes
	was := a.Inspect.Decoder.Decode(ctx, shown)
	switch {
	case e.Body != nil:
		body = *e.Body
	case e.Document != nil && masked != nil:
		if body, err = a.encodeMasked(ctx, shown, was, *e.Document, masked); err != nil {
			return done, nil, nil, err
		}
	case e.Document != nil:
		// The document was shown with the headers as they were: they may choose its
		// type.
		if body, done.Checks, err = a.Inspect.Decoder.Encode(ctx, shown, *e.Document); err != nil {
			return done, nil, nil, fmt.Errorf("%w: the document: %w", inspect.ErrInvalid, err)
		}
	}
	changed := shown
	changed.Bytes, changed.Headers = body, headers
	is := a.Inspect.Decoder.Decode(ctx, changed)
	if masked != nil {
		if !bytes.Equal(body, shown.Bytes) && (is.Format != was.Format || is.Schema != was.Schema) {
			return done, nil, nil, fmt.Errorf("%w: %w: the body would be of another kind", auth.ErrForbidden, errMasked)
		}
		was, is = masked.Body(was), masked.Body(is)
	}
	if e.Document == nil {
		done.Checks = checks(was, is)
	}
	same := bytes.Equal(shown.Bytes, body)
	if masked == nil {
		done.Bytes = bytesDiff(shown.Bytes, body)
		done.Fields = fieldsDiff(was, is, r.Message.Headers, headers)
	} else {
		done.Fields = fieldsDiff(was, is, masked.Headers(r.Message.Headers), masked.Headers(headers))
	}
	if len(body) == 0 {
		body = nil
	}
	if same && len(done.Fields) == 0 {
		return done, nil, nil, fmt.Errorf("%w: the edit changes nothing; to publish the message unchanged, replay it",
			inspect.ErrInvalid)
	}
	return done, body, headers, nil
}

var errMasked = errors.New("it is masked for you")

// keepMasked refuses an edit of what its caller does not see.
func keepMasked(masked *mask.Of, headers amqp.Table, e *EditRequest) error {
	if masked == nil {
		return nil
	}
	if e.Body != nil {
		return hint.Errorf("edit the document", "%w: the bytes of the body: %w", auth.ErrForbidden, errMasked)
	}
	for _, name := range slices.Concat(e.RemoveHeaders, slices.Collect(maps.Keys(e.SetHeaders))) {
		if v, there := headers[name]; there {
			now := masked.Headers(amqp.Table{name: v})
			if is, named := now[name]; named && reflect.DeepEqual(is, v) {
				continue
			}
		} else if set := (amqp.Table{name: e.SetHeaders[name]}); reflect.DeepEqual(masked.Headers(set), set) {
			continue
		}
		return fmt.Errorf("%w: header %.100q: %w", auth.ErrForbidden, name, errMasked)
	}
	return nil
}

// encodeMasked makes bytes of an edited document in which values are masked. Its errors quote none of them.
func (a *Actions) encodeMasked(
	ctx context.Context, shown decode.Body, was *decode.Result, document string, masked *mask.Of,
) ([]byte, error) {
	if masked.Body(was).Text == "" {
		return nil, fmt.Errorf("%w: the body: %w", auth.ErrForbidden, errMasked)
	}
	whole, err := masked.Restore(was.Text, document)
	if err != nil {
		return nil, fmt.Errorf("%w: the document: %w", inspect.ErrInvalid, err)
	}
	body, _, err := a.Inspect.Decoder.Encode(ctx, shown, whole)
	if err != nil {
		return nil, fmt.Errorf("%w: the document cannot be encoded; why is not said, since values of it are masked",
			inspect.ErrInvalid)
	}
	return body, nil
}

// checks says what the decoder finds otherwise than before.
func checks(was, is *decode.Result) (all []string) {
	if was.Format != is.Format {
		all = append(all, fmt.Sprintf("the body was %s, and is %s now", was.Format, is.Format))
	}
	if was.Schema != is.Schema {
		all = append(all, fmt.Sprintf("the body was read as %q, and is read as %q now", was.Schema, is.Schema))
	}
	return all
}

func editHeaders(was amqp.Table, e EditRequest) (amqp.Table, error) {
	if len(e.SetHeaders) == 0 && len(e.RemoveHeaders) == 0 {
		return was, nil
	}
	is := amqp.Table{}
	maps.Copy(is, was)
	for _, name := range e.RemoveHeaders {
		if _, there := is[name]; !there {
			return nil, fmt.Errorf("header %.100q is not there to be removed", name)
		}
		delete(is, name)
	}
	for name, value := range e.SetHeaders {
		if len(name) == 0 || len(name) > maxNameLen {
			return nil, fmt.Errorf("header %.100q: a name has 1 to %d bytes", name, maxNameLen)
		}
		if len(headers.Clean(amqp.Table{name: value})) == 0 {
			return nil, fmt.Errorf("header %q is RabbitMQ's or Redrive's own: it is removed when the message "+
				"is retried", name)
		}
		if slices.Contains(e.RemoveHeaders, name) {
			return nil, fmt.Errorf("header %.100q is both set and removed", name)
		}
		v, err := sameType(is[name], value)
		if err != nil {
			return nil, fmt.Errorf("header %.100q: %w", name, err)
		}
		is[name] = v
	}
	if _, err := store.AppendRecord(nil, &store.Record{Message: wire.Message{Headers: is}}); err != nil {
		return nil, err
	}
	return is, nil
}

// sameType reads a text as a value of the type that the header had.
func sameType(was any, s string) (any, error) {
	kind := inspect.TypeName(was)
	switch was.(type) {
	case nil, string:
		return s, nil
	case []byte:
		return []byte(s), nil
	case time.Time:
		t, err := time.Parse(time.RFC3339, s)
		if err != nil {
			return nil, fmt.Errorf("it is a timestamp: expected a time such as 2026-01-02T15:04:05Z, not %.60q", s)
		}
		return t.Truncate(time.Second), nil
	case amqp.Table, []any, amqp.Decimal:
		return nil, fmt.Errorf("it is of type %s, which a text cannot be made into", kind)
	}
	v, err := fromText(kind, s)
	if err != nil {
		return nil, fmt.Errorf("it is of type %s, which %.60q is not", kind, s)
	}
	return v, nil
}

const (
	diffBytes = 1 << 20 // of each body that are compared
	diffText  = 256 << 10
	maxFields = 1000
	fieldText = 1000
)

// bytesDiff is how two bodies differ, as a unified diff of lines of up to 16 bytes
// in hex. A line ends after bytes that often end something, so that what follows an
// insertion lines up again.
func bytesDiff(was, is []byte) string {
	d := diff.Diff("before", hexLines(was), "after", hexLines(is))
	if d == nil && string(was) != string(is) {
		return fmt.Sprintf("the first %d KiB are equal", diffBytes>>10)
	}
	if _, after, ok := strings.Cut(string(d), "\n"); ok { // without the line "diff before after"
		d = []byte(after)
	}
	if len(d) > diffText {
		d = append(d[:diffText], "\n…"...)
	}
	return string(d)
}

func hexLines(b []byte) []byte {
	b = b[:min(len(b), diffBytes)]
	var out []byte
	for len(b) > 0 {
		n := min(len(b), 16)
		for i, x := range b[:n] {
			if strings.IndexByte("\n,;>}\x00", x) >= 0 {
				n = i + 1
				break
			}
		}
		out = fmt.Appendf(out, "%-47s  ", fmt.Sprintf("% x", b[:n]))
		for _, x := range b[:n] {
			if x < ' ' || x > '~' {
				x = '.'
			}
			out = append(out, x)
		}
		out, b = append(out, '\n'), b[n:]
	}
	return out
}

func fieldsDiff(was, is *decode.Result, headersWere, headers amqp.Table) []Change {
	var d fields
	if was.Value == nil && is.Value == nil {
		d.compare("body", was.Text, is.Text)
	} else {
		d.compare("body", orNone(was.Value), orNone(is.Value))
	}
	d.compare("header", orNone(headersWere), orNone(headers))
	return d.all
}

// fields finds where two documents differ. Its paths are as long as people read, and
// made only where something differs: a key may have a megabyte, and a thousand below it.
type fields struct{ all []Change }

// none is what is not there: what only the other has, a body without structure, and
// a table without headers.
type none struct{}

func orNone(v any) any {
	if t, ok := v.(amqp.Table); v == nil || ok && len(t) == 0 {
		return none{}
	}
	return v
}

// maxPathLen is how many bytes of a path are shown.
const maxPathLen = 500

func (d *fields) compare(path string, a, b any) {
	if len(d.all) > maxFields {
		return
	}
	if len(path) > maxPathLen {
		path = strings.ToValidUTF8(path[:maxPathLen], "") + "…"
	}
	am, al := parts(a)
	bm, bl := parts(b)
	noA, noB := a == none{}, b == none{}
	switch {
	case len(am) > 0 && (len(bm) > 0 || noB), noA && len(bm) > 0:
		names := slices.AppendSeq(slices.Collect(maps.Keys(am)), maps.Keys(bm))
		slices.Sort(names)
		for _, name := range slices.Compact(names) {
			d.compare(path+"."+name, member(am, name), member(bm, name))
		}
	case len(al) > 0 && (len(bl) > 0 || noB), noA && len(bl) > 0:
		for i := range max(len(al), len(bl)) {
			d.compare(fmt.Sprintf("%s[%d]", path, i), nth(al, i), nth(bl, i))
		}
	case !noA && !noB && len(am)+len(al)+len(bm)+len(bl) > 0: // of two shapes
		d.compare(path, a, none{})
		d.compare(path, none{}, b)
	default:
		d.leaf(path, a, b)
	}
}

func (d *fields) leaf(path string, a, b any) {
	before, after := leafText(a), leafText(b)
	switch {
	case (a == none{}) == (b == none{}) && before == after:
	case len(d.all) == maxFields:
		d.all = append(d.all, Change{Path: "…", After: "there are more differences"})
	default:
		d.all = append(d.all, Change{Path: path, Before: Short(before), After: Short(after)})
	}
}

// parts returns what is in a table or a list. An empty one is a leaf.
func parts(v any) (table map[string]any, list []any) {
	switch v := v.(type) {
	case amqp.Table:
		table = v
	case map[string]any:
		table = v
	case []any:
		list = v
	}
	return table, list
}

func member(m map[string]any, name string) any {
	if v, ok := m[name]; ok {
		return v
	}
	return none{}
}

func nth(l []any, i int) any {
	if i < len(l) {
		return l[i]
	}
	return none{}
}

func leafText(v any) string {
	switch v := v.(type) {
	case none:
		return ""
	case time.Time:
		return v.UTC().Format(time.RFC3339)
	case []byte:
		return fmt.Sprintf("%x", v)
	case string:
		return v
	}
	b, err := json.Marshal(v)
	if err != nil {
		b = fmt.Append(nil, v)
	}
	return string(b)
}

// Short is the beginning of a text that comes from a message.
func Short(s string) string {
	s = strings.ToValidUTF8(s, "\ufffd")
	if utf8.RuneCountInString(s) <= fieldText {
		return s
	}
	return string([]rune(s)[:fieldText]) + "…"
}
