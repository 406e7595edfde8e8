// Package decode shows a body as people can read it: a chain of steps (base64,
// compression, JSON, Protobuf…) that never fails, says what each step found, and
// never takes more than its limits of memory and time, whatever the bytes are.
package decode

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"mime"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// Limits, whatever the bytes are. All memory and time a body can take follows from
// them.
const (
	mostOutput  = 8 << 20  // bytes that come out of a step, and of Text
	mostRatio   = 100      // times the size a step makes of its bytes,
	smallOutput = 64 << 10 // when that is more than this
	mostNesting = 100
	mostSteps   = 8
	mostValues  = 250_000 // values of a document; each takes about 100 bytes
	mostTime    = time.Second
	mostHex     = 4 << 10
	mostFound   = 1 << 10
)

// Body is what is to be read, and what its message says about it. A message is a
// stranger's: what it says chooses among what is configured, never a file or a limit.
type Body struct {
	Bytes           []byte
	Queue           string
	ContentType     string
	ContentEncoding string
	Type            string // the type property
	Headers         map[string]any
}

// Options is what the configuration says.
type Options struct {
	Protobuf Protobuf
}

// Decoder reads bodies. Any number of goroutines may use it at once.
type Decoder struct {
	schemas atomic.Pointer[schemas]
}

// New reads the files that the options name.
func New(o Options) (*Decoder, error) {
	d := &Decoder{}
	apply, err := d.Reload(o)
	if err == nil {
		apply()
	}
	return d, err
}

// Reload reads them again; apply puts them in force for the bodies from then on.
func (d *Decoder) Reload(o Options) (apply func(), err error) {
	s, err := load(o.Protobuf)
	return func() { d.schemas.Store(s) }, err
}

// Decode reads a body as far as it can. It never fails: what a step could not do is
// in its words.
func (d *Decoder) Decode(ctx context.Context, b Body) *Result { return d.read(ctx, b).result }

// reading is one body that is being read, layer by layer.
type reading struct {
	schemas *schemas
	ctx     context.Context
	since   time.Time
	body    Body
	media   string            // the content type, without its parameters
	params  map[string]string // of the content type
	codings []string          // content encodings that are said, that we know, and that are not yet undone
	result  *Result
	data    []byte // the innermost bytes so far
	layers  []layer
	charset bool // data is UTF-8 that a step made
	partial bool // data is only the beginning
	trying  bool // this is a trial: only what is certain counts
	// encode makes the innermost bytes of an edited document, and says what it checked.
	encode func(document string) ([]byte, []string, error)
}

// layer is a step that has something inside.
type layer struct {
	decoder string
	wrap    func(inner []byte) ([]byte, error) // undoes it
}

func (d *Decoder) read(ctx context.Context, b Body) *reading {
	r := &reading{schemas: d.schemas.Load(), ctx: ctx, since: time.Now(), body: b, data: b.Bytes,
		result: &Result{Size: len(b.Bytes), Steps: []Step{}}}
	r.media, r.params = mediaType(b.ContentType)
	for c := range strings.FieldsFuncSeq(strings.ToLower(b.ContentEncoding), func(c rune) bool {
		return c == ',' ||
			c == ' ' || c == ';'
	}) {
		if undo[c] != "" && len(r.codings) < mostSteps {
			r.codings = append(r.codings, c)
		}
	}
	for len(r.data) > 0 && !r.partial && r.unwrap() {
		if len(r.layers) == mostSteps {
			r.step("hex", fmt.Sprintf("%d layers are the most that are undone", mostSteps))
			r.partial = true
		}
	}
	for _, c := range r.codings {
		r.step(undo[c], "the content encoding says so, and it is not")
	}
	r.leaf()
	r.result.Inner = r.data
	r.result.Truncated = r.result.Truncated || r.partial
	r.result.Hex = hex.Dump(r.data[:min(len(r.data), mostHex)])
	return r
}

// mediaType also reads a content type that is not quite right.
func mediaType(s string) (string, map[string]string) {
	t, params, err := mime.ParseMediaType(s)
	if err != nil {
		t, _, _ = strings.Cut(strings.ToLower(s), ";")
	}
	return strings.TrimSpace(t), params
}

