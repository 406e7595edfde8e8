// Command messagettl is the recipe "one retry queue, a time to live per message".
// RabbitMQ expires messages at the head of a queue only, so a short wait would
// stand behind a long one: a policy with different waits is refused.
package main

import (
	"context"
	"time"

	"github.com/redrive-mq/redrive"
	"github.com/redrive-mq/redrive/examples/shop"
	"github.com/redrive-mq/redrive/policy"
)

func main() {
	shop.Main(shop.Quorum, func(ctx context.Context, url string) error {
		return redrive.Consume(ctx, redrive.Config{URLs: []string{url}}, redrive.Consumer{
			Queue:   "orders",
			Policy:  policy.Policy{Attempts: 4, Backoff: policy.Fixed(time.Second)},
			Wait:    redrive.MessageTTL(),
			Handler: shop.Pay,
		})
	})
}
