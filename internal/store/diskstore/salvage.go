package diskstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/batchrepr"
	"github.com/cockroachdb/pebble/v2/objstorage"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/sstable/blob"
	sstblock "github.com/cockroachdb/pebble/v2/sstable/block"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/wal"
	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/store"
)

type Salvaged struct {
	// Messages counts saved messages. Loose of them were in files that the database no
	// longer refers to: some may have been retried or discarded since.
	Messages, Loose int64
	Entries         int
	// Unread maps what could not be read to the error.
	Unread map[string]string
}

// Salvage saves all that can be read of the store in folder from to a new store in folder
// to. It removes nothing from the first. The new ledger begins with what was saved.
func Salvage(ctx context.Context, from, to string, o Options) (done Salvaged, err error) {
	files := o.FS
	if files == nil {
		files = private{vfs.Default}
	}
	if names, err := files.List(to); err == nil && len(names) > 0 {
		return done, fmt.Errorf("folder %s: it is not empty: a store is salvaged to a new folder", to)
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return done, err
	}
	before, err := files.List(from)
	if err != nil {
		return done, err
	}
	o.Existing, o.salvage = true, true
	source, err := Open(from, o)
	if errors.Is(err, store.ErrLocked) || errors.Is(err, ErrNone) || errors.Is(err, store.ErrFormat) {
		return done, err
	}
	done.Unread = map[string]string{}
	if err != nil {
		done.Unread["database"] = err.Error()
	} else {
		defer func() {
			maps.Copy(done.Unread, source.Damage())
			err = errors.Join(err, source.Close())
		}()
	}
	o.Existing, o.salvage = false, false
	target, err := Open(to, o)
	if err != nil {
		return done, err
	}
	defer func() { err = errors.Join(err, target.Close()) }()
	s := &salvage{Salvaged: &done, ctx: ctx, to: target}
	loose := loose{fs: newPebbleFS(files), folder: from, blobs: filesOf(before, ".blob"), unread: done.Unread,
		logs: source == nil}
	loose.bad = &loose.fs.bad
	if source != nil {
		err = s.copy(source)
		loose.tables = source.unreferenced(before)
	} else {
		loose.tables = tablesOf(before)
	}
	if err == nil {
		err = s.loose(&loose)
	}
	if err == nil {
		err = target.startAfter(ctx, s.newest)
	}
	return done, err
}

type salvage struct {
	*Salvaged
	ctx    context.Context
	to     *Store
	newest uint64
	batch  []store.Listed
	size   int
}

const (
	salvageTogether = 500
	salvageBytes    = 16 << 20
)

func (s *salvage) copy(from *Store) error {
	err := from.Scan(s.ctx, store.Range{Body: true}, func(l store.Listed) (bool, error) { return true, s.add(l) })
	if err == nil {
		err = s.flush()
	}
	if err != nil {
		return err
	}
	if err = from.Entries(s.ctx, "", "", func(e store.Entry) (bool, error) {
		s.Entries++
		return true, s.to.PutEntries(s.ctx, []store.Entry{e})
	}); err != nil {
		return err
	}
	receipts, err := from.Receipts(s.ctx)
	if err != nil {
		s.Unread["receipts"] = err.Error() // all it means: a duplicate may get another id
		return nil
	}
	return s.to.Remember(s.ctx, receipts)
}

func (s *salvage) add(l store.Listed) error {
	if _, seq, ok := l.Key.Parts(); ok {
		s.newest = max(s.newest, seq)
	}
	s.batch = append(s.batch, l)
	if s.size += len(l.Record.Message.Body); len(s.batch) < salvageTogether && s.size < salvageBytes {
		return nil
	}
	return s.flush()
}

func (s *salvage) flush() error {
	if err := s.to.addListed(s.ctx, s.batch); err != nil {
		return err
	}
	s.Messages += int64(len(s.batch))
	s.batch, s.size = s.batch[:0], 0
	return nil
}

