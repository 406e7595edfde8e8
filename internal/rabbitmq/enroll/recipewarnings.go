package enroll

import (
	"fmt"

	"github.com/redrive-mq/redrive/internal/delay/ttlqueue"
)

// Warnings are what the recipe lacks: what a person should know before using it.
func (r *Recipe) Warnings() (all []string) {
	add := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	const atMostOnce = "it is at-most-once: a message is lost that comes due while its work queue cannot take it (a quorum queue cannot just after RabbitMQ has started)"
	const confirms = "a consumer that acknowledges before RabbitMQ has confirmed loses the message when the publish fails; without mandatory also when no queue is bound"
	switch r.kind {
	case RetryQueue:
		add("only rejected messages are retried: RabbitMQ takes what expired, overflowed its queue or passed its delivery limit for a cycle, and drops it")
		add("there is no limit of attempts, unless the consumer counts: a message that always fails goes round for ever")
		add("%s, or is rejected while the retry queue cannot", atMostOnce)
		if len(r.delays) > 1 {
			add("%s", confirms)
			add("a consumer must count attempts in a header of its own: x-death[].count does not grow on RabbitMQ 4 when the message is published again")
		}
	case RetryExchange:
		add("messages expire at the head of %q only: one with a delay of 5 min blocks one of 1 s behind it", r.name["retry-queue"])
		add("%s", confirms)
		add("there is no limit of attempts, unless the consumer counts, in a header of its own: x-death[].count does not grow on RabbitMQ 4 when the message is published again")
		add("%s", atMostOnce)
		add("each queue that is bound to exchange %q with the key %q receives each retry, not only %q", r.name["work-exchange"], r.queue, r.queue)
	case WaitExchange:
		add("nothing is retried while the program does not run: messages stay in %q", r.name["error-queue"])
		add("the program must take the queue from the routing key, which RabbitMQ sets: x-first-death-queue can be forged by publishers on RabbitMQ 3")
		add("it must publish without the header x-death, or RabbitMQ 3 drops what left %q by expiry, length or delivery limit as a cycle; and count attempts in a header of its own, since x-death[].count does not grow on RabbitMQ 4", r.queue)
		if r.plugin {
			add("the plugin was archived in 2026 and cannot run on RabbitMQ 4.3; each waiting message takes some 10 KB of memory, on one node: when that is lost, so are they. Publish without mandatory: RabbitMQ would return each message")
		} else {
			add("messages expire at the head of %q only: one with a delay of 5 min blocks one of 1 s behind it", r.name["wait-queue"])
		}
		add("%s", atMostOnce)
	}
	if r.queues == ttlqueue.Classic {
		add("the classic queues are on one node: what waits there is lost with its disk")
	}
	add("messages are retried with the routing key %q, no longer with their first one", r.queue)
	return all
}
