package server

import (
	"errors"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
)

// A service is killed between acknowledging a message and writing the next epoch. An equal message that
// comes later has an id of its own.
func TestEqualMessagesHaveIDsOfTheirOwnAfterAKill(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("dlq", amqp.Table{"x-queue-type": "quorum"})
		for range 3 {
			v.Publish("", "dlq", amqp.Publishing{DeliveryMode: 2, Body: []byte("same")})
		}
		c := testConfig(t)
		c.Broker.URL = v.URL()
		d := opened(t, c).vhosts[0].deadLetters
		open := func() operations.Source {
			s, err := d.Open(t.Context(), retry.Adoption{ID: "a", From: "dlq", By: "ann", Named: []string{"orders"}})
			must(t, err)
			return s
		}
		epoch := int64(0)
		for range 3 { // connections, each of which parks one, as far as its process knows
			s := open()
			_, _, err := s.Park(t.Context(), 1, epoch)
			if !errors.Is(err, operations.ErrNewEpoch) {
				t.Errorf("nothing was delivered before, and Park says %v", err)
			}
			epoch++
			n, again, err := s.Park(t.Context(), 1, epoch)
			if n != 1 || again || err != nil {
				t.Fatalf("%d are parked, %v, %v", n, again, err)
			}
			s.Close()
		}
		ids := map[string]int{}
		must(t, d.store.Scan(t.Context(), store.Range{State: store.Parked}, func(l store.Listed) (bool, error) {
			ids[l.Record.ID.String()]++
			return true, nil
		}))
		expect.Equal(t, len(ids), 3, "ids of three messages")
	})
}
