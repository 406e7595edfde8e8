package redisstore

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/redis/rueidis"

	"github.com/redrive-mq/redrive/internal/store"
)

// pastKept is how many passages are kept, as an argument.
var pastKept = itoa(store.PastKept)

// passage is what is left of a record, as it is kept.
func passage(r *store.Record, ended time.Time, how store.Ending) string {
	return passageText(store.PassageOf(r, ended, how))
}

func passageText(p store.Passage) string {
	return rueidis.BinaryString(store.AppendPassage(make([]byte, 0, 160), p))
}

// Past implements store.Searcher.
func (s *Store) Past(ctx context.Context, id uuid.UUID) (all []store.Passage, err error) {
	list, err := texts(s.call(ctx, scriptPast, idText(id)))
	for _, text := range list {
		p, err := store.ReadPassage(text)
		if err != nil {
			return nil, s.wrapError(err)
		}
		all = append(all, p)
	}
	return all, err
}

// pastPage is how many passages are read at once.
const pastPage = 500

// Passages implements store.Searcher.
func (s *Store) Passages(ctx context.Context, visit func(store.Passage) (bool, error)) error {
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
			p, err := store.ReadPassage(e.FieldValues["p"])
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
	list, err := s.client.Do(ctx, s.client.B().Xrevrange().Key(s.key("past")).End(from).Start("-").Count(pastPage).Build()).AsXRange()
	if rueidis.IsRedisNil(err) {
		err = nil
	}
	return list, s.wrapError(err)
}
