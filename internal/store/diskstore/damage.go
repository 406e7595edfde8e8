package diskstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"math/bits"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	sstblock "github.com/cockroachdb/pebble/v2/sstable/block"
	"github.com/cockroachdb/pebble/v2/sstable/block/blockkind"
	"github.com/cockroachdb/pebble/v2/sstable/colblk"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/redrive-mq/redrive/internal/store"
)

var (
	// ErrLost: synced writes are missing. See LostError.
	ErrLost    = errors.New("writes that were synced are missing")
	ErrDamaged = errors.New("it is damaged")
)

// LostError says what a store lacks. Nothing in the folder was removed.
type LostError struct {
	Folder          string
	Commits         int64 // missing ones
	Promised, There store.Sums
}

func (e *LostError) Error() string {
	return fmt.Sprintf("%v: the last %d of its commits (it kept %s, and has %s): a file was damaged, cut or replaced "+
		"by an older one. Nothing was removed. Run `redrive store salvage %s --to NEW-FOLDER` to save all that can "+
		"still be read, or `redrive store accept-loss %s` to go on without it",
		ErrLost, e.Commits, keptIn(e.Promised), keptIn(e.There), e.Folder, e.Folder)
}

func (e *LostError) Unwrap() error { return ErrLost }

func keptIn(s store.Sums) string {
	return fmt.Sprintf("%d waiting, %d parked and %d discarded messages of %d that came", s[store.Waiting],
		s[store.Parked], s[store.Discarded], s[store.In])
}

func openError(path string, err error) error {
	if !isDamage(err) && !isOutOfPlace(err) {
		return err
	}
	return fmt.Errorf("%w: %w. Nothing was removed. Run `redrive store salvage %s --to NEW-FOLDER` to save all that "+
		"can still be read", ErrDamaged, err, path)
}

// isOutOfPlace reports whether a readable file has a content that no file of this store has: a
// MANIFEST whose last edits are damaged names tables that were deleted since, and the OPTIONS of
// every store have the same comparer and merger, and no other folder for logs.
func isOutOfPlace(err error) bool {
	var otherFolder pebble.ErrMissingWALRecoveryDir
	return errors.Is(err, fs.ErrNotExist) || errors.As(err, &otherFolder) ||
		strings.Contains(err.Error(), "name from file")
}

// damage is the damage found since the store was opened, and the lost blocks of before.
type damage struct {
	log   *slog.Logger
	files *pebbleFS
	lost  *lostBlocks // nil: read files as they are

	mu     sync.Mutex
	places map[string]string // a file, or a part of the store where the file is not known, to its error
}

// newDamage loads the lost blocks of before, except to salvage: that leaves the store as it is.
func newDamage(log *slog.Logger, files *pebbleFS, folder string, salvage bool) (*damage, error) {
	d := &damage{log: log, files: files, places: map[string]string{}}
	if salvage {
		return d, nil
	}
	d.lost = &lostBlocks{fs: files.FS, folder: folder}
	if err := d.lost.load(); err != nil {
		return nil, err
	}
	for _, l := range d.lost.list() {
		d.leaveOut(&l)
	}
	files.lost = d.lost
	return d, nil
}

// found is called by Pebble for a block whose checksum is wrong. A compaction and a claim may find
// the same block. Neither call returns before the block is left out; otherwise the reader would skip
// all that other tables have between the same keys.
func (d *damage) found(info pebble.DataCorruptionInfo) {
	here, bad := d.files.bad.examine(d.files.FS, info.Path, info.Details)
	if bad == nil {
		return
	}
	if !bad.repaired && d.lost != nil && strings.HasSuffix(info.Path, ".sst") {
		l, err := lostIn(d.files, info.Path, here.at, here.size-blockTrailer, info.Bounds.Start, info.Bounds.End.Key)
		if err == nil && l.blank() == nil {
			err = errors.New("it is too small")
		}
		if err == nil {
			err = d.lost.add(l)
		}
		if err == nil {
			d.leaveOut(&l)
			return
		}
		d.log.Error(
			"store: a damaged block cannot be left out: messages with keys in its range are not found until it can",
			"file", info.Path, "at", here.at, "error", err)
	}
	if d.files.bad.note(here, bad) && bad.repaired {
		d.log.Warn(
			"store: a bit of a file has flipped; each read flips it back, and nothing is lost",
			"file", info.Path, "error", info.Details)
	}
}

