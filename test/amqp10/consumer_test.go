package amqp10_test

import (
	"context"
	"time"

	"github.com/Azure/go-amqp"
)

// failed gives a message to Redrive, with the error. after is an upstream's Retry-After, or 0.
func failed(ctx context.Context, r *amqp.Receiver, m *amqp.Message, err error, after time.Duration) error {
	annotations := amqp.Annotations{"x-opt-redrive-error": err.Error()}
	if after > 0 {
		annotations["x-opt-redrive-delay"] = after.Milliseconds()
	}
	return r.ModifyMessage(ctx, m, &amqp.ModifyMessageOptions{
		DeliveryFailed:    true,
		UndeliverableHere: true, // without it RabbitMQ delivers the message again at once
		Annotations:       annotations,
	})
}

// parked gives a message to Redrive that no retry can help, and says why.
func parked(ctx context.Context, r *amqp.Receiver, m *amqp.Message, why string) error {
	return r.ModifyMessage(ctx, m, &amqp.ModifyMessageOptions{
		DeliveryFailed:    true,
		UndeliverableHere: true,
		Annotations:       amqp.Annotations{"x-opt-redrive-park": why},
	})
}
