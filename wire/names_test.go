package wire_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/wire"
)

// A queue may be called what the retry exchange of a longer one is shortened to.
func TestLongNamesNeverShareARetryExchange(t *testing.T) {
	const prefix = "redrive.retry."
	for name, queue := range map[string]string{
		"one byte too long":        strings.Repeat("q", 242),
		"as long as queues are":    strings.Repeat("q", 255),
		"cut within a character":   strings.Repeat("q", 207) + strings.Repeat("\U0001F600", 12),
		"cut after two of 3 bytes": strings.Repeat("q", 206) + strings.Repeat("€", 16),
	} {
		for range 5 { // and so on: the short form of a short form
			exchange := wire.RetryExchange(queue)
			if len(exchange) > 255 || !utf8.ValidString(exchange) {
				t.Errorf("%s: %d bytes, %q", name, len(exchange), exchange)
			}
			if queue = strings.TrimPrefix(exchange, prefix); wire.RetryExchange(queue) == exchange {
				t.Errorf("%s: the queue %q has the same exchange as a longer one", name, queue)
			}
		}
	}
	for _, queue := range []string{"orders", "orders." + strings.Repeat("0", 32), strings.Repeat("q", 241), strings.Repeat("0", 241)} {
		expect.Equal(t, wire.RetryExchange(queue), prefix+queue, "the exchange of %q", queue)
	}
}

// No two queues that RabbitMQ can have share one, whatever they are called.
func TestNoTwoQueuesShareARetryExchange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		long := rapid.StringMatching(`[a-f€\x{1F600}.]{150,255}`).Filter(func(s string) bool { return len(s) <= 255 }).Draw(t, "queue")
		other := strings.TrimPrefix(wire.RetryExchange(long), "redrive.retry.")
		if rapid.Bool().Draw(t, "again") {
			other = strings.TrimPrefix(wire.RetryExchange(other), "redrive.retry.")
		}
		if other != long && wire.RetryExchange(other) == wire.RetryExchange(long) {
			t.Errorf("%q and %q share %q", long, other, wire.RetryExchange(long))
		}
	})
}
