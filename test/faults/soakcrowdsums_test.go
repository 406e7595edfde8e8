package faults_test

import (
	"fmt"
	"slices"
	"time"
)

// total is how many messages there are.
func (c *crowd) total() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.all)
}

// acknowledged is how many messages of a queue are done.
func (c *crowd) acknowledged(queue int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.done[queue]
}

// progress is how many deliveries failed and were retries so far, and how many messages are done.
func (c *crowd) progress() (failed, retried, acked int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failed, c.retried, c.acked
}

// during is as a tally's.
func (c *crowd) during(breaks func()) {
	from := time.Now()
	breaks()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults = append(c.faults, fault{from, time.Now()})
}

// await waits until all were acknowledged, and returns when the last one was.
func (c *crowd) await(most time.Duration) time.Time {
	c.test.Helper()
	for from := time.Now(); ; {
		_, _, acked := c.progress()
		if acked == c.total() {
			return time.Now()
		}
		if time.Since(from) > most {
			c.mu.Lock()
			c.sum.Lost = len(c.all) - acked
			c.mu.Unlock()
			c.test.Fatalf("%d of %d messages were not acknowledged within %s: lost, or still on their way", len(c.all)-acked, len(c.all), most)
		}
		<-time.After(10 * time.Millisecond)
	}
}

// until waits until something is so, for longer than brokertest.Eventually does.
func (c *crowd) until(most time.Duration, what string, is func() bool) {
	c.test.Helper()
	for from := time.Now(); !is(); <-time.After(20 * time.Millisecond) {
		if time.Since(from) > most {
			failed, retried, acked := c.progress()
			c.test.Fatalf("after %s still not so: %s; of %d messages, failures: %d, retried: %d, acknowledged: %d", most, what, len(c.all), failed, retried, acked)
		}
	}
}

// late is how late the retries were that a filter takes, or all, if it is nil.
func (c *crowd) late(takes func(queue string, due time.Duration) bool) (all lateness) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.all {
		for i, a := range m.attempts {
			if i > 0 && a.came > 0 && (takes == nil || takes(c.queues[m.queue], a.due)) {
				all = append(all, a.came-a.due)
			}
		}
	}
	slices.Sort(all)
	return all
}

// lateness is how late messages came, those first that were least late.
type lateness []time.Duration

// p is a percentile in seconds; -1 where nothing came.
func (l lateness) p(percent float64) float64 {
	if len(l) == 0 {
		return -1
	}
	return l[min(int(float64(len(l))*percent/100), len(l)-1)].Seconds()
}

// account checks each message, and fails the test for those that no fault explains.
func (c *crowd) account() {
	c.test.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	failed, seen := map[string]time.Time{}, map[string][]time.Time{}
	for key := range c.copies { // what came once needs no explanation
		var n, attempt int
		_, _ = fmt.Sscan(key, &n, &attempt)
		for i, a := range c.all[n].attempts {
			key := fmt.Sprint(n, " ", i)
			failed[key] = c.began.Add(a.due - c.delay)
			if a.came > 0 {
				seen[key] = append([]time.Time{c.began.Add(a.came)}, c.copies[key]...)
			}
		}
	}
	var unexplained []string
	c.sum.Doubled, _, unexplained = duplicates(c.faults, failed, seen)
	c.sum.Unexplained = len(unexplained)
	for i, w := range append(c.wrong, unexplained...) {
		if i == 10 {
			c.test.Errorf("and %d more", len(c.wrong)+len(unexplained)-i)
			break
		}
		c.test.Error(w)
	}
}

// result is what is known of its messages so far.
func (c *crowd) result() sums {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.sum
	s.Messages, s.Changed = len(c.all), len(c.wrong)-s.Early
	return s
}
