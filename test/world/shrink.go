package world

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// kinds of parts in the order in which they are left out: queues, which leaves out most, faults,
// what people do, hostile messages, other messages, ways to wait in RabbitMQ, the library, limits of
// queues, their policies, replicas but for one, that the store is Redis's own, and queues again.
const kinds = "qfahmwlbprsq"

// Parts names all that a seed's scenario has: f2 is a fault, a0 an action, h003 a hostile message,
// m014 another one, w1 that the queue q1 waits in RabbitMQ, l1 that its consumer is the library's, r1
// the second replica, b2 that q2 has a limit, p3 that a policy of RabbitMQ's dead-letters q3, s that the
// store is Redis's own and not what stands for it.
func Parts(seed uint64) (all []string) {
	s := newScenario(seed)
	for i := range s.faults {
		all = append(all, fmt.Sprint("f", i))
	}
	for i := range s.actions {
		all = append(all, fmt.Sprint("a", i))
	}
	for _, h := range s.hostile {
		all = append(all, h.id)
	}
	for _, m := range s.messages {
		all = append(all, m.id)
	}
	for i, q := range s.queues {
		if all = append(all, fmt.Sprint("q", i)); q.way != nil {
			all = append(all, fmt.Sprint("w", i))
		}
		if q.library != nil {
			all = append(all, fmt.Sprint("l", i))
		}
		if q.most > 0 {
			all = append(all, fmt.Sprint("b", i))
		}
		if q.byPolicy {
			all = append(all, fmt.Sprint("p", i))
		}
	}
	for i := 1; i < s.replicas; i++ {
		all = append(all, fmt.Sprint("r", i))
	}
	if s.onRedis {
		all = append(all, "s")
	}
	return all
}

// only is the scenario without the parts that are not named. "f" alone names all faults.
func (s *scenario) only(parts []string) *scenario {
	if len(parts) == 0 {
		return s
	}
	has := func(kind string, name any) bool {
		return slices.Contains(parts, kind) || slices.Contains(parts, strings.TrimPrefix(fmt.Sprint(kind, name), kind+kind))
	}
	is := *s
	if is.onRedis = s.onRedis && slices.Contains(parts, "s"); s.onRedis && !is.onRedis {
		s.faults = s.faults[:s.withoutRedis]
		for _, q := range s.queues {
			if q.withoutRedis != nil {
				q.policy.Backoff = *q.withoutRedis
			}
		}
	}
	is.queues, is.messages, is.faults, is.actions, is.hostile = nil, nil, nil, nil, nil
	for i, q := range s.queues {
		if q.way != nil && !has("w", i) {
			q.way, q.policy.Jitter = nil, jitter
		}
		if !has("l", i) {
			q.library = nil
		}
		if !has("b", i) {
			q.most = 0
		}
		q.byPolicy = q.byPolicy && has("p", i)
		if has("q", i) {
			is.queues = append(is.queues, q)
		}
	}
	is.replicas = 1
	for i := 1; i < s.replicas; i++ {
		if has("r", i) {
			is.replicas++
		}
	}
	for i, f := range s.faults {
		if has("f", i) && (f.queue == nil || slices.Contains(is.queues, f.queue)) && (f.policy != shadowing || f.queue.byPolicy) {
			is.faults = append(is.faults, f)
		}
	}
	for i, a := range s.actions {
		if has("a", i) && slices.Contains(is.queues, a.queue) {
			is.actions = append(is.actions, a)
		}
	}
	for _, m := range s.messages {
		if has("m", m.id[1:]) && slices.Contains(is.queues, m.queue) {
			is.messages = append(is.messages, m)
		}
	}
	for _, h := range s.hostile {
		if has("h", h.id[1:]) && slices.Contains(is.queues, h.queue) {
			is.hostile = append(is.hostile, h)
		}
	}
	return &is
}

// Shrink leaves out what parts it can while the rest still fails, halves first and then one by one,
// until then. What fails once in some runs may need fails to run it several times.
func Shrink(parts []string, fails func(parts []string) bool, until time.Time) []string {
	for _, kind := range kinds {
		of := func(part string) bool { return rune(part[0]) == kind }
		n := 0
		for _, part := range parts {
			if of(part) {
				n++
			}
		}
		for size := n; size > 0; size /= 2 {
			for from := 0; from < n && time.Now().Before(until); {
				fewer, left := without(parts, of, from, size)
				if len(fewer) > 0 && fails(fewer) {
					parts, n = fewer, left
				} else {
					from += size
				}
			}
		}
	}
	return parts
}

// without leaves out size parts of a kind, and tells how many of it are left.
func without(parts []string, of func(string) bool, from, size int) (fewer []string, left int) {
	i := 0
	for _, part := range parts {
		if of(part) {
			if i++; i > from && i <= from+size {
				continue
			}
			left++
		}
		fewer = append(fewer, part)
	}
	return fewer, left
}

// Describe is a scenario in lines, in the order in which things happen.
func Describe(seed uint64, parts []string) string {
	s := newScenario(seed).only(parts)
	type line struct {
		at   time.Duration
		what string
	}
	var all []line
	for _, q := range s.queues {
		all = append(all, line{0, q.String()})
	}
	for _, m := range s.messages {
		all = append(all, line{m.at, m.String()})
	}
	for _, f := range s.faults {
		all = append(all, line{f.at, f.String()})
	}
	for _, a := range s.actions {
		all = append(all, line{a.at, a.String()})
	}
	for _, h := range s.hostile {
		all = append(all, line{h.at, h.String()})
	}
	slices.SortStableFunc(all, func(a, b line) int { return int(a.at - b.at) })
	text := fmt.Sprintf("RabbitMQ %s, the store %s, %d replicas\n", s.version, s.storeName(), s.replicas)
	for _, l := range all {
		text += fmt.Sprintf("%s %s\n", l.at, l.what)
	}
	return text
}
