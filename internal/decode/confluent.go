package decode

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// confluent takes off what the serialisers of a schema registry put in front: a zero,
// four bytes of a schema's number, and for Protobuf which message of the schema it
// is. No registry is asked: the message's type is chosen as always.
func (r *reading) confluent() bool {
	if len(r.data) < 7 || r.data[0] != 0 || len(r.data) > mostOutput {
		return false
	}
	number, rest := binary.BigEndian.Uint32(r.data[1:]), r.data[5:]
	if !looksJSON(rest) || !r.trial(rest).json(false) {
		var ok bool
		if rest, ok = messageIndexes(rest); !ok || len(rest) == 0 {
			return false
		}
		t := r.trial(rest)
		if !t.format("schema", false) && !t.format("protobuf", r.said() == "protobuf") {
			return false
		}
	}
	prefix := bytes.Clone(r.data[:len(r.data)-len(rest)])
	r.inside("confluent", fmt.Sprintf("the prefix of a schema registry: schema %d", number), rest, func(inner []byte) ([]byte, error) {
		return append(bytes.Clone(prefix), inner...), nil
	})
	return true
}

// messageIndexes skips a list of numbers; an empty one means the first message.
func messageIndexes(b []byte) ([]byte, bool) {
	n, size := protowire.ConsumeVarint(b)
	if size < 0 || protowire.DecodeZigZag(n) < 0 || protowire.DecodeZigZag(n) > mostNesting {
		return nil, false
	}
	b = b[size:]
	for range protowire.DecodeZigZag(n) {
		if _, size = protowire.ConsumeVarint(b); size < 0 {
			return nil, false
		}
		b = b[size:]
	}
	return b, true
}
