package stories_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/server/servertest"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/wire"
)

const soon = `policies: [{name: p, queues: ["*"], attempts: 3, backoff: {fixed: 50ms}, jitter: none}]`

// mallory is a user with rights on the queue mine alone. The queue secret is somebody else's: it is enrolled,
// and reachable through its retry exchange.
func mallory(t *testing.T, v *brokertest.VHost, kind string) (user string, secret *brokertest.Consumer) {
	t.Helper()
	user = "mallory-" + v.Name[len(v.Name)-8:]
	v.User(user, "pw")
	v.Grant(user, "^mine$", `^(mine|amq\.default)$`, "^mine$")
	deadLettered(v, "mine", kind)
	deadLettered(v, "secret", "classic")
	v.Publish("", "secret", amqp.Publishing{Body: []byte("theirs")})
	secret = v.ConsumeMany("secret")
	reject(t, secret.Next())
	secret.Take("theirs")
	return user, secret
}

// A user with rights on one queue alone cannot make the service deliver into
// another, whatever its messages carry.
func TestNothingInAMessageChoosesAQueue(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		s := start(t, v, soon).ready(t)
		user, secret := mallory(t, v, "classic")

		mine := v.ConsumeMany("mine")
		sender := v.As(user, "pw")
		death := amqp.Table{"queue": "secret", "reason": "rejected", "exchange": "redrive.retry.secret",
			"count":        int64(1),
			"routing-keys": []any{"secret"}, "time": time.Unix(1_700_000_000, 0)}
		for i, forged := range []amqp.Table{
			{"x-death": []any{death}},
			{"x-first-death-queue": "secret", "x-first-death-reason": "rejected", "x-first-death-exchange": ""},
			{"x-last-death-queue": "secret", "x-last-death-reason": "rejected", "x-last-death-exchange": ""},
			{wire.HeaderQueue: "secret", wire.HeaderExchange: "redrive.retry.secret", wire.HeaderRoutingKey: "secret",
				wire.HeaderID: "11111111-1111-1111-1111-111111111111", wire.HeaderReason: "rejected"},
			{"x-delay": int32(5), wire.HeaderDelay: int64(99999999), "x-delivery-count": int64(77)},
		} {
			body := fmt.Sprint("forged ", i)
			sender.Publish("", "mine", amqp.Publishing{Headers: forged, Body: []byte(body)})
			d := mine.Next()
			reject(t, d)
			back := mine.Next()
			if string(back.Body) != body || back.Exchange != wire.RetryExchange("mine") {
				t.Errorf("%s: %q came back through %q", body, back.Body, back.Exchange)
			}
			for _, h := range []string{"CC", "BCC", "x-death", "x-first-death-queue", "x-last-death-queue", "x-delay"} {
				if val, ok := back.Headers[h]; ok {
					t.Errorf("%s: it came back with %s: %v", body, h, val)
				}
			}
			expect.Equal(t, back.Headers[wire.HeaderQueue], any("mine"), "%s: its queue", body)
			must(t, back.Ack(false))
		}
		// Straight into the intake, past the exchange that proves a dead letter.
		v.Publish("", wire.QueueIntake, amqp.Publishing{Headers: amqp.Table{"x-death": []any{death}},
			Body: []byte("direct")})
		p := s.WaitParked(t, 1)[0]
		if !strings.Contains(p.ParkedFor, "not dead-lettered or reported") || p.Queue != "" {
			t.Errorf("parked as %+v", p)
		}
		secret.Nothing()
	})
}

// A message that is copied by CC when first published is never copied again by a
// return.
func TestARetryIsNotCopiedByItsCC(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		start(t, v, soon).ready(t)
		deadLettered(v, "work", "quorum")
		v.Queue("copy", nil)
		work, other := v.ConsumeMany("work"), v.ConsumeMany("copy")
		v.Publish("", "work", amqp.Publishing{Headers: amqp.Table{"CC": []any{"copy"}}, Body: []byte("x")})
		other.Ack()
		reject(t, work.Next())
		work.Next()
		other.Nothing()
	})
}

// unsignedConn sends a header of type l as type L, which amqp091-go cannot.
type unsignedConn struct{ net.Conn }

func (c unsignedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(bytes.ReplaceAll(b, []byte("\x08unsignedl"), []byte("\x08unsignedL")))
	return min(n, len(b)), err
}

