package diskstore

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/store"
)

// Passages as bytes, each as its difference from the one before: those of a commit
// mostly share queue, reason and policy, and their times are near. A bit tells for
// each string whether it is the same again.
type passageEncoder struct {
	data []byte
	last store.Passage
}

func (e *passageEncoder) add(p *store.Passage) {
	b := append(e.data, p.ID[:]...)
	at := len(b)
	b = append(b, 0, byte(p.Ending))
	for bit, s := range [...][2]string{{p.Queue, e.last.Queue}, {p.Reason, e.last.Reason}, {p.Error, e.last.Error}, {p.Policy, e.last.Policy}} {
		if s[0] == s[1] {
			b[at] |= 1 << bit
			continue
		}
		b = append(binary.AppendUvarint(b, uint64(len(s[0]))), s[0]...)
	}
	b = binary.AppendVarint(b, int64(p.Attempt))
	b = binary.AppendVarint(b, micros(p.FailedAt)-micros(e.last.FailedAt))
	b = binary.AppendVarint(b, micros(p.Due)-micros(p.FailedAt))
	b = binary.AppendVarint(b, micros(p.Ended)-micros(e.last.Ended))
	e.data, e.last = b, *p
}

// micros and timeOf keep microseconds, and the zero time.
func micros(t time.Time) int64 { return t.UnixMicro() }

func timeOf(micros int64) time.Time {
	if micros == (time.Time{}).UnixMicro() {
		return time.Time{}
	}
	return time.UnixMicro(micros)
}

var errPassages = errors.New("passages are cut short or damaged")

func decodePassages(b []byte) (all []store.Passage, err error) {
	var last store.Passage
	torn := false
	take := func(n int) []byte {
		if torn = torn || n < 0 || n > len(b); torn {
			return nil
		}
		v := b[:n]
		b = b[n:]
		return v
	}
	number := func() int64 {
		n, size := binary.Varint(b)
		if size <= 0 {
			size = -1
		}
		take(size)
		return n
	}
	for len(b) > 0 {
		p := last
		copy(p.ID[:], take(len(uuid.UUID{})))
		head := take(2)
		if torn {
			return all, errPassages
		}
		p.Ending = store.Ending(head[1])
		for bit, s := range [...]*string{&p.Queue, &p.Reason, &p.Error, &p.Policy} {
			if head[0]&(1<<bit) != 0 {
				continue
			}
			n, size := binary.Uvarint(b)
			if size <= 0 || n > uint64(len(b)) {
				return all, errPassages
			}
			take(size)
			*s = string(take(int(n)))
		}
		p.Attempt = int(number())
		p.FailedAt = timeOf(number() + micros(last.FailedAt))
		p.Due = timeOf(number() + micros(p.FailedAt))
		p.Ended = timeOf(number() + micros(last.Ended))
		if torn {
			return all, errPassages
		}
		all, last = append(all, p), p
	}
	return all, nil
}
