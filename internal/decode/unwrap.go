package decode

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/klauspost/compress/zstd"
)

// undo maps content encodings to decoders; others, such as identity, utf-8 and binary,
// are ignored.
var undo = map[string]string{
	"base64": "base64", "x-base64": "base64", "gzip": "gzip", "x-gzip": "gzip",
	"deflate": "deflate", "zlib": "zlib", "zstd": "zstd", "x-zstd": "zstd",
}

// inside records an undone layer: out was inside of it, and wrap adds it again.
func (r *reading) inside(decoder, found string, out []byte, wrap func([]byte) ([]byte, error)) {
	r.data = out
	r.layers = append(r.layers, layer{decoder, wrap})
	r.step(decoder, found)
	for i, c := range slices.Backward(r.codings) {
		if undo[c] == decoder || undo[c] == "deflate" && decoder == "zlib" {
			r.codings = slices.Delete(r.codings, i, i+1)
			return
		}
	}
}

func (r *reading) unwrap() bool {
	if len(r.data) > 0 && r.late() != nil {
		return false
	}
	return r.attempt("gzip", r.gzip) || r.attempt("zlib", r.zlib) || r.attempt("zstd", r.zstd) ||
		r.attempt("deflate", r.deflate) ||
		r.attempt("text", r.recode) || r.attempt("confluent", r.confluent) || r.attempt("base64", r.base64)
}

func (r *reading) says(decoder string) bool {
	return slices.ContainsFunc(r.codings, func(c string) bool { return undo[c] == decoder })
}

var errBomb = fmt.Errorf("more than %d times its size comes out: a bomb? It was stopped", maxRatio)
var errOutput = fmt.Errorf("more than %d MiB come out: this is their beginning", maxOutput>>20)

