package frameworks

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/wire"
)

var update = flag.Bool("update", false, "write what is read and restored into testdata")

// sample is a message as a framework leaves it. Source names the framework's files that it is
// made from.
type sample struct {
	Source   string       `json:"source"`
	FoundIn  string       `json:"found_in"`
	Message  sampled      `json:"message"`
	Fault    *sampleFault `json:"fault"`
	Unknown  []string     `json:"unknown"`
	Restored *sampled     `json:"restored"`
}

type sampleFault struct {
	Framework, Error, Type, Stack, Exchange, RoutingKey, Queue, MessageType string
	Attempts                                                                int
	FirstFailed, Failed                                                     time.Time
	MessageID                                                               string
}

// sampled is a message in JSON. Its numbers are of 64 bits.
type sampled struct {
	Exchange        string         `json:"exchange"`
	RoutingKey      string         `json:"routing_key"`
	ContentType     string         `json:"content_type,omitempty"`
	ContentEncoding string         `json:"content_encoding,omitempty"`
	CorrelationID   string         `json:"correlation_id,omitempty"`
	MessageID       string         `json:"message_id,omitempty"`
	Type            string         `json:"type,omitempty"`
	DeliveryMode    uint8          `json:"delivery_mode,omitempty"`
	Timestamp       *time.Time     `json:"timestamp,omitempty"`
	Headers         map[string]any `json:"headers"`
	Body            string         `json:"body"`
}

func (s *sampled) message() *wire.Message {
	return &wire.Message{Exchange: s.Exchange, RoutingKey: s.RoutingKey, ContentType: s.ContentType, ContentEncoding: s.ContentEncoding, CorrelationID: s.CorrelationID,
		MessageID: s.MessageID, Type: s.Type, DeliveryMode: s.DeliveryMode, Headers: tableOf(s.Headers, 0), Body: []byte(s.Body)}
}

func sampleOf(m *wire.Message) *sampled {
	s := &sampled{Exchange: m.Exchange, RoutingKey: m.RoutingKey, ContentType: m.ContentType, ContentEncoding: m.ContentEncoding, CorrelationID: m.CorrelationID,
		MessageID: m.MessageID, Type: m.Type, DeliveryMode: m.DeliveryMode, Headers: m.Headers, Body: string(m.Body)}
	if !m.Timestamp.IsZero() {
		s.Timestamp = &m.Timestamp
	}
	return s
}

func samples(t testing.TB) map[string]*sample {
	t.Helper()
	files, err := filepath.Glob("testdata/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d samples: %v", len(files), err)
	}
	all := map[string]*sample{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		s := &sample{}
		if d := json.NewDecoder(bytes.NewReader(data)); true {
			d.UseNumber()
			d.DisallowUnknownFields()
			if err := d.Decode(s); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
		}
		all[strings.TrimSuffix(filepath.Base(file), ".json")] = s
	}
	return all
}

