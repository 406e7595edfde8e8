// Package group tells which failures are the same trouble: same queue, and the
// same error once numbers, ids and times are taken out; where no error is known,
// same reason and message type. It is pure.
package group

import (
	"fmt"
	"hash/fnv"
)

// ID names a group: a hash of what its members share. It is stable over versions,
// since stores index by it.
type ID [8]byte

// Group is what its members share.
type Group struct {
	ID      ID
	Queue   string
	Reason  string
	Pattern string // the error with what differs replaced, or "" where none is known
	Type    string // the message's type property, where Pattern is ""
}

// Of is the group of a failure.
func Of(queue, reason, errText, msgType string) Group {
	g := Group{Queue: queue, Reason: reason, Pattern: errText}
	if errText == "" {
		g.Type = msgType
	}
	h := fnv.New64a()
	for _, s := range []string{queue, reason, g.Pattern, g.Type} {
		fmt.Fprintf(h, "%d %s", len(s), s)
	}
	copy(g.ID[:], h.Sum(nil))
	return g
}
