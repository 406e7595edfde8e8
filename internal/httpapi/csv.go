package httpapi

import (
	"context"
	"encoding/csv"
	"io"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
)

// csv writes what a query finds as rows, a page at a time.
func (a *API) csv(ctx context.Context, c auth.Caller, query string, w io.Writer) (n int64, err error) {
	out := csv.NewWriter(w)
	columns, row := inspect.CSV[inspect.Message]()
	for after := ""; ; {
		p, err := a.Console.Search(ctx, c, query, after, 1000)
		if err != nil {
			return n, err
		}
		if after == "" {
			_ = out.Write(columns)
		}
		for i := range p.Messages {
			_ = out.Write(row(p.Messages[i]))
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
