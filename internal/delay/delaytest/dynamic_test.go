package delaytest

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/delay/ttlqueue"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/wire"
)

// Queues that live but a second longer than their delay, and a sender that stands
// still for any time between declaration, publish and confirm: some copies are
// deleted with their queue, and never one that counted as held. In the end nothing
// is left of the queues.
func TestNoMessageIsOnlyInAQueueThatItsExpiryDeletes(t *testing.T) {
	t.Parallel()
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		const many = 40
		way, err := ttlqueue.NewDynamic(10 * ms)
		if err != nil {
			t.Fatal(err)
		}
		way.Spare = func(time.Duration) time.Duration { return time.Second }
		v.Queue("orders", amqp.Table{"x-queue-type": "classic"})
		p := publisher(t, v.URL())
		ctx := t.Context()
		if err := p.Declare(ctx, way.Topology("orders")); err != nil {
			t.Fatal(err)
		}
		c := v.Consume("orders")

		var sending sync.Mutex
		var confirmed, late, refused atomic.Int64
		// Each has a queue of its own, or the others would renew it.
		hold := func(i int, afterDeclare, beforeConfirm time.Duration) error {
			for {
				ticket, err := way.Ticket("orders", time.Duration(20+i)*10*time.Millisecond)
				if err != nil {
					return err
				}
				began := time.Now()
				if err := p.Declare(ctx, *ticket.DeclareFirst); err != nil {
					return err
				}
				<-time.After(afterDeclare)
				id := uuid.NewString()
				sending.Lock()
				answers := p.Send(ctx, []wire.Outgoing{{Exchange: ticket.Exchange, RoutingKey: ticket.RoutingKey, ID: id,
					Message: &wire.Message{Headers: amqp.Table{wire.HeaderID: id}, Body: fmt.Append(nil, i)}}})
				sending.Unlock()
				<-time.After(beforeConfirm)
				err = answers(ctx)[0]
				switch {
				case errors.Is(err, wire.ErrUnroutable), errors.Is(err, wire.ErrNacked):
					refused.Add(1) // the queue was gone, or went before it had the message
				case err != nil:
					return err
				case time.Since(began) > ticket.ConfirmWithin:
					confirmed.Add(1)
					late.Add(1)
				default:
					confirmed.Add(1)
					return nil
				}
				afterDeclare, beforeConfirm = 0, 0
			}
		}
		var all sync.WaitGroup
		for i := range many {
			// From 0 to past the expiry, spent here or there.
			pause := time.Duration(i) * 50 * time.Millisecond
			pauses := [2]time.Duration{pause, 0}
			if i%4 == 3 {
				pauses = [2]time.Duration{pause / 2, pause / 2}
			}
			all.Go(func() {
				if err := hold(i, pauses[0], pauses[1]); err != nil {
					t.Errorf("message %d: %v", i, err)
				}
			})
		}
		all.Wait()
		came, copies := map[string]bool{}, 0
		for len(came) < many && !t.Failed() {
			d := c.Next()
			came[string(d.Body)] = true
			copies++
			if err := d.Ack(false); err != nil {
				t.Fatal(err)
			}
		}
		t.Logf("%d confirmed, %d of them too late and sent again, %d refused; %d copies came back", confirmed.Load(), late.Load(), refused.Load(), copies)
		if late.Load() == 0 || refused.Load() == 0 {
			t.Error("the pauses were not at the worst moments")
		}
		for _, what := range []string{"queues", "exchanges"} {
			brokertest.Eventually(t, "no idle "+what+" are left", func() bool { return delays(t, v, what) == 0 })
		}
	})
}

// delays counts dynamic delay queues, or their exchanges.
func delays(t *testing.T, v *brokertest.VHost, what string) (n int) {
	t.Helper()
	var found []struct {
		Name string `json:"name"`
	}
	if err := v.API().Call(t.Context(), "GET", what+"/"+v.Name, nil, &found); err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		if strings.HasPrefix(f.Name, wire.DelayPrefix+"dynamic.") {
			n++
		}
	}
	return n
}
