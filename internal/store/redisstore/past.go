package redisstore

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/redis/rueidis"

	"github.com/redrive-mq/redrive/internal/store"
)

// pastKept is how many past failures are kept, as an argument.
var pastKept = itoa(store.PastFailuresKept)

// pastFailure is what is left of a record, as it is kept.
func pastFailure(r *store.Record, ended time.Time, how store.Ending) string {
	return pastFailureText(store.PastFailureOf(r, ended, how))
}

func pastFailureText(p store.PastFailure) string {
	return rueidis.BinaryString(store.AppendPastFailure(make([]byte, 0, 160), p))
}

// PastFailures implements store.Searcher.
func (s *Store) PastFailures(ctx context.Context, id uuid.UUID) (all []store.PastFailure, err error) {
	list, err := texts(s.call(ctx, scriptPast, idText(id)))
	for _, text := range list {
		p, err := store.ReadPastFailure(text)
		if err != nil {
			return nil, s.wrapError(err)
		}
		all = append(all, p)
	}
	return all, err
}

// pastPage is how many past failures are read at once.
const pastPage = 500

// EachPastFailure implements store.Searcher.
func (s *Store) EachPastFailure(ctx context.Context, visit func(store.PastFailure) (bool, error)) error {
	done, err := s.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	for from := "+"; ; {
		list, err := s.pastFrom(ctx, from)
		if err != nil || len(list) == 0 {
			return err
		}
		for _, e := range list {
			if err := ctx.Err(); err != nil {
				return err
			}
			p, err := store.ReadPastFailure(e.FieldValues["p"])
			if err != nil {
				return s.wrapError(err)
			}
			if more, err := visit(p); err != nil || !more {
				return err
			}
			from = "(" + e.ID
		}
	}
}

func (s *Store) pastFrom(ctx context.Context, from string) ([]rueidis.XRangeEntry, error) {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	list, err := s.client().Do(ctx, s.client().B().Xrevrange().Key(s.key("past")).End(from).Start("-").Count(pastPage).Build()).AsXRange()
	if rueidis.IsRedisNil(err) {
		err = nil
	}
	return list, s.wrapError(err)
}