func (d *damage) leaveOut(l *lostBlock) {
	d.files.bad.leaveOut(d.files.PathJoin(d.lost.folder, l.File), l)
	why := "its checksum is wrong: the records in it are lost, and all others are kept"
	if l.Index {
		why = "the checksum of an index is wrong: all records of the table that it leads to are lost, and all " +
			"others are kept"
	}
	d.note(l.place(), errors.New(why))
}

func (d *damage) lostKey(key []byte) bool { return d.lost != nil && d.lost.has(key) }

func (d *damage) note(place string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.places[place] == "" {
		d.places[place] = err.Error()
		d.log.Error("store: damaged: what cannot be read is left out, and all else is kept", "at", place, "error", err)
	}
}

func (d *damage) skipped(from []byte, err error) {
	switch info := pebble.ExtractDataCorruptionInfo(err); {
	case info == nil:
		d.note(placeOfKey(from), err)
	case d.lost == nil || !d.lost.of(d.files.PathBase(info.Path)): // otherwise it is noted already
		d.note(info.Path, err)
	}
}

// unreadable notes an error that is about one record and returns nil, so that the rest
// continues; it returns other errors.
func (d *damage) unreadable(key []byte, err error) error {
	switch {
	case err == nil:
		return nil
	case isDamage(err):
		d.skipped(key, err)
	case errors.Is(err, store.ErrTorn), errors.Is(err, store.ErrFormat):
		d.note(fmt.Sprintf("message %x", key), err)
	default:
		return err
	}
	return nil
}

// placeOfKey names the part of the store that a key belongs to.
func placeOfKey(key []byte) string {
	if len(key) > 1 && stateOf(key[0]) != 0 && len(key) >= 2+int(key[1]) {
		return "queue " + queueOf(key)
	}
	return "index"
}

func (s *Store) Damage() map[string]string {
	s.damage.mu.Lock()
	defer s.damage.mu.Unlock()
	return maps.Clone(s.damage.places)
}

// lostBlocks records lost blocks in a file of the data folder, before anything is read
// without them: after a compaction makes the table again, only this file tells that
// counters may be lost, and must be rebuilt when the store is opened.
type lostBlocks struct {
	fs     vfs.FS
	folder string

	mu  sync.Mutex
	all []lostBlock
}

const (
	lostName = "lost-blocks"
	// damagedName is the folder for tables with a lost block that the store no longer
	// needs.
	damagedName = "damaged"
)

// load reads the recorded blocks, and drops rebuilt ones whose table was deleted: a person
// has removed the copy that was kept.
func (l *lostBlocks) load() error {
	f, err := l.fs.Open(l.fs.PathJoin(l.folder, lostName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err == nil {
		err = json.Unmarshal(b, &l.all)
	}
	if err != nil {
		return fmt.Errorf("reading %s: %w", lostName, err)
	}
	l.all = slices.DeleteFunc(l.all, func(b lostBlock) bool {
		_, err := l.fs.Stat(l.fs.PathJoin(l.folder, b.File))
		_, aside := l.fs.Stat(l.fs.PathJoin(l.folder, damagedName, b.File))
		return b.Rebuilt && errors.Is(err, fs.ErrNotExist) && errors.Is(aside, fs.ErrNotExist)
	})
	return nil
}

func (l *lostBlocks) add(b lostBlock) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if slices.ContainsFunc(l.all, func(o lostBlock) bool { return o.File == b.File && o.At == b.At }) {
		return nil
	}
	return l.write(append(slices.Clip(l.all), b))
}

func (l *lostBlocks) rebuilt() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := slices.Clone(l.all)
	for i := range all {
		all[i].Rebuilt = true
	}
	return l.write(all)
}

