package broker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/wire"
)

// A user who can write to queues, which binding them needs anyway, learns how many
// consumers they have; of queues that are gone, or another connection's alone, it is
// not, nor of those it may do nothing with: RabbitMQ 3.10 tells of these too.
func TestConsumersAreCounted(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		v.User("service", "pw")
		v.Grant("service", "", "^(gone.*|two|exclusive|none)$", "")
		v.Queue("foreign", nil)
		v.Queue("none", amqp.Table{"x-queue-type": "quorum"})
		v.Queue("two", amqp.Table{"x-queue-type": "classic"})
		v.Consume("two")
		v.Consume("two")
		if _, err := v.Channel().QueueDeclare("exclusive", false, false, true, false, nil); err != nil {
			t.Fatal(err)
		}
		ctx := context.Background()
		p := publisher(t, v.URLAs("service", "pw"))
		p.AwaitUsable(ctx)
		got := map[string]int{}
		if err := p.Consumers(ctx, []string{"gone", "two", "exclusive", "foreign", "none", "gone too"}, func(q string, n int) { got[q] = n }); err != nil {
			t.Fatal(err)
		}
		want := "map[exclusive:-1 foreign:-1 gone:-1 gone too:-1 none:0 two:2]"
		if strings.HasPrefix(v.Version, "3.") {
			want = strings.Replace(want, "foreign:-1", "foreign:0", 1)
		}
		if fmt.Sprint(got) != want {
			t.Errorf("%v, want %s", got, want)
		}
	})
}

// A connection that ends says nothing about the queue that was asked for: taken for -1, it
// would end the pause of a queue without consumers.
func TestAConnectionClosedByRabbitMQIsNoAnswerAboutAQueue(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		user := "asking-" + v.Name[len(v.Name)-8:]
		v.User(user, "pw")
		v.Grant(user, "", ".*", "")
		v.Queue("q", nil)
		p := publisher(t, v.URLAs(user, "pw"))
		p.AwaitUsable(t.Context())
		many := slices.Repeat([]string{"q"}, 500)
		closed := make(chan error, 1)
		go func() {
			for {
				err := p.Consumers(t.Context(), many, func(_ string, n int) {
					if n != 0 {
						t.Errorf("%d consumers of a queue that has none", n)
					}
				})
				if err != nil || t.Failed() {
					closed <- err
					return
				}
			}
		}()
		v.CloseConnections(user)
		if err := <-closed; !errors.Is(err, wire.ErrNoAnswer) {
			t.Errorf("after RabbitMQ closed the connection: %v", err)
		}
	})
}

// What RabbitMQ refuses ends the channel it was asked on, and not the one that
// publishes: what is unanswered there would be sent twice.
func TestAskingForAMissingQueueLeavesThePublishingChannel(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("q", nil)
		ctx := context.Background()
		p := publisher(t, v.URL())
		const rounds, each = 10, 50
		for range rounds {
			out := make([]wire.Outgoing, each)
			for i := range out {
				out[i] = message("", "q", "", nil)
			}
			answers := p.Send(ctx, out)
			if err := p.Consumers(ctx, []string{"gone"}, func(string, int) {}); err != nil {
				t.Fatal(err)
			}
			for _, err := range answers(ctx) {
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		if n := v.Depth("q"); n != rounds*each {
			t.Errorf("%d arrived of %d", n, rounds*each)
		}
	})
}
