package stories_test

import (
	"context"
	"errors"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive"
	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/testenv/brokertest"
)

// To a handler of the Go library a message that a person has replayed is the one that was parked:
// as first published, with the id under which people know it, and so it stays if it fails again.
func TestAHandlerKnowsAReplayedMessage(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		deadLettered(v, "orders", "quorum")
		v.Must("PUT", "exchanges/"+v.Name+"/shop", map[string]any{"type": "topic"})
		v.Must("POST", "bindings/"+v.Name+"/e/shop/q/orders", map[string]any{"routing_key": "order.*"})
		s := managed(t, v, oneAttempt, t.TempDir())
		attempts := make(chan redrive.Message, 1)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() {
			ended <- redrive.Consume(ctx, redrive.Config{URLs: []string{v.URL()}}, redrive.Consumer{Queue: "orders", Wait: redrive.Service(), Handler: func(_ context.Context, m *redrive.Message) error {
				attempts <- *m
				return errors.New("no stock")
			}})
		}()
		publish(t, v.Channel(), "shop", "order.eu", amqp.Publishing{Body: []byte("1"), Headers: amqp.Table{"n": int32(1)}})
		if first := <-attempts; first.Attempt != 1 || first.ID != "" {
			t.Errorf("the first attempt is number %d of id %q", first.Attempt, first.ID)
		}
		id := s.WaitParked(t, 1)[0].ID
		for range 2 {
			if done, err := s.Client.Act(ctx, actions.Act{Verb: actions.Replay, IDs: []string{id}}); err != nil || done.Done != 1 {
				t.Fatalf("%+v, %v", done, err)
			}
			m := <-attempts
			if m.Attempt != 1 || m.ID != id || m.FirstFailed.IsZero() || m.LastError != "no stock" {
				t.Errorf("replayed, it is attempt %d of id %q, first failed %s, last error %q; want 1 of %q", m.Attempt, m.ID, m.FirstFailed, m.LastError, id)
			}
			if m.Exchange != "shop" || m.RoutingKey != "order.eu" || len(m.Headers) != 1 || m.Headers["n"] != int32(1) {
				t.Errorf("replayed, it was published to %q with the key %q and has the headers %v", m.Exchange, m.RoutingKey, m.Headers)
			}
			if parked := s.WaitParked(t, 1)[0]; parked.ID != id {
				t.Errorf("failed again, its id is %q, want %q", parked.ID, id)
			}
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
