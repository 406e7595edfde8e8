package page_test

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/wire"
)

//go:embed testdata/hostile.txt
var hostile string

// payloads are the corpus, and some that are too long for a file.
func payloads(t testing.TB) (all []string) {
	t.Helper()
	for n, line := range strings.Split(hostile, "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		p, err := strconv.Unquote(line)
		if err != nil {
			t.Fatalf("testdata/hostile.txt:%d: %v", n+1, err)
		}
		all = append(all, p)
	}
	if len(all) < 200 {
		t.Fatalf("the corpus has only %d payloads", len(all))
	}
	return append(all, strings.Repeat("W", 300), strings.Repeat("<b>", 3_000), strings.Repeat("\u202e", 2_000), strings.Repeat(`"`, 5_000),
		strings.Repeat("a b ", 3_000), strings.Repeat("<img src=x onerror=alert(1)>", 500), `{"`+strings.Repeat("k", 9_000)+`":1}`)
}

// carrier is a message that says a payload wherever a message can say something.
// Names that AMQP bounds are cut, as a publisher would have to.
func carrier(i int, p string, state store.State) *store.Record {
	short := p[:min(len(p), 255)]
	now := time.Now().Add(-time.Duration(i) * time.Second)
	r := &store.Record{ID: uuid.NewSHA1(uuid.Nil, fmt.Append(nil, "carrier ", i, state)), Queue: short, State: state, Due: now, Failures: 1, Reason: short, Error: p, Policy: short,
		FirstFailed: now, FailedAt: now, ParkedFor: p, Notes: []string{p, "x-death: " + p}, Forward: &store.Destination{Exchange: short, RoutingKey: short}}
	if state != store.Parked {
		r.Due = now.Add(24 * time.Hour)
	}
	nested := amqp.Table{p: p, "list": []any{p, amqp.Table{p: []any{p}}}}
	r.Message = wire.Message{Exchange: short, RoutingKey: short, ContentType: short, CorrelationID: short, ReplyTo: short, MessageID: short, Type: short, UserID: short, AppID: short,
		Headers: amqp.Table{short: p, "text": p, "bytes": []byte(p), "table": nested, "x-death": []any{nested}, "x-first-death-queue": p, "traceparent": p}, Body: []byte(p)}
	switch i % 4 {
	case 1:
		r.Message.Body, _ = json.Marshal(map[string]any{p: p, "list": []any{p, map[string]any{p: p}}})
		r.Message.ContentType = "application/json"
	case 2:
		r.Message.ContentType = "text/html"
	case 3:
		r.Message.Body = order(int64(i), strings.ToValidUTF8(p, "\ufffd"), 1)
		r.Message.ContentType, r.Message.ContentEncoding = "application/x-protobuf", short
	}
	return r
}

// attacked is a scene in which everything that can contain a payload does.
func attacked(t *testing.T) (s *scene, ids []string, operation string) {
	t.Helper()
	told := &told{minutes: map[string]inspect.Flow{}, queues: map[string]inspect.AtBroker{}, returns: map[string]string{}}
	s = newScene(t, options{told: told})
	for i, p := range payloads(t) {
		parked, waiting := carrier(i, p, store.Parked), carrier(i, p, store.Waiting)
		s.add(t, parked, waiting, carrier(i, p, store.Discarded))
		if ids = append(ids, parked.ID.String()); i%5 == 0 {
			ids = append(ids, waiting.ID.String())
		}
		told.queues[parked.Queue] = inspect.AtBroker{Exists: i%2 == 0, Kind: "quorum", Consumers: 1}
		if i%3 == 0 {
			told.minutes[parked.Queue], told.returns[parked.Queue] = inspect.Flow{Failed: int64(i)}, p
			told.problems, told.notices = append(told.problems, p), append(told.notices, p)
		}
		reason := string([]rune(strings.ToValidUTF8(p, "?"))[:min(400, utf8.RuneCountInString(p))])
		by := auth.Caller{Name: p, How: "rabbitmq", From: p, Interface: "page", Role: auth.Admin}
		if i%5 == 0 {
			if err := s.PauseQueue(t.Context(), by, parked.Queue, reason); err != nil && parked.Queue != "" {
				t.Errorf("pausing %q: %v", parked.Queue, err)
			}
		}
		if i%7 == 0 {
			if err := s.NoteGroup(t.Context(), by, parked.Group().ID.String(), reason); err != nil {
				t.Errorf("noting %q: %v", reason, err)
			}
		}
		if i%40 == 0 {
			plan, err := s.Plan(t.Context(), by, operations.PlanRequest{Verb: actions.Discard, Query: "state:waiting attempt:1", Reason: reason})
			if err != nil {
				t.Fatal(err)
			}
			o, err := s.Start(t.Context(), by, plan.ID, operations.Start{Rate: 0.01, Reason: reason})
			if err != nil {
				t.Fatal(err)
			}
			operation = o.ID
		}
	}
	return s, ids, operation
}
