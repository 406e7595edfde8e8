package diskstore

import (
	"bytes"
	"errors"
	"math/big"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
)

// isDamage tells an error of a block that cannot be read, now or ever, from others.
func isDamage(err error) bool { return pebble.IsCorruptionError(err) || errors.Is(err, syscall.EIO) }

// walk is a Pebble iterator that goes on after blocks that cannot be read: they cost the
// records in them, and not those after them. What it leaves out is passed to skipped.
type walk struct {
	*pebble.Iterator
	low, high []byte                       // its bounds
	at        []byte                       // the key it is at, or was at last
	over      bool                         // it has ended in damage
	skipped   func(from []byte, err error) // nil: damage is an error
}

func newWalk(db pebble.Reader, low, high []byte, skipped func(from []byte, err error)) (*walk, error) {
	it, err := db.NewIter(&pebble.IterOptions{LowerBound: low, UpperBound: high})
	if err != nil {
		return nil, err
	}
	return &walk{Iterator: it, low: low, high: high, skipped: skipped}, nil
}

func (s *Store) walk(db pebble.Reader, low, high []byte) (*walk, error) {
	return newWalk(db, low, high, s.damage.skipped)
}

// walkNoting is a walk that also says when it leaves something out.
func (s *Store) walkNoting(db pebble.Reader, low, high []byte, leavesOut func()) (*walk, error) {
	return newWalk(db, low, high, func(from []byte, err error) {
		leavesOut()
		s.damage.skipped(from, err)
	})
}

// walkAll is a walk that leaves nothing out: it only reads again what a flipped bit, or a
// disk that failed once, kept from being read. Damage is its Error.
func walkAll(db pebble.Reader, prefix []byte) (*walk, error) {
	return newWalk(db, prefix, after(prefix), nil)
}

// eachIn visits all that is kept under a prefix, and leaves nothing out: see walkAll.
func eachIn(db pebble.Reader, prefix byte, visit func(key, value []byte) error) error {
	it, err := walkAll(db, []byte{prefix})
	if err != nil {
		return err
	}
	defer it.Close()
	for it.First(); it.Valid(); it.Next() {
		if err := visit(it.Key(), it.Value()); err != nil {
			return err
		}
	}
	return it.Error()
}

// within gives it other bounds. Move it then.
func (w *walk) within(low, high []byte) {
	w.low, w.high, w.over = low, high, false
	w.SetBounds(low, high)
}

// First and all that follow move as those of pebble.Iterator do.
func (w *walk) First() bool { return w.moved(w.Iterator.First(), w.low, true) }

func (w *walk) Last() bool { return w.moved(w.Iterator.Last(), w.high, false) }

func (w *walk) Next() bool {
	if w.Iterator.Next() {
		return w.here()
	}
	return w.moved(false, append(w.at, 0), true)
}

func (w *walk) Prev() bool { return w.moved(w.Iterator.Prev(), w.at, false) }

func (w *walk) SeekGE(key []byte) bool { return w.moved(w.Iterator.SeekGE(key), key, true) }

// here notes where it is.
func (w *walk) here() bool {
	w.over = false
	w.at = append(w.at[:0], w.Key()...)
	return true
}

// moved is the end of a move from a key on, which met damage if there is an error.
func (w *walk) moved(valid bool, from []byte, forward bool) bool {
	if valid {
		return w.here()
	}
	w.over = false
	err := w.Error()
	if err == nil || !isDamage(err) {
		return false
	}
	from = bytes.Clone(from)
	if w.seek(from, forward) || w.Error() == nil { // it can be read this time
		return w.Valid() && w.here()
	}
	if w.skipped == nil {
		return false
	}
	found := w.behind(from, forward)
	if !forward {
		found = w.closer(from)
	}
	w.skipped(from, err)
	w.over = !found
	return found && w.here()
}

// Error is nil where damage reaches up to the end.
func (w *walk) Error() error {
	if w.over {
		return nil
	}
	return w.Iterator.Error()
}

// Close closes it, and returns Error.
func (w *walk) Close() error {
	err := w.Iterator.Close()
	if w.over {
		return nil
	}
	return err
}

