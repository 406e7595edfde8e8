// Package decode makes bodies readable: a chain of steps (base64, compression, JSON, Protobuf…) that never fails,
// reports what each step found, and stays within its limits of memory and time, whatever the bytes are.
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

// Limits. All memory and time that a body can take follow from them.
const (
	maxOutput   = 8 << 20  // bytes of a step's output, and of Text
	maxRatio    = 100      // output to input of a step,
	smallOutput = 64 << 10 // for outputs above this
	maxNesting  = 100
	maxSteps    = 8
	maxValues   = 250_000 // values of a document; each takes about 100 bytes
	maxHex      = 4 << 10
	maxFound    = 1 << 10
)

// maxTime bounds decoding one body. Tests raise it: a busy machine is no fault.
var maxTime = time.Second

// Body is a body, and what its message says about it. Messages are not trusted: what
// one says chooses among configured types, never a file or a limit.
type Body struct {
	Bytes           []byte
	Queue           string
	ContentType     string
	ContentEncoding string
	Type            string // the type property
	Headers         map[string]any
}

// Options are the options of the config file.
type Options struct {
	Protobuf Protobuf
}

// Decoder decodes bodies. It is safe for concurrent use.
type Decoder struct {
	schemas atomic.Pointer[schemas]
}

func New(o Options) (*Decoder, error) {
	d := &Decoder{}
	apply, err := d.Reload(o)
	if err == nil {
		apply()
	}
	return d, err
}

// Reload loads the files again; apply puts them in force.
func (d *Decoder) Reload(o Options) (apply func(), err error) {
	s, err := load(o.Protobuf)
	return func() { d.schemas.Store(s) }, err
}

// Decode decodes a body as far as it can. It never fails: a step's Found says what the step
// could not do.
func (d *Decoder) Decode(ctx context.Context, b Body) *Result { return d.read(ctx, b).result }

// reading is a body while it is decoded, layer by layer.
type reading struct {
	schemas *schemas
	ctx     context.Context
	since   time.Time
	body    Body
	media   string            // the content type, without its parameters
	params  map[string]string // of the content type
	codings []string          // declared and known content encodings that are not yet undone
	result  *Result
	data    []byte // the innermost bytes so far
	layers  []layer
	charset bool // a step made data UTF-8
	partial bool // data is only the beginning
	trying  bool // this is a trial: accept only what is certain
	// encode returns the innermost bytes of an edited document, and what it checked.
	encode func(document string) ([]byte, []string, error)
}

// layer is an encoding that was undone, with the way to redo it.
type layer struct {
	decoder string
	wrap    func(inner []byte) ([]byte, error) // the reverse
}

func (d *Decoder) read(ctx context.Context, b Body) *reading {
	r := &reading{schemas: d.schemas.Load(), ctx: ctx, since: time.Now(), body: b, data: b.Bytes,
		result: &Result{Size: len(b.Bytes), Steps: []Step{}}}
	r.media, r.params = mediaType(b.ContentType)
	separates := func(c rune) bool { return c == ',' || c == ' ' || c == ';' }
	for c := range strings.FieldsFuncSeq(strings.ToLower(b.ContentEncoding), separates) {
		if undo[c] != "" && len(r.codings) < maxSteps {
			r.codings = append(r.codings, c)
		}
	}
	for len(r.data) > 0 && !r.partial && r.unwrap() {
		if len(r.layers) == maxSteps {
			r.step("hex", fmt.Sprintf("%d layers are the most that are undone", maxSteps))
			r.partial = true
		}
	}
	for _, c := range r.codings {
		r.step(undo[c], "the content encoding says so, and it is not")
	}
	r.leaf()
	r.result.Inner = r.data
	r.result.Truncated = r.result.Truncated || r.partial
	r.result.Hex = hex.Dump(r.data[:min(len(r.data), maxHex)])
	return r
}

// mediaType parses a content type, even a malformed one.
func mediaType(s string) (string, map[string]string) {
	t, params, err := mime.ParseMediaType(s)
	if err != nil {
		t, _, _ = strings.Cut(strings.ToLower(s), ";")
	}
	return strings.TrimSpace(t), params
}

// step records what a decoder found, which may quote the body.
func (r *reading) step(decoder, found string) {
	if found = shown(found); len(found) > maxFound {
		found = strings.ToValidUTF8(found[:maxFound], "") + "…"
	}
	r.result.Steps = append(r.result.Steps, Step{Decoder: decoder, Found: found, Size: len(r.data)})
}

// attempt runs a decoder, and reports whether it applied. One that panics did not.
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
	errNesting = fmt.Errorf("is nested more than %d deep", maxNesting)
	errValues  = fmt.Errorf("has more than %d values", maxValues)
	errTime    = fmt.Errorf("takes longer than %v", maxTime)
)

