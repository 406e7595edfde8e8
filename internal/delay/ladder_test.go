package delay

import (
	"math/bits"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/wire"
)

// matches is a topic binding, as AMQP says.
func matches(pattern, key []string) bool {
	switch {
	case len(pattern) == 0:
		return len(key) == 0
	case pattern[0] == "#":
		return matches(pattern[1:], key) || len(key) > 0 && matches(pattern, key[1:])
	case len(key) == 0:
		return false
	}
	return (pattern[0] == "*" || pattern[0] == key[0]) && matches(pattern[1:], key[1:])
}

// walk follows a message through the topology, to where it ends.
func walk(t *rapid.T, topology Topology, ticket Ticket) (queue string, waited time.Duration, hops int) {
	ladder := map[string]Queue{}
	for _, q := range topology.Queues {
		ladder[q.Name] = q
	}
	for exchange := ticket.Exchange; ; {
		var to []Binding
		for _, b := range topology.Bindings {
			if b.From == exchange && matches(strings.Split(b.Key, "."), strings.Split(ticket.RoutingKey, ".")) {
				to = append(to, b)
			}
		}
		if len(to) != 1 {
			t.Fatalf("from exchange %s with routing key %s there are %d ways: %v", exchange, ticket.RoutingKey, len(to), to)
		}
		if exchange = to[0].ToExchange; exchange != "" {
			continue
		}
		q := ladder[to[0].ToQueue]
		if !strings.HasPrefix(q.Name, wire.DelayPrefix) {
			return to[0].ToQueue, waited, hops
		}
		waited += time.Duration(q.Args["x-message-ttl"].(int64)) * time.Millisecond
		hops++
		exchange = q.Args["x-dead-letter-exchange"].(string)
	}
}

// There is one way through the ladder, less than a unit too long, over one queue for each bit.
func TestAMessageTakesTheLevelsOfItsDelay(t *testing.T) {
	name := rapid.OneOf(rapid.StringMatching(`[ab0123.*#]{1,20}`), rapid.StringMatching(`(sha256\.)?[ab.]{190,255}`), rapid.Just("sha256.a"))
	rapid.Check(t, func(t *rapid.T) {
		unit := time.Duration(rapid.Int64Range(1, 1000).Draw(t, "unit")) * time.Millisecond
		l, err := NewLadder(unit)
		expect.NoError(t, err)
		queue, other := name.Draw(t, "queue"), name.Draw(t, "other")
		if queue == other {
			other += "a"
		}
		topology := l.Topology(queue).With(Topology{Bindings: l.Topology(other).Bindings[len(l.Topology(other).Bindings)-1:]})
		longest := int64(l.Limits().Longest)
		wait := time.Duration(rapid.Int64Range(0, longest).Draw(t, "delay") >> rapid.IntRange(0, 40).Draw(t, "shift"))
		ticket, err := l.Ticket(queue, wait)
		expect.NoError(t, err)
		if len(ticket.RoutingKey) > 255 {
			t.Fatalf("the routing key has %d bytes", len(ticket.RoutingKey))
		}
		to, waited, hops := walk(t, topology, ticket)
		if to != wire.LaneQueue(queue) || waited != ticket.Delay || waited < wait || waited-wait >= unit {
			t.Fatalf("%s to %q: it comes to %q after %s, and the ticket says %s", wait, queue, to, waited, ticket.Delay)
		}
		if n := bits.OnesCount64(uint64(waited / unit)); hops != n {
			t.Fatalf("%s in units of %s has %d bits, and takes %d hops", waited, unit, n, hops)
		}
		if waited > 0 && ticket.Exchange != l.level(bits.Len64(uint64(waited/unit))-1) {
			t.Fatalf("%s in units of %s begins at %s", waited, unit, ticket.Exchange)
		}
	})
}
