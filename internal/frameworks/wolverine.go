package frameworks

import (
	"strconv"
	"time"

	"github.com/redrive-mq/redrive/wire"
)

// wolverine sends a copy to its dead letter queue with these headers where dead lettering is
// enhanced or interoperable; in its native mode it rejects the message.
//
// Source, in JasperFx/wolverine: src/Wolverine/Transports/DeadLetterQueueConstants.cs,
// src/Wolverine/EnvelopeConstants.cs, src/Wolverine/Transports/EnvelopeMapper.cs
var wolverine = preset{
	name:    "Wolverine",
	markers: []string{"exception-type"},
	needed:  []string{"exception-message"},
	read: func(f *Fault, m *wire.Message) {
		h := m.Headers
		f.Type, f.Error, f.Stack = text(h, "exception-type"), text(h, "exception-message"), text(h, "exception-stack")
		f.Queue = lastSegment(raw(h, "original-destination"))
		f.MessageType = printable(m.Type)
		f.Attempts, _ = number(h, "attempts")
		if ms, err := strconv.ParseInt(raw(h, "failed-at"), 10, 64); err == nil {
			f.Failed = believable(time.UnixMilli(ms))
		}
	},
	removed: []string{"exception-type", "exception-message", "exception-stack", "failed-at", "original-destination", "original-partition", "original-offset", "attempts"},
}
