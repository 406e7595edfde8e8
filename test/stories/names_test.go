package stories_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/server/servertest"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/wire"
)

// Reports for thousands of names that somebody made up delay no retry: RabbitMQ is
// asked for them beside the scheduler. They share one budget of names, and all are kept.
func TestReportsForInventedNamesDelayNoRetry(t *testing.T) {
	const invented, named = 4000, 1000 + 250 // the budget of one user, and of names not known yet
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		s := run(t, servertest.Config(t, v, `policies: [{name: p, queues: ["*"], attempts: 3, backoff: {fixed: 1s}, jitter: none}]`)).ready(t)
		deadLettered(v, "work", "quorum")
		work := consume(t, v, "work")
		publish(t, v.Channel(), "", "work", amqp.Publishing{Body: []byte("honest")})

		ch := v.Channel()
		if err := ch.Confirm(false); err != nil {
			t.Fatal(err)
		}
		var last *amqp.DeferredConfirmation
		for i := range invented {
			var err error
			if last, err = ch.PublishWithDeferredConfirm(wire.ExchangeFailures, fmt.Sprint("invented.", i), true, false, amqp.Publishing{Body: []byte("report")}); err != nil {
				t.Fatal(err)
			}
		}
		if !last.Wait() {
			t.Fatal("RabbitMQ refused a report")
		}
		reject(t, work.next())
		if d := work.next(); string(d.Body) != "honest" {
			t.Errorf("%q came back", d.Body)
		}
		for nameless := 0; nameless < invented-named; {
			if e := s.wait(t, retry.Parked); e.Queue == "" {
				nameless++
			}
		}
		st, err := s.Client.Queues(context.Background())
		if err != nil {
			t.Fatal(err)
		}
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
