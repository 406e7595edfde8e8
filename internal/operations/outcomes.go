package operations

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/store"
)

// Outcomes is the account of an operation, in the order in which it was done.
func (r *Runner) Outcomes(ctx context.Context, by auth.Caller, id, after string, limit int) (Outcomes, error) {
	out := Outcomes{Outcomes: []actions.Outcome{}}
	if err := by.May(auth.Viewer, ""); err != nil {
		return out, err
	}
	if limit < 0 || limit > 1000 {
		return out, fmt.Errorf("%w: the limit is %d: expected 1 to 1000", inspect.ErrInvalid, limit)
	}
	if limit == 0 {
		limit = 100
	}
	if _, err := r.operation(ctx, by, id); err != nil {
		return out, err
	}
	prefix := partsOf(id) + "outcome/"
	// after is the entry that was begun and how many of it were shown.
	name, shown, _ := strings.Cut(after, ".")
	skip, err := strconv.Atoi(shown)
	if after != "" && (err != nil || skip < 0) {
		return out, fmt.Errorf("%w: %.60q is not where a page ended", inspect.ErrInvalid, after)
	}
	add := func(name string, value []byte) (more bool, err error) {
		var some []actions.Outcome
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
		value, err := r.Store.Entry(ctx, from)
		if err != nil {
			return out, err
		}
		if value == nil {
			return out, fmt.Errorf("%w: %.60q is not where a page ended", inspect.ErrInvalid, after)
		}
		if more, err := add(name, value); err != nil || !more {
			return out, err
		}
	}
	err = r.Store.Entries(ctx, prefix, from, func(e store.Entry) (bool, error) {
		return add(strings.TrimPrefix(e.Name, prefix), e.Value)
	})
	return out, err
}
