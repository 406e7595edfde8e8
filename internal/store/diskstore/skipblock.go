package diskstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	sstblock "github.com/cockroachdb/pebble/v2/sstable/block"
	"github.com/cockroachdb/pebble/v2/sstable/block/blockkind"
	"github.com/cockroachdb/pebble/v2/sstable/colblk"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// A block whose checksum is wrong is read, from then on, as one of the same size that has
// nothing in it. Otherwise Pebble would fail at it for good: whatever else lies between
// the same keys, in other tables, could not be reached, and compactions of the table
// would fail until so many tables had gathered that Pebble stops all writes.

// lostBlock is a block of a table that cannot be read, and the keys between which it was.
type lostBlock struct {
	File      string // its name in the data folder
	At        int64
	Size      int
	Index     bool // an index of blocks: those are lost with it
	Low, High []byte
	// Rebuilt: what follows from records was made again without it.
	Rebuilt bool
}

func (l *lostBlock) has(key []byte) bool {
	return bytes.Compare(l.Low, key) <= 0 && bytes.Compare(key, l.High) <= 0
}

// place is what the block is called where damage is shown.
func (l *lostBlock) place() string { return fmt.Sprintf("%s, %d bytes at %d", l.File, l.Size, l.At) }

// lostIn finds out which block of a table is at a place. least and greatest are the keys
// between which the table is, as the MANIFEST says.
func lostIn(fs vfs.FS, path string, at int64, size int, least, greatest []byte) (l lostBlock, err error) {
	l = lostBlock{File: fs.PathBase(path), At: at, Size: size, Low: least, High: greatest}
	f, err := fs.Open(path)
	if err != nil {
		return l, err
	}
	readable, err := sstable.NewSimpleReadable(f)
	if err != nil {
		return l, err
	}
	r, err := sstable.NewReader(context.Background(), readable, sstable.ReaderOptions{Merger: adder})
	if err != nil {
		return l, err
	}
	defer r.Close()
	if format, err := r.TableFormat(); err != nil || format < sstable.TableFormatPebblev5 {
		return l, fmt.Errorf("a table of format %v, whose blocks are of another make: %w", format, pebble.ErrCorruption)
	}
	layout, err := r.Layout()
	if match := checksumErrorAt(err); err != nil && match.at == at && match.size == size {
		l.Index = true // the table's own, or that of a part of it
		return l, nil
	}
	if err != nil {
		return l, err
	}
	for _, h := range layout.Index {
		found, err := l.within(r, h)
		if found || err != nil {
			return l, err
		}
	}
	return l, fmt.Errorf("it has neither records nor an index: %w", pebble.ErrCorruption)
}

// within looks for the block in an index, and takes from there between which keys it is.
func (l *lostBlock) within(r *sstable.Reader, index sstblock.Handle) (bool, error) {
	read, err := r.BlockReader().Read(context.Background(), sstblock.NoReadEnv, nil, index, blockkind.SSTableIndex, colblk.InitIndexBlockMetadata)
	if err != nil {
		return false, err
	}
	var it colblk.IndexIter
	if err := it.InitHandle(pebble.DefaultComparer, read, sstblock.NoTransforms); err != nil {
		return false, err
	}
	defer it.Close()
	for valid := it.First(); valid; valid = it.Next() {
		h, err := it.BlockHandleWithProperties()
		if err != nil {
			return false, err
		}
		if int64(h.Offset) == l.At {
			l.High = bytes.Clone(it.Separator())
			return true, nil
		}
		l.Low = append(bytes.Clone(it.Separator()), 0)
	}
	return false, nil
}

// blank is what is read instead of the block, with its trailer; nil where that has no room.
// Pebble takes neither a block without a row, nor one that is longer than its rows: a block
// of records has the deletion of a key that is none, older than all that may be under it.
func (l *lostBlock) blank() []byte {
	fill := 0
	data := l.filled(fill)
	for range 4 { // lengths within a block take more room as they grow
		if len(data) == l.Size {
			break
		}
		if fill += l.Size - len(data); fill < 0 {
			return nil
		}
		data = l.filled(fill)
	}
	if len(data) != l.Size {
		return nil
	}
	made := append(data, byte(sstblock.NoCompressionIndicator))
	return binary.LittleEndian.AppendUint32(made, mask(crc32.Checksum(made, checksums)))
}

// filled is a block with one row that has so many bytes of filling.
func (l *lostBlock) filled(fill int) []byte {
	if l.Index {
		var w colblk.IndexBlockWriter
		w.Init()
		under := l.under()
		w.AddBlockHandle(l.High, sstblock.Handle{Offset: uint64(under.At), Length: uint64(under.Size)}, make([]byte, fill))
		return w.Finish(1)
	}
	schema := colblk.DefaultKeySchema(pebble.DefaultComparer, 16)
	var w colblk.DataBlockEncoder
	w.Init(&schema)
	w.Add(pebble.InternalKey{UserKey: l.Low}, make([]byte, fill), sstblock.InPlaceValuePrefix(false), w.KeyWriter.ComparePrev(l.Low), false)
	data, _ := w.Finish(1, w.Size())
	return data
}

// under is a block that there is none of: what the blank index leads to.
func (l *lostBlock) under() *lostBlock {
	return &lostBlock{File: l.File, At: l.At + 1, Size: 1 << 10, Low: l.Low, High: l.High}
}
