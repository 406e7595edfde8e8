package redisstore

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
)

// Counts implements store.Store.
func (s *Store) Counts(ctx context.Context) ([]store.QueueCount, error) {
	done, err := s.use(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	var mu sync.Mutex
	at := map[string]int{}
	var counts []store.QueueCount
	err = s.each(func(shard int) error {
		list, err := texts(s.do(ctx, shard, scriptCounts))
		mu.Lock()
		defer mu.Unlock()
		for i := 0; i+5 < len(list); i += 6 {
			queue := list[i]
			n, ok := at[queue]
			if !ok {
				n, at[queue] = len(counts), len(counts)
				counts = append(counts, store.QueueCount{Queue: queue})
			}
			c := &counts[n]
			c.Waiting += int64(number(list[i+1]))
			c.Parked += int64(number(list[i+2]))
			c.Discarded += int64(number(list[i+3]))
			if list[i+4] == "" {
				continue
			}
			if due := time.UnixMicro(score(list[i+4])); c.NextDue.IsZero() || due.Before(c.NextDue) {
				c.NextDue = due
				if r, _, err := store.DecodeHead([]byte(list[i+5])); err == nil {
					c.NextFailed = r.FailedAt
				}
			}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return counts, nil
}

// CountDue implements store.Searcher.
func (s *Store) CountDue(ctx context.Context, queues []string, edges []time.Time, most int64) ([]int64, error) {
	done, err := s.use(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	args := []string{itoa(len(edges))}
	for _, edge := range edges {
		args = append(args, strconv.FormatInt(edge.UnixMicro(), 10))
	}
	args = append(args, queues...)
	var mu sync.Mutex
	counts := make([]int64, len(edges))
	err = s.each(func(shard int) error {
		list, err := texts(s.do(ctx, shard, scriptCountDue, args...))
		mu.Lock()
		defer mu.Unlock()
		for i, n := range list {
			counts[i] += int64(number(n))
		}
		return err
	})
	for i := range counts {
		counts[i] = min(most, counts[i])
	}
	return counts, err
}
