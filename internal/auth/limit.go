package auth

import (
	"maps"
	"sync"
	"time"
)

// limiter allows each key a number of failures, and then one from time to time: a leaky bucket
// for each key, which each failure fills.
type limiter struct {
	most  float64
	every time.Duration

	mu      sync.Mutex
	buckets map[string]bucket
	swept   time.Time
}

type bucket struct {
	level float64
	at    time.Time
}

// mostBuckets bounds memory; beyond it all new keys share one bucket.
const mostBuckets = 10_000

// charge counts an attempt before it is made, as if it had failed, so that attempts at the same
// time all count. After too many it counts none, and returns how long to wait.
func (l *limiter) charge(key string) (wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if l.buckets == nil {
		l.buckets = map[string]bucket{}
	}
	if _, known := l.buckets[key]; !known && len(l.buckets) >= mostBuckets {
		if now.Sub(l.swept) >= time.Second { // it looks at all of them
			l.swept = now
			maps.DeleteFunc(l.buckets, func(_ string, b bucket) bool { return l.level(b, now) == 0 })
		}
		if len(l.buckets) >= mostBuckets {
			key = ""
		}
	}
	level := l.level(l.buckets[key], now)
	if level+1 > l.most {
		return time.Duration((level + 1 - l.most) * float64(l.every))
	}
	l.buckets[key] = bucket{level + 1, now}
	return 0
}

// refund uncounts an attempt that did not fail.
func (l *limiter) refund(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, own := l.buckets[key]; !own {
		key = ""
	}
	if b, ok := l.buckets[key]; ok {
		l.buckets[key] = bucket{max(0, b.level-1), b.at}
	}
}

func (l *limiter) level(b bucket, now time.Time) float64 {
	return max(0, b.level-float64(now.Sub(b.at))/float64(l.every))
}
