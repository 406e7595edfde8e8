package redisstore

import (
	"cmp"
	"context"
	"encoding/binary"
	"slices"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
)

// Receipts are in the shard of their records, so that both are written in one step:
// each shard keeps the newest ReceiptsKept, and those of all together are in the order
// of their stamps.

// stamped is the next of a process's stamps, which order what several shards have. They
// are about the time in µs, so that those of several processes are nearly in order, too.
func (s *Store) stamped() uint64 {
	for {
		was, now := s.stamp.Load(), time.Now().UnixMicro()
		if now <= was {
			now = was + 1
		}
		if s.stamp.CompareAndSwap(was, now) {
			return uint64(now)
		}
	}
}

const receiptSize = 8 + 16 + 16

func receiptsOf(records []*store.Record) []store.Receipt {
	var all []store.Receipt
	for _, r := range records {
		if r.Fingerprint != ([16]byte{}) {
			all = append(all, store.Receipt{Fingerprint: r.Fingerprint, ID: r.ID})
		}
	}
	return all
}

// receipts are the arguments that keep some.
func (s *Store) receipts(all []store.Receipt) []string {
	all = all[max(0, len(all)-store.ReceiptsKept):]
	args := append(make([]string, 0, 2+len(all)), itoa(store.ReceiptsKept), itoa(len(all)))
	for _, r := range all {
		b := binary.BigEndian.AppendUint64(make([]byte, 0, receiptSize), s.stamped())
		args = append(args, string(append(append(b, r.Fingerprint[:]...), r.ID[:]...)))
	}
	return args
}

// Remember implements store.Store.
func (s *Store) Remember(ctx context.Context, receipts []store.Receipt) error {
	done, err := s.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	shard := s.next()
	if err := s.room(ctx, shard, len(receipts)*2*receiptSize, 1); err != nil {
		return err
	}
	_, err = s.write(ctx, shard, scriptRemember, s.receipts(receipts)...)
	return err
}

// Receipts implements store.Store.
func (s *Store) Receipts(ctx context.Context) ([]store.Receipt, error) {
	done, err := s.use(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	var mu sync.Mutex
	var all []string
	err = s.each(func(shard int) error {
		list, err := s.client.Do(ctx, s.client.B().Lrange().Key(s.key(shard, "receipts")).Start(0).Stop(-1).Build()).AsStrSlice()
		mu.Lock()
		defer mu.Unlock()
		all = append(all, list...)
		return s.failed(err)
	})
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(all, func(a, b string) int { return cmp.Compare(a[:8], b[:8]) })
	var receipts []store.Receipt
	for _, r := range all[max(0, len(all)-store.ReceiptsKept):] {
		if len(r) == receiptSize {
			receipts = append(receipts, store.Receipt{Fingerprint: [16]byte([]byte(r[8:24])), ID: [16]byte([]byte(r[24:]))})
		}
	}
	return receipts, nil
}
