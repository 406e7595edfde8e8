package retry

import (
	"context"
	"encoding/binary"
	"fmt"
	"strconv"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/headers"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/wire"
)

// adoptLedger remembers which messages of a queue were kept, in parts: one for each commit, written
// in the same step as the records. Those after acked are in doubt: RabbitMQ may not have their
// acknowledgement. A window is acknowledged as a whole, and nothing else is unacknowledged then, so
// after a crash RabbitMQ has all of the messages in doubt again, or none.
//
// How a message that is delivered again is recognized: by its fingerprint, and by a sign that it was
// delivered before: RabbitMQ marks it as redelivered, and did not before; or a quorum queue counts one
// more delivery. RabbitMQ 4.3 marks each message that a consumer rejected. Without such a sign all that
// are in doubt must be there, and differ or have a message-id: of two equal messages without one, the
// second must not be taken for the first.
//
// What was acknowledged comes back only when RabbitMQ loses the acknowledgement, as a node that is
// killed may. Such a message is kept a second time, with the id that it has already.
type adoptLedger struct {
	store store.Store
	queue string

	first, last, acked uint64 // numbers of the parts that are stored, from 1 on
	doubt              []adoptedMessage
	ids                map[[16]byte][]uuid.UUID // of what was acknowledged
}

// adoptedMessage is what the ledger has of a message.
type adoptedMessage struct {
	fingerprint [16]byte
	id          uuid.UUID
	redelivered bool  // when it was delivered
	deliveries  int64 // by then, of a quorum queue
}

// partsKept is how many parts are kept that were acknowledged.
const partsKept = 16

const adoptPrefix = "adopt/"

func (l *adoptLedger) part(n uint64) string {
	return adoptPrefix + "part/" + strconv.FormatUint(n, 10) + "/" + l.queue
}

func (l *adoptLedger) head() string { return adoptPrefix + "acked/" + l.queue }

// entryOf is the entry of the next part.
func (l *adoptLedger) entryOf(part []adoptedMessage) store.Entry {
	b := make([]byte, 0, len(part)*40)
	for i := range part {
		m := &part[i]
		b = append(append(b, m.fingerprint[:]...), m.id[:]...)
		sign := uint64(m.deliveries) << 1
		if m.redelivered {
			sign |= 1
		}
		b = binary.AppendUvarint(b, sign)
	}
	return store.Entry{Name: l.part(l.last + 1), Value: b}
}

// kept notes that the next part is stored.
func (l *adoptLedger) kept(part []adoptedMessage) {
	l.last++
	l.doubt = append(l.doubt, part...)
}

// acknowledged notes that RabbitMQ has the acknowledgement of all that is kept, and forgets old parts.
func (l *adoptLedger) acknowledged(ctx context.Context) error {
	first := max(l.first, 1)
	var entries []store.Entry
	for ; first+partsKept <= l.last; first++ {
		entries = append(entries, store.Entry{Name: l.part(first)})
	}
	entries = append(entries, store.Entry{Name: l.head(), Value: binary.AppendUvarint(binary.AppendUvarint(nil, l.last), first)})
	if err := l.store.PutEntries(ctx, entries); err != nil {
		return fmt.Errorf("note that messages of %q are acknowledged: %w", l.queue, err)
	}
	l.first, l.acked = first, l.last
	l.remember(l.doubt)
	l.doubt = nil
	return nil
}

// mostRemembered bounds the ids in memory: those of the parts that are kept.
const mostRemembered = 32 << 10

func (l *adoptLedger) remember(all []adoptedMessage) {
	if l.ids == nil || len(l.ids) > mostRemembered {
		l.ids = map[[16]byte][]uuid.UUID{}
	}
	for _, m := range all {
		if n := len(l.ids[m.fingerprint]); n < 64 { // equal ones
			l.ids[m.fingerprint] = append(l.ids[m.fingerprint], m.id)
		}
	}
}

// known returns, once, the id of a message that was kept and acknowledged.
func (l *adoptLedger) known(fingerprint [16]byte) (id uuid.UUID, was bool) {
	ids := l.ids[fingerprint]
	if len(ids) == 0 {
		return id, false
	}
	l.ids[fingerprint] = ids[1:]
	return ids[0], true
}

// read reads the ledger, and returns what is in doubt.
func (l *adoptLedger) read(ctx context.Context) (Doubts, error) {
	l.first, l.last, l.acked, l.doubt, l.ids = 1, 0, 0, nil, nil
	head, err := l.store.Entry(ctx, l.head())
	if err != nil {
		return nil, err
	}
	if len(head) > 0 {
		d := store.Decode(head)
		l.acked, l.first = d.Uvarint(), d.Uvarint()
	}
	d := &doubts{left: map[[16]byte][]adoptedMessage{}}
	for n := l.first; ; n++ {
		value, err := l.store.Entry(ctx, l.part(n))
		if err != nil {
			return nil, err
		}
		if value == nil {
			if n > l.acked { // an earlier one may be lost in a damaged store
				break
			}
			continue
		}
		part, err := readPart(value)
		if err != nil {
			return nil, fmt.Errorf("part %d of what was adopted from %q: %w", n, l.queue, err)
		}
		l.last = n
		if n <= l.acked {
			l.remember(part)
			continue
		}
		l.doubt = append(l.doubt, part...)
		d.add(part)
	}
	l.last = max(l.last, l.acked)
	return d, nil
}

func readPart(value []byte) (all []adoptedMessage, err error) {
	const fixed = 16 + 16
	for len(value) > 0 {
		var m adoptedMessage
		if len(value) <= fixed {
			return nil, store.ErrTorn
		}
		copy(m.fingerprint[:], value)
		copy(m.id[:], value[16:])
		sign, n := binary.Uvarint(value[fixed:])
		if n <= 0 {
			return nil, store.ErrTorn
		}
		m.redelivered, m.deliveries = sign&1 != 0, int64(sign>>1)
		value = value[fixed+n:]
		all = append(all, m)
	}
	return all, nil
}

// Doubts is what broker.Doubts is.
type Doubts = interface {
	Left() int
	Saw(d *wire.Delivery) bool
	AreKept() []bool
}

// doubts implements Doubts.
type doubts struct {
	left     map[[16]byte][]adoptedMessage
	n        int
	distinct int
	seen     []bool // with a sign that they were delivered before
	named    bool   // each of those seen has a message-id
	scratch  []byte
}

func (d *doubts) add(part []adoptedMessage) {
	for _, m := range part {
		if len(d.left[m.fingerprint]) == 0 {
			d.distinct++
		}
		d.left[m.fingerprint] = append(d.left[m.fingerprint], m)
	}
	d.n += len(part)
}

func (d *doubts) Left() int { return d.n }

func (d *doubts) Saw(delivered *wire.Delivery) bool {
	f := fingerprint(&delivered.Message, &d.scratch)
	same := d.left[f]
	if !delivered.Redelivered || len(same) == 0 {
		return false
	}
	was := same[0]
	d.left[f] = same[1:]
	d.n--
	if len(d.seen) == 0 {
		d.named = true
	}
	d.named = d.named && delivered.Message.MessageID != ""
	d.seen = append(d.seen, !was.redelivered || headers.Deliveries(delivered.Message.Headers) > was.deliveries)
	return true
}

func (d *doubts) AreKept() []bool {
	if d.n == 0 && (d.distinct > 1 || d.named) {
		for i := range d.seen {
			d.seen[i] = true
		}
	}
	return d.seen
}