// addListed stores records under their own keys, except those stored already. The ledger counts each as In and in its
// state.
func (s *Store) addListed(ctx context.Context, records []store.Listed) error {
	done, err := s.beginChange(ctx)
	if err != nil {
		return err
	}
	defer done()
	s.adding.RLock()
	defer s.adding.RUnlock()
	size := 0
	for _, l := range records {
		size += len(l.Record.Message.Body) + recordOverhead
	}
	if err := s.checkSpace(size, s.reserve); err != nil {
		return err
	}
	c := s.newWriteBatch(size)
	defer c.close()
	var keys [][]byte
	for _, l := range records {
		seq, err := l.Number()
		if err != nil {
			return err
		}
		there, err := s.get(idKey(l.Record.ID, seq))
		if err != nil {
			return err
		}
		if there != nil {
			continue
		}
		key := keyOf(l.Record, seq)
		if err := c.put(key, l.Record); err != nil {
			return err
		}
		c.count(store.In, l.Record.Queue, 1)
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return nil
	}
	if err := addTo(c.batch, keySeq, int64(len(keys))); err != nil {
		return err
	}
	return s.commitAdded(c, keys)
}

// startAfter gives later records numbers above newest, so that none is used twice, and begins the ledger with what is
// stored.
func (s *Store) startAfter(ctx context.Context, newest uint64) error {
	done, err := s.beginChange(ctx)
	if err != nil {
		return err
	}
	defer done()
	s.adding.Lock()
	defer s.adding.Unlock()
	c := s.newWriteBatch(0)
	defer c.close()
	s.mu.Lock()
	records := s.records()
	s.mu.Unlock()
	seq, err := s.number(keySeq)
	if err != nil {
		return err
	}
	after := max(seq, int64(newest))
	if err := addTo(c.batch, keySeq, after-seq); err != nil {
		return err
	}
	// In the same batch: see loadLedger.
	if err := c.batch.Set(keyOpened, binary.AppendVarint(nil, after-records), nil); err != nil {
		return err
	}
	if err := c.commit(); err != nil {
		return err
	}
	s.seq.Store(max(s.seq.Load(), uint64(after)))
	return nil
}

func (s *salvage) loose(from *loose) error {
	return from.records(func(key, value []byte) error {
		r, _, err := store.DecodeRecord(value, true)
		if err != nil {
			s.Unread[fmt.Sprintf("message %x", key)] = err.Error()
			return nil
		}
		there, err := s.to.get(idKey(r.ID, seqOf(key)))
		if err != nil || there != nil {
			return err
		}
		s.Loose++
		if err := s.add(store.Listed{Key: store.MakeKey(r.ID, seqOf(key)), Record: r}); err != nil {
			return err
		}
		return s.flush()
	})
}

// unreferenced returns the tables among names that the database does not know, if commits
// are missing: the end of the MANIFEST is damaged then. Otherwise such tables are leftovers
// of compactions.
func (s *Store) unreferenced(names []string) (loose []string) {
	was, _, err := s.witness.read()
	there, err2 := s.storedCount()
	levels, err3 := s.db.SSTables()
	if errors.Join(err, err2, err3) != nil || was == nil || there.commits >= was.commits {
		return nil
	}
	live := map[string]bool{}
	for _, level := range levels {
		for _, t := range level {
			live[fmt.Sprintf("%06d.sst", uint64(t.BackingSSTNum))] = true
		}
	}
	return slices.DeleteFunc(tablesOf(names), func(name string) bool { return live[name] })
}

// loose reads records from files without the database. For each key, the newest write
// counts.
type loose struct {
	fs     *pebbleFS
	bad    *badBlocks
	folder string
	tables []string
	blobs  []string // with the large records of tables
	logs   bool
	unread map[string]string
}

type write struct {
	seq uint64
	set bool
}

func tablesOf(names []string) []string { return filesOf(names, ".sst") }

func filesOf(names []string, suffix string) (files []string) {
	for _, name := range names {
		if strings.HasSuffix(name, suffix) {
			files = append(files, name)
		}
	}
	slices.Sort(files)
	return files
}

