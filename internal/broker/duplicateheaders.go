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
	for len(table) > 0 {
		name, value, rest, ok := cutEntry(table)
		if !ok {
			return malformedTable
		}
		table = rest
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

// duplicateField finds a field that is there twice in an entry of a list of tables. The list is
// whole: cutEntry has cut it off.
func duplicateField(header, value []byte) string {
	if value[0] != 'A' {
		return ""
	}
	list, _, _ := cutLong(value[1:])
	for n := 1; len(list) > 0; n++ {
		entry := list
		var ok bool
		if list, ok = skipValue(entry); !ok {
			return malformedTable
		}
		if entry[0] != 'F' {
			continue
		}
		fields, _, _ := cutLong(entry[1:])
		seen := map[string]bool{}
		for len(fields) > 0 {
			name, _, rest, ok := cutEntry(fields)
			if !ok {
				return malformedTable
			}
			if seen[string(name)] {
				return fmt.Sprintf("entry %d of its header %q has the field %q twice", n, header, name)
			}
			seen[string(name)] = true
			fields = rest
		}
	}
	return ""
}

// cutEntry cuts the first entry off a table that is not empty; value begins with its type. ok is
// false where it is not well formed; what the value contains is not looked at.
func cutEntry(table []byte) (name, value, rest []byte, ok bool) {
	n := 1 + int(table[0])
	if len(table) < n+1 {
		return nil, nil, nil, false
	}
	rest, ok = skipValue(table[n:])
	return table[1:n], table[n : len(table)-len(rest)], rest, ok
}

// skipValue returns what follows a value, whose first byte is its type; ok is false where it is
// longer than p.
func skipValue(p []byte) (rest []byte, ok bool) {
	if n, sized := valueSizes[p[0]]; sized {
		if len(p) < 1+n {
			return nil, false
		}
		return p[1+n:], true
	}
	_, rest, ok = cutLong(p[1:])
	return rest, ok
}
