package broker

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

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