// records visits the records that no newer write has removed. It reads all files twice, to have
// the keys in memory but not the records.
func (l *loose) records(visit func(key, value []byte) error) error {
	newest := map[string]write{}
	ids := map[uint64]uuid.UUID{} // by number
	err := l.each(func(key []byte, w write, _ []byte) error {
		if key[0] == prefixID {
			ids[seqOf(key)] = uuid.UUID(key[1:])
			return nil
		}
		if was, ok := newest[string(key)]; !ok || w.seq > was.seq {
			newest[string(key)] = w
		}
		return nil
	})
	if err != nil {
		return err
	}
	return l.each(func(key []byte, w write, value []byte) error {
		if key[0] == prefixID || newest[string(key)] != w || !w.set {
			return nil
		}
		delete(newest, string(key)) // the same write may be in two files
		if at, ok := blobPlaceOf(value); ok {
			var err error
			if value, err = l.largeRecord(key, at, ids[seqOf(key)]); err != nil {
				l.unread[fmt.Sprintf("message %x", key)] = err.Error()
				return nil
			}
		}
		return visit(key, value)
	})
}

// each visits all writes to records and to the index of ids.
func (l *loose) each(visit func(key []byte, w write, value []byte) error) error {
	sift := func(kind pebble.InternalKeyKind, key []byte, seq uint64, value []byte) error {
		if id := len(key) == len(idKey(uuid.UUID{}, 0)) && key[0] == prefixID; !id && !isRecord(key) {
			return nil
		}
		switch kind {
		case pebble.InternalKeyKindSet, pebble.InternalKeyKindSetWithDelete:
			return visit(key, write{seq, true}, value)
		case pebble.InternalKeyKindDelete, pebble.InternalKeyKindSingleDelete, pebble.InternalKeyKindDeleteSized:
			return visit(key, write{seq, false}, nil)
		}
		return nil
	}
	for _, name := range l.tables {
		path := l.fs.PathJoin(l.folder, name)
		stopped, err := l.table(path, sift)
		if err != nil {
			return err
		}
		if stopped != nil {
			l.unread[path] = stopped.Error()
		}
	}
	if !l.logs {
		return nil
	}
	logs, err := wal.Scan(wal.Dir{FS: l.fs, Dirname: l.folder})
	if err != nil {
		return err
	}
	for _, log := range logs {
		if err := l.log(log, sift); err != nil {
			return err
		}
	}
	return nil
}

type visitor func(kind pebble.InternalKeyKind, key []byte, seq uint64, value []byte) error

// flippedBack reports a table of which nothing was lost.
const flippedBack = "a flipped bit was turned back"

// table reads a table from its start and, where that meets damage, from its end. stopped is
// why not all of it was read.
func (l *loose) table(path string, visit visitor) (stopped, err error) {
	defer recovered(&stopped)
	f, err := l.fs.Open(path)
	if err != nil {
		return err, nil
	}
	readable, err := sstable.NewSimpleReadable(f)
	if err != nil {
		return err, f.Close()
	}
	r, err := sstable.NewReader(context.Background(), readable, sstable.ReaderOptions{Merger: adder})
	if err != nil {
		if closed := readable.Close(); closed == nil && l.bad.repairedFooter(l.fs.FS, path) {
			l.unread[path] = flippedBack
			return l.table(path, visit)
		}
		return err, nil
	}
	defer r.Close()
	it, err := r.NewIter(sstable.NoTransforms, nil, nil, sstable.DebugHandlesBlobContext)
	if err != nil {
		return err, nil
	}
	defer it.Close()
	last := ""
	kv := it.First()
	visitIt := func() error {
		value, _, err := kv.Value(nil)
		if err != nil {
			return err
		}
		return visit(kv.Kind(), kv.K.UserKey, uint64(kv.SeqNum()), value)
	}
	for ; kv != nil; kv = it.Next() {
		if err := visitIt(); err != nil {
			return nil, err
		}
		last = string(kv.K.UserKey)
	}
	if stopped = it.Error(); stopped == nil {
		return nil, nil
	}
	here, bad := l.bad.examine(l.fs.FS, path, stopped)
	if bad != nil && l.bad.note(here, bad) && bad.repaired {
		l.unread[path] = flippedBack
		return l.table(path, visit)
	}
	for kv = it.Last(); kv != nil && string(kv.K.UserKey) > last; kv = it.Prev() {
		if err := visitIt(); err != nil {
			return nil, err
		}
	}
	return stopped, nil
}

