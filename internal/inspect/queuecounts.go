package inspect

import (
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/store"
)

// A count of more than MostQueues queues is used again for countReuse times as long as it took,
// for at most maxCountAge: a store reads something of each queue for it, and each open page asks
// once a second.
const (
	countReuse  = 10
	maxCountAge = 5 * time.Second
)

// queueCounts caches the counts of a store, ordered by queue.
type queueCounts struct {
	mu     sync.Mutex // also locked while it counts: all callers that wait get that count
	until  time.Time
	counts []store.QueueCount
}

// counts are the store's, ordered by queue; they are not to be changed.
func (in *Inspector) counts(ctx context.Context) ([]store.QueueCount, error) {
	t := &in.queueCounts
	t.mu.Lock()
	defer t.mu.Unlock()
	began := time.Now()
	if began.Before(t.until) {
		return t.counts, nil
	}
	counts, err := in.Store.Counts(ctx)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(counts, func(a, b store.QueueCount) int { return cmp.Compare(a.Queue, b.Queue) })
	if t.counts = nil; len(counts) > MostQueues {
		t.counts = counts
		t.until = time.Now().Add(min(maxCountAge, countReuse*time.Since(began)))
	}
	return counts, nil
}

// queuesOf are the queues that the caller may see, ordered by name: those that something is
// kept for, that are paused, that something has happened to since the service started, and others.
func (in *Inspector) queuesOf(ctx context.Context, by auth.Caller, pauses map[string]QueuePause, others []string) ([]store.QueueCount, error) {
	all, err := in.counts(ctx)
	if err != nil {
		return nil, err
	}
	var more []store.QueueCount
	added := map[string]bool{}
	add := func(name string) {
		if _, ok := slices.BinarySearchFunc(all, name, byQueue); !ok && !added[name] {
			added[name] = true
			more = append(more, store.QueueCount{Queue: name})
		}
	}
	for name := range pauses {
		add(name)
	}
	if in.Activity != nil {
		for _, name := range in.Activity.Queues() {
			add(name)
		}
	}
	for _, name := range others {
		add(name)
	}
	if len(more) == 0 && by.Queues == nil {
		return all, nil
	}
	seen := make([]store.QueueCount, 0, len(all)+len(more))
	for _, some := range [][]store.QueueCount{all, more} {
		for _, n := range some {
			if by.Sees(n.Queue) {
				seen = append(seen, n)
			}
		}
	}
	slices.SortFunc(seen, func(a, b store.QueueCount) int { return cmp.Compare(a.Queue, b.Queue) })
	return seen, nil
}

func byQueue(n store.QueueCount, name string) int { return cmp.Compare(n.Queue, name) }

// firstInOrder returns the n that come first in an order, without sorting all: there may be a
// hundred thousand.
func firstInOrder[T any](n int, of func(yield func(T) bool), order func(a, b T) int) []T {
	var some []T
	cut := func() {
		slices.SortFunc(some, order)
		some = some[:min(n, len(some))]
	}
	full := false
	for v := range of {
		if full && order(v, some[n-1]) >= 0 {
			continue
		}
		if some = append(some, v); len(some) == 2*n {
			cut()
			full = true
		}
	}
	cut()
	return some
}

// pageOf returns the page of a list, ordered by name, that begins behind after, the end of the
// page before; next is "" at the end of the list.
func pageOf[T any](all []T, name func(T) string, after string, limit int) (page []T, next string, err error) {
	if after != "" {
		last, err := base64.RawURLEncoding.DecodeString(after)
		if err != nil {
			return nil, "", fmt.Errorf("%w: after is %q, which no page ends with", ErrInvalid, after)
		}
		all = all[sort.Search(len(all), func(i int) bool { return "."+name(all[i]) > string(last) }):]
	}
	if limit <= 0 || limit > MostQueues {
		limit = MostQueues
	}
	if len(all) <= limit {
		return all, "", nil
	}
	return all[:limit], base64.RawURLEncoding.EncodeToString([]byte("." + name(all[limit-1]))), nil // a name may be "", or any bytes
}
