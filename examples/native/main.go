// Command native leaves the waiting to the work queue itself: the delayed retry
// of quorum queues, since RabbitMQ 4.3. Only waits that grow evenly are possible.
// Older brokers accept the arguments and ignore them, so they are refused.
package main

import (
	"context"
	"time"

	"github.com/redrive-mq/redrive"
	"github.com/redrive-mq/redrive/examples/shop"
	"github.com/redrive-mq/redrive/policy"
)

func main() {
	shop.Main(redrive.NativeArguments(time.Second, time.Minute), func(ctx context.Context, url string) error {
		return redrive.Consume(ctx, redrive.Config{URLs: []string{url}}, redrive.Consumer{
			Queue:   "orders",
			Policy:  policy.Policy{Attempts: 4, Backoff: policy.Linear(time.Second, time.Second, time.Minute)},
			Wait:    redrive.Native(),
			Handler: shop.Pay,
		})
	})
}
