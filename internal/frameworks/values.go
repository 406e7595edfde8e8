package frameworks

import (
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/headers"
)

// maxRaw bounds what is looked at of a header: RabbitMQ's own limit of all headers, unless its
// frame_max is set to more.
const maxRaw = 128 << 10

// raw returns a header that is text, whether as a string or as bytes, as some clients send it.
func raw(h amqp.Table, header string) string {
	switch v := h[header].(type) {
	case string:
		return v[:min(len(v), maxRaw)]
	case []byte:
		return string(v[:min(len(v), maxRaw)])
	}
	return ""
}

// text returns a header as text for people.
func text(h amqp.Table, header string) string { return printable(raw(h, header)) }

func printable(s string) string { return headers.Printable(s, maxText) }

// name returns a name; "" where it cannot be one of RabbitMQ's.
func name(s string) string {
	if len(s) > maxName || !utf8.ValidString(s) {
		return ""
	}
	return s
}

// number returns a header that counts, from 0; false: it is none.
func number(h amqp.Table, header string) (n int, ok bool) {
	if s := raw(h, header); s != "" {
		return count(s)
	}
	i, ok := headers.Integer(h[header])
	if !ok || i < 0 || i > maxAttempts {
		return 0, false
	}
	return int(i), true
}

func count(s string) (n int, ok bool) {
	n, err := strconv.Atoi(strings.TrimSpace(s[:min(len(s), 32)]))
	return max(n, 0), err == nil && n >= 0 && n <= maxAttempts
}

// attempts adds to the first attempt those that counters tell of.
func attempts(more ...int) int {
	n := 1
	for _, m := range more {
		n = min(n+m, maxAttempts)
	}
	return n
}

// moment returns a text that is a time in one of the layouts.
func moment(s string, layouts ...string) time.Time {
	if len(s) > 64 {
		return time.Time{}
	}
	for _, layout := range layouts {
		if t, err := time.Parse(layout, s); err == nil {
			return believable(t)
		}
	}
	return time.Time{}
}

// believable returns t, or no time where no clock can have shown it.
func believable(t time.Time) time.Time {
	if t.Year() < 2000 || t.Year() > 9000 {
		return time.Time{}
	}
	return t.UTC()
}
