// Command dynamic is the recipe "a queue per delay, made when needed": any wait,
// jitter too. Waits are rounded up to two digits, so that jitter does not make a
// queue per message, and a queue that holds a message never expires.
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
			Policy:  policy.Policy{Attempts: 4, Backoff: policy.Exponential(time.Second, 1.5, time.Minute), Jitter: policy.Fraction(0.2)},
			Wait:    redrive.Dynamic(),
			Handler: shop.Pay,
		})
	})
}
