// Command binary is the recipe of NServiceBus and Celery: one queue for each bit
// of the wait, so that 28 queues keep any wait, for all work queues together. The
// unit is what waits are rounded up to.
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
			Policy:  policy.Policy{Attempts: 4, Backoff: policy.Exponential(time.Second, 2, time.Minute), Jitter: policy.Fraction(0.2)},
			Wait:    redrive.Binary(100 * time.Millisecond),
			Handler: shop.Pay,
		})
	})
}
