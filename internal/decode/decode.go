package decode

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"mime"
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
	As              string // the Protobuf type that a person names; it is used before all others
	Guess           bool   // show Protobuf whose type nothing names by the loaded type that it fits best
	Defaults        bool   // show the fields of Protobuf that are not set, with their defaults
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
	r := &reading{schemas: d.schemas.Load(), ctx: ctx, since: time.Now(), body: b, data: b.Bytes, result: &Result{Size: len(b.Bytes), Steps: []Step{}}}
	r.media, r.params = mediaType(b.ContentType)
	for c := range strings.FieldsFuncSeq(strings.ToLower(b.ContentEncoding), func(c rune) bool { return c == ',' || c == ' ' || c == ';' }) {
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