// write makes a list durable. The caller holds mu.
func (l *lostBlocks) write(all []lostBlock) error {
	b, err := json.Marshal(all)
	if err != nil {
		return err
	}
	path := l.fs.PathJoin(l.folder, lostName)
	f, err := l.fs.Create(path+".new", vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = l.fs.Rename(path+".new", path)
	}
	if err == nil {
		err = syncFolder(l.fs, l.folder)
	}
	if err == nil {
		l.all = all
	}
	return err
}

func (l *lostBlocks) list() []lostBlock {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.all)
}

// pending returns the blocks without which counters and indexes were not yet rebuilt.
func (l *lostBlocks) pending() []lostBlock {
	return slices.DeleteFunc(l.list(), func(b lostBlock) bool { return b.Rebuilt })
}

func (l *lostBlocks) has(key []byte) bool {
	return slices.ContainsFunc(l.pending(), func(b lostBlock) bool { return b.has(key) })
}

func (l *lostBlocks) of(file string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.all, func(b lostBlock) bool { return b.File == file })
}

// setAside moves a table with a lost block to another folder instead of removing it.
func (l *lostBlocks) setAside(path string) error {
	folder := l.fs.PathJoin(l.folder, damagedName)
	if err := l.fs.MkdirAll(folder, privateFolder); err != nil {
		return err
	}
	return l.fs.Rename(path, l.fs.PathJoin(folder, l.fs.PathBase(path)))
}

func (l *lostBlocks) copyTo(folder string) error {
	all := l.list()
	if len(all) == 0 {
		return nil
	}
	return (&lostBlocks{fs: l.fs, folder: folder}).write(all)
}

// badBlocks holds the blocks of tables that could not be read, or only with a bit flipped
// back. Pebble spends up to a second on each read of a damaged block, to find out which
// bit it is; walk, which searches for its end, would read it a hundred times.
type badBlocks struct {
	mu sync.Mutex
	by map[block]*badBlock
}

// block is a block as Pebble reads it, with its trailer: one byte for the compression and
// four for the checksum.
type block struct {
	file string
	at   int64
	size int
}

const blockTrailer = 5

type badBlock struct {
	err   error
	until time.Time // when to ask the disk again; zero: never
	// repaired: flipping this bit back makes the checksum right.
	repaired bool
	byte     int
	bit      byte
	blank    []byte // read instead
}

// eioKept is how long a block that the disk failed to read twice is not read again.
const eioKept = time.Minute

// checksumError matches Pebble's text for the place of a damaged block. Without a match the
// damage costs more messages, and more time.
var checksumError = regexp.MustCompile(`block (\d+)/(\d+): `)

func checksumErrorAt(err error) (here block) {
	if err == nil {
		return here
	}
	if match := checksumError.FindStringSubmatch(err.Error()); match != nil {
		here.at, _ = strconv.ParseInt(match[1], 10, 64)
		here.size, _ = strconv.Atoi(match[2])
	}
	return here
}

// examine finds out what is wrong with a block whose checksum was wrong. It returns nil when that
// is known already, or when the block is right now: the read went wrong, not the disk.
func (b *badBlocks) examine(fs vfs.FS, file string, err error) (here block, bad *badBlock) {
	at := checksumErrorAt(err)
	if at.size == 0 {
		return here, nil
	}
	here = block{file, at.at, at.size + blockTrailer}
	b.mu.Lock()
	known := b.by[here] != nil
	b.mu.Unlock()
	if known {
		return here, nil
	}
	bad = &badBlock{err: fmt.Errorf("%w: %v", pebble.ErrCorruption, err)}
	if data, err := readBlock(fs, file, here.at, here.size); err == nil {
		if sound(data) {
			return here, nil
		}
		bad.byte, bad.bit, bad.repaired = flippedBit(data)
	}
	return here, bad
}

// note remembers what is wrong with a block for later reads, and reports whether that is new.
func (b *badBlocks) note(here block, bad *badBlock) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.by[here] != nil {
		return false
	}
	b.by[here] = bad
	return true
}