// ValueAndErr goes back to the key where its value cannot be read: Pebble would end there.
func (w *walk) ValueAndErr() ([]byte, error) {
	value, err := w.Iterator.ValueAndErr()
	if err != nil && isDamage(err) && w.skipped != nil {
		w.seek(bytes.Clone(w.at), true)
	}
	return value, err
}

// seek goes to the first key from a key on or, backwards, to the last one before it.
func (w *walk) seek(key []byte, forward bool) bool {
	// After an error Pebble's next seek the same way would begin where that was, and fail
	// again: a new iterator of the same moment does not.
	if w.Iterator.Error() != nil {
		if again, err := w.Iterator.Clone(pebble.CloneOptions{}); err == nil {
			_ = w.Iterator.Close()
			w.Iterator = again
		}
	}
	if forward {
		return w.Iterator.SeekGE(key)
	}
	return w.Iterator.SeekLT(key)
}

// atEdge tells whether what lies just before where it is, in the direction it came from,
// cannot be read. It leaves it where it was.
func (w *walk) atEdge(forward bool) bool {
	if !w.Valid() { // everything from there on is gone
		if forward {
			w.Iterator.Last()
		} else {
			w.Iterator.First()
		}
		edge := w.Error() != nil
		w.seek(map[bool][]byte{true: w.high, false: w.low}[forward], forward)
		return edge
	}
	key := bytes.Clone(w.Key())
	if forward {
		w.Iterator.Prev()
	} else {
		w.Iterator.Next()
	}
	edge := w.Error() != nil
	if !forward {
		key = append(key, 0)
	}
	w.seek(key, forward)
	return edge
}

// behind goes to the first key that can be read after the damage at from. Pebble does not
// say where a damaged block ends, so this looks for it: keys being numbers, in steps that
// double, until one can be read, and then for the smallest such.
func (w *walk) behind(from []byte, forward bool) bool {
	end := w.high
	if !forward {
		end = w.low
	}
	size := max(len(from), len(end)) + placeSize + 1 // either may be a prefix of keys
	bad, limit := asNumber(from, size), asNumber(end, size)
	good := new(big.Int).Set(limit)
	for step := uint(0); ; step += 2 {
		next := new(big.Int).Lsh(big.NewInt(1), step)
		if forward {
			next.Add(bad, next)
		} else {
			next.Sub(bad, next)
		}
		if beyond := next.Cmp(limit); beyond == 0 || beyond > 0 == forward {
			break
		}
		w.seek(asKey(next, size), forward)
		if w.Error() == nil {
			good = next
			break
		}
		bad = next
	}
	for {
		w.seek(asKey(good, size), forward)
		// The end of the bounds may be in a damaged block, of which they are a part.
		if w.Error() == nil && w.atEdge(forward) {
			return w.Valid()
		}
		for { // halfway between, until something more can be read
			middle := new(big.Int).Add(bad, good)
			middle.Rsh(middle, 1)
			if middle.Cmp(bad) == 0 || middle.Cmp(good) == 0 {
				w.seek(asKey(good, size), forward)
				return w.Valid()
			}
			w.seek(asKey(middle, size), forward)
			if w.Error() == nil {
				good = middle
				break
			}
			bad = middle
		}
	}
}

// closer goes from the key that behind has found, backwards, to the last one before from
// that can be read. Going backwards Pebble does not find one that is next to a damaged
// block: it reads on to the one before it first.
func (w *walk) closer(from []byte) bool {
	best := []byte(nil)
	next := w.low
	for {
		if w.Valid() {
			best = bytes.Clone(w.Key())
			next = append(bytes.Clone(best), 0)
		}
		w.Iterator.SeekGE(next)
		if w.Error() != nil {
			w.behind(next, true)
		}
		if !w.Valid() || bytes.Compare(w.Key(), from) >= 0 {
			break
		}
	}
	return best != nil && w.Iterator.SeekGE(best) || w.Iterator.SeekLT(w.low)
}

// asNumber is a key as a number of size bytes.
func asNumber(key []byte, size int) *big.Int {
	b := make([]byte, size)
	copy(b, key)
	return new(big.Int).SetBytes(b)
}

func asKey(n *big.Int, size int) []byte { return n.FillBytes(make([]byte, size)) }
