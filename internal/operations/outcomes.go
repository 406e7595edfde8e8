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

// Outcomes returns the results of an operation's messages, in the order in which they were processed.
func (r *Runner) Outcomes(ctx context.Context, by auth.Caller, id, after string, limit int) (Outcomes, error) {
	page := Outcomes{Outcomes: []actions.Outcome{}}
	if err := by.May(auth.Viewer, ""); err != nil {
		return page, err
	}
	limit, err := inspect.PageSize(limit)
	if err != nil {
		return page, err
	}
	if _, err := r.operation(ctx, by, id); err != nil {
		return page, err
	}
	prefix := partsOf(id) + "outcome/"
	// after is the last entry that was shown, and how many of its outcomes were.
	name, shown, _ := strings.Cut(after, ".")
	skip, err := strconv.Atoi(shown)
	if after != "" && (err != nil || skip < 0) {
		return page, fmt.Errorf("%w: %.60q is not where a page ended", inspect.ErrInvalid, after)
	}
	add := func(name string, value []byte) (more bool, err error) {
		var part []actions.Outcome
		if err := json.Unmarshal(value, &part); err != nil {
			return false, fmt.Errorf("%s: %w", prefix+name, err)
		}
		for i := skip; i < len(part); i++ {
			if len(page.Outcomes) == limit {
				page.After = name + "." + strconv.Itoa(i)
				return false, nil
			}
			page.Outcomes = append(page.Outcomes, part[i])
		}
		skip = 0
		return true, nil
	}
	from := ""
	if after != "" {
		from = prefix + name
		value, err := r.Store.Entry(ctx, from)
		if err != nil {
			return page, err
		}
		if value == nil {
			return page, fmt.Errorf("%w: %.60q is not where a page ended", inspect.ErrInvalid, after)
		}
		if more, err := add(name, value); err != nil || !more {
			return page, err
		}
	}
	err = r.Store.Entries(ctx, prefix, from, func(e store.Entry) (bool, error) {
		return add(strings.TrimPrefix(e.Name, prefix), e.Value)
	})
	return page, err
}