// step notes what a decoder has found, which may quote the body.
func (r *reading) step(decoder, found string) {
	if found = shown(found); len(found) > mostFound {
		found = strings.ToValidUTF8(found[:mostFound], "") + "…"
	}
	r.result.Steps = append(r.result.Steps, Step{Decoder: decoder, Found: found, Size: len(r.data)})
}

// attempt runs a decoder, which says whether it applied. One that panics has not.
func (r *reading) attempt(decoder string, f func() bool) (applied bool) {
	before := *r
	defer func() {
		if p := recover(); p != nil {
			steps := r.result.Steps
			*r = before
			r.result.Steps = steps
			r.step(decoder, fmt.Sprintf("stopped by a mistake in it: %.100v", p))
			applied = false
		}
	}()
	return f()
}

var (
	errNesting = fmt.Errorf("is nested more than %d deep", mostNesting)
	errValues  = fmt.Errorf("has more than %d values", mostValues)
	errTime    = fmt.Errorf("takes longer than %v", mostTime)
)

// refused tells whether an error means that bytes are too much, although they may be of the format.
func refused(err error) bool {
	return errors.Is(err, errNesting) || errors.Is(err, errValues) || errors.Is(err, errTag) || errors.Is(err, errTime)
}

// budget is what is left for one document.
type budget struct {
	r      *reading
	values int
}

func (r *reading) budget() *budget { return &budget{r: r} }

// take asks for one more value at a depth that counts from 0.
func (b *budget) take(depth int) error {
	b.values++
	switch {
	case depth > mostNesting:
		return errNesting
	case b.values > mostValues:
		return errValues
	case b.values%1024 == 0:
		return b.r.late()
	}
	return nil
}

func (r *reading) late() error {
	if r.ctx.Err() != nil || time.Since(r.since) > mostTime {
		return errTime
	}
	return nil
}

// Result is a body as far as it could be read.
type Result struct {
	Size  int    `json:"size" doc:"Of the raw body, in bytes."`
	Steps []Step `json:"steps" doc:"What each decoder found, outermost first."`
	// Format is what the innermost bytes are.
	Format string `json:"format" enum:"empty,json,text,xml,messagepack,cbor,protobuf,binary"`
	// Text is the innermost content for people: indented JSON for json, messagepack,
	// cbor and protobuf; else the text. It is valid UTF-8, with invalid bytes shown
	// as \xHH, and at most the limit long. Empty for binary.
	Text string `json:"text,omitempty"`
	// Hex is a hex dump of the innermost bytes, its first 4 KiB.
	Hex string `json:"hex,omitempty"`
	// Truncated: Text is not all of it.
	Truncated bool `json:"truncated,omitempty"`
	// Schema is the Protobuf message type that was used, and which rule chose it;
	// empty for a view without one.
	Schema string `json:"schema,omitempty"`
	// Value is the innermost content as Go values for queries: map[string]any, []any,
	// string, bool, nil, json.Number (exact). nil where there is no structure.
	Value any `json:"-"`
	// Inner is the innermost bytes.
	Inner []byte `json:"-"`
}

// Step is what one decoder found.
type Step struct {
	Decoder string `json:"decoder" doc:"Such as base64, gzip, confluent, json, text or protobuf."`
	Found   string `json:"found" doc:"What it decoded, or why it stopped."`
	Size    int    `json:"size" doc:"Of what came out, in bytes."`
}

// said is the format that the content type names, or "".
func (r *reading) said() string {
	m := r.media
	switch {
	case m == "application/json" || m == "text/json" || strings.HasSuffix(m, "+json"):
		return "json"
	case m == "application/xml" || m == "text/xml" || strings.HasSuffix(m, "+xml"):
		return "xml"
	case m == "application/msgpack" || m == "application/x-msgpack" || m == "application/vnd.msgpack":
		return "messagepack"
	case m == "application/cbor" || strings.HasSuffix(m, "+cbor"):
		return "cbor"
	case m == "application/protobuf" || m == "application/x-protobuf" || m == "application/vnd.google.protobuf" ||
		strings.HasSuffix(m, "+protobuf") || m == "application/x-google-protobuf":
		return "protobuf"
	case strings.HasPrefix(m, "text/"):
		return "text"
	}
	return ""
}

