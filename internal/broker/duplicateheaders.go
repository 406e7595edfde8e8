package broker

import (
	"fmt"
	"slices"
	"strings"
)

// duplicateIn returns why the x-death headers of a table prove nothing: a name is there twice, or
// the table cannot be read. AMQP allows two headers of one name, and two fields of one name
// in an entry of x-death. RabbitMQ 3.10 writes to the first of them and keeps both, and
// amqp091-go reads the last: the publisher's. [measured on 3.10.8; 4.3.6 replaces them] Only
// the frame shows both.
func duplicateIn(table []byte) string {
	var seen []string
	for t := table; len(t) > 0; {
		name, value, ok := cutName(t)
		if !ok {
			return malformedTable
		}
		rest, ok := skipValue(value)
		if !ok {
			return malformedTable
		}
		t = rest
		if !deathHeader(name) {
			continue
		}
		if slices.Contains(seen, string(name)) {
			return fmt.Sprintf("it has the header %q twice", name)
		}
		seen = append(seen, string(name))
		if why := duplicateField(name, value); why != "" {
			return why
		}
	}
	return ""
}

const malformedTable = "its header table is malformed"

func deathHeader(name []byte) bool {
	s := string(name)
	return s == "x-death" || strings.HasPrefix(s, "x-first-death-") || strings.HasPrefix(s, "x-last-death-")
}

// duplicateField finds a field that is there twice in an entry of a list of tables.
func duplicateField(header, value []byte) string {
	if value[0] != 'A' {
		return ""
	}
	list, _, ok := cutLong(value[1:])
	if !ok {
		return malformedTable
	}
	for n := 1; len(list) > 0; n++ {
		rest, ok := skipValue(list)
		if !ok {
			return malformedTable
		}
		entry := list
		list = rest
		if entry[0] != 'F' {
			continue
		}
		fields, _, ok := cutLong(entry[1:])
		if !ok {
			return malformedTable
		}
		seen := map[string]bool{}
		for len(fields) > 0 {
			name, v, ok := cutName(fields)
			if !ok {
				return malformedTable
			}
			if seen[string(name)] {
				return fmt.Sprintf("entry %d of its header %q has the field %q twice", n, header, name)
			}
			seen[string(name)] = true
			if fields, ok = skipValue(v); !ok {
				return malformedTable
			}
		}
	}
	return ""
}

// cutName cuts the name off an entry of a table; the value has at least one byte.
func cutName(t []byte) (name, value []byte, ok bool) {
	n := 1 + int(t[0])
	if len(t) < n+1 {
		return nil, nil, false
	}
	return t[1:n], t[n:], true
}
