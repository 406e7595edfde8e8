package flow

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/trail"
	"github.com/redrive-mq/redrive/wire"
)

// receipts finds the id that a dead letter was given when it was stored, should
// RabbitMQ deliver it again because the acknowledgement was lost. It is then
// stored again, never dropped: equal content does not prove that it is the same
// dead letter, and a duplicate is a lesser evil than a loss. But it carries the
// same id, so the consumer can tell.
type receipts struct {
	ids     map[[16]byte][]uuid.UUID
	spent   map[uuid.UUID]bool // taken since there is this connection
	scratch []byte             // of fingerprint
}

// load knows what is kept, but for what was taken already.
func (r *receipts) load(kept []store.Receipt) {
	r.ids = make(map[[16]byte][]uuid.UUID, len(kept))
	spent := map[uuid.UUID]bool{}
	for _, k := range kept {
		switch {
		case k.Fingerprint == ([16]byte{}):
		case r.spent[k.ID]:
			spent[k.ID] = true
		default:
			r.ids[k.Fingerprint] = append(r.ids[k.Fingerprint], k.ID)
		}
	}
	r.spent = spent
}

// lack tells whether something of a batch was delivered before, and has no receipt.
func (r *receipts) lack(batch []Delivery) bool {
	need := map[[16]byte]int{}
	for i := range batch {
		d := &batch[i]
		if _, has := trail.ID(&d.Message); has || !d.Redelivered {
			continue
		}
		f := fingerprint(&d.Message, &r.scratch)
		if need[f]++; need[f] > len(r.ids[f]) {
			return true
		}
	}
	return false
}

// identify gives the id the message has, or had when it was stored before, or a
// new one.
func (r *receipts) identify(d *Delivery) (uuid.UUID, [16]byte) {
	if id, ok := trail.ID(&d.Message); ok {
		return id, [16]byte{}
	}
	print := fingerprint(&d.Message, &r.scratch)
	if d.Redelivered {
		if id, ok := r.take(print); ok {
			return id, print
		}
	}
	return uuid.Must(uuid.NewV7()), print
}

// take uses up one receipt: two equal dead letters have two.
func (r *receipts) take(f [16]byte) (uuid.UUID, bool) {
	ids := r.ids[f]
	if len(ids) == 0 {
		return uuid.Nil, false
	}
	id := ids[0]
	r.ids[f] = ids[1:]
	r.spent[id] = true
	return id, true
}

// fingerprint is a hash of all that a delivery holds, but for what RabbitMQ
// counts up when it delivers again. scratch is reused when it is large enough.
func fingerprint(m *wire.Message, scratch *[]byte) [16]byte {
	b := (*scratch)[:0]
	for _, s := range [...]string{m.Exchange, m.RoutingKey, m.ContentType, m.ContentEncoding, m.CorrelationID,
		m.ReplyTo, m.Expiration, m.MessageID, m.Type, m.UserID, m.AppID} {
		b = printString(b, s)
	}
	b = printInt(b, m.Timestamp.UnixNano())
	b = printInt(b, int64(m.DeliveryMode)<<8|int64(m.Priority))
	b = printTable(b, m.Headers, true)
	*scratch = b
	h := sha256.New()
	h.Write(b)
	h.Write(m.Body)
	return [16]byte(h.Sum(b[:0])[:16])
}

func printTable(b []byte, t amqp.Table, top bool) []byte {
	keys := make([]string, 0, 16)
	for k := range t {
		if top && (k == "x-delivery-count" || k == "x-acquired-count") {
			continue
		}
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		b = printValue(printString(b, k), t[k])
	}
	return printInt(b, int64(len(keys)))
}

func printValue(b []byte, v any) []byte {
	switch v := v.(type) {
	case string:
		return printString(b, v)
	case []byte:
		return append(printInt(b, int64(len(v))), v...)
	case int64:
		return printInt(append(b, 'l'), v)
	case time.Time:
		return printInt(b, v.Unix())
	case amqp.Table:
		return printTable(b, v, false)
	case []any:
		for _, e := range v {
			b = printValue(b, e)
		}
		return printInt(b, int64(len(v)))
	}
	return fmt.Appendf(b, "%T%v;", v, v)
}

func printString(b []byte, s string) []byte { return append(printInt(b, int64(len(s))), s...) }

func printInt(b []byte, n int64) []byte { return binary.LittleEndian.AppendUint64(b, uint64(n)) }