// leaf reads what is innermost. What the message says about it goes first, then
// what the bytes themselves show, the strictest test first.
func (r *reading) leaf() {
	if err := r.late(); err != nil {
		r.step("hex", "stopped: "+err.Error())
		r.partial = true
	}
	switch {
	case len(r.data) == 0:
		r.result.Format = "empty"
		r.encode = func(document string) ([]byte, []string, error) { return []byte(document), []string{"text"}, nil }
		return
	case r.partial || len(r.data) > mostOutput:
		if !r.attempt("text", func() bool { return r.text(false) }) {
			r.binary()
		}
		return
	}
	said := r.said()
	if said != "" && said != "text" && said != "protobuf" && r.format(said, true) {
		return
	}
	for _, f := range []string{"json", "schema", "xml"} {
		if f != said && r.format(f, false) {
			return
		}
		if f == "schema" && said == "protobuf" && r.format(said, true) {
			return
		}
	}
	// Text comes before a content type of text: libraries say text/plain of anything by default.
	if isText(r.data) && r.format("text", false) {
		return
	}
	if said != "protobuf" && r.schemas.chosen(r.body) && r.format("protobuf", true) {
		return // of another version, or broken
	}
	for _, f := range []string{"messagepack", "cbor", "protobuf"} {
		if f != said && r.format(f, false) {
			return
		}
	}
	if r.format("text", said == "text") {
		return
	}
	r.binary()
}

// trial reads bytes that may be inside of a layer, which is not undone for it.
func (r *reading) trial(inner []byte) *reading {
	return &reading{schemas: r.schemas, ctx: r.ctx, since: r.since, body: r.body, media: r.media, params: r.params,
		trying: true, result: &Result{}, data: inner}
}

// formats read what is innermost; said: the message says that it is that. schema is
// Protobuf of a type that the configuration knows.
var formats = map[string]func(r *reading, said bool) bool{"json": (*reading).json, "text": (*reading).text,
	"xml":         (*reading).xml,
	"messagepack": (*reading).messagepack, "cbor": (*reading).cbor, "schema": (*reading).schema,
	"protobuf": (*reading).protobuf}

func (r *reading) format(name string, said bool) bool {
	return r.attempt(strings.Replace(name, "schema", "protobuf", 1), func() bool { return formats[name](r, said) })
}

func (r *reading) binary() {
	r.result.Format = "binary"
	r.step("hex", "no decoder knows it: as bytes")
}

// recognised tells whether bytes are of a known format, and not what base64 makes of a word.
func (r *reading) recognised() bool {
	s := r.data
	if len(s) >= 12 && isText(s) || bytes.HasPrefix(s, []byte("\xef\xbb\xbf")) {
		return true
	}
	for _, magic := range []string{"\x1f\x8b\x08", "\x28\xb5\x2f\xfd"} {
		if strings.HasPrefix(string(s[:min(len(s), 4)]), magic) {
			return true
		}
	}
	if r.zlib() || r.confluent() {
		return true
	}
	for _, f := range []string{"json", "schema", "xml", "messagepack", "cbor", "protobuf"} {
		if r.format(f, false) {
			return true
		}
	}
	return false
}

// Encode puts an edited document (Text, as Decode gave it) back through the very
// steps that Decode undid, and says in words what it checked. An unedited one gives
// the very same bytes.
func (d *Decoder) Encode(ctx context.Context, b Body, document string) ([]byte, []string, error) {
	r := d.read(ctx, b)
	switch {
	case r.result.Truncated:
		return nil, nil, errors.New("the body is shown only in part, so it cannot be edited here")
	case document == r.result.Text && r.encode != nil:
		return b.Bytes, []string{"nothing is changed"}, nil
	case r.encode == nil:
		return nil, nil, fmt.Errorf("a body that is %s cannot be edited as text", r.result.Format)
	}
	out, checks, err := r.encode(document)
	if err != nil {
		return nil, nil, err
	}
	var names []string
	for _, l := range slices.Backward(r.layers) {
		if out, err = l.wrap(out); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", l.decoder, err)
		}
		names = append(names, l.decoder)
	}
	if len(names) > 0 {
		checks = append(checks, "inside of "+strings.Join(names, ", inside of ")+", as before")
	}
	// What is read by its looks must still look so.
	b.Bytes = out
	if now := d.Decode(ctx, b); now.Format != r.result.Format {
		checks = append(checks, fmt.Sprintf("it will be read as %s, no longer as %s", now.Format, r.result.Format))
	}
	return out, checks, nil
}
