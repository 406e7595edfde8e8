package frameworks

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// fromJSON reads a document as far as it has the types that into has; false: it is no document.
func fromJSON(document []byte, into any) bool {
	d := json.NewDecoder(bytes.NewReader(document))
	d.UseNumber()
	err := d.Decode(into)
	var wrongType *json.UnmarshalTypeError
	return (err == nil || errors.As(err, &wrongType)) && len(bytes.TrimSpace(document[d.InputOffset():])) == 0
}

// isObject tells whether a body may be an object of JSON that has all members.
func isObject(body []byte, members ...string) bool {
	body = bytes.TrimLeft(body, " \t\r\n")
	if len(body) == 0 || body[0] != '{' {
		return false
	}
	for _, m := range members {
		if !bytes.Contains(body, []byte(`"`+m+`"`)) {
			return false
		}
	}
	return true
}

// loose is a value of JSON as text: a number is written as text by some versions.
type loose string

// UnmarshalJSON takes any value; one that is neither text nor a number is "".
func (l *loose) UnmarshalJSON(b []byte) error {
	switch {
	case len(b) > 0 && b[0] == '"':
		return json.Unmarshal(b, (*string)(l))
	case len(b) > 0 && (b[0] == '-' || b[0] >= '0' && b[0] <= '9'):
		*l = loose(b)
	}
	return nil
}

func (l loose) text() string { return printable(string(l)) }

// edited returns an object of JSON with its members as edit returns them; those for which keep is
// false are left out. All else stays as it is, to the byte.
func edited(object []byte, edit func(member string, value json.RawMessage) (now json.RawMessage, keep bool)) (json.RawMessage, error) {
	d := json.NewDecoder(bytes.NewReader(object))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, fmt.Errorf("it is no object of JSON: %v", err)
	}
	out := []byte{'{'}
	for d.More() {
		begin := d.InputOffset()
		key, err := d.Token()
		if err != nil {
			return nil, err
		}
		written := bytes.TrimLeft(object[begin:d.InputOffset()], ", \t\r\n")
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, err
		}
		member, _ := key.(string)
		now, keep := edit(member, value)
		if !keep {
			continue
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(append(append(out, written...), ':'), now...)
	}
	if _, err := d.Token(); err != nil {
		return nil, err
	}
	return append(out, '}'), nil
}

// without leaves members out.
func without(members ...string) func(string, json.RawMessage) (json.RawMessage, bool) {
	return func(member string, value json.RawMessage) (json.RawMessage, bool) {
		for _, m := range members {
			if m == member {
				return nil, false
			}
		}
		return value, true
	}
}
