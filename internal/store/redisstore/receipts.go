package redisstore

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
)

// Receipts are written in the step of their records, in a list for each process: those
// of one that vanished are not pushed out by what others store before RabbitMQ delivers
// again what it held. Those of several processes are in the order of their stamps.

// stamped is the next of a process's stamps. They are about the time in µs, so that those
// of several processes are nearly in order, too.
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

const stampSize = 8

// receipts are the arguments that keep some.
func (s *Store) receipts(all []store.Receipt) []string {
	all = all[max(0, len(all)-store.ReceiptsKept):]
	args := append(make([]string, 0, 5+len(all)), s.name, itoa(store.ReceiptsKept), itoa(store.ReceiptsOwners), itoa(store.ReceiptsAge.Milliseconds()), itoa(len(all)))
	for _, r := range all {
		b := binary.BigEndian.AppendUint64(make([]byte, 0, stampSize+store.ReceiptSize), s.stamped())
		args = append(args, string(r.Append(b)))
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
	if err := s.checkMemory(ctx, len(receipts)*2*(stampSize+store.ReceiptSize), 1); err != nil {
		return err
	}
	_, err = s.write(ctx, scriptRemember, s.receipts(receipts)...)
	return err
}

// Receipts implements store.Store.
func (s *Store) Receipts(ctx context.Context) ([]store.Receipt, error) {
	all, _, err := s.newReceipts(ctx, nil, "")
	for i := range all {
		all[i].Process = ""
	}
	return all, err
}

// NewReceipts implements store.ReceiptReader.
func (s *Store) NewReceipts(ctx context.Context, at store.ReceiptsAt) ([]store.Receipt, store.ReceiptsAt, error) {
	own := s.name
	if at == nil { // of this process too, over an earlier connection
		own = ""
	}
	return s.newReceipts(ctx, at, own)
}

// newReceipts reads what processes but one have written since at.
func (s *Store) newReceipts(ctx context.Context, at store.ReceiptsAt, but string) ([]store.Receipt, store.ReceiptsAt, error) {
	done, err := s.use(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer done()
	args := []string{but}
	for process, written := range at {
		args = append(args, process, written)
	}
	m, err := s.do(ctx, scriptReceipts, args...)
	if err != nil {
		return nil, nil, err
	}
	lists, err := m.ToArray()
	if err != nil {
		return nil, nil, s.wrapError(err)
	}
	all, now := map[string][]string{}, store.ReceiptsAt{} // by process
	for i := 0; i+2 < len(lists); i += 3 {
		process, err1 := lists[i].ToString()
		written, err2 := lists[i+1].ToString()
		list, err3 := lists[i+2].AsStrSlice()
		if err := errors.Join(err1, err2, err3); err != nil {
			return nil, nil, s.wrapError(err)
		}
		now[process] = written
		all[process] = slices.DeleteFunc(list, func(r string) bool { return len(r) != stampSize+store.ReceiptSize })
	}
	return inOrder(all), now, nil
}

// inOrder are the newest of each process, by their stamps.
func inOrder(all map[string][]string) (receipts []store.Receipt) {
	byStamp := func(a, b string) int { return cmp.Compare(a[:stampSize], b[:stampSize]) }
	type written struct{ process, receipt string }
	var kept []written
	for process, list := range all {
		slices.SortStableFunc(list, byStamp)
		for _, r := range list[max(0, len(list)-store.ReceiptsKept):] {
			kept = append(kept, written{process, r})
		}
	}
	slices.SortStableFunc(kept, func(a, b written) int { return byStamp(a.receipt, b.receipt) })
	for _, w := range kept {
		r := store.ReadReceipt([]byte(w.receipt[stampSize:]))
		r.Process = w.process
		receipts = append(receipts, r)
	}
	return receipts
}
