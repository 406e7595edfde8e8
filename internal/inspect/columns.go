package inspect

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/query"
	"github.com/redrive-mq/redrive/internal/store"
)

const (
	// mostColumns is how many columns a list has besides its own.
	mostColumns = 12
	// longestColumns is how long the bodies of one page are read: they are made by strangers, and
	// each may take as long as package decode lets one.
	longestColumns = 700 * time.Millisecond
	// mostPreview is how many characters of a body, and of a value, a list shows.
	mostPreview = 200
)

// AddColumns adds to the messages of a page what they have in columns, and a preview of their
// bodies, as far as the caller may see them. A message that is not kept any more has neither.
func (in *Inspector) AddColumns(ctx context.Context, by auth.Caller, p *Page, names []string, preview bool) error {
	if err := by.May(auth.Viewer, ""); err != nil {
		return err
	}
	if len(names) > mostColumns {
		return fmt.Errorf("%w: %d columns: at most %d are shown", ErrInvalid, len(names), mostColumns)
	}
	columns := make([]query.Column, len(names))
	for i, name := range names {
		c, err := query.ParseColumn(name)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrInvalid, err)
		}
		columns[i] = c
	}
	if len(columns) == 0 && !preview {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, longestColumns)
	defer cancel()
	for i := range p.Messages {
		m := &p.Messages[i]
		if m.Key == "" {
			continue // it was retried
		}
		if limited.Err() != nil {
			p.Unread++
			continue
		}
		l, err := in.Store.Get(limited, store.Key(m.Key))
		switch {
		case err == nil && by.Sees(l.Record.Queue):
			in.fillColumns(limited, m, &l, columns, preview)
		case limited.Err() != nil:
			p.Unread++
		case err != nil && !errors.Is(err, store.ErrNotFound) && !errors.Is(err, store.ErrUnreadable):
			return err
		}
	}
	return ctx.Err()
}

func (in *Inspector) fillColumns(ctx context.Context, m *Message, l *store.Listed, columns []query.Column, preview bool) {
	var body *decode.Result
	decoded := func() *decode.Result {
		if body == nil {
			body = in.decoded(ctx, l)()
		}
		return body
	}
	for _, c := range columns {
		if text := oneLine(c.Value(l, in.Store.GroupOf(l.Record), decoded)); text != "" {
			if m.Columns == nil {
				m.Columns = map[string]string{}
			}
			m.Columns[c.Name] = text
		}
	}
	if preview {
		m.Preview = previewOf(decoded())
	}
}

// previewOf is the beginning of a body on one line.
func previewOf(r *decode.Result) string {
	if r.Format == "binary" {
		if len(r.Inner) == 0 {
			return ""
		}
		return fmt.Sprintf("% x", r.Inner[:min(len(r.Inner), 24)])
	}
	return oneLine(r.Text)
}

// oneLine is the beginning of a text, its white space as single spaces.
func oneLine(s string) string {
	const enough = 16 * mostPreview // bytes: what is indented has many spaces
	cut := len(s) > enough
	if cut {
		s = strings.ToValidUTF8(s[:enough], "")
	}
	s = strings.Join(strings.Fields(s), " ")
	if r := []rune(s); len(r) > mostPreview {
		return string(r[:mostPreview]) + "…"
	}
	if cut {
		s += "…"
	}
	return s
}
