package frameworks

import (
	"strings"

	"github.com/redrive-mq/redrive/wire"
)

// rebus sends a message to its error queue with all exceptions as one text.
//
// Source, in rebus-org/Rebus: Rebus/Messages/Headers.cs,
// Rebus/Retry/PoisonQueues/DeadletterQueueErrorHandler.cs, Rebus/Retry/Simple/DefaultRetryStep.cs;
// in rebus-org/Rebus.RabbitMq: Rebus.RabbitMq/RabbitMq/RabbitMqTransport.cs (rbs2-delivery-count)
var rebus = preset{
	name:    "Rebus",
	markers: []string{"rbs2-error-details"},
	read: func(f *Fault, m *wire.Message) {
		h := m.Headers
		details := strings.TrimSpace(strings.ReplaceAll(raw(h, "rbs2-error-details"), "\r\n", "\n"))
		f.Queue = name(raw(h, "rbs2-source-queue"))
		f.MessageType = text(h, "rbs2-msg-type")
		if id := name(raw(h, "rbs2-msg-id")); id != "" {
			f.MessageID = id
		}
		if n, rest, ok := strings.Cut(details, " unhandled exceptions: "); ok {
			if failed, ok := count(n); ok {
				f.Attempts, details = failed, rest
			}
		}
		// Of several exceptions the first is the one that is there as a whole: the text is cut at
		// its end.
		details, _, _ = strings.Cut(details, "\n\n")
		details = fromType(details)
		f.Type, f.Error = exceptionIn(details)
		f.Type, f.Error, f.Stack = printable(f.Type), printable(f.Error), printable(details)
	},
	// Of a queue that counts deliveries, Rebus reads its own counter where RabbitMQ's is absent,
	// and would fail the message at once.
	removed: []string{"rbs2-error-details", "rbs2-source-queue", "rbs2-delivery-count", "rbs2-defer-count"},
}

// fromType returns what follows a time and a message: the exception as .NET prints it.
func fromType(details string) string {
	line, _, _ := strings.Cut(details[:min(len(details), maxText)], "\n")
	for at := 0; ; {
		if typ := typeIn(line[at:]); strings.ContainsRune(typ, '.') {
			return details[at:]
		}
		next := strings.Index(line[at:], ": ")
		if next < 0 {
			return details
		}
		at += next + len(": ")
	}
}