func (r *reading) inflate(from io.Reader) (out []byte, err error) {
	limit, why := maxOutput, errOutput
	if n := max(len(r.data)*maxRatio, smallOutput); n < limit {
		limit, why = n, errBomb
	}
	var b bytes.Buffer
	for err == nil {
		if err = r.late(); err == nil {
			_, err = io.CopyN(&b, from, min(64<<10, int64(limit+1-b.Len())))
		}
		if b.Len() > limit {
			b.Truncate(limit)
			return b.Bytes(), why
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return b.Bytes(), err
}

// inflated continues with a decompressor's output; of damaged bytes, the output before the
// damage.
func (r *reading) inflated(decoder string, out []byte, err error, wrap func([]byte) ([]byte, error)) bool {
	found := fmt.Sprintf("%d bytes became %d", len(r.data), len(out))
	if err != nil {
		if len(out) == 0 {
			return false
		}
		found += "; broken after them: " + err.Error()
		if errors.Is(err, errBomb) || errors.Is(err, errOutput) || errors.Is(err, errTime) {
			found = fmt.Sprintf("%d bytes became %d, and %v", len(r.data), len(out), err)
		}
		r.partial = true
	}
	r.inside(decoder, found, out, wrap)
	return true
}

func (r *reading) gzip() bool {
	if !bytes.HasPrefix(r.data, []byte{0x1f, 0x8b, 8}) {
		return false
	}
	z, err := gzip.NewReader(bytes.NewReader(r.data))
	if err != nil {
		return false
	}
	out, err := r.inflate(z)
	header := z.Header
	return r.inflated("gzip", out, err, func(inner []byte) ([]byte, error) {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		w.Header = header
		return compressed(&b, w, inner)
	})
}

func compressed(b *bytes.Buffer, w io.WriteCloser, inner []byte) ([]byte, error) {
	if _, err := w.Write(inner); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// zlib has a header of two bytes that other formats may begin with too, so all of it must be valid
// unless the content encoding says zlib.
func (r *reading) zlib() bool {
	said := r.says("zlib") || r.says("deflate")
	if len(r.data) < 8 || r.data[0]&0x0f != 8 || (int(r.data[0])<<8|int(r.data[1]))%31 != 0 ||
		!said && r.data[0] != 0x78 {
		return false
	}
	z, err := zlib.NewReader(bytes.NewReader(r.data))
	if err != nil {
		return false
	}
	out, err := r.inflate(z)
	if !said && err != nil && !errors.Is(err, errBomb) && !errors.Is(err, errOutput) {
		return false
	}
	return r.inflated("zlib", out, err, func(inner []byte) ([]byte, error) {
		var b bytes.Buffer
		return compressed(&b, zlib.NewWriter(&b), inner)
	})
}

// deflate has no header, so the content encoding must say so, and all of it must be valid: another layer may be around
// it.
func (r *reading) deflate() bool {
	if !r.says("deflate") {
		return false
	}
	from := bytes.NewReader(r.data)
	out, err := r.inflate(flate.NewReader(from))
	if (err != nil || from.Len() > 0) && !errors.Is(err, errBomb) && !errors.Is(err, errOutput) {
		return false
	}
	return r.inflated("deflate", out, err, func(inner []byte) ([]byte, error) {
		var b bytes.Buffer
		w, err := flate.NewWriter(&b, flate.DefaultCompression)
		if err != nil {
			return nil, err
		}
		return compressed(&b, w, inner)
	})
}

// base64 must decode wholly. Unless the content encoding says base64, the output must be recognised: a word of eight
// letters is valid base64, too.
func (r *reading) base64() bool {
	said := r.says("base64")
	if len(r.data) < minBase64 && !said {
		return false
	}
	out, alphabet := unbase64(r.data)
	// A Protobuf message that is broken at the start is not recognised: trust its content type.
	said = said || r.said() == "protobuf" && r.schemas.chosen(r.body) && isText(r.data)
	if out == nil || !said && !r.trial(out).recognised() {
		return false
	}
	shape := shapeOf(r.data)
	r.inside("base64", fmt.Sprintf("%s, %d characters became %d bytes", alphabet.name, len(r.data), len(out)), out,
		func(inner []byte) ([]byte, error) {
			return shape.write(alphabet.EncodeToString(inner)), nil
		})
	return true
}

type alphabet struct {
	name string
	*base64.Encoding
}

var alphabets = []alphabet{
	{"base64", base64.StdEncoding}, {"base64 for URLs", base64.URLEncoding},
	{"base64 without padding", base64.RawStdEncoding}, {"base64 for URLs without padding", base64.RawURLEncoding},
}

const minBase64 = 8 // shorter ones are words

func unbase64(s []byte) ([]byte, alphabet) {
	s = bytes.TrimRight(s, "\r\n")
	if len(s) > maxOutput*4/3 {
		return nil, alphabet{}
	}
	for _, c := range s[:min(len(s), minBase64)] {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '+' || c == '/' || c == '-' ||
			c == '_' || c == '=') {
			return nil, alphabet{} // a fast path for most bodies
		}
	}
	for _, a := range alphabets {
		out := make([]byte, a.DecodedLen(len(s)))
		if n, err := a.Strict().Decode(out, s); err == nil && n > 0 {
			return out[:n], a
		}
	}
	return nil, alphabet{}
}

// shape is the line layout of base64.
type shape struct {
	width int // 0: one line
	line  string
	end   string
}

func shapeOf(s []byte) (sh shape) {
	body := bytes.TrimRight(s, "\r\n")
	sh.end, sh.line = string(s[len(body):]), "\n"
	if i := bytes.IndexByte(body, '\n'); i > 0 {
		if sh.width = i; body[i-1] == '\r' {
			sh.width, sh.line = i-1, "\r\n"
		}
	}
	return sh
}

func (sh shape) write(s string) []byte {
	var b bytes.Buffer
	for sh.width > 0 && len(s) > sh.width {
		b.WriteString(s[:sh.width] + sh.line)
		s = s[sh.width:]
	}
	b.WriteString(s + sh.end)
	return b.Bytes()
}

// maxWindow is the memory that a frame may ask for in advance; every decoder must support
// this much (RFC 8878).
const maxWindow = 8 << 20

func (r *reading) zstd() bool {
	if !bytes.HasPrefix(r.data, []byte{0x28, 0xb5, 0x2f, 0xfd}) {
		return false
	}
	// With concurrency 1 it starts no goroutines.
	z, err := zstd.NewReader(bytes.NewReader(r.data), zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxMemory(maxWindow+maxOutput), zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		return false
	}
	defer z.Close()
	out, err := r.inflate(z)
	return r.inflated("zstd", out, err, func(inner []byte) ([]byte, error) {
		w, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
		if err != nil {
			return nil, err
		}
		return w.EncodeAll(inner, nil), w.Close()
	})
}
