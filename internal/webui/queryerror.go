package webui

import (
	"errors"

	"github.com/redrive-mq/redrive/internal/query"
)

func parseQuery(q string) error {
	_, err := query.Parse(q)
	return err
}

// queryErrorOf is the error of a query, or nil when err is none.
func queryErrorOf(q string, err error) *queryError {
	var e *query.Error
	if !errors.As(err, &e) {
		return nil
	}
	r := []rune(q)
	at := min(max(e.At, 0), len(r))
	f := &queryError{Before: string(r[:at]), At: " ", Column: at + 1, Text: e.Msg}
	if at < len(r) {
		f.At, f.After = string(r[at]), string(r[at+1:])
	}
	return f
}
