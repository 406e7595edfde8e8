package amqp10_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/Azure/go-amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/testenv/brokertest"
)

// Quorum queues dead-letter the annotations as headers, classic queues do not. What a consumer says
// with the outcome rejected is lost in both.
func TestWhatOutcomesSayIsDeadLettered(t *testing.T) {
	onEachQueue(t, "dlx", func(t *testing.T, v *brokertest.VHost, kind string) {
		v.DeleteQueue("dead")
		v.Queue("dead", nil)
		v.Exchange("dlx", "fanout", "dead")
		r, dead := receiver(t, v), v.Consume("dead")
		v.Publish("", "orders", amqp091.Publishing{Headers: amqp091.Table{"tenant": "a"}})
		must(t, r.ModifyMessage(t.Context(), receive(t, r), &amqp.ModifyMessageOptions{UndeliverableHere: true,
			Annotations: amqp.Annotations{"x-opt-text": "é", "x-number": int64(5), "x-yes": true}}))
		h := dead.Take("").Headers
		if kind == "quorum" && (h["x-opt-text"] != "é" || h["x-number"] != int64(5) || h["x-yes"] != true) || kind == "classic" && (h["x-opt-text"] != nil || h["x-number"] != nil) || h["tenant"] != "a" {
			t.Errorf("modified: %v", h)
		}
		if reason := h["x-first-death-reason"]; reason != "rejected" {
			t.Errorf("its reason is %v", reason)
		}
		v.Publish("", "orders", amqp091.Publishing{})
		must(t, r.RejectMessage(t.Context(), receive(t, r), &amqp.Error{Condition: "shop:no-such-customer", Description: "nobody"}))
		for k, value := range dead.Take("").Headers {
			if s, _ := value.(string); strings.Contains(s, "nobody") || strings.Contains(s, "no-such-customer") {
				t.Errorf("rejected: %s is %q", k, s)
			}
		}
	})
}

// An annotation whose name does not begin with x- ends the session, and so the consumer.
func TestAnAnnotationWithoutXEndsTheSession(t *testing.T) {
	onEachQueue(t, "dlx", func(t *testing.T, v *brokertest.VHost, _ string) {
		r := receiver(t, v)
		v.Publish("", "orders", amqp091.Publishing{})
		_ = r.ModifyMessage(t.Context(), receive(t, r), &amqp.ModifyMessageOptions{UndeliverableHere: true, Annotations: amqp.Annotations{"error": "timeout"}})
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		_, err := r.Receive(ctx, nil)
		if end := (*amqp.SessionError)(nil); !errors.As(err, &end) || end.RemoteErr == nil {
			t.Errorf("the receiver goes on: %v", err)
		}
	})
}

// A quorum queue delays the message until that time, whatever x-delayed-retry-type it has; a classic
// queue delivers it again at once.
func TestADeliveryTimeDelaysRedelivery(t *testing.T) {
	const delay = 2 * time.Second
	onEachQueue(t, "dlx", func(t *testing.T, v *brokertest.VHost, kind string) {
		r := receiver(t, v)
		for _, counts := range []bool{true, false} {
			v.Publish("", "orders", amqp091.Publishing{})
			m, at := receive(t, r), time.Now().Add(delay)
			must(t, r.ModifyMessage(t.Context(), m, &amqp.ModifyMessageOptions{DeliveryFailed: counts, Annotations: amqp.Annotations{"x-opt-delivery-time": at}}))
			m = receive(t, r)
			if early := time.Until(at); (early > 5*time.Millisecond) != (kind == "classic") || (m.Header.DeliveryCount == 1) != counts {
				t.Errorf("delivery failed %v: it came %s early, with a delivery count of %d", counts, early, m.Header.DeliveryCount)
			}
			must(t, r.AcceptMessage(t.Context(), m))
		}
	})
}
