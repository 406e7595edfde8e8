package migrate

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/store"
)

// digest is the same for the same things in whatever order: equal due times come in
// an order of each engine's own.
type digest struct {
	n   int64
	sum [4]uint64
}

func (d *digest) add(key string, value []byte) {
	h := sha256.New()
	var size [8]byte
	binary.BigEndian.PutUint64(size[:], uint64(len(key)))
	h.Write(size[:])
	h.Write([]byte(key))
	h.Write(value)
	sum := h.Sum(nil)
	d.n++
	for i := range d.sum {
		d.sum[i] += binary.BigEndian.Uint64(sum[8*i:])
	}
}

// appendValue writes a header's value with its type, tables in the order of their
// names: as records are kept, they have none.
func appendValue(b []byte, v any) []byte {
	b = fmt.Appendf(b, "%T ", v)
	switch v := v.(type) {
	case amqp.Table:
		b = fmt.Appendf(b, "%d %v{", len(v), v == nil)
		for _, k := range slices.Sorted(maps.Keys(v)) {
			b = appendValue(fmt.Appendf(b, "%q:", k), v[k])
		}
	case []any:
		b = fmt.Appendf(b, "%d[", len(v))
		for _, e := range v {
			b = appendValue(b, e)
		}
	case string, []byte:
		b = fmt.Appendf(b, "%q", v)
	case time.Time:
		b = fmt.Appendf(b, "%d", v.Unix())
	default:
		b = fmt.Appendf(b, "%v", v)
	}
	return append(b, ';')
}

// verify reads both stores again and compares them.
func (m *Migration) verify(ctx context.Context, all int64) error {
	done := int64(0)
	var of [2]struct {
		records, entries digest
		ledger           []store.LedgerLine
	}
	for i, s := range []store.Store{m.From, m.To} {
		d := &of[i]
		var buf []byte
		err := s.Scan(ctx, store.Range{Body: true}, func(l store.Listed) (bool, error) {
			r := *l.Record
			r.Message.Headers = nil
			var err error
			if buf, err = store.AppendRecord(buf[:0], &r); err != nil {
				return false, err
			}
			buf = appendValue(buf, l.Record.Message.Headers)
			d.records.add(string(l.Key), buf)
			if done++; done%batchCount == 0 {
				m.report("verifying", done, 2*all)
			}
			return true, nil
		})
		if err == nil && i == 0 {
			err = m.checkDamage()
		}
		if err != nil {
			return err
		}
		err = s.Entries(ctx, "", "", func(e store.Entry) (bool, error) {
			if e.Name != EntryName && e.Name != store.OwnerEntry && e.Name != store.ServersEntry {
				d.entries.add(e.Name, e.Value)
			}
			return true, nil
		})
		if err != nil {
			return err
		}
		if d.ledger, err = s.Recount(ctx); err != nil {
			return err
		}
	}
	m.report("verifying", done, 2*all)
	if err := m.checkOwner(ctx); err != nil {
		return fmt.Errorf("%w: %w", ErrDiffers, err)
	}
	from, to := &of[0], &of[1]
	switch {
	case from.records.n != to.records.n:
		return fmt.Errorf("%w: %s has %d messages, and %s %d", ErrDiffers, m.FromName, from.records.n, m.ToName, to.records.n)
	case from.records != to.records:
		return fmt.Errorf("%w in what the messages are", ErrDiffers)
	case from.entries != to.entries:
		return fmt.Errorf("%w in the side table (operations, pauses, notes, tokens): %d entries, and %d", ErrDiffers, from.entries.n, to.entries.n)
	case !slices.Equal(from.ledger, to.ledger):
		return fmt.Errorf("%w in the ledger", ErrDiffers)
	}
	return nil
}
