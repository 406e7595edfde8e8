package main

import (
	"cmp"
	"context"
	"errors"
	"slices"
)

// measured is one round of a row.
type measured interface {
	speed() float64
	wrong() string // "": nothing
}

// inTurn measures each row as often as -rounds says and returns the median of each, by speed.
// why tells of a row that it is not there, or failed. medians are nil when ctx has ended.
func inTurn[T measured](ctx context.Context, r *report, where string, rows []string, measure func(i int) (T, error)) (medians []T, why []string) {
	results := make([][]T, len(rows))
	medians, why = make([]T, len(rows)), make([]string, len(rows))
	for round := range *rounds {
		for n := range rows {
			i := (n + round) % len(rows) // no row is always the first
			if why[i] != "" {
				continue
			}
			res, err := measure(i)
			var missing notThere
			switch {
			case ctx.Err() != nil: // interrupted
				return nil, why
			case errors.As(err, &missing):
				why[i] = missing.Error()
				continue
			case err != nil:
				why[i] = "failed: " + err.Error()
				r.fail("%s, %s: %v", where, rows[i], err)
				continue
			}
			if wrong := res.wrong(); wrong != "" {
				r.fail("%s, %s: %s", where, rows[i], wrong)
			}
			results[i] = append(results[i], res)
		}
	}
	for i, of := range results {
		if why[i] == "" {
			slices.SortFunc(of, func(a, b T) int { return cmp.Compare(a.speed(), b.speed()) })
			medians[i] = of[len(of)/2]
		}
	}
	return medians, why
}
