package diskstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/objstorage"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/sstable/blob"
	sstblock "github.com/cockroachdb/pebble/v2/sstable/block"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/store"
)

// A table refers to a large record by its place in a blob file. Which blob file that is,
// only the MANIFEST says, so without one all are tried: the right one has a record of that
// length there that belongs under the key.

// place of a large record, in a blob file that is not known.
type blobPlace struct {
	block blob.BlockID
	value blob.BlockValueID
	size  int
}

// blobPlaceOf reads what sstable.DebugHandlesBlobContext makes of a reference. No record
// begins like this: the first byte of one is its version.
func blobPlaceOf(value []byte) (p blobPlace, ok bool) {
	if !bytes.HasPrefix(value, []byte("blob-value:")) {
		return p, false
	}
	var file int
	_, err := fmt.Sscanf(string(value), "blob-value:(f%d,blk%d,id%d,len%d)", &file, &p.block, &p.value, &p.size)
	return p, err == nil
}

// largeRecord finds the record of a key in the blob files; a zero id is not known. Two
// records may be due at once and of one length: without an id either could be meant.
func (l *loose) largeRecord(key []byte, p blobPlace, id uuid.UUID) (found []byte, err error) {
	err = errors.New("it is in none of the .blob files")
	for _, name := range l.blobs {
		path := l.fs.PathJoin(l.folder, name)
		value, failed := l.blobValue(path, p)
		if failed != nil {
			l.unread[path] = failed.Error()
			err = fmt.Errorf("%s: %w", name, failed)
		}
		if len(value) != p.size {
			continue
		}
		r, _, failed := store.DecodeRecord(value, false)
		if failed != nil || !bytes.Equal(keyOf(r, seqOf(key)), key) {
			continue
		}
		switch {
		case id != uuid.UUID{} && r.ID == id:
			return value, nil
		case id != uuid.UUID{}:
		case found != nil:
			return nil, errors.New("more than one of the .blob files may have it, and the index of its id cannot be read")
		default:
			found = value
		}
	}
	if found != nil {
		return found, nil
	}
	return nil, err
}

// blobValue is what a blob file has at a place; nil where it does not reach so far.
func (l *loose) blobValue(path string, p blobPlace) (value []byte, err error) {
	defer recovered(&err)
	f, err := l.fs.Open(path)
	if err != nil {
		return nil, err
	}
	readable, err := sstable.NewSimpleReadable(f)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	file, err := blob.NewFileReader(context.Background(), readable, blob.FileReaderOptions{})
	if err != nil {
		return nil, errors.Join(err, readable.Close())
	}
	defer file.Close()
	reader := &blobReader{FileReader: file, at: p}
	if err := reader.reaches(); err != nil {
		return nil, within(err)
	}
	files := onlyBlob(reader, blob.Handle{}.BlobFileID, pebble.SSTableInfo{}.BackingSSTNum)
	var fetch blob.ValueFetcher
	fetch.Init(files, files, sstblock.NoReadEnv)
	defer fetch.Close()
	value, _, err = fetch.Fetch(context.Background(), blob.Handle{}.BlobFileID, p.block, p.value)
	return bytes.Clone(value), within(err)
}

// recovered makes an error of a panic: Pebble's readers trust that a file is whole.
func recovered(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("%w: %v", pebble.ErrCorruption, p)
	}
}

// errBeyond: a blob file has no such place, so another one is meant.
var errBeyond = errors.New("the file has fewer records")

func within(err error) error {
	if errors.Is(err, errBeyond) {
		return nil
	}
	return err
}

// blobReader does not let Pebble read beyond a block, which it does not check.
type blobReader struct {
	*blob.FileReader
	at blobPlace
}

// Where blocks have their number of rows: behind a byte and two, and in an index behind
// the number of blocks that the file had before it was rewritten, or zero.
const (
	rowsAt       = 3
	indexRowsAt  = 4 + rowsAt
	leastOfBlock = indexRowsAt + 4
)

// reaches says whether the file has such a block.
func (b *blobReader) reaches() error {
	index, err := b.ReadIndexBlock(context.Background(), sstblock.NoReadEnv, nil)
	if err != nil {
		return err
	}
	defer index.Release()
	data := index.BlockData()
	if len(data) < leastOfBlock {
		return pebble.ErrCorruption
	}
	blocks := binary.LittleEndian.Uint32(data)
	if blocks == 0 {
		blocks = binary.LittleEndian.Uint32(data[indexRowsAt:])
	}
	if uint32(b.at.block) >= blocks {
		return errBeyond
	}
	return nil
}

// ReadValueBlock implements blob.ValueReader.
func (b *blobReader) ReadValueBlock(ctx context.Context, env sstblock.ReadEnv, rh objstorage.ReadHandle, h sstblock.Handle) (sstblock.BufferHandle, error) {
	read, err := b.FileReader.ReadValueBlock(ctx, env, rh, h)
	if err != nil {
		return read, err
	}
	if data := read.BlockData(); len(data) < leastOfBlock || uint32(b.at.value) >= binary.LittleEndian.Uint32(data[rowsAt:]) {
		read.Release()
		return sstblock.BufferHandle{}, errBeyond
	}
	return read, nil
}

// oneBlob is a database's blob files, of which there is one. ID and Num are Pebble's, which
// has no public name for them.
type oneBlob[ID, Num any] struct {
	reader blob.ValueReader
	num    Num
}

func onlyBlob[ID, Num any](reader blob.ValueReader, _ ID, num Num) oneBlob[ID, Num] {
	return oneBlob[ID, Num]{reader, num}
}

func (o oneBlob[ID, Num]) Lookup(ID) (Num, bool) { return o.num, true }

func (o oneBlob[ID, Num]) GetValueReader(context.Context, Num) (blob.ValueReader, func(), error) {
	return o.reader, func() {}, nil
}

// blobFile finds damaged blocks before Pebble does, which would try each bit of one: that
// takes hours for a large body.
type blobFile struct{ vfs.File }

// checkedFrom is from what size on a read is one of a block with its trailer, and long to
// try each bit of.
const checkedFrom = 4 << 10

// ReadAt implements vfs.File.
func (b blobFile) ReadAt(p []byte, at int64) (int, error) {
	n, err := b.File.ReadAt(p, at)
	if err != nil || len(p) < checkedFrom || sound(p) {
		return n, err
	}
	if at, bit, ok := flippedBit(p); ok {
		p[at] ^= 1 << bit
		return n, nil
	}
	return 0, fmt.Errorf("%w: the checksum of the %d bytes at %d is wrong", pebble.ErrCorruption, len(p), at)
}
