package api

import (
	"context"
	"encoding/csv"
	"io"
	"regexp"
	"strconv"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/console"
)

// formula finds where a spreadsheet would begin to calculate: at the beginning of a
// cell, or of what becomes one where semicolons or tabs split them.
var formula = regexp.MustCompile(`(^|[;\t\r\n])([\s"']*)([=+\-@＝＋－＠|%])`)

// CSVCell makes text of strangers safe in a spreadsheet: it stays text.
func CSVCell(s string) string { return formula.ReplaceAllString(s, "$1$2'$3") }

// CSVHead names the columns of CSVRow.
var CSVHead = []string{"id", "key", "queue", "state", "attempt", "due", "parked_at", "parked_for", "returned_at", "restorable_until",
	"reason", "error", "group", "policy", "first_failed", "failed", "exchange", "routing_key", "type", "content_type", "size"}

// CSVRow is a message as one row.
func CSVRow(m *console.Message) []string {
	at := func(t *time.Time) string {
		if t == nil {
			return ""
		}
		return t.UTC().Format(time.RFC3339Nano)
	}
	row := []string{m.ID, m.Key, m.Queue, m.State, strconv.Itoa(m.Attempt), at(m.Due), at(m.ParkedAt), m.ParkedFor, at(m.ReturnedAt), at(m.Restorable),
		m.Reason, m.Error, m.Group, m.Policy, at(&m.FirstFailed), at(&m.Failed), m.Exchange, m.RoutingKey, m.Type, m.ContentType, strconv.Itoa(m.Size)}
	for i := range row {
		row[i] = CSVCell(row[i])
	}
	return row
}

// csv writes what a query finds as rows, a page at a time.
func (a *API) csv(ctx context.Context, c auth.Caller, query string, w io.Writer) (n int64, err error) {
	out := csv.NewWriter(w)
	for after := ""; ; {
		p, err := a.Console.Search(ctx, c, query, after, 1000)
		if err != nil {
			return n, err
		}
		if after == "" {
			_ = out.Write(CSVHead)
		}
		for i := range p.Messages {
			_ = out.Write(CSVRow(&p.Messages[i]))
			n++
		}
		if out.Flush(); out.Error() != nil {
			return n, out.Error()
		}
		if after = p.After; after == "" {
			return n, nil
		}
	}
}
