// Command delayedexchange is the recipe with the delayed-message plugin, where a
// broker has it: any wait, on one node, in its memory. Without the plugin it says
// so and ends.
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
			Wait:    redrive.DelayedExchange(),
			Handler: shop.Pay,
		})
	})
}
