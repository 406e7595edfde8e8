package actions

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/query"
	"github.com/redrive-mq/redrive/internal/store"
)

// Export writes all that a query finds, a line of JSON each, as it was to the last
// byte: see exportedRecord. It returns how many it wrote.
func (a *Actions) Export(ctx context.Context, by auth.Caller, text string, w io.Writer) (n int64, err error) {
	if err := a.Permit(by, auth.Viewer, "export", text); err != nil {
		return 0, err
	}
	if _, err := query.Parse(text); err != nil {
		return 0, err
	}
	end, err := a.Begin(by, "export", text, 0, "")
	if err != nil {
		return 0, err
	}
	defer func() { end(err, n) }()
	out := bufio.NewWriterSize(w, 64<<10)
	lines := json.NewEncoder(out)
	hold := func() (func(), error) { return a.Large.Enter(ctx, by.ID(), 1) }
	err = a.Inspect.FindWithBodies(ctx, by, text, hold, func(l store.Listed) error {
		if err := lines.Encode(exportedOf(l.Record)); err != nil {
			return fmt.Errorf("message %s: %w", l.Record.ID, err)
		}
		n++
		return nil
	})
	if err == nil {
		err = out.Flush()
	}
	return n, err
}
