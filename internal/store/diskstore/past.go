package diskstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/store"
)

// Passages are numbered in the order they are written. Those of a commit are under
// one key, or a few: that costs the commit next to nothing. Which ids are where is
// merged into one value for each part of the numbers, with four bytes an id, so
// that looking for an id reads a megabyte or so, however small the commits were.
//
// The newest come first, and all come after everything else. So what is written in
// a while reaches from the other keys to the newest passages and no further, and
// Pebble does not write the older ones anew, again and again, when it compacts
// that. What drops the oldest does reach over all of them, so many go at a time.
const (
	chunkSize = 512
	partSize  = 8192
	dropSize  = 12 * partSize
)

// passages are what a change writes of them.
type passages struct {
	chunks []chunk
}

type chunk struct {
	encoder passageEncoder
	n       int
	ids     []byte // the end of each id, which is random in those we make
}

const idEnd = 4

func endOf(id uuid.UUID) []byte { return id[len(id)-idEnd:] }

func (p *passages) add(made store.Passage) {
	if len(p.chunks) == 0 || p.chunks[len(p.chunks)-1].n == chunkSize {
		p.chunks = append(p.chunks, chunk{})
	}
	c := &p.chunks[len(p.chunks)-1]
	c.encoder.add(&made)
	c.ids = append(c.ids, endOf(made.ID)...)
	c.n++
}

// pastIndexKey is where it is told which ids are in a part: before its chunks.
func pastIndexKey(part uint64) []byte {
	k := append(make([]byte, 0, pastKeySize), prefixPast)
	return append(binary.BigEndian.AppendUint64(k, ^part), 0)
}

const pastKeySize = 1 + 8 + 1 + 8

// pastKey is where the chunk is that begins with number.
func pastKey(number uint64) []byte {
	k := pastIndexKey(number / partSize)
	k[len(k)-1] = 1
	return binary.BigEndian.AppendUint64(k, ^number)
}

var pastBounds = pebble.IterOptions{LowerBound: []byte{prefixPast}, UpperBound: []byte{prefixPast + 1}}

// writePast puts passages into a batch, and takes out those that are too old.
func (s *Store) writePast(b *pebble.Batch, p *passages) error {
	for i := range p.chunks {
		c := &p.chunks[i]
		next := s.passed.Add(uint64(c.n))
		number := next - uint64(c.n)
		if err := b.Set(pastKey(number), c.encoder.data, nil); err != nil {
			return err
		}
		where := binary.BigEndian.AppendUint64(make([]byte, 0, 12+len(c.ids)), number)
		where = append(binary.AppendUvarint(where, uint64(c.n)), c.ids...)
		if err := b.Merge(pastIndexKey(number/partSize), where, nil); err != nil {
			return err
		}
		if next/dropSize == number/dropSize || next < store.PastKept+chunkSize+partSize {
			continue
		}
		newestOld := (next-store.PastKept-chunkSize)/partSize - 1
		if err := b.DeleteRange(pastIndexKey(newestOld), pastBounds.UpperBound, nil); err != nil {
			return err
		}
	}
	return nil
}

// loadPast finds the next number.
func (s *Store) loadPast() error {
	it, err := s.db.NewIter(&pastBounds)
	if err != nil {
		return err
	}
	defer it.Close()
	found := it.First()
	for found && len(it.Key()) < pastKeySize {
		found = it.Next()
	}
	if !found {
		return it.Error()
	}
	number, all, err := passagesAt(it.Key(), it.Value())
	s.passed.Store(number + uint64(len(all)))
	return err
}

func passagesAt(key, value []byte) (number uint64, all []store.Passage, err error) {
	number = ^binary.BigEndian.Uint64(key[pastKeySize-8:])
	if all, err = decodePassages(value); err != nil {
		err = fmt.Errorf("key %x: %w", key, err)
	}
	return number, all, err
}

// Past implements store.Searcher.
func (s *Store) Past(ctx context.Context, id uuid.UUID) ([]store.Passage, error) {
	done, err := s.use(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	snap := s.db.NewSnapshot()
	defer snap.Close()
	numbers, err := chunksWith(ctx, snap, id)
	if err != nil {
		return nil, err
	}
	var found []store.Passage
	for _, number := range numbers {
		value, closer, err := snap.Get(pastKey(number))
		if err != nil {
			return nil, fmt.Errorf("data folder %s, passages from %d on: %w", s.path, number, err)
		}
		_, all, err := passagesAt(pastKey(number), value)
		if err = errors.Join(err, closer.Close()); err != nil {
			return nil, fmt.Errorf("data folder %s: %w", s.path, err)
		}
		for _, p := range all {
			if p.ID == id {
				found = append(found, p)
			}
		}
	}
	return found, nil
}

// chunksWith are the numbers of chunks that may have passages of an id.
func chunksWith(ctx context.Context, db pebble.Reader, id uuid.UUID) (numbers []uint64, err error) {
	it, err := db.NewIter(&pastBounds)
	if err != nil {
		return nil, err
	}
	defer it.Close()
	for found := it.First(); found; {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		for v := it.Value(); len(v) > 8; {
			number := binary.BigEndian.Uint64(v)
			n, size := binary.Uvarint(v[8:])
			if size <= 0 || n > uint64(len(v)-8-size)/idEnd {
				return nil, fmt.Errorf("key %x: the index of passages is damaged", it.Key())
			}
			ids := v[8+size : 8+size+int(n)*idEnd]
			v = v[8+size+int(n)*idEnd:]
			for ; len(ids) > 0; ids = ids[idEnd:] {
				if [idEnd]byte(ids) == [idEnd]byte(endOf(id)) {
					numbers = append(numbers, number)
					break
				}
			}
		}
		found = it.SeekGE(after(it.Key()[:1+8])) // over its chunks
	}
	slices.Sort(numbers) // commits at once may be merged in another order
	return numbers, it.Error()
}

// Returned implements store.Searcher.
func (s *Store) Returned(ctx context.Context, visit func(store.Passage) (bool, error)) error {
	done, err := s.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	it, err := s.db.NewIter(&pastBounds)
	if err != nil {
		return err
	}
	defer it.Close()
	for it.First(); it.Valid(); it.Next() {
		if err := ctx.Err(); err != nil {
			return err
		}
		if len(it.Key()) < pastKeySize {
			continue
		}
		_, all, err := passagesAt(it.Key(), it.Value())
		if err != nil {
			return fmt.Errorf("data folder %s: %w", s.path, err)
		}
		for _, p := range slices.Backward(all) {
			if more, err := visit(p); err != nil || !more {
				return err
			}
		}
	}
	return it.Error()
}

// joined is how Pebble merges the index of a part: pieces in any order.
type joined []byte

func (j *joined) MergeNewer(v []byte) error {
	*j = append(*j, v...)
	return nil
}

func (j *joined) MergeOlder(v []byte) error { return j.MergeNewer(v) }

func (j *joined) Finish(bool) ([]byte, io.Closer, error) { return *j, nil, nil }
