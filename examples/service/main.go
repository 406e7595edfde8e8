// Command service is the recipe "tell a dead-letter service what failed, and
// why": the Redrive service waits, by its own policies, and shows the error.
//
// Start it first, with a policy for the queue: redrive serve --config FILE.
package main

import (
	"context"

	"github.com/redrive-mq/redrive"
	"github.com/redrive-mq/redrive/examples/shop"
	"github.com/redrive-mq/redrive/policy"
)

func main() {
	shop.Main(shop.Quorum, func(ctx context.Context, url string) error {
		return redrive.Consume(ctx, redrive.Config{URLs: []string{url}}, redrive.Consumer{
			Queue:   "orders",
			Policy:  policy.Policy{}, // the service has its own
			Wait:    redrive.Service(),
			Handler: shop.Pay,
		})
	})
}
