package broker

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"pgregory.net/rapid"

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

func text(name, value string) []byte { return entry(name, 'S', sized([]byte(value))) }

func deathEntry(fields ...[]byte) []byte {
	return append([]byte{'F'}, sized(bytes.Join(fields, nil))...)
}

func deathList(name string, entries ...[]byte) []byte {
	return entry(name, 'A', sized(bytes.Join(entries, nil)))
}

func TestADeathHeaderThatStandsTwiceProvesNothing(t *testing.T) {
	own := deathEntry(text("queue", "mine"), text("reason", "rejected"))
	forged := deathEntry(text("queue", "secret"), text("reason", "rejected"))
	many := make([][]byte, maxElements+1)
	for i := range many {
		many[i] = entry(fmt.Sprintf("%05d", i), 'V', nil)
	}
	for _, c := range []struct {
		name  string
		table [][]byte
		want  string // "": it proves what it says
	}{
		{"as RabbitMQ writes it", [][]byte{deathList("x-death", own, forged), text("x-first-death-queue", "mine")}, ""},
		{"other headers twice", [][]byte{text("a", "1"), text("a", "2"), deathList("x-death", own)}, ""},
		{"two headers", [][]byte{deathList("x-death", own), text("a", "1"), deathList("x-death", forged)}, `the header "x-death" twice`},
		{"of two types", [][]byte{deathList("x-death", own), text("x-death", "x")}, `the header "x-death" twice`},
		{"two first deaths", [][]byte{text("x-first-death-queue", "a"), text("x-first-death-queue", "b")}, `"x-first-death-queue" twice`},
		{"two last deaths", [][]byte{text("x-last-death-queue", "a"), text("x-last-death-queue", "b")}, `"x-last-death-queue" twice`},
		{"a field twice", [][]byte{deathList("x-death", deathEntry(text("queue", "mine"), text("reason", "rejected"), text("queue", "secret")))}, `entry 1 of its header "x-death" has the field "queue" twice`},
		{"a field twice further on", [][]byte{deathList("x-death", own, []byte{'V'}, deathEntry(text("reason", "a"), text("reason", "b")))}, `entry 3 of`},
		{"too many headers besides", append(many, deathList("x-death", own), deathList("x-death", forged)), `the header "x-death" twice`},
		{"malformed after it", [][]byte{deathList("x-death", own), entry("a", 'S', []byte{0, 0, 0, 9, 'x'})}, malformedTable},
	} {
		_, m := repairHeader(header(c.table...))
		if !strings.Contains(m.duplicateHeader, c.want) || (c.want == "") != (m.duplicateHeader == "") {
			t.Errorf("%s: %q, want %q", c.name, m.duplicateHeader, c.want)
		}
	}
}

// Whatever the order and however many there are, a second x-death or a second field of
// one name in an entry is found, and nothing else is taken for one.
func TestEveryDoubledNameIsFound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		duplicateHeader, headers := false, 0
		var table [][]byte
		for range rapid.IntRange(0, 5).Draw(t, "headers") {
			if !rapid.Bool().Draw(t, "death") {
				table = append(table, text(rapid.SampledFrom([]string{"a", "b", "x-deaths", "queue"}).Draw(t, "name"), "v"))
				continue
			}
			var entries [][]byte
			for range rapid.IntRange(0, 3).Draw(t, "entries") {
				var fields [][]byte
				seen := map[string]bool{}
				for range rapid.IntRange(0, 4).Draw(t, "fields") {
					name := rapid.SampledFrom([]string{"queue", "reason", "exchange", "count"}).Draw(t, "field")
					duplicateHeader = duplicateHeader || seen[name]
					seen[name] = true
					fields = append(fields, text(name, "v"))
				}
				entries = append(entries, deathEntry(fields...))
			}
			table = append(table, deathList("x-death", entries...))
			headers++
		}
		duplicateHeader = duplicateHeader || headers > 1
		if _, m := repairHeader(header(table...)); (m.duplicateHeader != "") != duplicateHeader {
			t.Errorf("duplicate header: %q, want %v", m.duplicateHeader, duplicateHeader)
		}
	})
}

// Every property of a delivery is read, and sent again as it was; persistent, whatever it
// was.
func TestEveryPropertyIsReadAndSentAgain(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	d := amqp.Delivery{Exchange: "e", RoutingKey: "k", Redelivered: true, ContentType: "ct", ContentEncoding: "ce", DeliveryMode: amqp.Transient, Priority: 7,
		CorrelationId: "c", ReplyTo: "r", Expiration: "1000", MessageId: "m", Timestamp: now, Type: "t", UserId: "u", AppId: "a", Body: []byte("b"), Headers: amqp.Table{"h": "v"}}
	m := Received(&d)
	if m.Exchange != "e" || m.RoutingKey != "k" || m.DeliveryMode != amqp.Transient {
		t.Errorf("read as %+v", m)
	}
	p := publishing(&m)
	if p.ContentType != "ct" || p.ContentEncoding != "ce" || p.DeliveryMode != amqp.Persistent || p.Priority != 7 || p.CorrelationId != "c" || p.ReplyTo != "r" || p.Expiration != "1000" ||
		p.MessageId != "m" || !p.Timestamp.Equal(now) || p.Type != "t" || p.UserId != "u" || p.AppId != "a" || string(p.Body) != "b" || p.Headers["h"] != "v" {
		t.Errorf("sent as %+v", p)
	}
}

// Every property takes its part of a frame: RabbitMQ ends the connection on properties that do not fit one.
func TestTheSizeOfAHeaderIsOfAllProperties(t *testing.T) {
	none := headerSize(&wire.Message{})
	for i, m := range []wire.Message{{ContentType: "abc"}, {ContentEncoding: "abc"}, {CorrelationID: "abc"},
		{ReplyTo: "abc"}, {Expiration: "abc"}, {MessageID: "abc"}, {Type: "abc"}, {UserID: "abc"}, {AppID: "abc"}} {
		if n := headerSize(&m) - none; n != 3 {
			t.Errorf("property %d: 3 bytes count as %d", i, n)
		}
	}
}
