package retry_test

import (
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/wire"
)

// The latest death comes first in x-death. A message that waited in a queue with a TTL, or was dropped
// from the dead-letter queue itself, failed where a consumer rejected it first.
func TestWhereAnAdoptedMessageFailed(t *testing.T) {
	at := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	death := func(queue, reason string, hour int) amqp.Table {
		return amqp.Table{"queue": queue, "reason": reason, "exchange": "shop", "routing-keys": []any{"k." + queue}, "count": int64(3), "time": at.Add(time.Duration(hour) * time.Hour)}
	}
	for name, test := range map[string]struct {
		deaths              any
		queue, reason, says string
	}{
		"rejected":                       {[]any{death("orders", "rejected", 1)}, "orders", "rejected", ""},
		"waited before it was rejected":  {[]any{death("orders", "rejected", 2), death("orders.wait", "expired", 1)}, "orders", "rejected", ""},
		"rejected twice":                 {[]any{death("mail", "rejected", 3), death("orders", "rejected", 1)}, "orders", "rejected", ""},
		"in the same second":             {[]any{death("mail", "rejected", 1), death("orders", "rejected", 1)}, "orders", "rejected", ""},
		"delivered too often":            {[]any{death("orders.wait", "expired", 1), death("orders", "delivery_limit", 2)}, "orders", "delivery_limit", ""},
		"expired alone":                  {[]any{death("orders", "expired", 1)}, "orders", "expired", ""},
		"died in the queue itself":       {[]any{death("orders.dlq", "rejected", 1), death("orders", "maxlen", 2)}, "orders", "maxlen", ""},
		"died in the queue itself alone": {[]any{death("orders.dlq", "rejected", 1)}, "", "", "none but this one"},
		"a reason that is none":          {[]any{death("orders", "whatever", 1)}, "orders", "", ""},
		"a queue of Redrive":             {[]any{death("redrive.intake", "rejected", 1)}, "", "rejected", "Redrive's own"},
		"a name that is too long":        {[]any{death(strings.Repeat("q", 256), "rejected", 1)}, "", "rejected", "no queue can be called"},
		"a name that is no text":         {[]any{death("\xff", "rejected", 1)}, "", "rejected", "no queue can be called"},
		"no list":                        {"orders", "", "", "malformed"},
		"not tables":                     {[]any{int32(1), nil, "x"}, "", "", "none but this one"},
		"values of other types":          {[]any{amqp.Table{"queue": int32(1), "routing-keys": "k", "count": "3", "time": "now"}}, "", "", "none but this one"},
		"none":                           {nil, "", "", "was published to the queue"},
	} {
		t.Run(name, func(t *testing.T) {
			h := amqp.Table{}
			if test.deaths != nil {
				h["x-death"] = test.deaths
			}
			f := retry.Adoption{Queue: "orders.dlq"}.Read(&wire.Delivery{Message: wire.Message{Headers: h}}, at.Add(24*time.Hour))
			unknown := strings.Join(f.Unknown, "\n")
			if f.Queue != test.queue || f.Reason != test.reason || !strings.Contains(unknown, test.says) {
				t.Errorf("failed in %q, %q; not known: %s", f.Queue, f.Reason, unknown)
			}
			if test.queue != "" && (f.Attempts != 3 || f.Exchange != "shop" || f.RoutingKey != "k."+test.queue || f.First.IsZero() || f.Last.Before(f.First)) {
				t.Errorf("read as %+v", f)
			}
		})
	}
}

// A clock that was never right, or is ahead, says nothing.
func TestTimesOfAnAdoptedMessageThatCannotBeAreNotBelieved(t *testing.T) {
	now := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	for _, at := range []time.Time{time.Unix(0, 0), now.Add(time.Hour)} {
		d := wire.Delivery{Message: wire.Message{Headers: amqp.Table{"x-death": []any{amqp.Table{"queue": "orders", "reason": "rejected", "time": at}}}}}
		if f := (retry.Adoption{Queue: "orders.dlq"}).Read(&d, now); !f.First.IsZero() || !f.Last.IsZero() {
			t.Errorf("of %s it believes %s and %s", at, f.First, f.Last)
		}
	}
}
