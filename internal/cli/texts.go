package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/digits"
	"github.com/redrive-mq/redrive/policy"
)

// plural is "1 message", "1,204 messages".
func plural[N int | int64](n N, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return count(n) + " " + more
}

func messages[N int | int64](n N) string { return plural(n, "message", "messages") }

// count is a number with its thousands separated.
func count[N int | int64](n N) string { return digits.Group(fmt.Sprint(n)) }

// timeText is a time for people, to the second.
func timeText(t *time.Time) string {
	if t == nil || t.IsZero() {
		return "-"
	}
	return t.UTC().Format("2006-01-02 15:04:05 UTC")
}

// ago is how long ago a time was, or how far ahead it is.
func ago(t *time.Time, now time.Time) string {
	switch {
	case t == nil || t.IsZero():
		return "-"
	case t.After(now):
		return untilText(t, now)
	case now.Sub(*t) < time.Second:
		return "now"
	}
	return policy.FormatDuration(now.Sub(*t).Round(time.Second)) + " ago"
}

// untilText is how far ahead a time is; what was due in the past is due now.
func untilText(t *time.Time, now time.Time) string {
	switch {
	case t == nil:
		return "-"
	case !t.After(now):
		return "now"
	}
	return "in " + policy.FormatDuration(t.Sub(now).Round(100*time.Millisecond))
}

// parseWhen reads a time: "in 10m", or as RFC 3339, which has a time zone.
func parseWhen(text string) (*time.Time, error) {
	if text == "" {
		return nil, nil
	}
	if s, ok := strings.CutPrefix(text, "in "); ok {
		if d, err := config.ParseDuration(strings.TrimSpace(s)); err == nil && d > 0 {
			t := time.Now().Add(d)
			return &t, nil
		}
	} else if t, err := time.Parse(time.RFC3339, text); err == nil {
		return &t, nil
	}
	return nil, fmt.Errorf("--at %q: expected a time such as 2026-11-21T18:30:00Z, or \"in 10m\": %w", text, errUsage)
}

// doneText says what was done to n messages.
func doneText(verb actions.Verb, n int64, t *time.Time) string {
	if t != nil && t.After(time.Now()) {
		return plural(n, "message is", "messages are") + " due at " + timeText(t)
	}
	one, more := verb.Result()
	return plural(n, one, more)
}