// log reads a log up to its end or damage.
func (l *loose) log(log wal.LogicalLog, visit visitor) error {
	r := log.OpenForRead()
	defer r.Close()
	for {
		record, at, err := r.NextRecord()
		var b []byte
		if err == nil {
			b, err = io.ReadAll(record)
		}
		if err != nil {
			if pebble.IsCorruptionError(err) {
				l.unread[at.PhysicalFile] = err.Error()
			}
			return nil
		}
		h, ok := batchrepr.ReadHeader(b)
		if !ok {
			continue
		}
		writes := batchrepr.Read(b)
		for seq := uint64(h.SeqNum); ; seq++ {
			kind, key, value, ok, err := writes.Next()
			if err != nil || !ok {
				break
			}
			if err := visit(kind, key, seq, value); err != nil {
				return err
			}
		}
	}
}

// derived are the prefixes of what is derived from records: counts, groups, and the indexes of
// ids and groups. They are rebuilt when the store is opened after a block was lost, as they may
// have been in it, and when commits are missing, whose tables may have been among others.
var derived = []byte{prefixCount, prefixGroupIndex, prefixID, prefixTally, prefixGroupInfo}

// atOpening are the prefixes that opening reads, except records.
var atOpening = [][]byte{{prefixCount}, keyFormat, {prefixTally}, {prefixLedger}, {prefixGroupInfo}, keyCommits,
	keyOpened, keySeq}

// rebuildStep is how many bytes of writes a rebuild gathers in memory.
const rebuildStep = 1 << 20

func (s *Store) probe() error {
	for _, prefix := range atOpening {
		it, err := walkAll(s.db, prefix)
		if err != nil {
			return err
		}
		for it.First(); it.Valid(); it.Next() {
		}
		if err := it.Close(); err != nil && !isDamage(err) {
			return err
		}
	}
	if s.damage.lost == nil && len(s.damage.files.bad.unrepaired()) > 0 {
		return fmt.Errorf("%w: of what leads to the records", pebble.ErrCorruption) // salvage does not rebuild
	}
	return nil
}

// rebuild rebuilds what is derived from records after blocks were lost. When it is cut short it
// starts again at the next Open.
func (s *Store) rebuild() error {
	lost := s.damage.lost.pending()
	if len(lost) == 0 {
		return nil
	}
	s.log.Warn("store: unreadable blocks were left out; counts, groups and indexes are made again from the records",
		"folder", s.path, "blocks", len(lost))
	if err := s.deriveAgain(); err != nil {
		return err
	}
	for i := range lost {
		if hit := lost[i].entries(); hit != "" {
			s.log.Warn("store: a lost block may have had "+hit+": check them", "folder", s.path, "block",
				lost[i].place())
		}
	}
	return s.damage.lost.rebuilt()
}

func (s *Store) deriveAgain() error {
	c := s.newWriteBatch(0)
	defer c.close()
	c.fails = true
	for _, prefix := range derived {
		if err := c.batch.DeleteRange([]byte{prefix}, []byte{prefix + 1}, nil); err != nil {
			return err
		}
	}
	if err := c.flush(); err != nil {
		return err
	}
	newest := uint64(0)
	// Waiting records last: when the deletion of a moved record was lost, it exists twice, and the parked or discarded
	// one counts.
	for _, prefix := range []byte{prefixParked, prefixDiscarded, prefixForward, prefixWaiting} {
		n, err := c.rebuildAll(prefix)
		if err != nil {
			return err
		}
		newest = max(newest, n)
	}
	for queue, sums := range c.counts {
		if err := addSums(c.batch, queue, sums); err != nil {
			return err
		}
	}
	if err := c.writeGroups(); err != nil {
		return err
	}
	seq, err := s.number(keySeq)
	if err != nil {
		return err
	}
	if more := int64(newest) - seq; more > 0 {
		if err := addTo(c.batch, keySeq, more); err != nil {
			return err
		}
	}
	return c.batch.Commit(pebble.Sync)
}

func (l *lostBlock) entries() string {
	if l.Low == nil || string(l.Low) < string(prefixEntry+1) && string(l.High) >= string(prefixEntry) {
		return "pauses, notes, tokens or operations"
	}
	return ""
}

