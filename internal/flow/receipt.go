package flow

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive"
	"github.com/redrive-mq/redrive/internal/store"
)

// receipts finds the id that a dead letter was given when it was stored, should
// RabbitMQ deliver it again because the acknowledgement was lost. It is then
// stored again, never dropped: equal content does not prove that it is the same
// dead letter, and a duplicate is a lesser evil than a loss. But it carries the
// same id, so the consumer can tell.
type receipts struct {
	ids  map[[16]byte][]uuid.UUID
	used [][16]byte // taken since mark, in order, with their ids in usedIDs
	uids []uuid.UUID
}

func (r *receipts) load(kept []store.Receipt) {
	r.ids = make(map[[16]byte][]uuid.UUID, len(kept))
	for _, k := range kept {
		if k.Fingerprint != ([16]byte{}) {
			r.ids[k.Fingerprint] = append(r.ids[k.Fingerprint], k.ID)
		}
	}
}

// take uses up one receipt: two equal dead letters have two.
func (r *receipts) take(f [16]byte) (uuid.UUID, bool) {
	ids := r.ids[f]
	if len(ids) == 0 {
		return uuid.Nil, false
	}
	id := ids[0]
	r.ids[f] = ids[1:]
	r.used, r.uids = append(r.used, f), append(r.uids, id)
	return id, true
}

// mark and restore undo what a batch used when the batch could not be kept and
// will be offered again.
func (r *receipts) mark() int {
	r.used, r.uids = r.used[:0], r.uids[:0]
	return 0
}

func (r *receipts) restore(to int) {
	for i := len(r.used) - 1; i >= to; i-- {
		f := r.used[i]
		r.ids[f] = append([]uuid.UUID{r.uids[i]}, r.ids[f]...)
	}
	r.mark()
}

// fingerprint is a hash of all that a delivery holds, but for what RabbitMQ
// counts up when it delivers again.
func fingerprint(m *redrive.Message) [16]byte {
	h := sha256.New()
	for _, s := range []string{m.Exchange, m.RoutingKey, m.ContentType, m.ContentEncoding, m.CorrelationID,
		m.ReplyTo, m.Expiration, m.MessageID, m.Type, m.UserID, m.AppID} {
		hashString(h, s)
	}
	hashInt(h, m.Timestamp.UnixNano())
	hashInt(h, int64(m.DeliveryMode)<<8|int64(m.Priority))
	hashTable(h, m.Headers, true)
	h.Write(m.Body)
	var sum [sha256.Size]byte
	return [16]byte(h.Sum(sum[:0])[:16])
}

func hashTable(h hash.Hash, t amqp.Table, top bool) {
	hashed := 0
	for _, k := range slices.Sorted(maps.Keys(t)) {
		if top && (k == "x-delivery-count" || k == "x-acquired-count") {
			continue
		}
		hashed++
		hashString(h, k)
		hashValue(h, t[k])
	}
	hashInt(h, int64(hashed))
}

func hashValue(h hash.Hash, v any) {
	switch v := v.(type) {
	case string:
		hashString(h, v)
	case []byte:
		hashInt(h, int64(len(v)))
		h.Write(v)
	case time.Time:
		hashInt(h, v.Unix())
	case amqp.Table:
		hashTable(h, v, false)
	case []any:
		for _, e := range v {
			hashValue(h, e)
		}
		hashInt(h, int64(len(v)))
	default:
		fmt.Fprintf(h, "%T%v;", v, v)
	}
}

func hashString(h hash.Hash, s string) {
	hashInt(h, int64(len(s)))
	h.Write([]byte(s))
}

func hashInt(h hash.Hash, n int64) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(n))
	h.Write(b[:])
}
