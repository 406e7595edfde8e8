package policy

import "strings"

// Set is a list of policies: the first one that matches a queue is its policy.
type Set []Policy

// Match finds the policy of a queue. Without one the queue is not allowed.
func (s Set) Match(queue string) (*Policy, bool) {
	for i := range s {
		for _, pattern := range s[i].Queues {
			if glob(pattern, queue) {
				return &s[i], true
			}
		}
	}
	return nil, false
}

// Exact tells whether the policy of a queue names it without * and ?: then the author of the
// policy meant exactly this queue.
func (s Set) Exact(queue string) bool {
	p, ok := s.Match(queue)
	if !ok || strings.ContainsAny(queue, "*?") {
		return false
	}
	for _, pattern := range p.Queues {
		if pattern == queue {
			return true
		}
	}
	return false
}

// MatchQueue tells whether a pattern, as in a policy's queues, matches a queue.
func MatchQueue(pattern, queue string) bool { return glob(pattern, queue) }

// glob matches the whole name: * any bytes, ? one character, nothing else special.
// After a mismatch only the last * is tried again, so hostile names cost no more
// than pattern × name.
func glob(pattern, name string) bool {
	p, n := 0, 0
	star, retry := -1, 0
	for n < len(name) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, retry = p, n
			p++
		case p < len(pattern) && pattern[p] == '?':
			p++
			n += charLen(name[n:])
		case p < len(pattern) && pattern[p] == name[n]:
			p++
			n++
		case star >= 0:
			retry++
			p, n = star+1, retry
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}

// charLen is the length in bytes of the first character (invalid bytes count singly).
func charLen(s string) int {
	for i := range s {
		if i > 0 {
			return i
		}
	}
	return len(s)
}
