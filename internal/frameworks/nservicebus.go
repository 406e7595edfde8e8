package frameworks

import (
	"strings"

	"github.com/redrive-mq/redrive/wire"
)

// nServiceBus moves a message to the error queue of the endpoint. It removes its counters of
// retries then; a message that was rejected before has them still.
//
// Source, in Particular/NServiceBus: src/NServiceBus.Core/Recoverability/Faults/FaultsHeaderKeys.cs,
// src/NServiceBus.Core/Recoverability/Faults/FaultMetadataExtractor.cs,
// src/NServiceBus.Core/Recoverability/MoveToError.cs, src/NServiceBus.Core/Headers.cs
var nServiceBus = preset{
	name:    "NServiceBus",
	markers: []string{"NServiceBus.FailedQ", "NServiceBus.ExceptionInfo.Message"},
	read: func(f *Fault, m *wire.Message) {
		h := m.Headers
		f.Error, f.Type, f.Stack = text(h, "NServiceBus.ExceptionInfo.Message"), text(h, "NServiceBus.ExceptionInfo.ExceptionType"), text(h, "NServiceBus.ExceptionInfo.StackTrace")
		f.Queue = name(raw(h, "NServiceBus.FailedQ"))
		f.MessageType, _, _ = strings.Cut(text(h, "NServiceBus.EnclosedMessageTypes"), ",")
		f.Failed = moment(fraction(raw(h, "NServiceBus.TimeOfFailure")), "2006-01-02 15:04:05.999999 Z")
		delayed, isDelayed := number(h, "NServiceBus.Retries")
		immediate, isImmediate := number(h, "NServiceBus.FLRetries")
		if isDelayed || isImmediate {
			f.Attempts = attempts(delayed, immediate)
		}
	},
	prefixes: []string{"NServiceBus.ExceptionInfo."},
	removed:  []string{"NServiceBus.FailedQ", "NServiceBus.TimeOfFailure", "NServiceBus.Retries", "NServiceBus.Retries.Timestamp", "NServiceBus.FLRetries"},
}

// fraction returns a time as Go reads it: NServiceBus writes 10:42:53:123456.
func fraction(s string) string {
	if at := strings.LastIndexByte(s, ':'); at > 0 && strings.Count(s, ":") == 3 {
		return s[:at] + "." + s[at+1:]
	}
	return s
}
