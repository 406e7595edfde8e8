package broker_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/testenv/model"
	"github.com/redrive-mq/redrive/wire"
)

// failsFrom stores so many batches, and then fails.
type failsFrom struct {
	batches, from int
}

func (*failsFrom) Connected(context.Context) error { return nil }
func (*failsFrom) Disconnected()                   {}

func (h *failsFrom) Handle(context.Context, []wire.Delivery) error {
	time.Sleep(time.Second) // and more arrive
	if h.batches == h.from {
		return errors.New("the store fails")
	}
	h.batches++
	return nil
}

// Otherwise a crash or a stop would have RabbitMQ deliver again what was stored long before.
func TestWhatIsStoredIsAcknowledgedWhileTheNextBatchCannotBeStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := model.New(model.Options{Version: "4.3.6"})
		defer b.Close()
		config := broker.Config{URL: "amqp://guest:guest@model/%2F", Log: slog.New(slog.DiscardHandler), AMQP: amqp.Config{Dial: b.Dial}}
		h := &failsFrom{from: 2}
		ctx, stop := context.WithCancel(t.Context())
		var run sync.WaitGroup
		defer run.Wait()
		defer stop()
		run.Go(func() {
			_ = broker.NewIntakeConsumer(config, 1000, func(error) {}, func(int) {}).Run(ctx, h)
		})
		time.Sleep(5 * time.Second)
		conn, err := amqp.DialConfig(config.URL, amqp.Config{Dial: b.Dial})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		ch, err := conn.Channel()
		if err != nil {
			t.Fatal(err)
		}
		// The first fills the first window; no two of the others fit one batch.
		for range 5 {
			if err := ch.PublishWithContext(ctx, "", wire.QueueIntake, false, false, amqp.Publishing{Body: make([]byte, 5<<20), DeliveryMode: amqp.Persistent}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute)
		if q, _ := b.Queue(wire.QueueIntake); h.batches != 2 || q.Messages != 3 {
			t.Errorf("%d batches are stored, and RabbitMQ has %d messages, want 3: those that are not stored", h.batches, q.Messages)
		}
	})
}
