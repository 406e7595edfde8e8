package store

import (
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/google/uuid"
)

// Key names one record within its store for as long as it is kept, whatever its
// state. To all but engines it is opaque, and printable.
type Key string

// MakeKey names a record by its ID, and by its number, from when it was
// added, which distinguishes it from others with that ID.
func MakeKey(id uuid.UUID, seq uint64) Key {
	k := hex.AppendEncode(make([]byte, 0, 64), id[:4])
	for _, part := range [...][]byte{id[4:6], id[6:8], id[8:10], id[10:]} {
		k = hex.AppendEncode(append(k, '-'), part)
	}
	return Key(strconv.AppendUint(append(k, '.'), seq, 10))
}

// Parts are what MakeKey made the key of; ok is false for a text that is no key.
func (k Key) Parts() (id uuid.UUID, seq uint64, ok bool) {
	text, number, _ := strings.Cut(string(k), ".")
	seq, err := strconv.ParseUint(number, 10, 64)
	if err != nil {
		return id, 0, false
	}
	id, err = uuid.Parse(text)
	return id, seq, err == nil && MakeKey(id, seq) == k
}
