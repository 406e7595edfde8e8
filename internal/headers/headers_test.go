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
		wire.HeaderReason, wire.HeaderError, wire.HeaderReplays, wire.HeaderUserID, wire.HeaderDelay, wire.HeaderParkReason} {
		m.Headers[name] = "forged"
	}
	want := amqp.Table{"n": int32(1), wire.HeaderID: "id", wire.HeaderAttempt: int64(3), wire.HeaderQueue: "q", wire.HeaderExchange: "shop", wire.HeaderRoutingKey: "eu",
		wire.HeaderFirstFailed: first, wire.HeaderReason: "rejected", wire.HeaderError: "no stock", wire.HeaderReplays: int64(2), wire.HeaderUserID: "alice"}
	marked := headers.History{ID: "id", Failures: 3, Queue: "q", FirstFailed: first, Reason: "rejected", Error: "no stock", Replays: 2}.ApplyTo(m)
	if !reflect.DeepEqual(marked.Headers, want) || marked.UserID != "" || marked.Expiration != "" || marked.MessageID != "m" {
		t.Errorf("it goes as %+v", marked)
	}
	if m.Headers["CC"] == nil || m.UserID != "alice" {
		t.Error("the message itself was changed")
	}
	delete(want, wire.HeaderError)
	delete(want, wire.HeaderReplays)
	delete(want, wire.HeaderUserID)
	m.UserID = ""
	if marked := (headers.History{ID: "id", Failures: 3, Queue: "q", FirstFailed: first, Reason: "rejected"}).ApplyTo(m); !reflect.DeepEqual(marked.Headers, want) {
		t.Errorf("without error, replays and user it goes with the headers %v", marked.Headers)
	}
}

// Headers that no version of Redrive writes are not believed.
func TestImpossibleHistoryIsNotBelieved(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	const longestExact = math.MaxInt64 / int64(time.Millisecond)
	of := func(header string, v any) *wire.Message { return &wire.Message{Headers: amqp.Table{header: v}} }
	read := func(header string, v any) (headers.History, string) {
		m := of(header, v)
		m.Headers[wire.HeaderQueue] = "q"
		if header != wire.HeaderAttempt {
			m.Headers[wire.HeaderAttempt] = int64(1)
		}
		h, _, note := headers.Read(m, "q", true, now)
		return h, note
	}
	for v, want := range map[any]int{int64(2): 2, uint8(2): 2, int64(1): 1, int64(-1): 0, int64(wire.MaxAttempt): wire.MaxAttempt, int64(wire.MaxAttempt + 1): 0, "2": 2, 2.0: 2, "two": 0, "": 0, true: 0} {
		if h, note := read(wire.HeaderAttempt, v); h.Failures != want || (note != "") != (want == 0) {
			t.Errorf("attempt %v is read as %d, %q", v, h.Failures, note)
		}
		if h, note := read(wire.HeaderReplays, v); h.Replays != want || h.Failures != 1 || (note != "") != (want == 0) {
			t.Errorf("replays %v are read as %d, %q", v, h.Replays, note)
		}
	}
	// 0 is a number that may be.
	if h, note := read(wire.HeaderAttempt, int64(0)); h.Failures != 0 || note != "" {
		t.Errorf("attempt 0 is read as %d, %q", h.Failures, note)
	}
	if d, note := headers.SuggestedDelay(of(wire.HeaderDelay, int64(0))); d != 0 || note != "" {
		t.Errorf("delay 0 is read as %s, %q", d, note)
	}
	for v, want := range map[any]time.Duration{int64(1500): 1500 * time.Millisecond, int64(-1): 0, "soon": 0, "9": 9 * time.Millisecond, " 8000.0 ": 8 * time.Second,
		8000.0: 8 * time.Second, float32(8000): 8 * time.Second, 8000.5: 8001 * time.Millisecond, -0.5e9: 0, 1e300: math.MaxInt64, math.Inf(1): 0, "NaN": 0,
		amqp.Decimal{Scale: 1, Value: 80005}: 8001 * time.Millisecond, amqp.Decimal{Scale: 200, Value: 1}: time.Millisecond, int64(math.MaxInt64): math.MaxInt64,
		int64(longestExact): time.Duration(longestExact) * time.Millisecond, int64(longestExact + 1): math.MaxInt64} {
		if d, note := headers.SuggestedDelay(of(wire.HeaderDelay, v)); d != want || (note != "") != (want == 0) {
			t.Errorf("delay %v is read as %s, %q", v, d, note)
		}
	}
	for want, m := range map[string]*wire.Message{"": of(wire.HeaderDelay, 8000.5), wire.HeaderDelay: of(wire.HeaderDelay, "soon"), wire.HeaderAttempt: of(wire.HeaderAttempt, "two"), wire.HeaderReplays: of(wire.HeaderReplays, int64(-2))} {
		for _, reason := range []string{wire.ReasonReported, wire.ReasonRejected, wire.ReasonDeliveryLimit} {
			if got := headers.Ignored(m, reason); got != want {
				t.Errorf("ignored is %q of %v, %s", got, m.Headers, reason)
			}
		}
		for _, reason := range []string{wire.ReasonExpired, wire.ReasonMaxLen} {
			if got := headers.Ignored(m, reason); got == wire.HeaderDelay {
				t.Errorf("a delay counts in a dead letter that no consumer had: %v, %s", m.Headers, reason)
			}
		}
	}
	for v, want := range map[any]time.Time{now.Add(-time.Hour): now.Add(-time.Hour), now.Add(time.Hour): now, time.Unix(0, 0): now, "x": now} {
		if h, _ := read(wire.HeaderFirstFailed, v); !h.FirstFailed.Equal(want) {
			t.Errorf("first failure %v is read as %s", v, h.FirstFailed)
		}
	}
	for v, want := range map[string]bool{"01900000-0000-7000-8000-000000000000": true, "{01900000-0000-7000-8000-000000000000}": false, "": false, "01900000-0000-7000-8000-00000000000x": false} {
		if h, _ := read(wire.HeaderID, v); h.ID != map[bool]string{true: v}[want] {
			t.Errorf("id %q is read as %q", v, h.ID)
		}
	}
	for v, want := range map[any]int64{int64(2): 2, int64(-2): 0, "2": 0, int64(math.MaxInt64): wire.MaxAttempt} {
		if n := headers.Deliveries(amqp.Table{"x-delivery-count": v}); n != want {
			t.Errorf("x-delivery-count %v is read as %d", v, n)
		}
	}
}

