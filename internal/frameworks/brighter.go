package frameworks

import "github.com/redrive-mq/redrive/wire"

// brighter counts how often a handler has deferred a message, and rejects it in the end. What it
// writes of the reason stays in its process, unless a message is published with it.
//
// Source, in BrighterCommand/Brighter: src/Paramore.Brighter.MessagingGateway.RMQ.Async/HeaderNames.cs,
// src/Paramore.Brighter.MessagingGateway.RMQ.Async/RmqMessageCreator.cs,
// src/Paramore.Brighter/Message.cs, src/Paramore.Brighter.ServiceActivator/Proactor.cs
var brighter = preset{
	name:    "Brighter",
	markers: []string{"HandledCount"},
	needed:  []string{"MessageType"},
	read: func(f *Fault, m *wire.Message) {
		h := m.Headers
		f.Error = text(h, "RejectionReason")
		f.RoutingKey = name(raw(h, "Topic")) // it publishes with the topic as routing key
		f.MessageType = text(h, "cloudEvents_type")
		if id := name(raw(h, "x-original-message-id")); id != "" {
			f.MessageID = id
		}
		if handled, counted := number(h, "HandledCount"); counted {
			f.Attempts = attempts(handled)
		}
	},
	removed: []string{"RejectionReason"},
	restore: func(m *wire.Message) { m.Headers["HandledCount"] = int32(0) },
}
