package main

import (
	"context"
	"net/http"

	amqp "github.com/rabbitmq/amqp091-go"
)

// startDelayed is the recipe with the delayed-message plugin: a forwarder
// publishes dead letters to a delayed exchange with a delay of a millisecond.
// The plugin knows no mandatory.
func startDelayed(ctx context.Context, v vhost) (way, error) {
	var overview struct {
		Types []struct {
			Name string `json:"name"`
		} `json:"exchange_types"`
	}
	if err := v.api.Call(ctx, http.MethodGet, "overview", nil, &overview); err != nil {
		return way{}, err
	}
	for _, t := range overview.Types {
		if t.Name == "x-delayed-message" {
			return forward(v, t.Name, amqp.Table{"x-delayed-type": "fanout"}, func(h amqp.Table) { h["x-delay"] = int32(1) }, false)
		}
	}
	return way{}, notThere("RabbitMQ has no exchange of type x-delayed-message; the plugin rabbitmq_delayed_message_exchange is not enabled (RabbitMQ 4.3 cannot have it)")
}
