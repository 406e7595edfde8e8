package stories_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/broker/brokertest"
	"github.com/redrive-mq/redrive/wire"
)

// A message whose dead letter RabbitMQ 3.10 itself cannot deliver (it ends each
// connection that consumes it) is out of the way of all others within seconds,
// and a person is told. RabbitMQ 4 can deliver it, and it comes back.
func TestWhatRabbitMQCannotDeliverIsSetAside(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		s := start(t, v, soon).ready(t)
		deadLettered(v, "work", "quorum")
		work := consume(t, v, "work")
		culprit := amqp.Table{"x-death": []any{amqp.Table{"queue": "work", "reason": "rejected", "exchange": "", "count": 1.5,
			"routing-keys": []any{"work"}, "time": time.Unix(1_700_000_000, 0)}}}
		n := 0
		ids := map[string]any{}
		round := func(many, culprits int) {
			t.Helper()
			own := v.Channel()
			due := map[string]bool{} // to come back
			for i := range many {
				n++
				p := amqp.Publishing{Body: fmt.Append(nil, "message ", n)}
				if i%(many/culprits) == many/culprits/2 {
					p.Headers, p.Body = culprit, fmt.Append(nil, "culprit ", n)
				}
				publish(t, own, "", "work", p)
				if v.Since4() || p.Headers == nil {
					due[string(p.Body)] = true
				}
			}
			for len(due) > 0 {
				d := work.next()
				if d.Headers[wire.HeaderAttempt] == nil {
					reject(t, d)
					continue
				}
				body, id := string(d.Body), d.Headers[wire.HeaderID]
				// RabbitMQ's crash is one: what was taken and not acknowledged comes twice.
				if ids[body] == nil && !due[body] || ids[body] != nil && ids[body] != id || d.Headers[wire.HeaderAttempt] != int64(1) {
					t.Errorf("%q came back with attempt %v and id %v, before with %v", body, d.Headers[wire.HeaderAttempt], id, ids[body])
				}
				ids[body] = id
				delete(due, body)
				if err := d.Ack(false); err != nil {
					t.Fatal(err)
				}
			}
		}
		aside := func(want int) {
			t.Helper()
			if v.Since4() {
				want = 0
			}
			brokertest.Eventually(t, fmt.Sprint(want, " are set aside, and the service says so"), func() bool {
				notices := strings.Join(s.Notices(), "\n")
				return v.Depth(wire.QueueAside) == want && (want == 0 && notices == "" || strings.Contains(notices, fmt.Sprint("redrive.aside: ", want)))
			})
			s.ready(t)
		}
		round(200, 1)
		aside(1)
		v.CloseConnections(v.ServiceUser())
		round(60, 3)
		aside(4)
		if err := s.Stop(); err != nil {
			t.Fatal(err)
		}
		s = startAt(t, v, soon, s.Data).ready(t)
		aside(4)
		round(20, 1)
		aside(5)
		v.Must("DELETE", "queues/"+v.Name+"/"+wire.QueueAside+"/contents", nil)
		aside(0)
	})
}