// refused reports whether an error is about a limit: the bytes may still be of the format.
func refused(err error) bool {
	return errors.Is(err, errNesting) || errors.Is(err, errValues) || errors.Is(err, errTag) || errors.Is(err, errTime)
}

type budget struct {
	r      *reading
	values int
}

func (r *reading) budget() *budget { return &budget{r: r} }

// take counts one more value, at a depth counted from 0.
func (b *budget) take(depth int) error {
	b.values++
	switch {
	case depth > maxNesting:
		return errNesting
	case b.values > maxValues:
		return errValues
	case b.values%1024 == 0:
		return b.r.late()
	}
	return nil
}

func (r *reading) late() error {
	if r.ctx.Err() != nil || time.Since(r.since) > maxTime {
		return errTime
	}
	return nil
}

type Result struct {
	Size  int    `json:"size" doc:"Of the raw body, in bytes."`
	Steps []Step `json:"steps" doc:"What each decoder found, outermost first."`
	// Format is what the innermost bytes are; hidden: not for the caller to know.
	Format string `json:"format" enum:"empty,json,text,xml,messagepack,cbor,protobuf,binary,hidden"`
	// Text is the innermost content for people: indented JSON for json, messagepack, cbor and protobuf; else the text.
	// It is valid UTF-8, with invalid bytes shown as \xHH, and at most the limit long. Empty for binary.
	Text string `json:"text,omitempty"`
	// Hex is a hex dump of the innermost bytes, its first 4 KiB.
	Hex string `json:"hex,omitempty"`
	// Truncated: Text is not all of it.
	Truncated bool `json:"truncated,omitempty"`
	// Schema is the Protobuf message type that was used, and which rule chose it;
	// empty for a view without one.
	Schema string `json:"schema,omitempty"`
	Masked string `json:"masked,omitempty" doc:"Why not all of it is shown to you."`
	// Value is the innermost content as Go values for queries: map[string]any, []any,
	// string, bool, nil, json.Number (exact). nil where there is no structure.
	Value any    `json:"-"`
	Inner []byte `json:"-"`
}

type Step struct {
	Decoder string `json:"decoder" doc:"Such as base64, gzip, confluent, json, text or protobuf."`
	Found   string `json:"found" doc:"What it decoded, or why it stopped."`
	Size    int    `json:"size" doc:"Of what came out, in bytes."`
}

// said returns the format that the content type names, or "".
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

// leaf decodes the innermost bytes: first as the content type says, then by what the
// bytes show, the strictest test first.
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
	case r.partial || len(r.data) > maxOutput:
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
	// Bytes go before a content type of text: libraries set text/plain by default.
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

// trial returns a reading of what may be inside a layer, without undoing that layer.
func (r *reading) trial(inner []byte) *reading {
	return &reading{schemas: r.schemas, ctx: r.ctx, since: r.since, body: r.body, media: r.media, params: r.params,
		trying: true, result: &Result{}, data: inner}
}

// formats decode the innermost bytes; said: the content type names the format. schema is
// Protobuf of a configured type.
var formats = map[string]func(r *reading, said bool) bool{"json": (*reading).json, "text": (*reading).text,
	"xml": (*reading).xml, "messagepack": (*reading).messagepack, "cbor": (*reading).cbor,
	"schema": (*reading).schema, "protobuf": (*reading).protobuf}

func (r *reading) format(name string, said bool) bool {
	return r.attempt(strings.Replace(name, "schema", "protobuf", 1), func() bool { return formats[name](r, said) })
}

func (r *reading) binary() {
	r.result.Format = "binary"
	r.step("hex", "no decoder knows it: as bytes")
}

// recognised reports whether bytes are of a known format, rather than a word decoded as base64.
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

const unchanged = "nothing is changed"

// Encode wraps an edited document (Decode's Text) in the layers that Decode undid, and returns in words what it
// checked. The parts of a JSON document that were not edited keep their bytes, as does an unedited document.
func (d *Decoder) Encode(ctx context.Context, b Body, document string) ([]byte, []string, error) {
	r := d.read(ctx, b)
	switch {
	case r.result.Truncated:
		return nil, nil, errors.New("the body is shown only in part, so it cannot be edited here")
	case document == r.result.Text && r.encode != nil:
		return b.Bytes, []string{unchanged}, nil
	case r.encode == nil:
		return nil, nil, fmt.Errorf("a body that is %s cannot be edited as text", r.result.Format)
	}
	out, checks, err := r.encode(document)
	if err != nil {
		return nil, nil, err
	}
	if bytes.Equal(out, r.data) {
		return b.Bytes, []string{unchanged}, nil // compressed again, it could have other bytes
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
	b.Bytes = out // a format that was guessed must still be guessed
	if now := d.Decode(ctx, b); now.Format != r.result.Format {
		checks = append(checks, fmt.Sprintf("it will be read as %s, no longer as %s", now.Format, r.result.Format))
	}
	return out, checks, nil
}
