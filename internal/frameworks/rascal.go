package frameworks

import (
	"maps"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/wire"
)

// rascal writes a table of its own, also where all is well; it tells of a failure once it has
// republished or forwarded the message.
//
// Source, in onebeyond/rascal: lib/amqp/SubscriberError.js, lib/amqp/Subscription.js,
// lib/amqp/Publication.js
var rascal = preset{
	name:    "Rascal",
	markers: []string{"rascal"},
	read: func(f *Fault, m *wire.Message) {
		t := table(m.Headers, "rascal")
		failure := table(t, "error")
		f.Error, f.Type = text(failure, "message"), text(failure, "code")
		f.Queue = name(raw(t, "originalQueue"))
		f.Exchange, f.RoutingKey = name(raw(t, "originalExchange")), name(raw(t, "originalRoutingKey"))
		recovery := table(table(t, "recovery"), f.Queue)
		republished, _ := number(recovery, "republished")
		forwarded, _ := number(recovery, "forwarded")
		f.Attempts = min(republished+forwarded, maxAttempts)
	},
	// Of its table, encryption must stay, and so must what the consumer shows as exchange and
	// routing key. With immediateNack it would reject the message at once.
	restore: func(m *wire.Message) {
		t := maps.Clone(table(m.Headers, "rascal"))
		if t == nil {
			return
		}
		for _, member := range []string{"recovery", "error", "redeliveries"} {
			delete(t, member)
		}
		m.Headers["rascal"] = t
	},
}

// table returns a table in headers; nil, which can be read, where there is none.
func table(h amqp.Table, header string) amqp.Table {
	t, _ := h[header].(amqp.Table)
	return t
}
