package store

import (
	"slices"

	"github.com/redrive-mq/redrive/wire"
)

// Reasons is a set of reasons for which messages failed.
type Reasons uint8

// reasons are those that have a bit, in their order: it is on disk. All others, which
// no RabbitMQ gives today, share the last bit.
var reasons = []string{wire.ReasonRejected, wire.ReasonExpired, wire.ReasonMaxLen, wire.ReasonDeliveryLimit, wire.ReasonReported}

const otherReasons Reasons = 1 << 7

// ReasonsOf returns the set of one reason.
func ReasonsOf(reason string) Reasons {
	if i := slices.Index(reasons, reason); i >= 0 {
		return 1 << i
	}
	return otherReasons
}

// Names returns all in the set, or nil when they are not known.
func (s Reasons) Names() (names []string) {
	if s&otherReasons != 0 {
		return nil
	}
	for i, name := range reasons {
		if s&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return names
}
