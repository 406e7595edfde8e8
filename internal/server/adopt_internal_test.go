package server

import "testing"

func TestNamesOfDeadLetterQueues(t *testing.T) {
	for name, want := range map[string]string{"orders_error": "orders", "orders_skipped": "orders", "Orders.DLQ": "Orders", "orders-dead-letter": "orders",
		"error": "", "EasyNetQ_Default_Error_Queue": "", "wolverine-dead-letter-queue": ""} {
		if of, is := namedLikeOne(name); !is || of != want {
			t.Errorf("%s is one of %q: %v", name, of, is)
		}
	}
	for _, name := range []string{"orders", "errors.orders", "dlq.orders", ""} {
		if _, is := namedLikeOne(name); is {
			t.Errorf("%q is taken for a dead-letter queue", name)
		}
	}
}
