package decode

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// xmlReader checks that XML is well-formed and lays it out, in pieces of the
// document as they are typed. No entity is expanded but XML's own five: encoding/xml
// knows no others, and reads no file.
type xmlReader struct {
	b     *budget
	names []string // open elements
	out   []byte
	root  string
	mixed []bool // of each open element: it has text, so nothing may be put between
	lines bool   // the last open element has children on lines of their own
}

// tagReader ends the reading of a tag that is longer than mostTag.
type tagReader struct {
	*bytes.Reader
	s     []byte
	token int64 // where what is being read begins
}

// ReadByte is what encoding/xml reads by.
func (r *tagReader) ReadByte() (byte, error) {
	at := int64(len(r.s) - r.Len())
	if at-r.token > mostTag && r.s[r.token] == '<' && r.s[r.token+1] != '!' && r.s[r.token+1] != '?' {
		return 0, errTag
	}
	return r.Reader.ReadByte()
}

// mostTag is how long a tag may be: encoding/xml keeps 64 bytes for each attribute.
const mostTag = 64 << 10

func parseXML(s []byte, b *budget) (*xmlReader, error) {
	x := &xmlReader{b: b}
	in := &tagReader{Reader: bytes.NewReader(s), s: s}
	d := xml.NewDecoder(in)
	d.CharsetReader = func(charset string, in io.Reader) (io.Reader, error) {
		if strings.HasPrefix(strings.ToLower(charset), "utf-16") || utf8.Valid(s) {
			return in, nil // it became UTF-8 in an earlier step
		}
		return nil, fmt.Errorf("its charset is %.40q", charset)
	}
	for {
		in.token = d.InputOffset()
		t, err := d.RawToken()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = b.take(len(x.names))
		}
		if err == nil {
			err = x.token(t, s[in.token:d.InputOffset()])
		}
		if err != nil {
			line, column := d.InputPos()
			return nil, fmt.Errorf("line %d, column %d: %w", line, column, err)
		}
	}
	if len(x.names) > 0 {
		return nil, fmt.Errorf("it ends before </%s>", x.names[len(x.names)-1])
	}
	if x.root == "" {
		return nil, errors.New("it has no element")
	}
	return x, nil
}

func (x *xmlReader) token(t xml.Token, raw []byte) error {
	depth := len(x.names)
	switch t := t.(type) {
	case xml.StartElement:
		if depth == 0 && x.root != "" {
			return errors.New("a second element follows the first")
		}
		for i, a := range t.Attr {
			for _, b := range t.Attr[:min(i, 100)] {
				if a.Name == b.Name {
					return fmt.Errorf("the attribute %q is there twice", a.Name.Local)
				}
			}
		}
		name := qualified(t.Name)
		if x.root == "" {
			x.root = name
		}
		x.line(depth)
		x.names, x.mixed, x.lines = append(x.names, name), append(x.mixed, false), false
	case xml.EndElement:
		if depth == 0 || qualified(t.Name) != x.names[depth-1] {
			return fmt.Errorf("</%s> closes what is not open", qualified(t.Name))
		}
		if len(raw) == 0 {
			return x.pop() // <a/>
		}
		if x.lines {
			x.line(depth - 1)
		}
		x.put(raw)
		return x.pop()
	case xml.CharData:
		blank := len(bytes.TrimSpace(raw)) == 0
		if depth == 0 {
			if !blank {
				return errors.New("text outside of all elements")
			}
			return nil
		}
		if blank && !x.mixed[depth-1] {
			return nil
		}
		x.mixed[depth-1] = true
	default:
		x.line(depth)
	}
	x.put(raw)
	return nil
}

func (x *xmlReader) put(raw []byte) {
	if len(x.out) <= mostOutput {
		x.out = append(x.out, raw...)
	}
}

func (x *xmlReader) pop() error {
	depth := len(x.names) - 1
	x.names, x.mixed, x.lines = x.names[:depth], x.mixed[:depth], depth > 0 && !x.mixed[depth-1]
	return nil
}

// line begins a line, unless text stands around.
func (x *xmlReader) line(depth int) {
	if depth > 0 && x.mixed[depth-1] || len(x.out) == 0 {
		return
	}
	x.lines = true
	x.put([]byte("\n" + strings.Repeat("  ", depth)))
}

var errTag = fmt.Errorf("has a tag of more than %d KiB", mostTag>>10)

func qualified(n xml.Name) string { return strings.TrimPrefix(n.Space+":"+n.Local, ":") }

func (r *reading) xml(said bool) bool {
	if s := bytes.TrimLeft(r.data, " \t\r\n"); !said && (len(s) < 4 || s[0] != '<') {
		return false
	}
	x, err := parseXML(r.data, r.budget())
	if err != nil {
		if said || refused(err) {
			r.step("xml", "not read as XML: "+err.Error())
		}
		return false
	}
	r.result.Format = "xml"
	r.result.Text, r.result.Truncated = cut(shown(string(x.out)))
	r.step("xml", fmt.Sprintf("XML, well-formed, its element is %s", shown(x.root)))
	r.encode = func(document string) ([]byte, []string, error) {
		x, err := parseXML([]byte(document), r.budget())
		if err != nil {
			return nil, nil, fmt.Errorf("not XML: %w", err)
		}
		return []byte(document), []string{"XML, well-formed, its element is " + x.root + "; laid out in lines as shown"}, nil
	}
	return true
}
