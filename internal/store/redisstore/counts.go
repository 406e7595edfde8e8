package redisstore

import (
	"context"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
)

// Counts implements store.Store.
func (s *Store) Counts(ctx context.Context) ([]store.QueueCount, error) {
	list, err := texts(s.call(ctx, scriptCounts))
	var counts []store.QueueCount
	for i := 0; i+5 < len(list); i += 6 {
		c := store.QueueCount{Queue: list[i], Waiting: int64(number(list[i+1])), Parked: int64(number(list[i+2])), Discarded: int64(number(list[i+3]))}
		if list[i+4] != "" {
			c.NextDue = time.UnixMicro(score(list[i+4]))
			if r, _, err := store.DecodeHead([]byte(list[i+5])); err == nil {
				c.NextFailed = r.FailedAt
			}
		}
		counts = append(counts, c)
	}
	return counts, err
}

// CountDue implements store.Searcher.
func (s *Store) CountDue(ctx context.Context, queues []string, edges []time.Time, most int64) ([]int64, error) {
	args := []string{itoa(len(edges))}
	for _, edge := range edges {
		args = append(args, itoa(edge.UnixMicro()))
	}
	args = append(args, queues...)
	list, err := texts(s.call(ctx, scriptCountDue, args...))
	counts := make([]int64, len(edges))
	for i, n := range list {
		counts[i] = min(most, int64(number(n)))
	}
	return counts, err
}
