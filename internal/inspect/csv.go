package inspect

import (
	"regexp"
	"strconv"
	"strings"
	"time"
)

// CSVHeader names the columns of CSVRow.
var CSVHeader = []string{"id", "queue", "state", "attempt", "due", "parked_at", "parked_for", "reason", "error", "policy",
	"first_failed", "failed", "exchange", "routing_key", "type", "content_type", "size"}

// CSVRow is a message as a row of a table for people. What a spreadsheet would take
// for a formula is made text: whoever publishes a message must not run commands on
// the machine of whoever opens the table.
func CSVRow(m Message) []string {
	at := func(t *time.Time) string {
		if t == nil {
			return ""
		}
		return t.UTC().Format(time.RFC3339)
	}
	row := []string{m.ID, m.Queue, m.State, strconv.Itoa(m.Attempt), at(m.Due), at(m.ParkedAt), m.ParkedFor, m.Reason, m.Error, m.Policy,
		at(&m.FirstFailed), at(&m.Failed), m.Exchange, m.RoutingKey, m.Type, m.ContentType, strconv.Itoa(m.Size)}
	for i, cell := range row {
		row[i] = CSVCell(cell)
	}
	return row
}

// innerFormula finds a formula behind what separates cells for spreadsheets of other
// countries: they do not know where a quoted cell ends.
var innerFormula = regexp.MustCompile(`([;\t\r\n])([\s"']*)([=+\-@|%＝＋－＠])`)

// CSVCell puts an apostrophe before what a spreadsheet may compute, also behind
// blanks, which some of them skip, and takes NUL bytes out, which some end at.
func CSVCell(cell string) string {
	cell = strings.ReplaceAll(cell, "\x00", "")
	cell = innerFormula.ReplaceAllString(cell, "$1$2'$3")
	switch bare := strings.TrimLeft(cell, " \t\r\n\v\f\u00a0\ufeff"); {
	case bare != cell && bare == "", bare != "" && strings.ContainsRune("=+-@|%＝＋－＠", []rune(bare)[0]),
		strings.IndexAny(cell, "\t\r\n") == 0:
		return "'" + cell
	}
	return cell
}
