package diskstore

import (
	"encoding/binary"
	"errors"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/store"
)

// pastFailures are those of one commit as bytes: their number, all ids, so that one can be
// looked for without reading the rest, then each as its difference from the one before: most
// of a commit share queue, reason and policy, and their times are near. A bit for each string
// tells that it is the same again.
type pastFailures struct {
	n             int
	ids, rest     []byte
	strings       [4]string // of the last one, and its times
	failed, ended int64
}

const idSize = len(uuid.UUID{})

func (e *pastFailures) add(p *store.PastFailure) {
	e.n++
	e.ids = append(e.ids, p.ID[:]...)
	b := e.rest
	at := len(b)
	b = append(b, 0, byte(p.Ending))
	for bit, s := range [...]string{p.Queue, p.Reason, p.Error, p.Policy} {
		if s == e.strings[bit] {
			b[at] |= 1 << bit
			continue
		}
		b = append(binary.AppendUvarint(b, uint64(len(s))), s...)
		e.strings[bit] = s
	}
	failed, ended := p.FailedAt.UnixMicro(), p.Ended.UnixMicro()
	b = binary.AppendVarint(b, int64(p.Failures))
	b = binary.AppendVarint(b, failed-e.failed)
	b = binary.AppendVarint(b, p.Due.UnixMicro()-failed)
	e.rest = binary.AppendVarint(b, ended-e.ended)
	e.failed, e.ended = failed, ended
}

// append appends them to b.
func (e *pastFailures) append(b []byte) []byte {
	return append(append(binary.AppendUvarint(b, uint64(e.n)), e.ids...), e.rest...)
}

var errPastFailures = errors.New("past failures are cut short or damaged")

// splitPastFailures returns the ids in what append wrote, and what is after them.
func splitPastFailures(b []byte) (ids, rest []byte, err error) {
	n, size := binary.Uvarint(b)
	if size <= 0 || n > uint64(len(b)-size)/uint64(idSize) {
		return nil, nil, errPastFailures
	}
	at := size + int(n)*idSize
	return b[size:at], b[at:], nil
}

func decodePastFailures(data []byte) (all []store.PastFailure, err error) {
	ids, b, err := splitPastFailures(data)
	if err != nil {
		return nil, err
	}
	all = make([]store.PastFailure, 0, len(ids)/idSize)
	var p store.PastFailure // each begins as the one before
	var failed, ended int64
	for d := store.Decode(b); ; ids = ids[idSize:] {
		if d.Torn() || len(ids) == 0 && d.More() {
			return nil, errPastFailures
		}
		if len(ids) == 0 {
			return all, nil
		}
		p.ID = uuid.UUID(ids[:idSize])
		same := d.Byte()
		p.Ending = store.Ending(d.Byte())
		for bit, s := range [...]*string{&p.Queue, &p.Reason, &p.Error, &p.Policy} {
			if same&(1<<bit) == 0 {
				*s = d.Text()
			}
		}
		p.Failures = int(d.Varint())
		failed += d.Varint()
		p.FailedAt, p.Due = store.FromMicros(failed), store.FromMicros(failed+d.Varint())
		ended += d.Varint()
		p.Ended = store.FromMicros(ended)
		all = append(all, p)
	}
}
