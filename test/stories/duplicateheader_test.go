package stories_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/wire"
)

// forgery is an entry of x-death that names a queue, in raw bytes; twice are the fields
// that stand there a second time, with the name of another.
func forgery(queue string, twice ...string) []byte {
	fields := [][]byte{
		brokertest.TextField("queue", queue), brokertest.TextField("reason", "rejected"), brokertest.TextField("exchange", wire.RetryExchange(queue)),
		brokertest.Field("count", 'l', make([]byte, 8)), brokertest.Field("time", 'T', make([]byte, 8)),
		brokertest.Field("routing-keys", 'A', brokertest.Sized(append([]byte{'S'}, brokertest.Sized([]byte(queue))...))),
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
			table = append(table, brokertest.TextField([]string{"x-first-death-", "x-last-death-"}[r.IntN(2)]+[]string{"queue", "reason", "exchange"}[r.IntN(3)], queue())...)
		case 1:
			table = append(table, brokertest.TextField([]string{wire.HeaderQueue, wire.HeaderExchange, wire.HeaderRoutingKey}[r.IntN(3)], queue())...)
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
		user := "mallory-" + v.Name[len(v.Name)-8:]
		v.User(user, "pw")
		v.Grant(user, "^mine$", "^(mine|amq\\.default)$", "^mine$")
		deadLettered(v, "mine", "quorum")
		deadLettered(v, "secret", "classic") // enrolled
		v.Queue("victim", nil)               // not
		publish(t, v.Channel(), "", "secret", amqp.Publishing{Body: []byte("theirs")})
		secret := consume(t, v, "secret")
		reject(t, secret.next())
		if d := secret.next(); string(d.Body) != "theirs" {
			t.Fatalf("%q came", d.Body)
		}

		mine, mallory := consume(t, v, "mine"), v.Raw(v.URLAs(user, "pw"))
		became := map[retry.Kind]int{}
		try := func(name string, table []byte) retry.Event {
			t.Helper()
			mallory.Publish("", "mine", table, name)
			for len(s.Events) > 0 {
				<-s.Events
			}
			reject(t, mine.next())
			e := s.wait(t, retry.Retried, retry.Parked)
			if became[e.Kind]++; e.Queue != "mine" && (e.Queue != "" || e.Kind != retry.Parked) {
				t.Errorf("%s: %s, of queue %q: %x", name, e.Kind, e.Queue, table)
			}
			if e.Kind == retry.Retried {
				if err := mine.next().Ack(false); err != nil {
					t.Fatal(err)
				}
			}
			return e
		}
		for name, table := range map[string][]byte{
			"two headers":                     append(deaths(forgery("mine")), deaths(forgery("secret"))...),
			"of a queue that is not enrolled": append(deaths(forgery("mine")), deaths(forgery("victim"))...),
			"queue twice":                     deaths(forgery("mine", "queue", "secret")),
			"queue and exchange twice":        deaths(forgery("mine", "queue", "victim", "exchange", wire.RetryExchange("victim"))),
		} {
			e := try(name, table)
			if strings.HasPrefix(v.Version, "3.") && (e.Kind != retry.Parked || !strings.Contains(e.Why, "twice") || !strings.Contains(e.Why, "not proven")) {
				t.Errorf("%s: %s because %q", name, e.Kind, e.Why)
			}
		}
		r := rand.New(rand.NewPCG(12, 12))
		for i := range 40 {
			try(fmt.Sprint("random ", i), randomForgery(r))
		}
		t.Logf("%v", became)
		secret.none(300 * time.Millisecond)
		if n := v.Messages("victim"); n != 0 {
			t.Errorf("%d messages are in a queue that is not enrolled", n)
		}
		if err := v.Channel().ExchangeDeclarePassive(wire.RetryExchange("victim"), amqp.ExchangeFanout, true, false, false, false, nil); err == nil {
			t.Error("a queue was enrolled by a forged header")
		}
	})
}
