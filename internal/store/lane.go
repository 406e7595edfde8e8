package store

import "fmt"

// Lane is a destination that waiting records have in common: a work queue, or where a policy
// or a person sends those of a work queue. One that is unreachable delays no other. (The queues
// redrive.lane.<queue> in RabbitMQ are something else: wire.LaneQueue.)
type Lane struct {
	Queue string // the work queue
	// Forward is where its messages go instead; zero: back to the queue.
	Forward Destination
}

// Lane is where a waiting record goes.
func (r *Record) Lane() Lane {
	l := Lane{Queue: r.Queue}
	if r.Forward != nil {
		l.Forward = *r.Forward
	}
	return l
}

// Forwards tells whether the lane is of a forward target, and not of a work queue.
func (l Lane) Forwards() bool { return l.Forward != Destination{} }

// String names the lane for people.
func (l Lane) String() string {
	if !l.Forwards() {
		return l.Queue
	}
	return fmt.Sprintf("%s to %s", l.Queue, l.Forward)
}

// String names a destination for people.
func (d Destination) String() string {
	switch {
	case d.Exchange == "":
		return "queue " + d.RoutingKey
	case d.RoutingKey == "":
		return "exchange " + d.Exchange
	}
	return fmt.Sprintf("exchange %s with routing key %s", d.Exchange, d.RoutingKey)
}
