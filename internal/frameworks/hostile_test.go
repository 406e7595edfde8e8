package frameworks

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/wire"
)

// headerNames are all headers of the samples.
func headerNames(t testing.TB) []string {
	names := map[string]bool{}
	for _, s := range samples(t) {
		for name := range s.Message.Headers {
			names[name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// hostile makes a header's value of each type of AMQP.
func hostile(kind uint8, s string) any {
	switch kind % 12 {
	case 0:
		return s
	case 1:
		return []byte(s)
	case 2:
		return int64(len(s)) << 40
	case 3:
		return int8(-1)
	case 4:
		return []any{s, amqp.Table{s: s}}
	case 5:
		return amqp.Table{"error": amqp.Table{"message": s, "code": []byte(s)}, "originalQueue": s, "recovery": amqp.Table{s: amqp.Table{"republished": int64(-5), "forwarded": int64(1) << 62}}}
	case 6:
		return nil
	case 7:
		return true
	case 8:
		return time.Unix(int64(len(s))<<33, 0)
	case 9:
		return 1e300
	case 10:
		return amqp.Decimal{Scale: 200, Value: 1}
	}
	return strings.Repeat(s, 20)
}

func checkBounds(t testing.TB, f Fault) {
	t.Helper()
	for _, s := range []string{f.Framework, f.Error, f.Type, f.Stack, f.MessageType} {
		if len(s) > maxText || !utf8.ValidString(s) {
			t.Fatalf("a text of %d bytes: %.300q", len(s), s)
		}
	}
	for _, s := range []string{f.Exchange, f.RoutingKey, f.Queue, f.MessageID} {
		if len(s) > maxName || !utf8.ValidString(s) {
			t.Fatalf("a name of %d bytes: %.300q", len(s), s)
		}
	}
	if f.Attempts < 0 || f.Attempts > maxAttempts || !f.Failed.IsZero() && f.Failed.Year() < 2000 || !f.FirstFailed.IsZero() && f.FirstFailed.Year() < 2000 {
		t.Fatalf("%+v", f)
	}
	if len(f.Text()) > 4*maxText {
		t.Fatalf("an error of %d bytes", len(f.Text()))
	}
}

func checkAll(t testing.TB, queue string, m *wire.Message) {
	t.Helper()
	before := maps.Clone(m.Headers)
	f, found := Read(m)
	checkBounds(t, f)
	if !found && f != (Fault{}) {
		t.Fatalf("nothing was found, but %+v", f)
	}
	g, _ := ReadFrom(queue, m)
	checkBounds(t, g)
	r, h, err := Restore(queue, m)
	if r == nil || h != g && err == nil || err != nil && r != m {
		t.Fatalf("restored %v of %+v, read %+v: %v", r, h, g, err)
	}
	if m.Headers.Validate() == nil && r.Headers.Validate() != nil {
		t.Fatalf("restored with headers that cannot be published: %v", r.Headers.Validate())
	}
	if !sameHeaders(m.Headers, before) {
		t.Fatal("the message itself was changed")
	}
}

// sameHeaders compares all but what is not equal to itself.
func sameHeaders(a, b amqp.Table) bool {
	return maps.EqualFunc(a, b, func(a, b any) bool { return reflect.DeepEqual(a, b) })
}

// Any type of AMQP in any header, and headers that are huge, neither stop reading nor make a text
// that is longer than what is kept.
func TestHostileHeaders(t *testing.T) {
	for _, s := range samples(t) {
		for header := range s.Message.Headers {
			for kind := range uint8(12) {
				for _, value := range []string{"", "x", "\xff\xfe\x00", "5 unhandled exceptions: : : a.b: ", `[{"retryCount":1e99,"exceptionMessage":{"a":[]}}]`, `{"num_attempts":"-1","failed_at":7,"properties":[]}`,
					"rabbitmq://%zz/", strings.Repeat("é", 20_000), strings.Repeat(": ", 20_000), strings.Repeat("[", 20_000), `{"properties":{"headers":` + strings.Repeat(`{"a":`, 5_000) + "1" + strings.Repeat("}", 5_002)} {
					m := s.Message.message()
					m.Headers[header] = hostile(kind, value)
					checkAll(t, s.FoundIn, m)
				}
			}
		}
	}
}

// One header costs no more than a look at it: of a text that seems to have types everywhere too.
func TestALongErrorTakesNoTime(t *testing.T) {
	for _, text := range []string{strings.Repeat("a: ", 40_000), strings.Repeat("a\n\n", 40_000), strings.Repeat("\nCaused by: ", 10_000)} {
		began := time.Now()
		for _, header := range []string{"rbs2-error-details", "x-exception-stacktrace", "MT-Fault-Message"} {
			checkAll(t, "", &wire.Message{Headers: amqp.Table{header: text}})
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("%.10q… took %s", text, took)
		}
	}
}

func FuzzFrameworks(f *testing.F) {
	names := headerNames(f)
	for _, s := range samples(f) {
		headers, _ := json.Marshal(s.Message.Headers)
		f.Add(uint8(0), uint8(0), "x", string(headers), s.FoundIn, s.Message.Type, []byte(s.Message.Body))
	}
	f.Fuzz(func(t *testing.T, which, kind uint8, value, headers, queue, typ string, body []byte) {
		var h map[string]any
		if !fromJSON([]byte(headers), &h) {
			h = nil
		}
		m := &wire.Message{Headers: tableOf(h, 0), Type: typ, Body: body, ContentType: "application/vnd.masstransit+json"}
		m.Headers[names[int(which)%len(names)]] = hostile(kind, value)
		checkAll(t, queue, m)
	})
}

// BenchmarkReadNothing is what each dead letter of no known framework costs.
func BenchmarkReadNothing(b *testing.B) {
	m := &wire.Message{Headers: amqp.Table{"x-death": []any{}, "tenant": "acme", "traceparent": "00", "x-first-death-queue": "q", "content-class": "order"}}
	b.ReportAllocs()
	for b.Loop() {
		if _, found := Read(m); found {
			b.Fatal("found")
		}
	}
}

func BenchmarkReadMassTransit(b *testing.B) { benchmarkRead(b, "masstransit") }
func BenchmarkReadSymfony(b *testing.B)     { benchmarkRead(b, "symfony") }

func benchmarkRead(b *testing.B, name string) {
	m := samples(b)[name].Message.message()
	b.ReportAllocs()
	for b.Loop() {
		if _, found := Read(m); !found {
			b.Fatal("not found")
		}
	}
}