// No message stops the intake: each kind of poison is retried or parked, and
// what comes after it comes back. Poison is dead-lettered by expiry, since no
// consumer of these tests could read all of it.
func TestPoisonMessagesAreParkedAndBlockNothing(t *testing.T) {
	deep := func(levels int) amqp.Table {
		d := amqp.Table{}
		for range levels {
			d = amqp.Table{"d": d}
		}
		return d
	}
	many := amqp.Table{}
	for i := range 9000 {
		many[fmt.Sprintf("h%04d", i)] = nil
	}
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<20)
	poisons := []struct {
		name   string
		p      amqp.Publishing
		parked string // "": it comes back
	}{
		{"unsigned 64 bit header", amqp.Publishing{Headers: amqp.Table{"unsigned": int64(5)}}, ""},
		{"deep table", amqp.Publishing{Headers: deep(1000)}, `header "d" is nested more than 32 deep`},
		{"table as deep as the client reads", amqp.Publishing{Headers: deep(31)}, ""},
		{"long list", amqp.Publishing{Headers: amqp.Table{"list": make([]any, 9000)}}, "more than 8192 entries"},
		{"9000 headers", amqp.Publishing{Headers: many}, "headers, more than the 8192"},
		{"odd attempt", amqp.Publishing{Headers: amqp.Table{wire.HeaderAttempt: "many", wire.HeaderID: "x"}}, ""},
		{"attempt too large", amqp.Publishing{Headers: amqp.Table{wire.HeaderAttempt: int64(wire.MaxAttempt + 1)}}, ""},
		{"attempt at its limit", amqp.Publishing{Headers: amqp.Table{wire.HeaderAttempt: int64(wire.MaxAttempt)}}, ""},
		{"empty body", amqp.Publishing{}, ""},
		{"timestamp 0", amqp.Publishing{Timestamp: time.Unix(0, 0)}, ""},
		{"16 MiB body", amqp.Publishing{Body: big}, ""},
		{"headers that fill a frame", amqp.Publishing{Headers: amqp.Table{"big": strings.Repeat("x", 130_900)}},
			"one frame holds"},
	}
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		s := start(t, v, `policies: [{name: p, queues: ["*"], attempts: 3, backoff: {fixed: 50ms}, jitter: none, reasons: [expired], no_consumer: retry}]`).ready(t)
		deadLettered(v, "work", "quorum")
		sender := brokertest.NewClient(t, func() *amqp.Connection {
			conn, err := amqp.DialConfig(v.URL(), amqp.Config{Dial: func(network, addr string) (net.Conn, error) {
				c, err := net.Dial(network, addr)
				return unsignedConn{c}, err
			}})
			must(t, err)
			t.Cleanup(func() { conn.Close() })
			return conn
		})
		back := func(name string) amqp.Delivery {
			if e := s.wait(t, retry.Retried, retry.Parked); e.Kind == retry.Parked {
				t.Errorf("%s is parked: %s", name, e.Why)
				return amqp.Delivery{}
			}
			d, ok, err := sender.Own().Get("work", true)
			if err != nil || !ok {
				t.Fatalf("%s: got %v, %v", name, ok, err)
			}
			return d
		}
		for _, poison := range poisons {
			poison.p.Expiration = "0"
			sender.Publish("", "work", poison.p)
			if poison.parked == "" {
				d := back(poison.name)
				if sha256.Sum256(d.Body) != sha256.Sum256(poison.p.Body) || d.Headers[wire.HeaderAttempt] != int64(1) ||
					!d.Timestamp.Equal(poison.p.Timestamp) {
					t.Errorf("%s came back with %d bytes, attempt %v and timestamp %s",
						poison.name, len(d.Body), d.Headers[wire.HeaderAttempt], d.Timestamp)
				}
			} else {
				if e := s.wait(t, retry.Retried, retry.Parked); !strings.Contains(e.Why, poison.parked) ||
					e.Queue != "work" {
					t.Errorf("%s: %+v; want it parked because %q", poison.name, e, poison.parked)
				}
			}
			sender.Publish("", "work", amqp.Publishing{Body: []byte("after"), Expiration: "0"})
			expect.Equal(t, string(back("after "+poison.name).Body), "after", "after %s", poison.name)
		}
	})
}

// notUTF8 is a name that RabbitMQ takes as a routing key or a header, and that no queue
// can have.
const notUTF8 = "orders.\xbe\xff"

