package broker

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/redrive-mq/redrive/wire"
)

// header is a content header with a content type and a header table.
func header(table ...[]byte) []byte {
	p := append(make([]byte, 12), 0xA0, 0x00) // flags: content type, headers
	p = append(p, 1, 'c')
	return append(p, sized(bytes.Join(table, nil))...)
}

func sized(b []byte) []byte { return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...) }

func entry(name string, kind byte, value []byte) []byte {
	return append(append([]byte{byte(len(name))}, name...), append([]byte{kind}, value...)...)
}

// nested is a list in a list, so many deep.
func nested(depth int) []byte {
	b := sized(nil)
	for range depth - 1 {
		b = sized(append([]byte{'A'}, b...))
	}
	return b
}

func TestHeadersAreRepairedOnlyWhereTheClientCannotReadThem(t *testing.T) {
	large := make([]byte, 8)
	binary.BigEndian.PutUint64(large, 1<<40)
	many := make([][]byte, maxElements+1)
	for i := range many {
		many[i] = entry(fmt.Sprintf("%05d", i), 'V', nil)
	}
	death := entry("x-death", 'A', sized(nil))
	for _, c := range []struct {
		name       string
		in, want   []byte
		note, lost string
	}{
		{"nothing to repair", header(entry("a", 'S', sized([]byte("L")))), header(entry("a", 'S', sized([]byte("L")))), "", ""},
		{"L", header(entry("a", 'L', large)), header(entry("a", 'l', large)), "type L", ""},
		{"L within a table within a list",
			header(entry("a", 'A', sized(append([]byte{'F'}, sized(entry("b", 'L', large))...)))),
			header(entry("a", 'A', sized(append([]byte{'F'}, sized(entry("b", 'l', large))...)))), "type L", ""},
		{"as deep as may be", header(entry("a", 'A', nested(maxNesting))), header(entry("a", 'A', nested(maxNesting))), "", ""},
		{"too deep", header(entry("a", 'A', nested(maxNesting+1))), header(entry("a", 'x', nested(maxNesting+1))), "", `"a" is nested`},
		{"a list too long", header(entry("a", 'A', sized(bytes.Repeat([]byte{'V'}, maxElements+1)))),
			header(entry("a", 'x', sized(bytes.Repeat([]byte{'V'}, maxElements+1)))), "", "more than 8192 entries"},
		{"too many headers", header(append(many, death)...),
			header(death, entry(wire.HeaderUnreadable, 'x', sized(bytes.Join(append(many, death), nil)))), "", "8194 headers"},
		{"an unknown type is the client's to judge", header(entry("a", '?', nil)), header(entry("a", '?', nil)), "", ""},
		{"a length past the end", header(entry("a", 'S', []byte{0, 0, 0, 9, 'x'})), header(entry("a", 'S', []byte{0, 0, 0, 9, 'x'})), "", ""},
	} {
		got, m := repairHeader(bytes.Clone(c.in))
		if !bytes.Equal(got, c.want) {
			t.Errorf("%s: got %.200q", c.name, got)
		}
		if !strings.Contains(m.note, c.note) || (c.note == "") != (m.note == "") {
			t.Errorf("%s: note %q", c.name, m.note)
		}
		if !strings.Contains(m.cannotRepublish, c.lost) || (c.lost == "") != (m.cannotRepublish == "") {
			t.Errorf("%s: cannot be republished: %q", c.name, m.cannotRepublish)
		}
	}
}

// Whatever arrives, the repair does not panic, and repaired headers need no second one.
func FuzzHeaderRepair(f *testing.F) {
	f.Add(header(entry("a", 'L', make([]byte, 8))))
	f.Add(header(entry("a", 'A', nested(maxNesting+2))))
	f.Add(header(entry("x-death", 'A', sized(append([]byte{'F'}, sized(entry("count", 'l', make([]byte, 8)))...)))))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, p []byte) {
		once, m := repairHeader(bytes.Clone(p))
		duplicateHeader := m.duplicateHeader
		if m.duplicateHeader = ""; m == (headerRepair{}) {
			return
		}
		twice, again := repairHeader(bytes.Clone(once))
		if duplicateHeader == "" && again.duplicateHeader != "" {
			t.Errorf("repairing duplicated a name: %s", again.duplicateHeader)
		}
		if again.duplicateHeader = ""; again != (headerRepair{}) || !bytes.Equal(once, twice) {
			t.Errorf("repaired twice: %+v, then %+v", m, again)
		}
	})
}
