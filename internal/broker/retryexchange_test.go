package broker_test

import (
	"context"
	"errors"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/wire"
)

// Rights that are missing are reported as such, and it works once they are given.
func TestPermissionsGrantedLaterAreUsed(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		user := "poor-" + v.Name[len(v.Name)-8:]
		v.User(user, "pw")
		v.Grant(user, "^$", "^$", ".*")
		v.Queue("q", amqp.Table{"x-queue-type": "quorum"})
		p, ctx := publisher(t, v.URLAs(user, "pw")), context.Background()
		if err := p.BindRetryExchange(ctx, "q"); !errors.Is(err, wire.ErrForbidden) {
			t.Errorf("binding without a right: %v", err)
		}
		one := []wire.Outgoing{message(wire.RetryExchange("q"), "", "a", nil)}
		if err := publisher(t, v.URL()).BindRetryExchange(ctx, "q"); err != nil {
			t.Fatal(err)
		}
		if err := p.Send(ctx, one)(ctx)[0]; !errors.Is(err, wire.ErrForbidden) {
			t.Errorf("publishing without a right: %v", err)
		}
		v.Grant(user, `^redrive\.`, ".*", ".*")
		brokertest.Eventually(t, "the right is known", func() bool { return p.BindRetryExchange(ctx, "q") == nil })
		brokertest.Eventually(t, "the message goes", func() bool { return p.Send(ctx, one)(ctx)[0] == nil })
	})
}

func TestARetryExchangeExistsOnlyWhileItsQueueDoes(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		p, ctx := publisher(t, v.URL()), context.Background()
		exists := func(want bool) {
			t.Helper()
			if is, err := p.RetryExchangeExists(ctx, "q"); is != want || err != nil {
				t.Errorf("exists: %v, %v; want %v", is, err, want)
			}
		}
		exists(false)
		if err := p.BindRetryExchange(ctx, "q"); !errors.Is(err, wire.ErrQueueGone) {
			t.Errorf("binding a queue that does not exist: %v", err)
		}
		exists(false)
		for range 2 { // a queue that was made again is bound again
			v.Queue("q", amqp.Table{"x-queue-type": "classic"})
			if err := p.BindRetryExchange(ctx, "q"); err != nil {
				t.Fatal(err)
			}
			exists(true)
			back := message(wire.RetryExchange("q"), "any", "a", nil)
			if err := p.Send(ctx, []wire.Outgoing{back})(ctx)[0]; err != nil {
				t.Error(err)
			}
			if n := v.Depth("q"); n != 1 {
				t.Errorf("%d came back", n)
			}
			v.DeleteQueue("q")
			if err := p.Send(ctx, []wire.Outgoing{back})(ctx)[0]; !errors.Is(err, wire.ErrUnroutable) {
				t.Errorf("with the queue deleted: %v", err)
			}
		}
		if err := p.BindRetryExchange(ctx, "q"); !errors.Is(err, wire.ErrQueueGone) {
			t.Errorf("binding a deleted queue: %v", err)
		}
		exists(false) // it would stand for a permission that no one gave a new queue
	})
}

// RabbitMQ quotes the name in what it says of a missing exchange, and clients choose names.
func TestAMissingRetryExchangeWhoseNameReadsLikeAMissingQueue(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		p, ctx := publisher(t, v.URL()), t.Context()
		p.AwaitUsable(ctx)
		for _, q := range []string{"a no queue b", "NOT_FOUND - no queue 'b"} {
			if is, err := p.RetryExchangeExists(ctx, q); is || err != nil {
				t.Errorf("%q: exists: %v, %v", q, is, err)
			}
			if _, _, err := p.Queue(ctx, q); !errors.Is(err, wire.ErrQueueGone) {
				t.Errorf("%q: %v", q, err)
			}
		}
	})
}

func TestConsumersAndReadyMessagesOfAQueueAreCounted(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("q", amqp.Table{"x-queue-type": "classic"})
		for range 2 {
			if err := v.Channel().Publish("", "q", false, false, amqp.Publishing{}); err != nil {
				t.Fatal(err)
			}
		}
		brokertest.Eventually(t, "they are in the queue", func() bool { return v.Depth("q") == 2 })
		p, ctx := publisher(t, v.URL()), t.Context()
		if consumers, ready, err := p.Queue(ctx, "q"); consumers != 0 || ready != 2 || err != nil {
			t.Errorf("%d consumers, %d ready, %v", consumers, ready, err)
		}
		if _, _, err := p.Queue(ctx, "nowhere"); !errors.Is(err, wire.ErrQueueGone) {
			t.Errorf("a queue that is not there: %v", err)
		}
		if _, ready, err := p.Queue(ctx, "q"); ready != 2 || err != nil {
			t.Errorf("after that: %d ready, %v", ready, err)
		}
	})
}