// rebuildAll counts and indexes the readable records under a prefix, and writes that in
// steps. newest is the largest of their numbers.
func (c *writeBatch) rebuildAll(prefix byte) (newest uint64, err error) {
	it, err := c.s.walk(c.s.db, []byte{prefix}, []byte{prefix + 1})
	if err != nil {
		return 0, err
	}
	defer it.Close()
	for it.First(); it.Valid(); it.Next() {
		r, err := c.s.recordAt(it, false)
		if err == nil && r != nil {
			newest = max(newest, seqOf(it.Key()))
			err = c.rebuildOne(it.Key(), r)
		}
		if err == nil && c.batch.Len() >= rebuildStep {
			err = c.flush()
		}
		if err != nil {
			return 0, err
		}
	}
	if err := it.Error(); err != nil {
		return 0, err
	}
	return newest, c.flush()
}

// rebuildOne counts and indexes a record, or deletes it when it was found under another key
// before.
func (c *writeBatch) rebuildOne(key []byte, r *store.Record) error {
	there, err := c.s.get(idKey(r.ID, seqOf(key)))
	if err != nil {
		return err
	}
	if there != nil {
		return c.batch.Delete(key, nil)
	}
	return c.enter(key, r)
}

func (c *writeBatch) flush() error {
	if err := c.batch.Commit(pebble.NoSync); err != nil {
		return err
	}
	c.batch.Reset()
	return nil
}

// A table refers to a large record by its place in a blob file. Only the MANIFEST says which
// blob file, so without it all are tried: the right one has there a record of that size which
// belongs under the key.

// blobPlace is the place of a large record in an unknown blob file.
type blobPlace struct {
	block blob.BlockID
	value blob.BlockValueID
	size  int
}

// blobPlaceOf parses what sstable.DebugHandlesBlobContext makes of a reference. No record begins like this: its first
// byte is its version.
func blobPlaceOf(value []byte) (p blobPlace, ok bool) {
	if !bytes.HasPrefix(value, []byte("blob-value:")) {
		return p, false
	}
	var file int
	_, err := fmt.Sscanf(string(value), "blob-value:(f%d,blk%d,id%d,len%d)", &file, &p.block, &p.value, &p.size)
	return p, err == nil
}

// largeRecord finds the record of a key in the blob files; a zero id is unknown. Without an
// id, two records of the same Due and size look alike.
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
			return nil, errors.New("more than one of the .blob files may have it, and the index of its id " +
				"cannot be read")
		default:
			found = value
		}
	}
	if found != nil {
		return found, nil
	}
	return nil, err
}

// blobValue returns what a blob file has at a place; nil when it has no such place.
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

// recovered turns a panic into an error: Pebble's readers trust that a file is whole.
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

// blobReader checks that Pebble does not read beyond a block.
type blobReader struct {
	*blob.FileReader
	at blobPlace
}

// The offsets of the number of rows in a block, after a byte and two; and in an index after
// the number of blocks that the file had before it was rewritten, or zero.
const (
	rowsAt      = 3
	indexRowsAt = 4 + rowsAt
	minBlock    = indexRowsAt + 4
)

func (b *blobReader) reaches() error {
	index, err := b.ReadIndexBlock(context.Background(), sstblock.NoReadEnv, nil)
	if err != nil {
		return err
	}
	defer index.Release()
	data := index.BlockData()
	if len(data) < minBlock {
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

func (b *blobReader) ReadValueBlock(
	ctx context.Context, env sstblock.ReadEnv, rh objstorage.ReadHandle, h sstblock.Handle,
) (sstblock.BufferHandle, error) {
	read, err := b.FileReader.ReadValueBlock(ctx, env, rh, h)
	if err != nil {
		return read, err
	}
	if data := read.BlockData(); len(data) < minBlock ||
		uint32(b.at.value) >= binary.LittleEndian.Uint32(data[rowsAt:]) {
		read.Release()
		return sstblock.BufferHandle{}, errBeyond
	}
	return read, nil
}

// oneBlob stands for a database's blob files with one file. ID and Num are types of Pebble that
// have no public name.
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

// blobFile finds damaged blocks before Pebble does, which would try each bit: that takes hours for a large body.
type blobFile struct{ vfs.File }

// checkedFrom is the size from which on a read is a block with its trailer, and has too many
// bits to try.
const checkedFrom = 4 << 10

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
