package auth

import (
	"maps"
	"sync"
	"time"
)

// limiter lets each key fail so many times, and then once in a while. It is one
// bucket a key, which fills with each failure and leaks.
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

// take counts a failure that is about to happen, and says how long to wait where
// there have been too many: attempts that run at the same time count each.
func (l *limiter) take(key string) (wait time.Duration) {
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

// give takes back one that was no failure.
func (l *limiter) give(key string) {
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
