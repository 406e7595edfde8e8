package frameworks

import (
	"time"

	"github.com/redrive-mq/redrive/wire"
)

const stamp = `X-Message-Stamp-Symfony\Component\Messenger\Stamp\`

// symfony has each kind of stamp in a header, as a list in JSON, oldest first. Its failure
// transport tells the name of a transport, and no queue.
//
// Source, in symfony/messenger: Transport/Serialization/Serializer.php, Stamp/ErrorDetailsStamp.php,
// Stamp/RedeliveryStamp.php, Stamp/SentToFailureTransportStamp.php,
// Transport/Serialization/Normalizer/FlattenExceptionNormalizer.php
var symfony = preset{
	name:    "Symfony Messenger",
	markers: []string{stamp + "ErrorDetailsStamp", stamp + "SentToFailureTransportStamp", stamp + "RedeliveryStamp"},
	read: func(f *Fault, m *wire.Message) {
		h := m.Headers
		f.MessageType = text(h, "type")
		var failures []struct {
			ExceptionClass, ExceptionMessage loose
			FlattenException                 struct {
				Trace loose `json:"trace_as_string"`
			}
		}
		if fromJSON([]byte(raw(h, stamp+"ErrorDetailsStamp")), &failures) && len(failures) > 0 {
			last := failures[len(failures)-1]
			f.Error, f.Type, f.Stack = last.ExceptionMessage.text(), last.ExceptionClass.text(), last.FlattenException.Trace.text()
		}
		var redeliveries []struct{ RetryCount, RedeliveredAt loose }
		if fromJSON([]byte(raw(h, stamp+"RedeliveryStamp")), &redeliveries) && len(redeliveries) > 0 {
			for _, r := range redeliveries {
				if n, ok := count(string(r.RetryCount)); ok {
					f.Attempts = max(f.Attempts, attempts(n))
				}
			}
			f.FirstFailed = moment(string(redeliveries[0].RedeliveredAt), time.RFC3339Nano)
			f.Failed = moment(string(redeliveries[len(redeliveries)-1].RedeliveredAt), time.RFC3339Nano)
		}
	},
	// With the stamp of the failure transport, a message that fails again would not be sent there.
	removed: []string{stamp + "ErrorDetailsStamp", stamp + "RedeliveryStamp", stamp + "SentToFailureTransportStamp", stamp + "DelayStamp"},
}
