package actions

import (
	"bufio"
	"context"
	"io"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/store"
)

// Export writes all that a query finds, a line of JSON each, as it was to the last
// byte: see exportedRecord. It returns how many it wrote.
func (a *Actions) Export(ctx context.Context, by auth.Caller, query string, w io.Writer) (n int64, err error) {
	if err := a.Permit(by, auth.Viewer, "export", query); err != nil {
		return 0, err
	}
	end, err := a.Begin(by, "export", query, 0, "")
	if err != nil {
		return 0, err
	}
	defer func() { end(err, n) }()
	out := bufio.NewWriterSize(w, 64<<10)
	var buf []byte
	err = a.Inspect.Find(ctx, by, query, nil, true, func(l store.Listed) (bool, error) {
		var err error
		if buf, err = appendLine(buf[:0], l.Record); err == nil {
			_, err = out.Write(buf)
		}
		if err == nil {
			n++
		}
		return true, err
	})
	if err == nil {
		err = out.Flush()
	}
	return n, err
}