func (b *badBlocks) leaveOut(file string, l *lostBlock) {
	if l.Index {
		b.leaveOut(file, l.under())
	}
	blank := l.blank()
	b.mu.Lock()
	defer b.mu.Unlock()
	here := block{file, l.At, l.Size + blockTrailer}
	if b.by[here] == nil {
		b.by[here] = &badBlock{err: fmt.Errorf("%w: %s", pebble.ErrCorruption, l.place())}
	}
	b.by[here].blank = blank
}

func (b *badBlocks) unrepaired() (all []block) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for at, bad := range b.by {
		if !bad.repaired {
			all = append(all, at)
		}
	}
	return all
}

func readBlock(fs vfs.FS, file string, at int64, size int) ([]byte, error) {
	f, err := fs.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data := make([]byte, size)
	_, err = f.ReadAt(data, at)
	return data, err
}

// read reads the block p from a file, and repairs or replaces it where its damage is known.
func (b *badBlocks) read(f vfs.File, file string, p []byte, at int64) (int, error) {
	here := block{file, at, len(p)}
	b.mu.Lock()
	bad := b.by[here]
	if bad != nil && !bad.until.IsZero() && time.Now().After(bad.until) {
		delete(b.by, here)
		bad = nil
	}
	b.mu.Unlock()
	if bad != nil && bad.blank != nil {
		return copy(p, bad.blank), nil
	}
	if bad != nil && !bad.repaired {
		return 0, bad.err
	}
	n, err := f.ReadAt(p, at)
	if bad != nil && err == nil {
		p[bad.byte] ^= 1 << bad.bit
	}
	if !errors.Is(err, syscall.EIO) {
		return n, err
	}
	if n, err = f.ReadAt(p, at); errors.Is(err, syscall.EIO) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.by[here] = &badBlock{err: err, until: time.Now().Add(eioKept)}
	}
	return n, err
}

func sound(data []byte) bool {
	end := len(data) - 4
	return end >= 1 && binary.LittleEndian.Uint32(data[end:]) == mask(crc32.Checksum(data[:end], checksums))
}

// flippedBit finds the one bit of a block with its trailer whose flip makes the checksum
// right. A CRC is linear: a bit changes it by an amount that depends on its place alone.
// More than three flipped bits look like one with a chance of 1 in 16,000.
func flippedBit(data []byte) (at int, bit byte, ok bool) {
	end := len(data) - 4
	if end < 1 {
		return 0, 0, false
	}
	sum, is := binary.LittleEndian.Uint32(data[end:]), crc32.Checksum(data[:end], checksums)
	if off := sum ^ mask(is); bits.OnesCount32(off) == 1 { // in the checksum itself
		n := bits.TrailingZeros32(off)
		return end + n/8, byte(n % 8), true
	}
	off := unmask(sum) ^ is
	var by [8]uint32 // how each bit of a byte changes it
	for n := range by {
		by[n] = checksums[1<<n]
	}
	for at = end - 1; at >= 0; at-- {
		for n, change := range by {
			if change == off {
				return at, byte(n), true
			}
			by[n] = checksums[byte(change)] ^ change>>8
		}
	}
	return 0, 0, false
}

// mask converts a CRC to the form that tables store; unmask reverses it.
func mask(crc uint32) uint32 { return bits.RotateLeft32(crc, -15) + 0xa282ead8 }

func unmask(sum uint32) uint32 { return bits.RotateLeft32(sum-0xa282ead8, 15) }

// A block with a wrong checksum is read, from then on, as an empty block of the same size.
// Otherwise Pebble would always fail there: what other tables have between the same keys
// could not be reached, and compactions of the table would fail until there are so many
// tables that Pebble stops all writes.

// lostBlock is a block of a table that cannot be read, and the range of its keys.
type lostBlock struct {
	File      string // its name in the data folder
	At        int64
	Size      int
	Index     bool // an index of blocks, which are lost with it
	Low, High []byte
	// Rebuilt: counters and indexes were rebuilt without it.
	Rebuilt bool
}

func (l *lostBlock) has(key []byte) bool {
	return bytes.Compare(l.Low, key) <= 0 && bytes.Compare(key, l.High) <= 0
}

func (l *lostBlock) place() string { return fmt.Sprintf("%s, %d bytes at %d", l.File, l.Size, l.At) }

