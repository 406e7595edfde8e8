package stories_test

import (
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/server/servertest"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/wire"
)

// frameworkHeaders are what a framework writes on a message for the queue orders, and the error
// that it becomes.
func frameworkHeaders(order string) map[string]amqp.Table {
	const stack = "   at Shop.PaymentConsumer.Consume() in /app/PaymentConsumer.cs:line 31"
	return map[string]amqp.Table{
		"MassTransit": {"MT-Reason": "fault", "MT-Fault-ExceptionType": "Shop.NoStock", "MT-Fault-Message": "no stock of " + order, "MT-Fault-StackTrace": stack,
			"MT-Fault-InputAddress": "rabbitmq://rabbit/elsewhere", "MT-Fault-RetryCount": int32(3)},
		"NServiceBus": {"NServiceBus.FailedQ": "elsewhere", "NServiceBus.ExceptionInfo.ExceptionType": "Shop.Declined", "NServiceBus.ExceptionInfo.Message": "declined: " + order,
			"NServiceBus.ExceptionInfo.StackTrace": "Shop.Declined: declined: " + order + "\n" + stack},
		"Spring AMQP": {"x-exception-message": "timeout of " + order, "x-exception-stacktrace": "com.shop.Timeout: timeout of " + order + "\n\tat com.shop.Orders.pay(Orders.java:118)",
			"x-original-exchange": "elsewhere", "x-original-routingKey": "elsewhere"},
	}
}

// What another framework wrote about a failure is the error of its message, and nothing more: it is
// parked with it, grouped by it and found by it, in the queue that RabbitMQ names.
func TestTheErrorOfAnotherFramework(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("elsewhere", nil)
		deadLettered(v, "orders", "quorum")
		s := run(t, servertest.Config(t, v, `policies: [{name: p, queues: [orders, elsewhere], attempts: 1, rules: [{name: declined, when: "error:/^Shop.Declined: /", then: park, why: ask the bank}]}]`)).ready(t)
		ch, c := v.Channel(), consume(t, v, "orders")
		for _, order := range []string{"4711", "12"} {
			for _, h := range frameworkHeaders(order) {
				publish(t, ch, "", "orders", amqp.Publishing{Headers: h})
				reject(t, c.next())
			}
		}
		want := map[string]string{"MassTransit": "Shop.NoStock: no stock of ", "NServiceBus": "Shop.Declined: declined: ", "Spring AMQP": "com.shop.Timeout: timeout of "}
		groups := map[string]int{}
		for _, p := range s.WaitParked(t, 6) {
			d, err := s.Client.Message(t.Context(), p.ID, inspect.ReadAs{})
			if err != nil || d.Framework == nil {
				t.Fatalf("%+v: %v", d, err)
			}
			begins := want[d.Framework.Name]
			if begins == "" || !strings.HasPrefix(d.Error, begins) || !strings.Contains(d.Error, "\n") || d.Queue != "orders" || d.Attempt != 1 || d.Exchange != "" || d.RoutingKey != "orders" {
				t.Errorf("%s: parked as %+v", d.Framework.Name, d.Message)
			}
			if declined := d.Rule == "declined"; declined != (d.Framework.Name == "NServiceBus") {
				t.Errorf("%s is parked by rule %q", d.Framework.Name, d.Rule)
			}
			if d.Framework.Name == "MassTransit" && (d.Framework.Queue != "elsewhere" || d.Framework.Attempts != 4) {
				t.Errorf("it wrote %+v", d.Framework)
			}
			groups[d.Framework.Name+d.Group]++
		}
		if len(groups) != 3 {
			t.Errorf("the groups are %v", groups)
		}
		for name, begins := range want {
			if page, err := s.Client.Messages(t.Context(), `error:"`+begins+`12"`, "", 10); err != nil || len(page.Messages) != 1 {
				t.Errorf("%s: its error finds %d messages, %v", name, len(page.Messages), err)
			}
		}
		if n := v.Depth("elsewhere"); n != 0 {
			t.Errorf("%d messages are in the queue that only headers name", n)
		}
	})
}

// A report by Spring, which publishes to redrive.failures by itself, has the error of each failure.
func TestSpringReportsEachFailure(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		deadLettered(v, "orders", "classic")
		s := run(t, servertest.Config(t, v, `policies: [{name: p, queues: [orders], attempts: 2, backoff: {fixed: 50ms}, jitter: none, no_consumer: retry}]`)).ready(t)
		ch, c := v.Channel(), consume(t, v, "orders")
		fails := func(h amqp.Table, with string) {
			t.Helper()
			h["x-exception-message"], h["x-exception-stacktrace"], h["x-original-exchange"], h["x-original-routingKey"] = with, "com.shop.Bank: "+with, "shop", "paid"
			publish(t, ch, wire.ExchangeFailures, "orders", amqp.Publishing{Headers: h})
		}
		fails(amqp.Table{}, "first")
		d := c.next()
		if d.Headers[wire.HeaderError] != nil || d.Headers["x-exception-message"] != "first" || d.Headers[wire.HeaderExchange] != "shop" || d.RoutingKey != "paid" {
			t.Errorf("retried as %+v", d)
		}
		fails(d.Headers, "second")
		if err := d.Ack(false); err != nil {
			t.Fatal(err)
		}
		if p := s.WaitParked(t, 1)[0]; p.Error != "com.shop.Bank: second" || p.Attempt != 2 || p.RoutingKey != "paid" {
			t.Errorf("parked as %+v", p)
		}
	})
}