// A report, a parked message and a record of an earlier version that name a queue in
// bytes that are not UTF-8 are parked with those bytes shown. They end neither the
// process nor a connection, and metrics can be read.
func TestANameThatIsNotUTF8IsParkedWithItsBytes(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		data := t.TempDir()
		seed(t, data, &store.Record{ID: uuid.New(), Queue: notUTF8, State: store.Waiting, Due: time.Now(),
			FailedAt: time.Now(), FirstFailed: time.Now(), Failures: 1})
		s := startAt(t, v, soon, data).ready(t)
		v.Publish(wire.ExchangeFailures, notUTF8, amqp.Publishing{Body: []byte("reported")})
		v.Publish(wire.ExchangeParked, "", amqp.Publishing{Body: []byte("collected"), Headers: amqp.Table{
			wire.HeaderQueue: notUTF8, wire.HeaderReason: notUTF8, wire.HeaderParkReason: "why " + notUTF8}})
		var parked []inspect.Message
		brokertest.Eventually(t, "all three are parked", func() bool {
			parked = s.Parked(t)
			return len(parked) == 3
		})
		for _, m := range parked {
			expect.Contains(t, m.ParkedFor, "parked because", `"orders.\xbe\xff"`)
		}

		deadLettered(v, "work", "quorum")
		v.Publish("", "work", amqp.Publishing{Body: []byte("after")})
		work := v.ConsumeMany("work")
		reject(t, work.Next())
		work.Take("after")
		for _, problem := range s.Problems() {
			t.Errorf("problem: %s", problem)
		}
		expect.Equal(t, s.metric(t, `redrive_parked{queue="orders.\\xbe\\xff"}`), "1",
			"the metrics show … of it parked")
		// An editor's file names such a queue.
		line := `{"redrive":1,"id":"11111111-1111-1111-1111-111111111111","queue":{"base64":"b3JkZXJzLr7/"},"state":"parked","due":"2026-01-02T03:04:05Z","attempt":1,"message":{"exchange":"","routing_key":"k"}}`
		expect.ErrSays(t, errOf(s.Client.Import(context.Background(), strings.NewReader(line),
			actions.ImportOptions{})), "importing a file with such a queue", `"orders.\xbe\xff" is not a work queue`)
		expect.Err(t, s.Stop(), nil, "it ended with")
		kinds := []retry.Kind{}
		for len(s.Events) > 0 {
			kinds = append(kinds, (<-s.Events).Kind)
		}
		expect.Equal(t, len(slices.DeleteFunc(kinds, func(k retry.Kind) bool { return k != retry.Parked })), 3,
			"were parked: some were taken more than once")
	})
}

// seed puts records into a store that the service will open.
func seed(t *testing.T, data string, records ...*store.Record) {
	t.Helper()
	st, err := diskstore.Open(data, diskstore.Options{})
	must(t, err)
	must(t, st.Add(context.Background(), records))
	must(t, st.Close())
}

// Reports for thousands of names that somebody made up delay no retry: RabbitMQ is
// asked for them beside the scheduler. They share one budget of names, and all are kept.
func TestReportsForInventedNamesDelayNoRetry(t *testing.T) {
	const invented, named = 4000, 1000 + 250 // the budget of one user, and of names not known yet
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		s := run(t, servertest.Config(t, v,
			`policies: [{name: p, queues: ["*"], attempts: 3, backoff: {fixed: 1s}, jitter: none}]`)).ready(t)
		deadLettered(v, "work", "quorum")
		work := v.ConsumeMany("work")
		v.Publish("", "work", amqp.Publishing{Body: []byte("honest")})

		ch := v.Channel()
		must(t, ch.Confirm(false))
		var last *amqp.DeferredConfirmation
		for i := range invented {
			var err error
			if last, err = ch.PublishWithDeferredConfirm(wire.ExchangeFailures, fmt.Sprint("invented.", i), true, false,
				amqp.Publishing{Body: []byte("report")}); err != nil {
				t.Fatal(err)
			}
		}
		if !last.Wait() {
			t.Fatal("RabbitMQ refused a report")
		}
		reject(t, work.Next())
		work.Take("honest")
		for nameless := 0; nameless < invented-named; {
			if e := s.wait(t, retry.Parked); e.Queue == "" {
				nameless++
			}
		}
		st, err := s.Client.Queues(context.Background())
		must(t, err)
		var names, nameless, kept int64
		for _, q := range st.Queues {
			if kept += q.Waiting + q.Parked; q.Name == "" {
				nameless = q.Parked
			} else if strings.HasPrefix(q.Name, "invented.") {
				names++
			}
		}
		if names != named || nameless != invented-named || kept != invented {
			t.Errorf("%d names are kept, %d messages under none, and %d of %d in all", names, nameless, kept, invented)
		}
		page, err := s.Client.Messages(context.Background(), `state:parked why:"too many such names"`, "", 1)
		if err != nil || len(page.Messages) != 1 {
			t.Fatalf("parked for that: %+v, %v", page, err)
		}
		if m := page.Messages[0]; m.Queue != "" || !strings.Contains(m.ParkedFor, `"invented.`) {
			t.Errorf("parked as %+v", m)
		}
	})
}

