// Command levels is the recipe "a TTL queue per level, a counter in a header":
// waits that grow, in as many queues as there are levels, however many work
// queues share them. A failed message is acknowledged only when RabbitMQ has
// confirmed it in its delay queue.
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
			Policy:  policy.Policy{Attempts: 4, Backoff: policy.Exponential(time.Second, 2, 4*time.Second)},
			Wait:    redrive.Levels(1*time.Second, 2*time.Second, 4*time.Second),
			Handler: shop.Pay,
		})
	})
}
