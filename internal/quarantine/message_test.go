package quarantine

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/wire"
)

func dead(body, exchange string, then ...any) *wire.Message {
	in := amqp.Table{"queue": wire.QueueIntake, "reason": "delivery_limit", "exchange": exchange, "routing-keys": []any{"orders"}, "time": time.Unix(1_700_000_000, 0)}
	return &wire.Message{Body: []byte(body), Headers: amqp.Table{"x-death": append([]any{in}, then...)}}
}

// A replay that is killed and done again gives each message the id it gave before, and two
// equal messages have two.
func TestAReplayThatIsDoneAgainKeepsIDs(t *testing.T) {
	messages := []*wire.Message{dead("same", wire.ExchangeFailures), dead("same", wire.ExchangeFailures), dead("other", wire.ExchangeFailures)}
	ids := func() (all []string) {
		var r Replayer
		for _, m := range messages {
			all = append(all, r.Report(read(m)).ID)
		}
		return all
	}
	first, again := ids(), ids()
	for i := range first {
		if first[i] != again[i] {
			t.Errorf("message %d is %s, and then %s", i, first[i], again[i])
		}
	}
	if first[0] == first[1] || first[1] == first[2] {
		t.Errorf("ids %v", first)
	}
}

func TestWhichQueueAMessageFailedIn(t *testing.T) {
	rejected := func(queue string) amqp.Table {
		return amqp.Table{"queue": queue, "reason": "rejected", "exchange": "shop", "routing-keys": []any{"key"}}
	}
	for i, c := range []struct {
		m                    *wire.Message
		queue, reason, first string
	}{
		{dead("", wire.ExchangeFailures, rejected("victim")), "orders", "reported", ""},
		{dead("", wire.ExchangeDeadLetters, rejected("work")), "work", "rejected", "shop"},
		{dead("", wire.ExchangeDeadLetters), "", "", ""},
		{dead("", "other", rejected("work")), "", "", ""},
		{dead("", wire.ExchangeDeadLetters, rejected(wire.QueueIntake)), "", "rejected", "shop"},
		{&wire.Message{Headers: amqp.Table{"x-death": []any{rejected("work")}}}, "", "", ""},
		{&wire.Message{}, "", "", ""},
		{&wire.Message{Headers: amqp.Table{"x-death": "x"}}, "", "", ""},
	} {
		if x := read(c.m); x.Queue != c.queue || x.Reason != c.reason || x.Exchange != c.first {
			t.Errorf("%d: %q, %q, %q", i, x.Queue, x.Reason, x.Exchange)
		}
	}
}
