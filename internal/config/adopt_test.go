package config

import (
	"fmt"
	"strings"
	"testing"
)

// Names come before patterns, and a text alone is the work queue.
func TestFollowedQueues(t *testing.T) {
	c := parsed(t, `adopt:
  "*.dlq": {then: park}
  orders_error: orders
  payments.dlq: {queue: payments, then: retry, vhosts: [shop]}
  "all.*": {}
`)
	var got []string
	for _, f := range c.Adopt {
		got = append(got, fmt.Sprint(f.Name, " ", f.Queue, " ", f.Then, " ", f.IsPattern()))
	}
	want := "orders_error orders park false, payments.dlq payments retry false, *.dlq  park true, all.*  park true"
	if s := strings.Join(got, ", "); s != want {
		t.Errorf("it follows %s, want %s", s, want)
	}
	b := strings.Join(strings.Fields(described(t, c)), " ")
	if !strings.Contains(b, "follow orders_error parked, of orders") ||
		!strings.Contains(b, "follow payments.dlq retried by the policy of payments (virtual hosts: shop)") {
		t.Errorf("check says\n%s", b)
	}
	warned := parsed(t, `policies: [{name: p, queues: [orders]}]
adopt: {a: {queue: orders, then: retry}, b: {queue: mail, then: retry}, c: mail}`).Warnings
	if w := fmt.Sprint(warned); w != `[adopt.b: no policy is for the queue "mail", so what lands there is parked]` {
		t.Errorf("it warns %s", w)
	}
	for vhost, n := range map[string]int{"shop": 4, "other": 3} {
		if all := c.restrictedTo(vhost).Adopt; len(all) != n {
			t.Errorf("in the virtual host %s it follows %v", vhost, all)
		}
	}
	loaded, err := load(t, "", map[string]string{"REDRIVE_ADOPT": "{orders_error: orders}"})
	if err != nil || len(loaded.Adopt) != 1 {
		t.Errorf("from a variable: %v, %v", loaded, err)
	}
}

// What could park production traffic, or send messages round, is refused with its place.
func TestFollowedQueuesThatAreRefused(t *testing.T) {
	long := strings.Repeat("q", 256)
	areRefused(t, []string{"f.yaml:1:", "f.yaml:2:"}, []refusal{
		{"adopt: {}", "f.yaml:1:8: adopt is a mapping; expected dead-letter queues with a work queue each"},
		{"adopt: [orders.dlq]", "f.yaml:1:8: adopt is a list; expected dead-letter queues"},
		{"adopt: orders.dlq", `adopt is "orders.dlq"; expected dead-letter queues`},
		{"adopt:\n  orders.dlq: {then: discard}",
			`f.yaml:2:22: adopt.orders.dlq.then is "discard"; expected park, or retry`},
		{"adopt:\n  orders.dlq: {queues: orders}", `adopt.orders.dlq has no key "queues" (did you mean "queue"?)`},
		{"adopt:\n  orders.dlq: ''", "adopt.orders.dlq is empty; expected a queue's name"},
		{"adopt:\n  orders.dlq: [orders]", "f.yaml:2:15: adopt.orders.dlq is a list; expected a queue's name"},
		{"adopt:\n  orders.dlq: orders.*", `adopt.orders.dlq is "orders.*", a pattern; expected the name of one queue`},
		{"adopt:\n  orders.dlq: redrive.intake", `adopt.orders.dlq is "redrive.intake", one of Redrive's own queues`},
		{"adopt:\n  redrive.parked: {}", `f.yaml:2:3: adopt is "redrive.parked", one of Redrive's own queues`},
		{"adopt:\n  '*': {}", `f.yaml:2:3: adopt."*" would follow every queue; expected names`},
		{"adopt:\n  '*.dlq': orders", "f.yaml:2:12: adopt.*.dlq is a pattern, and one work queue alone"},
		{"adopt:\n  orders: orders", "adopt.orders names itself as the work queue"},
		{"adopt:\n  a: b\n  b: {}", `f.yaml:2:6: adopt.a has the work queue "b", which adopt follows too (b)`},
		{"adopt:\n  a: b.dlq\n  '*.dlq': {}", `adopt.a has the work queue "b.dlq", which adopt follows too (*.dlq)`},
		{"adopt:\n  " + long + ": {}", "is no name of a queue: those are at most 255 bytes"},
	})
}
