package management_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
)

func queueState(name, exchange, key string) management.QueueState {
	q := management.QueueState{Queue: management.Queue{Name: name, Arguments: map[string]any{"x-dead-letter-exchange": exchange}}}
	if key != "" {
		q.Arguments["x-dead-letter-routing-key"] = key
	}
	return q
}

// Whoever may bind a queue chooses patterns and keys: none of them takes for ever to match.
func TestHostileTopics(t *testing.T) {
	key := strings.TrimSuffix(strings.Repeat("a.", 127), ".")
	topic := []management.Exchange{{Name: "x", Type: "topic"}}
	for pattern, want := range map[string]bool{strings.Repeat("#.a.", 62) + "#.b": false, strings.Repeat("#.a.", 62) + "#": true, "a.#": true, "*.a": false, "#": true, "": false} {
		r := management.NewRoutes([]management.QueueState{queueState("work", "x", key)},
			[]management.Binding{{Source: "x", Destination: "dlq", DestinationType: "queue", RoutingKey: pattern}}, topic, nil)
		if to, _, _ := r.DeadLetters("work"); to["dlq"] != want {
			t.Errorf("%q takes the key: %v", pattern, to)
		}
	}
}

// A queue with more keys than are distinguished may have any of them.
func TestAQueueWithManyKeys(t *testing.T) {
	bindings := []management.Binding{{Source: "dlx", Destination: "dlq", DestinationType: "queue", RoutingKey: "key149"}}
	for i := range 150 {
		bindings = append(bindings, management.Binding{Source: "in", Destination: "work", DestinationType: "queue", RoutingKey: fmt.Sprint("key", i)})
	}
	r := management.NewRoutes([]management.QueueState{queueState("work", "dlx", "")}, bindings,
		[]management.Exchange{{Name: "in", Type: "direct"}, {Name: "dlx", Type: "direct"}}, nil)
	if to, _, _ := r.DeadLetters("work"); !to["dlq"] {
		t.Errorf("its dead letters reach %v", to)
	}
}

// A thousand work queues that share one queue to wait in lead to each other, as far as RabbitMQ shows it.
func TestManyQueuesShareOneToWaitIn(t *testing.T) {
	queues := []management.QueueState{queueState("wait", "", "")}
	for i := range 1000 {
		queues = append(queues, queueState(fmt.Sprint("work", i), "retry", ""))
	}
	r := management.NewRoutes(queues, []management.Binding{{Source: "retry", Destination: "wait", DestinationType: "queue", RoutingKey: "#"}},
		[]management.Exchange{{Name: "retry", Type: "topic"}}, nil)
	if to, _, _ := r.DeadLetters("work7"); !to["wait"] {
		t.Errorf("its dead letters reach %v", to)
	}
}

func TestNamesOfDeadLetterQueues(t *testing.T) {
	for name, want := range map[string]string{"orders_error": "orders", "orders_skipped": "orders",
		"Orders.DLQ": "Orders", "orders-dead-letter": "orders",
		"error": "", "EasyNetQ_Default_Error_Queue": "", "wolverine-dead-letter-queue": ""} {
		if of, is := management.NamedLikeDeadLetters(name); !is || of != want {
			t.Errorf("%s is one of %q: %v", name, of, is)
		}
	}
	for _, name := range []string{"orders", "errors.orders", "dlq.orders", ""} {
		if _, is := management.NamedLikeDeadLetters(name); is {
			t.Errorf("%q is taken for a dead-letter queue", name)
		}
	}
}