// Read returns what ApplyTo has written.
func TestAHistoryIsReadAsItWasWritten(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	m := wire.Message{Exchange: "shop", RoutingKey: "eu", UserID: "alice", MessageID: "m", Body: []byte("order")}
	h := headers.History{ID: headers.NewID(&m).String(), Failures: 1, Queue: "q", FirstFailed: now.Add(-time.Hour), Reason: "rejected", Error: "no stock", Replays: 2}
	sent := h.ApplyTo(m)
	h.Exchange, h.RoutingKey, h.UserID = "shop", "eu", "alice"
	for _, failures := range []int{1, 0, wire.MaxAttempt} { // 0: a replayed message has all its attempts again
		h.Failures, sent.Headers[wire.HeaderAttempt] = failures, int64(failures)
		if got, ok, note := headers.Read(sent, "q", false, now); !ok || got != h || note != "" {
			t.Errorf("read as %+v, %t, %q, want %+v", got, ok, note, h)
		}
	}
	sent.Headers[wire.HeaderID] = "forged"
	if got, ok, _ := headers.Read(sent, "q", true, now); !ok || got.ID != "" {
		t.Errorf("with an id that is none read as %+v, %t", got, ok)
	}
	for _, header := range []string{wire.HeaderID, wire.HeaderAttempt} {
		delete(sent.Headers, header)
	}
	if got, ok, note := headers.Read(sent, "q", true, now); ok || got != (headers.History{}) || note != "" {
		t.Errorf("without id and number of failures read as %+v, %t, %q", got, ok, note)
	}
}

// The headers of a delivery that a framework copies to another message are not the history of that
// one, whatever id they have; and those of a message in flight when Redrive is upgraded still are.
func TestHeadersOfAnotherMessageDoNotCount(t *testing.T) {
	m := wire.Message{MessageID: "m", Body: []byte("order")}
	own, earlier := headers.NewID(&m).String(), "01900000-0000-7000-8000-000000000000"
	for name, c := range map[string]struct {
		id, queue, messageID, body string
		viaOurs, want              bool
	}{
		"the delivery":                   {own, "q", "m", "order", true, true},
		"moved by another exchange":      {own, "q", "m", "order", false, true},
		"another body":                   {own, "q", "m", "orders", true, false},
		"a body of the same length":      {own, "q", "m", "Order", true, false},
		"another message-id":             {own, "q", "m2", "order", true, false},
		"what looks the same, joined":    {own, "q", "mo", "rder", true, false},
		"no body":                        {own, "q", "m", "", true, false},
		"another queue":                  {own, "other", "m", "order", true, false},
		"an earlier version's id":        {earlier, "q", "m", "order", true, true},
		"an earlier id, other exchange":  {earlier, "q", "m", "order", false, false},
		"an earlier id, another queue":   {earlier, "other", "m", "order", true, false},
		"an id of an earlier library":    {"01900000-0000-8000-8000-000000000000", "q", "m", "order", true, true},
		"another's id in the same place": {headers.NewID(&wire.Message{}).String(), "q", "m", "order", true, false},
	} {
		sent := headers.History{ID: c.id, Failures: 2, Queue: "q", Replays: 3}.ApplyTo(wire.Message{MessageID: c.messageID, Body: []byte(c.body)})
		got, ok, note := headers.Read(sent, c.queue, c.viaOurs, time.Now())
		if ok != c.want || ok != (got.ID == c.id && got.Failures == 2 && got.Replays == 3) || ok != (note == "") {
			t.Errorf("%s: %t, %+v, %q", name, ok, got, note)
		}
	}
	id := headers.NewID(&m)
	if headers.BindID(id, &m) != id || headers.NewID(&m) == id || id.Version() != 8 {
		t.Errorf("the id %s", id)
	}
}
