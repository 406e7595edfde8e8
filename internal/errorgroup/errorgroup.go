// Package errorgroup groups failures: same queue, and the same error once numbers, ids and times are taken out; where
// no error is known, same reason and message type. It is pure.
package errorgroup

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
)

// ID is a hash of what a group's members share. Stores index by it, so it must not change between versions.
type ID [8]byte

// Group is an error that its members share.
type Group struct {
	ID      ID
	Queue   string
	Reason  string // only where Pattern is "": members with an error may have any reason
	Pattern string // the normalised error, or "" where none is known
	Type    string // the message's type property, where Pattern is ""
}

func (id ID) String() string { return hex.EncodeToString(id[:]) }

func Parse(s string) (id ID, err error) {
	if b, err := hex.DecodeString(s); err == nil && len(b) == len(id) {
		return ID(b), nil
	}
	return id, fmt.Errorf("%.40q names no group: it should be %d hexadecimal digits", s, 2*len(id))
}

// A group's kind is hashed first, so that no error's text can collide with another kind.
const (
	byError byte = 1 + iota
	byReason
	other
)

func Of(queue, reason, errText, msgType string) Group {
	if pattern := normalise(errText); pattern != "" {
		return Group{ID: idOf(byError, queue, pattern, ""), Queue: queue, Pattern: pattern}
	}
	return Group{ID: idOf(byReason, queue, reason, msgType), Queue: queue, Reason: reason, Type: msgType}
}

// Other returns the group of a queue's failures that get no group of their own, since a store
// keeps at most maxGroups groups.
func Other(queue string, maxGroups int) Group {
	return Group{ID: idOf(other, queue, "", ""), Queue: queue,
		Pattern: fmt.Sprintf("other errors (more than %d different ones are kept)", maxGroups)}
}

// Everywhere returns the id of the error in all queues.
func (g Group) Everywhere() ID {
	switch {
	case g.ID == idOf(other, g.Queue, "", ""):
		return idOf(other, "", "", "")
	case g.Pattern != "":
		return idOf(byError, "", g.Pattern, "")
	}
	return idOf(byReason, "", g.Reason, g.Type)
}

func idOf(kind byte, queue, a, b string) ID {
	var buf [maxPattern + 300]byte
	in := append(buf[:0], kind)
	for _, s := range [...]string{queue, a, b} {
		in = append(binary.AppendUvarint(in, uint64(len(s))), s...)
	}
	sum := sha256.Sum256(in)
	return ID(sum[:8])
}
