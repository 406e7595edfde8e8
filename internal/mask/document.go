package mask

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
)

// part is what is masked: a value as JSON, or a piece of a text.
type part struct {
	original string
	whole    bool // it is a value
}

// numbered is how a part is shown in a document, so that it can be put back.
var numbered = regexp.MustCompile(`\[masked (\d+)\]`)

// rewriter copies a document of JSON byte by byte, but for what is masked.
type rewriter struct {
	*Of
	text  string
	dec   *json.Decoder
	at    int // in text, up to where it is copied
	out   strings.Builder
	parts []part
}

// document masks a document of JSON.
func (of *Of) document(text string) (masked string, parts []part, err error) {
	w := &rewriter{Of: of, text: text, dec: json.NewDecoder(strings.NewReader(text))}
	w.dec.UseNumber()
	if err := w.value(of.body, ""); err != nil {
		return "", nil, err
	}
	if _, err := w.dec.Token(); !errors.Is(err, io.EOF) {
		return "", nil, errors.New("it is more than one document")
	}
	w.out.WriteString(text[w.at:])
	return w.out.String(), w.parts, nil
}

// Document masks a document of JSON, such as the text of a decoded body.
func (of *Of) Document(text string) (string, error) {
	masked, _, err := of.document(text)
	return masked, err
}

// separator copies what is between two tokens.
func (w *rewriter) separator() {
	end := w.at
	for end < len(w.text) && strings.IndexByte(" \t\r\n:,", w.text[end]) >= 0 {
		end++
	}
	w.out.WriteString(w.text[w.at:end])
	w.at = end
}

// token returns the next token, also as it is written.
func (w *rewriter) token() (json.Token, string, error) {
	w.separator()
	t, err := w.dec.Token()
	if err != nil {
		return nil, "", err
	}
	raw := w.text[w.at:w.dec.InputOffset()]
	w.at = int(w.dec.InputOffset())
	return t, raw, nil
}

func (w *rewriter) hide(original string, whole bool) string {
	w.parts = append(w.parts, part{original, whole})
	return fmt.Sprintf("[masked %d]", len(w.parts))
}

// skip replaces the next value.
func (w *rewriter) skip() error {
	w.separator()
	from := w.at
	for depth := 0; ; {
		t, err := w.dec.Token()
		if err != nil {
			return err
		}
		if d, ok := t.(json.Delim); ok && (d == '{' || d == '[') {
			depth++
		} else if ok {
			depth--
		}
		if depth == 0 {
			break
		}
	}
	w.at = int(w.dec.InputOffset())
	w.out.WriteString(quote(w.hide(w.text[from:w.at], true)))
	return nil
}

// value copies the next value; rems are the paths that may end in it, and name is its own.
func (w *rewriter) value(rems []string, name string) error {
	t, raw, err := w.token()
	if err != nil {
		return err
	}
	switch t := t.(type) {
	case json.Delim:
		w.out.WriteString(raw)
		for i := 0; w.dec.More(); i++ {
			next, masked, key := rems, false, strconv.Itoa(i)
			if t == '{' {
				if key, err = w.key(); err != nil {
					return err
				}
				next, masked = step(rems, strings.ToLower(key))
				masked = masked || key == "@unknown" && len(w.body) > 0 // bytes of fields that the schema lacks
			} else if next, masked = step(rems, key); !masked {
				next = append(next, rems...)
			}
			if masked {
				err = w.skip()
			} else {
				err = w.value(next, key)
			}
			if err != nil {
				return err
			}
		}
		_, raw, err := w.token()
		w.out.WriteString(raw)
		return err
	case string:
		bytes := ""
		if name == "$bytes" {
			bytes = decodeBase64(t)
		}
		if w.hidesInner(t, rems) || w.Text(bytes) != bytes {
			w.out.WriteString(quote(w.hide(raw, true)))
		} else {
			w.string(t, raw)
		}
	default:
		if w.Text(raw) != raw {
			raw = quote(w.hide(raw, true))
		}
		w.out.WriteString(raw)
	}
	return nil
}

func (w *rewriter) key() (string, error) {
	t, raw, err := w.token()
	if err != nil {
		return "", err
	}
	key, _ := t.(string)
	w.string(key, raw)
	return key, nil
}

// string copies a text, without what a pattern matches.
func (w *rewriter) string(text, raw string) {
	masked := text
	for _, p := range w.patterns {
		masked = p.mask(masked, func(s string) string { return w.hide(s, false) })
	}
	if masked != text {
		raw = quote(masked)
	}
	w.out.WriteString(raw)
}

func quote(s string) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(s) // a string is never refused
	return strings.TrimSuffix(b.String(), "\n")
}

// Errors of Restore.
var (
	errMoved = errors.New("a masked value was changed, moved or removed, and you cannot see it: leave each as it is")
	errJSON  = errors.New("it is not JSON")
)

// Restore puts what is masked in a document back into an edited copy of it. It refuses a copy in which a masked
// value is not where it was, or that would be shown otherwise than it was typed.
func (of *Of) Restore(original, edited string) (string, error) {
	_, parts, err := of.document(original)
	if err != nil {
		return "", err
	}
	w := &rewriter{Of: of, text: edited, dec: json.NewDecoder(strings.NewReader(edited))}
	w.dec.UseNumber()
	used := make([]int, len(parts))
	for {
		w.separator()
		t, err := w.dec.Token()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return "", errJSON
		}
		raw := edited[w.at:w.dec.InputOffset()]
		w.at = int(w.dec.InputOffset())
		s, isText := t.(string)
		if isText && numbered.MatchString(s) {
			raw = restored(s, parts, used)
		}
		w.out.WriteString(raw)
	}
	for _, n := range used {
		if n != 1 {
			return "", errMoved
		}
	}
	all := w.out.String()
	again, _, err := of.document(all)
	if err != nil || !sameDocument(again, edited) {
		return "", errMoved
	}
	return all, nil
}

// restored is a text as JSON, with the parts that it names.
func restored(s string, parts []part, used []int) string {
	var value string
	out := numbered.ReplaceAllStringFunc(s, func(mark string) string {
		n, err := strconv.Atoi(numbered.FindStringSubmatch(mark)[1])
		if err != nil || n < 1 || n > len(parts) {
			return mark
		}
		used[n-1]++
		if p := parts[n-1]; !p.whole {
			return p.original
		} else if mark == s {
			value = p.original
		}
		return mark
	})
	if value != "" {
		return value
	}
	return quote(out)
}

// sameDocument compares two documents, but for white space, escapes, and the numbers of masked values.
func sameDocument(a, b string) bool {
	x, y := json.NewDecoder(strings.NewReader(a)), json.NewDecoder(strings.NewReader(b))
	x.UseNumber()
	y.UseNumber()
	for {
		s, errS := x.Token()
		t, errT := y.Token()
		if errS != nil || errT != nil {
			return errors.Is(errS, io.EOF) && errors.Is(errT, io.EOF)
		}
		if plain(s) != plain(t) {
			return false
		}
	}
}

func plain(t json.Token) json.Token {
	if s, ok := t.(string); ok {
		return numbered.ReplaceAllString(s, Hidden)
	}
	return t
}
