package redisstore

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/redis/rueidis"

	"github.com/redrive-mq/redrive/internal/store"
)

// pastKept is how many passages each shard keeps, as an argument.
func (s *Store) pastKept() string { return itoa((store.PastKept + s.Shards - 1) / s.Shards) }

// passage is what is left of a record, as it is kept: its stamp, by which those of all
// shards are in order, and its fields.
func passage(r *store.Record, ended time.Time, how store.Ending, stamp uint64) string {
	return passageText(store.PassageOf(r, ended, how), stamp)
}

func passageText(p store.Passage, stamp uint64) string {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, 160), stamp)
	b = append(append(b, byte(p.Ending)), p.ID[:]...)
	for _, text := range [...]string{p.Queue, p.Reason, p.Error, p.Policy} {
		b = append(binary.AppendUvarint(b, uint64(len(text))), text...)
	}
	b = binary.AppendVarint(b, int64(p.Attempt))
	for _, at := range [...]time.Time{p.FailedAt, p.Due, p.Ended} {
		b = binary.AppendVarint(b, at.UnixMicro())
	}
	return rueidis.BinaryString(b)
}

var errPassage = errors.New("a passage is cut short or damaged")

const passageHead = 8 + 1 + 16

func readPassage(text string) (p store.Passage, stamp uint64, err error) {
	b := []byte(text)
	if len(b) < passageHead {
		return p, 0, errPassage
	}
	stamp, p.Ending, p.ID = binary.BigEndian.Uint64(b), store.Ending(b[8]), uuid.UUID(b[9:passageHead])
	b = b[passageHead:]
	for _, into := range [...]*string{&p.Queue, &p.Reason, &p.Error, &p.Policy} {
		n, size := binary.Uvarint(b)
		if size <= 0 || n > uint64(len(b)-size) {
			return p, 0, errPassage
		}
		*into, b = string(b[size:size+int(n)]), b[size+int(n):]
	}
	var numbers [4]int64
	for i := range numbers {
		n, size := binary.Varint(b)
		if size <= 0 {
			return p, 0, errPassage
		}
		numbers[i], b = n, b[size:]
	}
	p.Attempt, p.FailedAt, p.Due, p.Ended = int(numbers[0]), timeOf(numbers[1]), timeOf(numbers[2]), timeOf(numbers[3])
	return p, stamp, nil
}

// timeOf keeps the zero time.
func timeOf(micros int64) time.Time {
	if micros == (time.Time{}).UnixMicro() {
		return time.Time{}
	}
	return time.UnixMicro(micros)
}

// stampedPassage is one in the order of all shards.
type stampedPassage struct {
	store.Passage
	stamp uint64
}

// Past implements store.Searcher.
func (s *Store) Past(ctx context.Context, id uuid.UUID) ([]store.Passage, error) {
	done, err := s.use(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	var mu sync.Mutex
	var found []stampedPassage
	err = s.each(func(shard int) error {
		list, err := texts(s.do(ctx, shard, scriptPast, idText(id)))
		mu.Lock()
		defer mu.Unlock()
		for _, text := range list {
			p, stamp, err := readPassage(text)
			if err != nil {
				return s.failed(err)
			}
			found = append(found, stampedPassage{p, stamp})
		}
		return err
	})
	slices.SortFunc(found, func(a, b stampedPassage) int { return cmp.Compare(a.stamp, b.stamp) })
	var all []store.Passage
	for _, p := range found {
		all = append(all, p.Passage)
	}
	return all, err
}

// pastPage is how many passages are read at once from a shard.
const pastPage = 500

// Returned implements store.Searcher.
func (s *Store) Returned(ctx context.Context, visit func(store.Passage) (bool, error)) error {
	done, err := s.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	pages := make([][]stampedPassage, s.Shards) // newest first
	from := make([]string, s.Shards)            // where a shard's next page begins; "" after the last
	fill := func(shard int) error {
		list, err := s.pastFrom(ctx, shard, from[shard])
		if err != nil {
			return err
		}
		from[shard] = ""
		if len(list) == pastPage {
			from[shard] = "(" + list[len(list)-1].ID
		}
		for _, e := range list {
			p, stamp, err := readPassage(e.FieldValues["p"])
			if err != nil {
				return s.failed(err)
			}
			pages[shard] = append(pages[shard], stampedPassage{p, stamp})
		}
		return nil
	}
	for shard := range from {
		from[shard] = "+"
	}
	if err := s.each(fill); err != nil {
		return err
	}
	for {
		newest := -1
		for shard, page := range pages {
			if len(page) > 0 && (newest < 0 || page[0].stamp > pages[newest][0].stamp) {
				newest = shard
			}
		}
		if newest < 0 {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		more, err := visit(pages[newest][0].Passage)
		if err != nil || !more {
			return err
		}
		pages[newest] = pages[newest][1:]
		if len(pages[newest]) == 0 && from[newest] != "" {
			if err := fill(newest); err != nil {
				return err
			}
		}
	}
}

func (s *Store) pastFrom(ctx context.Context, shard int, from string) ([]rueidis.XRangeEntry, error) {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	list, err := s.client.Do(ctx, s.client.B().Xrevrange().Key(s.key(shard, "past")).End(from).Start("-").Count(pastPage).Build()).AsXRange()
	if rueidis.IsRedisNil(err) {
		err = nil
	}
	return list, s.failed(err)
}
