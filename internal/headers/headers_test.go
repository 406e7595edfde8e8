package headers_test

import (
	"math"
	"reflect"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/headers"
	"github.com/redrive-mq/redrive/wire"
)

// A message goes to its next attempt as it was published, with our history of it, and
// without what RabbitMQ would route by, count on or refuse.
func TestAMarkedMessageHasOurHistoryAndNotRabbitMQs(t *testing.T) {
	first := time.Unix(1_700_000_000, 0)
	m := wire.Message{Exchange: "shop", RoutingKey: "eu", UserID: "alice", Expiration: "1000", MessageID: "m", Headers: amqp.Table{"n": int32(1)}}
	for _, name := range []string{"CC", "BCC", "x-death", "x-delay", "x-delivery-count", "x-acquired-count",
		"x-first-death-exchange", "x-first-death-queue", "x-first-death-reason", "x-last-death-exchange", "x-last-death-queue", "x-last-death-reason",
		wire.HeaderID, wire.HeaderAttempt, wire.HeaderQueue, wire.HeaderExchange, wire.HeaderRoutingKey, wire.HeaderFirstFailed,
		wire.HeaderReason, wire.HeaderError, wire.HeaderUserID, wire.HeaderDelay, wire.HeaderParkReason} {
		m.Headers[name] = "forged"
	}
	want := amqp.Table{"n": int32(1), wire.HeaderID: "id", wire.HeaderAttempt: int64(3), wire.HeaderQueue: "q", wire.HeaderExchange: "shop", wire.HeaderRoutingKey: "eu",
		wire.HeaderFirstFailed: first, wire.HeaderReason: "rejected", wire.HeaderError: "no stock", wire.HeaderUserID: "alice"}
	marked := headers.History{ID: "id", Failures: 3, Queue: "q", FirstFailed: first, Reason: "rejected", Error: "no stock"}.ApplyTo(m)
	if !reflect.DeepEqual(marked.Headers, want) || marked.UserID != "" || marked.Expiration != "" || marked.MessageID != "m" {
		t.Errorf("it goes as %+v", marked)
	}
	if m.Headers["CC"] == nil || m.UserID != "alice" {
		t.Error("the message itself was changed")
	}
	delete(want, wire.HeaderError)
	delete(want, wire.HeaderUserID)
	m.UserID = ""
	if marked := (headers.History{ID: "id", Failures: 3, Queue: "q", FirstFailed: first, Reason: "rejected"}).ApplyTo(m); !reflect.DeepEqual(marked.Headers, want) {
		t.Errorf("without error and user it goes with the headers %v", marked.Headers)
	}
}

// Headers that no version of Redrive writes are not believed.
func TestImpossibleHistoryIsNotBelieved(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	const longestExact = math.MaxInt64 / int64(time.Millisecond)
	of := func(header string, v any) *wire.Message { return &wire.Message{Headers: amqp.Table{header: v}} }
	for v, want := range map[any]int{int64(2): 2, uint8(2): 2, int64(1): 1, int64(-1): 0, int64(wire.MaxAttempt): wire.MaxAttempt, int64(wire.MaxAttempt + 1): 0, "2": 0} {
		if n, note := headers.Failures(of(wire.HeaderAttempt, v)); n != want || (note != "") != (want == 0) {
			t.Errorf("attempt %v is read as %d, %q", v, n, note)
		}
	}
	// 0 is a number that may be.
	if n, note := headers.Failures(of(wire.HeaderAttempt, int64(0))); n != 0 || note != "" {
		t.Errorf("attempt 0 is read as %d, %q", n, note)
	}
	if d, note := headers.SuggestedDelay(of(wire.HeaderDelay, int64(0)), wire.HeaderDelay); d != 0 || note != "" {
		t.Errorf("delay 0 is read as %s, %q", d, note)
	}
	for v, want := range map[any]time.Duration{int64(1500): 1500 * time.Millisecond, int64(-1): 0, "9": 0, int64(math.MaxInt64): math.MaxInt64,
		int64(longestExact): time.Duration(longestExact) * time.Millisecond, int64(longestExact + 1): math.MaxInt64} {
		if d, note := headers.SuggestedDelay(of(wire.HeaderDelay, v), wire.HeaderDelay); d != want || (note != "") != (want == 0) {
			t.Errorf("delay %v is read as %s, %q", v, d, note)
		}
	}
	for v, want := range map[any]time.Time{now.Add(-time.Hour): now.Add(-time.Hour), now.Add(time.Hour): now, time.Unix(0, 0): now, "x": now} {
		if at := headers.FirstFailed(of(wire.HeaderFirstFailed, v), now); !at.Equal(want) {
			t.Errorf("first failure %v is read as %s", v, at)
		}
	}
	for v, want := range map[string]bool{"01900000-0000-7000-8000-000000000000": true, "{01900000-0000-7000-8000-000000000000}": false, "": false, "01900000-0000-7000-8000-00000000000x": false} {
		if _, ok := headers.ID(of(wire.HeaderID, v)); ok != want {
			t.Errorf("id %q is believed: %v", v, ok)
		}
	}
	for v, want := range map[any]int64{int64(2): 2, int64(-2): 0, "2": 0, int64(math.MaxInt64): wire.MaxAttempt} {
		if n := headers.Deliveries(amqp.Table{"x-delivery-count": v}); n != want {
			t.Errorf("x-delivery-count %v is read as %d", v, n)
		}
	}
}

// What a message carries is what is shown of it, and without our count of attempts it carries nothing.
func TestAHistoryIsReadAsItWasWritten(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	h := headers.History{ID: "01900000-0000-7000-8000-000000000000", Failures: 1, Queue: "q", FirstFailed: now.Add(-time.Hour), Reason: "rejected", Error: "no stock"}
	sent := h.ApplyTo(wire.Message{Exchange: "shop", RoutingKey: "eu", UserID: "alice"})
	h.Exchange, h.RoutingKey, h.UserID = "shop", "eu", "alice"
	for _, failures := range []int{1, 0, wire.MaxAttempt} { // 0: a replayed message has all its attempts again
		h.Failures, sent.Headers[wire.HeaderAttempt] = failures, int64(failures)
		if got, ok := headers.Read(sent.Headers, now); !ok || got != h {
			t.Errorf("read as %+v, %t, want %+v", got, ok, h)
		}
	}
	sent.Headers[wire.HeaderAttempt], sent.Headers[wire.HeaderID] = int64(1), "forged"
	if got, ok := headers.Read(sent.Headers, now); !ok || got.ID != "" || got.Failures != 1 {
		t.Errorf("with another's id read as %+v, %t", got, ok)
	}
	for _, failures := range []any{int64(-1), int64(wire.MaxAttempt + 1), "2", nil} {
		sent.Headers[wire.HeaderAttempt] = failures
		if got, ok := headers.Read(sent.Headers, now); ok || got != (headers.History{}) {
			t.Errorf("with the number of failures %v read as %+v, %t", failures, got, ok)
		}
	}
	delete(sent.Headers, wire.HeaderAttempt)
	if got, ok := headers.Read(sent.Headers, now); ok || got != (headers.History{}) {
		t.Errorf("without the number of failures read as %+v, %t", got, ok)
	}
}
