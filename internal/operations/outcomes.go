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

// mostOutcomesLooked is about how many outcomes a page of some of them looks at.
const mostOutcomesLooked = 100_000

// Outcomes returns the results of an operation's messages, in the order in which they were processed;
// only: OnlyAgain, OnlyRest or, "", all.
func (r *Runner) Outcomes(ctx context.Context, by auth.Caller, id, only, after string, limit int) (Outcomes, error) {
	page := Outcomes{Outcomes: []actions.Outcome{}}
	if err := by.May(auth.Viewer, ""); err != nil {
		return page, err
	}
	limit, err := inspect.PageSize(limit)
	if only != "" && only != OnlyAgain && only != OnlyRest {
		err = fmt.Errorf("%w: only is %.40q: expected again or rest", inspect.ErrInvalid, only)
	}
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
	looked := 0
	add := func(name string, value []byte) (more bool, err error) {
		if only != "" && looked >= mostOutcomesLooked {
			page.After = name + ".0"
			return false, nil
		}
		var part []actions.Outcome
		if err := json.Unmarshal(value, &part); err != nil {
			return false, fmt.Errorf("%s: %w", prefix+name, err)
		}
		for i := skip; i < len(part); i++ {
			if !isListed(&part[i], only) {
				continue
			}
			if len(page.Outcomes) == limit {
				page.After = name + "." + strconv.Itoa(i)
				return false, nil
			}
			page.Outcomes = append(page.Outcomes, part[i])
		}
		skip, looked = 0, looked+len(part)
		return true, nil
	}
	from := ""
	if after != "" {
		from = prefix + name
		if more, err := r.addEntry(ctx, from, name, after, add); err != nil || !more {
			return page, err
		}
	}
	err = r.Store.Entries(ctx, prefix, from, func(e store.Entry) (bool, error) {
		return add(strings.TrimPrefix(e.Name, prefix), e.Value)
	})
	return page, err
}

// isListed tells whether an outcome is among those of a list of some.
func isListed(o *actions.Outcome, only string) bool {
	switch only {
	case OnlyAgain:
		return o.Again != nil
	case OnlyRest:
		return o.Again != nil || o.Outcome != actions.Done
	}
	return true
}

// addEntry adds the outcomes of the entry in which a page ended.
func (r *Runner) addEntry(ctx context.Context, entry, name, after string, add func(string, []byte) (bool, error)) (more bool, err error) {
	value, err := r.Store.Entry(ctx, entry)
	if err == nil && value == nil {
		err = fmt.Errorf("%w: %.60q is not where a page ended", inspect.ErrInvalid, after)
	}
	if err != nil {
		return false, err
	}
	return add(name, value)
}
