package delay

import (
	"fmt"
	"math/bits"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// levels is how many levels there are: 28, as NServiceBus and Celery use, for delays of 3 days in units
// of 1 ms, and of 8.5 years in units of 1 s.
const levels = 28

// Ladder waits on a ladder of queues that work queues share, one per bit of the delay. The routing key is the bits,
// highest first, and then the work queue: "0.0.1.0.1.orders.created" with five levels waits 5 units. A message with bit
// n set waits 2ⁿ units in the queue of level n; others skip it. Either goes on to the topic exchange below. The last
// one is internal and knows the lane queue of each work queue (DuePerQueue); what has none is parked.
type Ladder struct{ unit time.Duration }

// NewLadder returns a Ladder. unit is a whole number of milliseconds, from 1 ms to 1 s.
func NewLadder(unit time.Duration) (*Ladder, error) {
	if unit < time.Millisecond || unit > time.Second || unit%time.Millisecond != 0 {
		return nil, fmt.Errorf("a unit of %s is not a number of whole milliseconds from 1 ms to 1 s", unit)
	}
	return &Ladder{unit}, nil
}

func (l *Ladder) Limits() Limits {
	return Limits{Name: "binary", Longest: (1<<levels - 1) * l.unit, Step: l.unit, ChangesRoutingKey: true,
		Survives: "a restart of RabbitMQ and the loss of a minority of its nodes",
		Declares: fmt.Sprintf("%d queues and %d exchanges, for all work queues together, and one queue for each work "+
			"queue; a message passes one queue per bit that is set in its delay", levels, levels+1)}
}

// level returns the name of a level's queue and of the exchange before it.
func (l *Ladder) level(n int) string {
	return fmt.Sprintf(wire.DelayPrefix+"binary.%s.%02d", l.unit, n)
}

// out returns the exchange after the last level, bound to the lane queue of each work queue.
func (l *Ladder) out() string { return fmt.Sprintf(wire.DelayPrefix+"binary.%s.lane", l.unit) }

func (l *Ladder) Topology(queue string) Topology {
	t := DuePerQueue(queue).With(Topology{Exchanges: []Exchange{{Name: l.out(), Kind: amqp.ExchangeTopic,
		Internal: true, Args: amqp.Table{"alternate-exchange": wire.ExchangeParked}}}})
	below := l.out()
	for n := range levels {
		name := l.level(n)
		before := strings.Repeat("*.", levels-1-n)
		t = t.With(Topology{
			Exchanges: []Exchange{Own(name, amqp.ExchangeTopic)},
			Queues:    []Queue{{Name: name, Args: AtLeastOnce(below, l.unit<<n)}},
			Bindings: []Binding{
				{From: name, Key: before + "1.#", ToQueue: name},
				{From: name, Key: before + "0.#", ToExchange: below},
			},
		})
		below = name
	}
	return t.With(Topology{Bindings: []Binding{{From: l.out(), Key: strings.Repeat("*.", levels) + destination(queue),
		ToQueue: wire.LaneQueue(queue)}}})
}

func (l *Ladder) Ticket(queue string, wait time.Duration) (Ticket, error) {
	if wait > l.Limits().Longest {
		return Ticket{}, fmt.Errorf("a delay of %s is longer than %s, the longest with a unit of %s",
			policy.FormatDuration(wait), policy.FormatDuration(l.Limits().Longest), l.unit)
	}
	n := roundUp(wait, l.unit) / l.unit
	key := strings.Join(strings.Split(fmt.Sprintf("%0*b", levels, n), ""), ".") + "." + destination(queue)
	return Ticket{Exchange: l.level(max(0, bits.Len64(uint64(n))-1)), RoutingKey: key, Delay: n * l.unit}, nil
}

// destination returns the end of a routing key: the work queue's name, or a hash of it if it is too long or would mean
// something to a topic exchange.
func destination(queue string) string {
	room := 255 - 2*levels
	if strings.ContainsAny(queue, "*#") {
		room = 0
	}
	return NameIn(queue, room)
}
