package redisstore

import (
	"context"
	"encoding/binary"
	"errors"
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
	b := append(append(make([]byte, 0, 160), byte(p.Ending)), p.ID[:]...)
	b = store.AppendTexts(b, p.Queue, p.Reason, p.Error, p.Policy)
	b = binary.AppendVarint(b, int64(p.Attempt))
	for _, at := range [...]time.Time{p.FailedAt, p.Due, p.Ended} {
		b = binary.AppendVarint(b, at.UnixMicro())
	}
	return rueidis.BinaryString(b)
}

var errPassage = errors.New("a passage is cut short or damaged")

const passageHead = 1 + 16

func readPassage(text string) (p store.Passage, err error) {
	b := []byte(text)
	if len(b) < passageHead {
		return p, errPassage
	}
	p.Ending, p.ID = store.Ending(b[0]), uuid.UUID(b[1:passageHead])
	b, ok := store.ReadTexts(b[passageHead:], &p.Queue, &p.Reason, &p.Error, &p.Policy)
	if !ok {
		return p, errPassage
	}
	var numbers [4]int64
	for i := range numbers {
		n, size := binary.Varint(b)
		if size <= 0 {
			return p, errPassage
		}
		numbers[i], b = n, b[size:]
	}
	p.Attempt, p.FailedAt, p.Due, p.Ended = int(numbers[0]), store.FromMicros(numbers[1]), store.FromMicros(numbers[2]), store.FromMicros(numbers[3])
	return p, nil
}

// Past implements store.Searcher.
func (s *Store) Past(ctx context.Context, id uuid.UUID) (all []store.Passage, err error) {
	done, err := s.use(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	list, err := texts(s.do(ctx, scriptPast, idText(id)))
	for _, text := range list {
		p, err := readPassage(text)
		if err != nil {
			return nil, s.failed(err)
		}
		all = append(all, p)
	}
	return all, err
}

// pastPage is how many passages are read at once.
const pastPage = 500

// Retried implements store.Searcher.
func (s *Store) Retried(ctx context.Context, visit func(store.Passage) (bool, error)) error {
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
			p, err := readPassage(e.FieldValues["p"])
			if err != nil {
				return s.failed(err)
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
	return list, s.failed(err)
}
