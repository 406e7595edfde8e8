package management

import "github.com/redrive-mq/redrive/internal/rabbitmq/version"

// LimitInForce is the delivery limit in force of a quorum queue, when there is one: the least
// of what its argument, its policy and an operator policy say. of is RabbitMQ's version.
func (q *QueueState) LimitInForce(of string) (limit int, limited bool) {
	if q.Type != "quorum" {
		return 0, false
	}
	least := func(v any) {
		if f, ok := v.(float64); ok && f >= 0 && (!limited || int(f) < limit) {
			limit, limited = int(f), true
		}
	}
	if q.DeliveryLimit != nil { // RabbitMQ has combined them
		least(q.DeliveryLimit)
		return limit, limited
	}
	argument, policy := q.Arguments["x-delivery-limit"], q.Effective["delivery-limit"]
	least(argument)
	least(policy)
	if limits, _ := version.AtLeast(of, 4, 0); argument == nil && policy == nil && limits {
		return 20, true
	}
	return limit, limited
}
