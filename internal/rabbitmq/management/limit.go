package management

import "strings"

// LimitInForce is the delivery limit in force of a quorum queue, when there is one: the least
// of what its argument, its policy and an operator policy say. version is RabbitMQ's.
func (q *QueueState) LimitInForce(version string) (limit int, limited bool) {
	if q.Type != "quorum" {
		return 0, false
	}
	least := func(v any) {
		if f, ok := v.(float64); ok && f >= 0 && (!limited || int(f) < limit) {
			limit, limited = int(f), true
		}
	}
	if q.DeliveryLimit != nil { // from 4.0 on RabbitMQ says what holds
		least(q.DeliveryLimit)
		return limit, limited
	}
	argument, policy := q.Arguments["x-delivery-limit"], q.Effective["delivery-limit"]
	least(argument)
	least(policy)
	if argument == nil && policy == nil && version != "" && !strings.HasPrefix(version, "3.") {
		return 20, true
	}
	return limit, limited
}
