package main

import (
	"context"
	"net/http"
)

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