// lostIn returns the lost block of a table at an offset. low and high are the table's bounds in
// the MANIFEST.
func lostIn(fs vfs.FS, path string, at int64, size int, low, high []byte) (l lostBlock, err error) {
	l = lostBlock{File: fs.PathBase(path), At: at, Size: size, Low: low, High: high}
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
		l.Index = true // of the table, or of a part of it
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

// within looks for the block in an index, and takes the range of its keys from there.
func (l *lostBlock) within(r *sstable.Reader, index sstblock.Handle) (bool, error) {
	read, err := r.BlockReader().Read(context.Background(), sstblock.NoReadEnv, nil, index, blockkind.SSTableIndex,
		colblk.InitIndexBlockMetadata)
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

// blank returns an empty block with its trailer to read instead; nil when the block is too small
// for that. Pebble accepts neither a block without a row, nor one longer than its rows: a data block
// gets the deletion of an unused key, older than all that may be under it.
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

func (l *lostBlock) filled(fill int) []byte {
	if l.Index {
		var w colblk.IndexBlockWriter
		w.Init()
		under := l.under()
		w.AddBlockHandle(l.High, sstblock.Handle{Offset: uint64(under.At), Length: uint64(under.Size)},
			make([]byte, fill))
		return w.Finish(1)
	}
	schema := colblk.DefaultKeySchema(pebble.DefaultComparer, 16)
	var w colblk.DataBlockEncoder
	w.Init(&schema)
	w.Add(pebble.InternalKey{UserKey: l.Low}, make([]byte, fill), sstblock.InPlaceValuePrefix(false),
		w.KeyWriter.ComparePrev(l.Low), false)
	data, _ := w.Finish(1, w.Size())
	return data
}

// under returns a block that does not exist, for the blank index to point at.
func (l *lostBlock) under() *lostBlock {
	return &lostBlock{File: l.File, At: l.At + 1, Size: 1 << 10, Low: l.Low, High: l.High}
}

// A table ends with a footer, which says where its index is: without it the table cannot be read.
// Its last bytes are its checksum, the version of its format and a magic number. Pebble reads
// maxFooter bytes in one piece.
const (
	footerMagic = "\xf0\x9f\xaa\xb3\xf0\x9f\xaa\xb3"
	maxFooter   = 61
	footerEnd   = 4 + 4 + len(footerMagic)
)

// footerSizes has the sizes of the versions with a checksum.
var footerSizes = map[uint32]int{6: 57, 7: maxFooter}

// repairedFooter looks for the one bit of a table's footer whose flip makes the checksum right, and
// makes later reads flip it.
func (b *badBlocks) repairedFooter(fs vfs.FS, file string) bool {
	info, err := fs.Stat(file)
	if err != nil {
		return false
	}
	size := min(info.Size(), maxFooter)
	here := block{file, info.Size() - size, int(size)}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.by[here] != nil {
		return false
	}
	data, err := readBlock(fs, file, here.at, here.size)
	if err != nil {
		return false
	}
	bad := &badBlock{}
	if bad.byte, bad.bit, bad.repaired = flippedFooterBit(data); bad.repaired {
		b.by[here] = bad
	}
	return bad.repaired
}

func flippedFooterBit(data []byte) (at int, bit byte, ok bool) {
	for at := range data {
		for bit := range byte(8) {
			data[at] ^= 1 << bit
			ok := isFooter(data)
			data[at] ^= 1 << bit
			if ok {
				return at, bit, true
			}
		}
	}
	return 0, 0, false
}

// isFooter reports whether data ends with a footer whose checksum is right.
func isFooter(data []byte) bool {
	if len(data) < footerEnd || string(data[len(data)-len(footerMagic):]) != footerMagic {
		return false
	}
	size, ok := footerSizes[binary.LittleEndian.Uint32(data[len(data)-len(footerMagic)-4:])]
	if !ok || len(data) < size {
		return false
	}
	footer := data[len(data)-size:]
	sum := footer[size-footerEnd:]
	is := crc32.Update(crc32.Checksum(footer[:size-footerEnd], checksums), checksums, sum[4:])
	return binary.LittleEndian.Uint32(sum) == mask(is)
}
