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
	if err := v.hasPlugin(ctx); err != nil {
		return way{}, err
	}
	return forward(v, pluginType, amqp.Table{"x-delayed-type": "fanout"}, func(h amqp.Table) { h["x-delay"] = int32(1) }, false)
}

const pluginType = "x-delayed-message"

// hasPlugin is nil, or notThere.
func (v vhost) hasPlugin(ctx context.Context) error {
	var overview struct {
		Types []struct {
			Name string `json:"name"`
		} `json:"exchange_types"`
	}
	if err := v.api.Call(ctx, http.MethodGet, "overview", nil, &overview); err != nil {
		return err
	}
	for _, t := range overview.Types {
		if t.Name == pluginType {
			return nil
		}
	}
	return notThere("RabbitMQ has no exchange of type x-delayed-message; the plugin rabbitmq_delayed_message_exchange is not enabled (RabbitMQ 4.3 cannot have it)")
}
