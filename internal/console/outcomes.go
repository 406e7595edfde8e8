package console

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/store"
)

// Outcomes is the account of an operation, in the order in which it was done.
func (c *Console) Outcomes(ctx context.Context, by auth.Caller, id, after string, limit int) (Outcomes, error) {
	out := Outcomes{Outcomes: []Outcome{}}
	if err := by.May(auth.Viewer, ""); err != nil {
		return out, err
	}
	if limit < 0 || limit > 1000 {
		return out, fmt.Errorf("%w: the limit is %d: expected 1 to 1000", ErrInvalid, limit)
	}
	if limit == 0 {
		limit = 100
	}
	if _, err := c.operation(ctx, by, id); err != nil {
		return out, err
	}
	prefix := partsOf(id) + "outcome/"
	// after is the entry that was begun and how many of it were shown.
	name, shown, _ := strings.Cut(after, ".")
	skip, err := strconv.Atoi(shown)
	if after != "" && (err != nil || skip < 0) {
		return out, fmt.Errorf("%w: %.60q is not where a page ended", ErrInvalid, after)
	}
	add := func(name string, value []byte) (more bool, err error) {
		var some []Outcome
		if err := json.Unmarshal(value, &some); err != nil {
			return false, fmt.Errorf("%s: %w", prefix+name, err)
		}
		for i := skip; i < len(some); i++ {
			if len(out.Outcomes) == limit {
				out.After = name + "." + strconv.Itoa(i)
				return false, nil
			}
			out.Outcomes = append(out.Outcomes, some[i])
		}
		skip = 0
		return true, nil
	}
	from := ""
	if after != "" {
		from = prefix + name
		value, err := c.Store.Entry(ctx, from)
		if err != nil {
			return out, err
		}
		if value == nil {
			return out, fmt.Errorf("%w: %.60q is not where a page ended", ErrInvalid, after)
		}
		if more, err := add(name, value); err != nil || !more {
			return out, err
		}
	}
	err = c.Store.Entries(ctx, prefix, from, func(e store.Entry) (bool, error) {
		return add(strings.TrimPrefix(e.Name, prefix), e.Value)
	})
	return out, err
}
