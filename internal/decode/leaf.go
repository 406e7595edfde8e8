package decode

import (
	"bytes"
	"strings"
)

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
	case m == "application/protobuf" || m == "application/x-protobuf" || m == "application/vnd.google.protobuf" || strings.HasSuffix(m, "+protobuf") || m == "application/x-google-protobuf":
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
	return &reading{schemas: r.schemas, ctx: r.ctx, since: r.since, body: r.body, media: r.media, params: r.params, trying: true, result: &Result{}, data: inner}
}

// formats read what is innermost; said: the message says that it is that. schema is
// Protobuf of a type that the configuration knows.
var formats = map[string]func(r *reading, said bool) bool{"json": (*reading).json, "text": (*reading).text, "xml": (*reading).xml,
	"messagepack": (*reading).messagepack, "cbor": (*reading).cbor, "schema": (*reading).schema, "protobuf": (*reading).protobuf}

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
