// Command fixed is the recipe "reject → TTL queue → back": the same wait before
// each attempt. Unlike the recipe in the broker alone it ends: after the last
// attempt a message goes to redrive.parked, with the error.
//
// For the recipe with no code, in any language: redrive topology fixed.
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
			Wait:    redrive.Levels(time.Second),
			Handler: shop.Pay,
		})
	})
}
