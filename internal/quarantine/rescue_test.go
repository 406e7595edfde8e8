package quarantine

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/headers"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/wire"
)

// apiGives is a management API that gives these bodies, one at each get.
func apiGives(t *testing.T, bodies ...string) *Quarantine {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		in, _ := io.ReadAll(r.Body)
		if len(bodies) == 0 {
			_, _ = io.WriteString(w, "[]")
			return
		}
		if requeue := strings.Contains(string(in), "ack_requeue_true"); requeue != (len(bodies)%2 == 0) {
			t.Errorf("%d left, asked %s", len(bodies), in)
		}
		_ = json.NewEncoder(w).Encode([]management.FetchedMessage{{Payload: bodies[0], Encoding: "base64", Properties: json.RawMessage("[]")}})
		bodies = bodies[1:]
	}))
	t.Cleanup(s.Close)
	api, err := management.New(s.URL, "shop")
	if err != nil {
		t.Fatal(err)
	}
	return &Quarantine{API: api}
}

func rescued(t *testing.T) []string {
	t.Helper()
	all, err := filepath.Glob("redrive-rescued-*")
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// The second get removes what is at the head. Another message than the one that was kept is
// in a file before anything else can fail.
func TestAnotherMessageThatIsRemovedIsRescued(t *testing.T) {
	t.Chdir(t.TempDir())
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	calls, failed := 0, errors.New("an alarm")
	pending := map[string]int{}
	n, err := apiGives(t, "YQ==", "Yg==").removeByAPI(ctx, func(m *Message) error {
		if calls++; calls == 1 {
			return nil
		}
		stop()
		files := rescued(t)
		if text, err := os.ReadFile(strings.Join(files, "")); err != nil || !strings.Contains(string(text), "Yg==") {
			t.Fatalf("while %q is being kept there are %v", m.Body, files)
		}
		return failed
	}, pending)
	files := rescued(t)
	if n != 0 || !errors.Is(err, failed) || len(files) != 1 || !strings.Contains(err.Error(), files[0]) {
		t.Fatalf("%d, %v, files %v", n, err, files)
	}
	var g management.FetchedMessage
	text, _ := os.ReadFile(files[0])
	if err := json.Unmarshal(text, &g); err != nil || g.Payload != "Yg==" || g.Encoding != "base64" {
		t.Errorf("rescued is %s, %v", text, err)
	}
	if i, err := os.Stat(files[0]); err != nil || i.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", i.Mode(), err)
	}
}

// What was kept and not removed is not kept again when it is at the head once more, and a
// file that is not needed does not stay.
func TestAMessageIsKeptOnceWhenAnotherWasRemovedForIt(t *testing.T) {
	t.Chdir(t.TempDir())
	var kept []string
	keep := func(m *Message) error { kept = append(kept, string(m.Body)); return nil }
	q, pending := apiGives(t, "YQ==", "Yg==", "YQ==", "YQ=="), map[string]int{}
	for range 2 {
		if n, err := q.removeByAPI(t.Context(), keep, pending); n != 1 || err != nil {
			t.Fatalf("%d, %v", n, err)
		}
	}
	if n, err := q.removeByAPI(t.Context(), keep, pending); n != 0 || err != nil {
		t.Errorf("of an empty queue %d, %v", n, err)
	}
	if strings.Join(kept, "") != "ab" || len(rescued(t)) != 0 {
		t.Errorf("kept %v, files %v", kept, rescued(t))
	}
}

func TestNothingIsTakenUntilAllAreReadyAgain(t *testing.T) {
	tries := 0
	one := func() (int, error) { tries++; return 1, nil }
	if err := awaitReady(t.Context(), 2, time.Microsecond, one); !errors.Is(err, ErrNotReady) || tries != 51 {
		t.Errorf("%v after %d tries", err, tries)
	}
	if err := awaitReady(t.Context(), 1, time.Microsecond, one); err != nil {
		t.Error(err)
	}
}

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
			x := read(m)
			all = append(all, r.Report(x).ID)
			if id := uuid.MustParse(all[len(all)-1]); headers.BindID(id, &x.Message) != id {
				t.Errorf("the id %s does not fit its message", id)
			}
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