// Each sample is read and restored as its file says, and has what no consumer expects no more.
func TestSamples(t *testing.T) {
	seen := map[string]bool{}
	for name, s := range samples(t) {
		m := s.Message.message()
		was := *m
		was.Headers = tableOf(s.Message.Headers, 0)
		f, found := ReadFrom(s.FoundIn, m)
		restored, again, err := Restore(s.FoundIn, m)
		if !found || err != nil || again != f {
			t.Errorf("%s: found %v, %v, restored of %+v", name, found, err, again)
			continue
		}
		if !reflect.DeepEqual(*m, was) {
			t.Errorf("%s: the message itself was changed", name)
		}
		seen[f.Framework] = true
		got := *s
		got.Fault, got.Unknown, got.Restored = (*sampleFault)(nil), f.Unknown(), sampleOf(restored)
		fault := sampleFault(f)
		got.Fault = &fault
		text := encode(t, got)
		path := filepath.Join("testdata", name+".json")
		if *update {
			if err := os.WriteFile(path, text, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if want, err := os.ReadFile(path); err != nil || !bytes.Equal(want, text) {
			t.Errorf("%s: got\n%s", name, text)
		}
		if err := restored.Headers.Validate(); err != nil {
			t.Errorf("%s: restored with headers that cannot be published: %v", name, err)
		}
		// Where the body tells it, Read alone must not look there.
		if headersOnly, found := Read(m); found != (presetOf(m.Headers) != nil) || found && headersOnly.Framework != f.Framework {
			t.Errorf("%s: by its headers alone read as %+v", name, headersOnly)
		}
		// What is restored tells of no failure any more.
		if left, found := ReadFrom("", restored); found && (left.Error != "" || left.Stack != "" || left.Attempts > 1) {
			t.Errorf("%s: after restoring it still says %+v", name, left)
		}
	}
	for _, name := range Names() {
		if !seen[name] {
			t.Errorf("%s has no sample", name)
		}
	}
}

func encode(t *testing.T, v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// EasyNetQ and Kicks write headers of RabbitMQ's own into their envelope; with them the message
// would be counted and routed by what was.
func TestAnEnvelopeBringsNoHeaderOfRabbitMQs(t *testing.T) {
	for _, name := range []string{"kicks", "easynetq"} {
		s := samples(t)[name]
		m := s.Message.message()
		m.Body = bytes.Replace(m.Body, []byte(`"tenant"`), []byte(`"CC": {"Type":15,"Value":[{"Type":13,"Value":"refunds"}]}, "x-redrive-attempt": {"Type":8,"Value":0}, "tenant"`), 1)
		if info, ok := m.Headers["retry_info"].(string); ok {
			m.Headers["retry_info"] = strings.Replace(info, `"tenant"`, `"CC": ["refunds"], "BCC": ["refunds"], "x-redrive-attempt": 0, "tenant"`, 1)
		}
		r, _, err := Restore(s.FoundIn, m)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for header := range r.Headers {
			if header == "CC" || header == "BCC" || header == "x-death" || strings.HasPrefix(header, "x-redrive-") {
				t.Errorf("%s: restored with %s", name, header)
			}
		}
		if r.Headers["tenant"] != "acme" {
			t.Errorf("%s: restored with %v", name, r.Headers)
		}
	}
}

// What cannot be taken out of its envelope stays in it, and says why.
func TestAnEnvelopeWithoutItsMessage(t *testing.T) {
	for name, m := range map[string]*wire.Message{
		"no Message":             {Type: "EasyNetQ.SystemMessages.Error, EasyNetQ", Body: []byte(`{"Queue":"q","Exception":"a.B: c"}`)},
		"bytes of it were lost":  {Type: "EasyNetQ.SystemMessages.Error, EasyNetQ", Body: []byte(`{"Queue":"q","Exception":"a.B: c","Message":"\ufffd\u0001"}`)},
		"payload is not Base64":  {Body: []byte(`{"error":"no","num_attempts":6,"failed_at":"","payload":"no Base64"}`)},
		"discard it":             {Body: []byte(`{"error":"no","num_attempts":6,"failed_at":"","payload":"====="}`)},
		"by EasyNetQ: it has no": {Type: "EasyNetQ.SystemMessages.Error:EasyNetQ", Body: []byte(`{"Queue":"q"}`)},
	} {
		if r, f, err := Restore("", m); err == nil || !strings.Contains(err.Error(), name) || r != m || f.Framework == "" {
			t.Errorf("%s: %+v, %v", name, f, err)
		}
	}
	for _, m := range []*wire.Message{
		{Type: "EasyNetQ.SystemMessages.Error", Body: []byte(`{"else":1}`)}, {Type: "Shop.Order", Body: []byte(`{"Queue":"q","Exception":"x","Message":"m"}`)},
		{Body: []byte(`{"queue_name":1,"actor_name":2,"options":3,"message_id":4`)}, {Body: []byte(`[]`)}, {Headers: amqp.Table{"task": "buy milk"}}, {Headers: amqp.Table{"HandledCount": int32(1)}},
	} {
		if f, found := ReadFrom("q", m); found {
			t.Errorf("%s %v is read as %+v", m.Body, m.Headers, f)
		}
	}
}
