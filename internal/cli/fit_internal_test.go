package cli

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"
)

func fitted(width int, text string) string {
	var b bytes.Buffer
	w := &tableWriter{to: &b, width: width}
	_, _ = w.Write([]byte(text))
	_ = w.Flush()
	return b.String()
}

const (
	longName = "shop.warehouse.orders.created.by.the.partner.in.the.north.retry"
	oneID    = "0198f0a0-0000-7000-8000-000000000001"
)

var wideTable = "title of the table, which is no row\nID\tQUEUE\tSTATE\tWHY\n" +
	oneID + "\t" + longName + "\tparked\t" + strings.Repeat("the card was declined ", 6) + "\nx\torders\twaiting\t-\n\nafter\n"

func TestWithoutATerminalNothingIsCut(t *testing.T) {
	out := fitted(0, wideTable)
	if !strings.Contains(out, longName) || strings.Contains(out, "…") {
		t.Errorf("it is cut:\n%s", out)
	}
}

func TestATableFitsTheTerminal(t *testing.T) {
	for _, width := range []int{100, 120, 200} {
		out := fitted(width, wideTable)
		for line := range strings.Lines(out) {
			if n := utf8.RuneCountInString(strings.TrimRight(line, " \n")); n > width {
				t.Errorf("a line has %d characters, more than %d:\n%s", n, width, line)
			}
		}
		if !strings.Contains(out, oneID) || !strings.Contains(out, "STATE") || !strings.Contains(out, "parked ") || !strings.HasSuffix(out, "\nafter\n") {
			t.Errorf("at %d, what must stay is cut:\n%s", width, out)
		}
	}
	// Of any column, whatever its heading.
	if out := fitted(60, "OUTCOME\tNEW\n"+strings.Repeat("done ", 20)+"\t"+oneID+"\n"); !strings.Contains(out, oneID) || !strings.Contains(out, "…") {
		t.Error(out)
	}
	// Too narrow for ids and headings: they stay.
	if out := fitted(20, wideTable); !strings.Contains(out, oneID) || !strings.Contains(out, "shop.ware…") {
		t.Error(out)
	}
}
