package headers

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/wire"
)

// NewID returns a new id for a message.
func NewID(m *wire.Message) uuid.UUID { return BindID(uuid.New(), m) }

// BindID makes an id one for this message alone: it ends in a checksum of what a retry changes
// least, the body and message-id, so that the headers of a message prove themselves. It keeps 78 bits
// of id. The version is 8 (custom), and the 12 bits after it tell such an id from others.
func BindID(id uuid.UUID, m *wire.Message) uuid.UUID {
	id[6], id[7] = boundMark[0], boundMark[1]
	id[8] = id[8]&0x3f | 0x80
	sum := crc32.Checksum(id[:12], castagnoli)
	sum = crc32.Update(sum, castagnoli, []byte(m.MessageID+"\x00"))
	sum = crc32.Update(sum, castagnoli, m.Body)
	binary.BigEndian.PutUint32(id[12:], sum)
	return id
}

var (
	boundMark  = [2]byte{0x8e, 0xd1}
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

// fits reports whether an id may be that of a message; unbound is the answer for one without a
// checksum.
func fits(id uuid.UUID, unbound bool, m *wire.Message) bool {
	if [2]byte(id[6:8]) != boundMark {
		return unbound
	}
	return id == BindID(id, m)
}
