package policy

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// Set is a list of policies: the first one that matches a queue is its policy.
type Set []Policy

// Match returns the policy of a queue; false: it has none, so nothing is retried to it.
func (s Set) Match(queue string) (*Policy, bool) {
	for i := range s {
		for _, pattern := range s[i].Queues {
			if MatchQueue(pattern, queue) {
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
	return ok && !strings.ContainsAny(queue, "*?") && slices.Contains(p.Queues, queue)
}

// MatchQueue tells whether a pattern, as in Policy.Queues, matches the whole name of a queue: *
// stands for any bytes, ? for one character, and all else for itself. After a mismatch only the
// last * is tried again, so hostile names cost no more than pattern × name.
func MatchQueue(pattern, name string) bool {
	p, n := 0, 0
	star, retry := -1, 0
	for n < len(name) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, retry = p, n
			p++
		case p < len(pattern) && pattern[p] == '?':
			_, size := utf8.DecodeRuneInString(name[n:]) // 1 for an invalid byte
			p, n = p+1, n+size
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