// forgery is an entry of x-death that names a queue, in raw bytes; twice are the fields
// that stand there a second time, with the name of another.
func forgery(queue string, twice ...string) []byte {
	fields := [][]byte{
		brokertest.TextField("queue", queue), brokertest.TextField("reason", "rejected"),
		brokertest.TextField("exchange", wire.RetryExchange(queue)),
		brokertest.Field("count", 'l', make([]byte, 8)), brokertest.Field("time", 'T', make([]byte, 8)),
		brokertest.Field("routing-keys", 'A',
			brokertest.Sized(append([]byte{'S'}, brokertest.Sized([]byte(queue))...))),
	}
	for i := 0; i+1 < len(twice); i += 2 {
		fields = append(fields, brokertest.TextField(twice[i], twice[i+1]))
	}
	return append([]byte{'F'}, brokertest.Sized(fields...)...)
}

func deaths(entries ...[]byte) []byte {
	return brokertest.Field("x-death", 'A', brokertest.Sized(entries...))
}

// randomForgery is a header table of death headers and ours, in any order and number.
func randomForgery(r *rand.Rand) (table []byte) {
	queue := func() string { return []string{"mine", "secret", "victim"}[r.IntN(3)] }
	for range 1 + r.IntN(4) {
		switch r.IntN(4) {
		case 0:
			table = append(table, brokertest.TextField([]string{"x-first-death-",
				"x-last-death-"}[r.IntN(2)]+[]string{"queue", "reason", "exchange"}[r.IntN(3)], queue())...)
		case 1:
			table = append(table, brokertest.TextField([]string{wire.HeaderQueue, wire.HeaderExchange,
				wire.HeaderRoutingKey}[r.IntN(3)], queue())...)
		default:
			var entries [][]byte
			for range 1 + r.IntN(3) {
				var twice []string
				for range r.IntN(3) {
					twice = append(twice, []string{"queue", "exchange", "reason"}[r.IntN(3)], queue())
				}
				entries = append(entries, forgery(queue(), twice...))
			}
			table = append(table, deaths(entries...)...)
		}
	}
	return append(table, brokertest.TextField("padding", strings.Repeat(".", 40))...)
}

// A user with rights on one queue alone chooses no other by header tables that no client
// library can send, with a name in them twice: what RabbitMQ and its client read
// differently proves nothing, and is parked.
func TestADuplicateHeaderChoosesNoQueue(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		s := start(t, v, soon).ready(t)
		user, secret := mallory(t, v, "quorum")
		v.Queue("victim", nil) // not

		mine, raw := v.ConsumeMany("mine"), v.Raw(v.URLAs(user, "pw"))
		became := map[retry.Kind]int{}
		try := func(name string, table []byte) retry.Event {
			t.Helper()
			raw.Publish("", "mine", table, name)
			for len(s.Events) > 0 {
				<-s.Events
			}
			reject(t, mine.Next())
			e := s.wait(t, retry.Retried, retry.Parked)
			if became[e.Kind]++; e.Queue != "mine" && (e.Queue != "" || e.Kind != retry.Parked) {
				t.Errorf("%s: %s, of queue %q: %x", name, e.Kind, e.Queue, table)
			}
			if e.Kind == retry.Retried {
				mine.Ack()
			}
			return e
		}
		for name, table := range map[string][]byte{
			"two headers":                     append(deaths(forgery("mine")), deaths(forgery("secret"))...),
			"of a queue that is not enrolled": append(deaths(forgery("mine")), deaths(forgery("victim"))...),
			"queue twice":                     deaths(forgery("mine", "queue", "secret")),
			"queue and exchange twice": deaths(forgery("mine", "queue", "victim", "exchange",
				wire.RetryExchange("victim"))),
		} {
			e := try(name, table)
			if strings.HasPrefix(v.Version, "3.") && (e.Kind != retry.Parked || !strings.Contains(e.Why, "twice") ||
				!strings.Contains(e.Why, "not proven")) {
				t.Errorf("%s: %s because %q", name, e.Kind, e.Why)
			}
		}
		r := rand.New(rand.NewPCG(12, 12))
		for i := range 40 {
			try(fmt.Sprint("random ", i), randomForgery(r))
		}
		t.Logf("%v", became)
		secret.Nothing()
		expect.Equal(t, v.Messages("victim"), 0, "messages are in a queue that is not enrolled")
		if err := v.Channel().ExchangeDeclarePassive(wire.RetryExchange("victim"), amqp.ExchangeFanout, true, false,
			false, false, nil); err == nil {
			t.Error("a queue was enrolled by a forged header")
		}
	})
}
