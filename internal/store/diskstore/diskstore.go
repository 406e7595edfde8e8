// Package diskstore keeps messages in a folder, in an embedded Pebble database.
// One process owns a folder. Read it in this order:
//
//	keys.go         every key, and what is stored under it
//	diskstore.go    Options, Open, Close; how Pebble is set up, and a reserve of the disk kept free
//	writebatch.go   the writes of one synced commit; counters are added in the same commit; ids of the
//	                newest batches, by which redelivered messages are recognized
//	claim.go        what is in memory of each queue, and was counted; due records, claimed and finished
//	change.go       people's actions, and the side table in the same commit; queues and discarded messages
//	                whose time is over
//	iterate.go      searches, over many stretches of keys in one order
//	ledger.go       the account of every message; error groups
//	history.go      what ended, in files beside the database
//	pebblefs.go     the files that Pebble writes, reads and removes, with their permissions
//	snapshot.go     a copy of the store, as it is at one moment
//
// When the disk fails: witness.go knows how many commits were synced, so that a store which lacks
// some is refused; damage.go reads past damaged blocks, reports and remembers them; salvage.go
// saves what can be read to a new store (large records too), and counts again.
package diskstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/redrive-mq/redrive/internal/errorgroup"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/store"
)

// Options of a store; the zero value is ready for use.
type Options struct {
	// FS is where it writes; nil is the machine's own file system.
	FS vfs.FS
	// Log receives what needs a person; nil is slog.Default.
	Log *slog.Logger
	// Reserve is the room, in bytes, that is left free on the disk: Add fails
	// with store.ErrFull rather than use it, so that finishing (which frees room,
	// but needs some first) and the database's own upkeep never meet a full
	// disk. 0 is 256 MiB, and 32 MiB is the least that upkeep can do with.
	Reserve uint64
	// OnSync receives how long each commit took, the sync included.
	OnSync func(time.Duration)
	// OnFull, when not nil, has the store wait when the disk is full in spite of Reserve, instead of
	// ending the process. It receives the error when writes begin to wait, and nil when none does
	// any more.
	OnFull func(error)
	// Memory is shared with other stores of this process; nil: it has its own.
	Memory *Memory
	// Existing refuses, with ErrNone, to make a store where there is none.
	Existing bool
	// AcceptLoss opens a store that lacks what was synced: see ErrLost.
	AcceptLoss bool
	// restrict gives the folder to this user alone, as it is this program's: see isStoreFolder.
	restrict bool
	// salvage opens what is left of a store to read it: it removes no file, and leaves the
	// witness as it is.
	salvage bool
}

// ErrNone: there is no store in the folder.
var ErrNone = errors.New("it holds no store")

// Store implements store.Store.
type Store struct {
	path     string
	db       *pebble.DB
	fs       vfs.FS
	files    *pebbleFS
	log      *slog.Logger
	reserve  uint64
	onSync   func(time.Duration)
	seq      atomic.Uint64
	changed  chan struct{}
	receipts receiptLog
	groups   groups
	history  history
	witness  witness
	damage   *damage
	deleted  deleted
	// intoHistory is held, for reading, from the commit in which messages end until they are in
	// the history: in between they would be found nowhere.
	intoHistory sync.RWMutex
	closeLock   func() error
	waitNoMore  func() // closes room.ended

	// committing is held, for reading, by each commit until the witness and the history have
	// what belongs to it. A snapshot holds it alone.
	committing sync.RWMutex
	snapshots  sync.Mutex // one at a time

	// changing lets one goroutine at a time change what is kept, so that nothing is
	// moved twice.
	changing sync.Mutex
	// adding is held, for reading, from when new records get their numbers until
	// they are committed: see NewestNumber.
	adding sync.RWMutex

	// large is held while a large body is added.
	large sync.Mutex

	mu     sync.Mutex
	queues map[string]*queue
	// targetsAgain is when forward targets are looked for again that could not be read when
	// the store was opened; zero: all were.
	targetsAgain time.Time
	unstored     unstored
	calls        store.OpenCalls
}

// Open opens the store in folder path and makes it when there is none. It fails
// with store.ErrLocked when another process has it open, and store.ErrFormat
// when it has the format of another version.
func Open(path string, o Options) (*Store, error) {
	if o.FS == nil {
		o.FS = private{vfs.Default}
		var err error
		if o.restrict, err = isStoreFolder(path); err != nil {
			return nil, fmt.Errorf("looking into the data folder %s: %w: %s", path, err, folderHint)
		}
	}
	o.setDefaults()
	if o.Memory == nil {
		o.Memory = NewMemory(1)
		defer o.Memory.Close() // the database has its own hold on it
	}
	lock, err := lockFolder(path, o)
	if err != nil {
		return nil, err
	}
	s, err := openLocked(path, o, lock)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return s, nil
}

func (o *Options) setDefaults() {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Reserve == 0 {
		o.Reserve = 256 << 20
	}
	o.Reserve = max(o.Reserve, leastReserve)
	if o.OnSync == nil {
		o.OnSync = func(time.Duration) {}
	}
}

// lockFolder makes the folder, unless it must exist, and locks it.
func lockFolder(path string, o Options) (*pebble.Lock, error) {
	if info, err := o.FS.Stat(path); o.Existing && (err != nil || !info.IsDir()) {
		return nil, errors.Join(fmt.Errorf("data folder %s: %w", path, ErrNone), err)
	}
	if err := makeFolder(o.FS, path); err != nil {
		return nil, fmt.Errorf("making the data folder %s: %w: %s", path, err, folderHint)
	}
	// Pebble waits for nothing here, but its error does not say what to do.
	lock, err := pebble.LockDirectory(path, o.FS)
	if err != nil && isHeld(err) {
		return nil, hint.Errorf("stop the other one, or set store.disk to another folder", "data folder %s: %w (%v)",
			path, store.ErrLocked, err)
	}
	if err != nil {
		return nil, fmt.Errorf("locking the data folder %s: %w: %s", path, err, folderHint)
	}
	return lock, nil
}

// makeFolder makes the folder and what is missing above it, and syncs their entries:
// Pebble would sync only that of the lowest, and a power cut would take all of them.
func makeFolder(disk vfs.FS, path string) error {
	var above []string // whose entries are new
	for at := path; ; at = disk.PathDir(at) {
		if _, err := disk.Stat(at); err == nil || at == disk.PathDir(at) {
			break
		}
		above = append(above, disk.PathDir(at))
	}
	if err := disk.MkdirAll(path, 0o700); err != nil {
		return err
	}
	for _, folder := range above {
		d, err := disk.OpenDir(folder)
		if err != nil {
			return err
		}
		if err := errors.Join(d.Sync(), d.Close()); err != nil {
			return err
		}
	}
	return nil
}

func openLocked(path string, o Options, lock *pebble.Lock) (*Store, error) {
	files := newPebbleFS(o.FS)
	files.room = room{folder: path, said: o.OnFull, ended: make(chan struct{})}
	damaged, err := newDamage(o.Log, files, path, o.salvage)
	if err != nil {
		return nil, fmt.Errorf("opening the data folder %s: %w", path, err)
	}
	db, err := pebble.Open(path, pebbleOptions(o, files, damaged, lock))
	if o.Existing && errors.Is(err, pebble.ErrDBDoesNotExist) {
		return nil, fmt.Errorf("data folder %s: %w", path, ErrNone)
	}
	if err != nil {
		return nil, fmt.Errorf("opening the data folder %s: %w", path, openError(path, err))
	}
	if o.restrict { // only now: a wrong path must not change what is there
		if err := restrict(path, o.Log); err != nil {
			return nil, errors.Join(err, db.Close())
		}
	}
	s := &Store{path: path, db: db, damage: damaged, fs: o.FS, files: files, log: o.Log, reserve: o.Reserve,
		onSync:  o.OnSync,
		changed: make(chan struct{}, 1), queues: map[string]*queue{}, unstored: unstored{},
		groups:    groups{known: map[errorgroup.ID]*groupState{}},
		history:   history{fs: o.FS, folder: o.FS.PathJoin(path, historyName), log: o.Log},
		witness:   witness{fs: o.FS, path: o.FS.PathJoin(path, witnessName), log: o.Log},
		closeLock: lock.Close, waitNoMore: sync.OnceFunc(func() { close(files.room.ended) })}
	if err := s.load(o); err != nil {
		return nil, errors.Join(fmt.Errorf("data folder %s: %w", path, openError(path, err)), db.Close(),
			s.witness.close())
	}
	if !o.salvage {
		files.keepNoMore()
		files.room.opened.Store(o.OnFull != nil)
		if err := o.FS.RemoveAll(o.FS.PathJoin(path, stagingName)); err != nil {
			o.Log.Warn("store: what is left of a snapshot that was cut short cannot be removed, and takes room",
				"folder", o.FS.PathJoin(path, stagingName), "error", err)
		}
	}
	s.deleted.bytes.Store(unknown)
	return s, nil
}

const folderHint = "store.disk must be a folder on a local disk that this user may write"

// isHeld tells a lock that somebody holds from one that cannot be had at all:
// fcntl gives EAGAIN or EACCES without a path for the first, whereas EACCES with
// a path is the file's. Pebble has no error of its own for this process.
func isHeld(err error) bool {
	var file *fs.PathError
	if errors.As(err, &file) {
		return false
	}
	return errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EACCES) ||
		strings.Contains(err.Error(), "lock held by current process")
}

// load reads what is needed to begin: the format, the next number, the counts
// and receipts. It reads no record but the first of each queue.
func (s *Store) load(o Options) error {
	if err := s.probe(); err != nil {
		return err
	}
	numbered, err := s.checkFormat()
	if err != nil {
		return err
	}
	if !o.salvage {
		if err := s.checkWitness(o.AcceptLoss); err != nil {
			return err
		}
	}
	if !numbered {
		if err := s.writeFormat(); err != nil {
			return err
		}
	}
	if !o.salvage {
		if err := s.rebuild(); err != nil {
			return err
		}
	}
	if err := s.loadQueues(); err != nil {
		return err
	}
	if err := s.loadLedger(); err != nil {
		return err
	}
	if err := s.groups.load(s.db); err != nil {
		return err
	}
	if err := s.history.load(); err != nil {
		return err
	}
	// Without some receipts a duplicate may have another id: no reason to stop.
	return s.damage.unreadable([]byte{prefixReceipt}, s.receipts.load(s.db))
}

// get is nil for a key that is not there.
func (s *Store) get(key []byte) (value []byte, err error) {
	err = withValue(s.db, key, func(v []byte) error {
		value = append([]byte{}, v...)
		return nil
	})
	return value, err
}

// withValue gives a value to use, unless there is none.
func withValue(db pebble.Reader, key []byte, use func(value []byte) error) error {
	value, closer, err := db.Get(key)
	if err != nil && isDamage(err) { // a flipped bit is turned back when it is read again
		value, closer, err = db.Get(key)
	}
	if errors.Is(err, pebble.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	defer closer.Close()
	return use(value)
}

// Close waits for calls under way.
func (s *Store) Close() error {
	if !s.calls.Close() {
		return nil
	}
	return errors.Join(s.endLedger(), s.history.close(), s.db.Close(), s.witness.close(), s.closeLock())
}

// commit makes a batch durable, which changes the ledger by sums.
func (s *Store) commit(b *pebble.Batch, sums *store.Sums) error {
	if err := countCommit(b); err != nil {
		return err
	}
	began := time.Now()
	if err := b.Commit(pebble.Sync); err != nil {
		return fmt.Errorf("data folder %s: %w", s.path, err)
	}
	s.onSync(time.Since(began))
	s.witness.committed(sums)
	return nil
}

func (s *Store) signal() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// Changed implements store.Store.
func (s *Store) Changed() <-chan struct{} { return s.changed }

// formatVersion is the format that is written, and the only one that is read. Whatever an
// earlier version would read wrongly, or leave out, gets a new number. Formats 1 to 3 were
// those of builds before the first release.
const formatVersion = 4

// checkFormat refuses a folder of another format before anything is written. numbered is
// false where the folder has no number: it is new, or the number was lost with a damaged
// block.
func (s *Store) checkFormat() (numbered bool, err error) {
	f, err := s.get(keyFormat)
	switch {
	case err != nil:
		return false, err
	case f == nil && s.damage.lostKey(keyFormat):
		return false, s.checkFormatByWitness()
	case f != nil && string(f) != string([]byte{formatVersion}):
		return false, fmt.Errorf("%w: it is format %s, and this version of Redrive reads format %d. Nothing was "+
			"changed. Run the version that wrote it: its `redrive export`, and `redrive import` of this version, "+
			"take the messages to a new folder. Or put a snapshot from before its upgrade in the place of the folder",
			store.ErrFormat, strings.Trim(fmt.Sprint(f), "[]"), formatVersion)
	}
	return f != nil, nil
}

// checkFormatByWitness refuses a folder whose number is lost unless it has a witness, which
// earlier formats (but for the last builds of format 3) had not.
func (s *Store) checkFormatByWitness() error {
	was, _, err := s.witness.read()
	if err == nil && was == nil {
		err = fmt.Errorf("%w: the number of its format cannot be read, and its witness is gone", pebble.ErrCorruption)
	}
	return err
}

func (s *Store) writeFormat() error {
	return s.db.Set(keyFormat, []byte{formatVersion}, pebble.Sync)
}

// Memory is what the stores of one process read and write with, as much for all of them
// as one alone would have. Close it after them.
type Memory struct {
	cache *pebble.Cache
	table uint64
}

// Memory of one store: some 64 MiB in all. Pebble takes the tables' memory out of the cache: with
// 16 MiB for both each read misses while something is written, and operations take four times as long.
const (
	cacheSize  = 64 << 20
	tableSize  = 24 << 20
	leastTable = 4 << 20
)

// leastReserve has room for a table in memory, and for a compaction while both its input and
// its output are on the disk.
const leastReserve = 32 << 20

// NewMemory is for so many stores.
func NewMemory(stores int) *Memory {
	return &Memory{pebble.NewCache(cacheSize), max(tableSize/uint64(stores), leastTable)}
}

// Close frees it, once no store has it any more.
func (m *Memory) Close() { m.cache.Unref() }

// pebbleOptions bound memory (cache and memtables) and keep the number of files small.
func pebbleOptions(o Options, files *pebbleFS, damaged *damage, lock *pebble.Lock) *pebble.Options {
	p := &pebble.Options{
		FS: files, Lock: lock, Merger: adder,
		FormatMajorVersion: pebble.FormatNewest,
		Cache:              o.Memory.cache,
		// What upkeep writes at a time has to fit into the reserve.
		MemTableSize:                min(o.Memory.table, o.Reserve/8),
		LBaseMaxBytes:               int64(min(o.Reserve/4, 64<<20)),
		ErrorIfNotExists:            o.Existing,
		MemTableStopWritesThreshold: 4,
		L0CompactionThreshold:       4,
		L0StopWritesThreshold:       64,
		MaxOpenFiles:                500,
		Logger:                      logger{o.Log, new(sync.Map)},
		// Without one, Pebble calls Fatalf for each damaged block that is read.
		EventListener: &pebble.EventListener{DataCorruption: damaged.found},
	}
	// A large body has a file of its own: compactions leave it where it is, where each
	// would have those of all its tables in memory at once.
	p.Experimental.ValueSeparationPolicy = func() pebble.ValueSeparationPolicy {
		return pebble.ValueSeparationPolicy{Enabled: true, MinimumSize: largeValue, MaxBlobReferenceDepth: 16,
			RewriteMinimumAge: time.Minute, TargetGarbageRatio: 0.3}
	}
	for i := range p.Levels {
		// Claims read on from where they were: large blocks are fewer reads.
		p.Levels[i].BlockSize = 32 << 10
	}
	return p
}

// logger passes on what a person should know. Pebble calls Fatalf when its log
// cannot be written: what is in memory and what is on disk may then differ, and
// the only honest thing is to end and start again from the disk. Nothing that
// was acknowledged is lost by it.
type logger struct {
	log  *slog.Logger
	said *sync.Map // when what was: Pebble tries again at once, for as long as it fails
}

func (logger) Infof(string, ...any) {}

func (l logger) Errorf(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if last, _ := l.said.Load(text); last != nil && time.Since(last.(time.Time)) < time.Minute {
		return
	}
	l.said.Store(text, time.Now())
	l.log.Warn("store: " + text)
}

func (l logger) Fatalf(format string, args ...any) {
	l.log.Error("store: the disk failed; ending, nothing that was acknowledged is lost: " +
		fmt.Sprintf(format, args...))
	os.Exit(1)
}

// Free is the room left on the disk, and what is kept free of it, in bytes.
func (s *Store) Free() (free, reserve uint64, err error) {
	u, err := s.fs.GetDiskUsage(s.path)
	return u.AvailBytes, s.reserve, err
}

// checkSpace returns store.ErrFull when there is no room for n more bytes besides reserve. They are
// written twice, to the log and to a table, before the log is cut. While more than the
// reserve is free, one batch may use up to half of it: a batch that only fits an emptier
// disk would be offered for ever.
func (s *Store) checkSpace(n int, reserve uint64) error {
	need := max(reserve+1, reserve/2+2*uint64(n))
	free, _, err := s.Free()
	for _, reclaim := range [...]func(missing uint64){s.emptyLogs, s.compactDeleted} {
		if err == nil && free < need {
			reclaim(need - free)
			free, _, err = s.Free()
		}
	}
	if err != nil {
		return fmt.Errorf("asking for the free room of %s: %w", s.path, err)
	}
	if free >= need {
		return nil
	}
	return fmt.Errorf("%w: %s has %d MiB free, and %d MiB are kept in reserve: %d MiB more are needed on the disk",
		store.ErrFull, s.path, free>>20, reserve>>20, (need-free)>>20+1)
}

// emptyLogs frees the room of logs that are kept to be written again.
func (s *Store) emptyLogs(uint64) {
	s.files.emptyLogs(s.path, func() int { return int(s.db.Metrics().WAL.Files) })
}

// deleted is what records take on the disk that were deleted. Pebble removes it when it
// compacts, which it need not do for some 100 MiB: near the reserve, a store that is empty
// could refuse messages for ever.
type deleted struct {
	bytes atomic.Uint64 // about, since they were compacted
	mu    sync.Mutex    // one compaction at a time
}

// unknown is how much an earlier process may have deleted.
const unknown = math.MaxUint64 / 2

// compactDeleted frees the room of deleted records, unless less than missing was deleted
// since the last time: it would rewrite what is kept and gain nothing. What fails here is in
// Pebble's log, and fails again at the next commit.
func (s *Store) compactDeleted(missing uint64) {
	if !s.deleted.mu.TryLock() {
		return
	}
	defer s.deleted.mu.Unlock()
	if s.deleted.bytes.Load() < missing {
		return
	}
	s.deleted.bytes.Store(0)
	if s.db.Flush() != nil {
		return
	}
	for _, prefix := range recordPrefixes {
		if !s.compact([]byte{prefix}, []byte{prefix + 1}) && prefix == prefixWaiting {
			for low, end := range s.retried() {
				s.compact([]byte(low), end)
			}
		}
	}
	s.emptyLogs(missing)
}

// retried are the ranges of keys below which nothing waits in a lane any more.
func (s *Store) retried() map[string][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	ranges := map[string][]byte{}
	for name, q := range s.queues {
		q.lanes(name, func(l store.Lane, state *lane) { ranges[string(lanePrefix(l))] = state.low })
	}
	return ranges
}

// compact rewrites a range of keys without what was deleted, unless it is larger than what
// is free: until it is done both are on the disk.
func (s *Store) compact(low, end []byte) (done bool) {
	used, err := s.db.EstimateDiskUsage(low, end)
	free, _, failed := s.Free()
	if err != nil || failed != nil || used > free {
		return false
	}
	return used == 0 || string(low) >= string(end) || s.db.Compact(context.Background(), low, end, false) == nil
}

// room has writes wait while the disk is full, where Pebble would end the process: a failed write
// of its log or MANIFEST is a fatal error. What waits is not acknowledged, and reads go on. Only
// a write without room can be tried again; after a failed sync no one knows what is on the disk.
type room struct {
	folder string // of Pebble's own files
	said   func(full error)
	opened atomic.Bool   // before, a write that fails refuses the store
	ended  chan struct{} // nothing waits any more

	mu      sync.Mutex
	waiting int // writes
}

// retryRoom is how often a write is tried again.
const retryRoom = 200 * time.Millisecond

// untilRoom writes to the file name, again and again while the disk is full. Tables are not waited
// for: Pebble makes those again itself. Nor is what a snapshot writes, which takes room.
func (t *pebbleFS) untilRoom(name string, write func() error) error {
	err, r := write(), &t.room
	ext := filepath.Ext(name)
	if !vfs.IsNoSpaceError(err) || !r.opened.Load() || ext == ".sst" || ext == ".blob" || t.PathDir(name) != r.folder {
		return err
	}
	r.count(1, err)
	for vfs.IsNoSpaceError(err) {
		select {
		case <-r.ended:
			return err
		case <-time.After(retryRoom):
		}
		err = write()
	}
	r.count(-1, nil)
	return err
}

// count reports that the first write waits, and that none does any more.
func (r *room) count(n int, full error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiting += n; r.waiting == 0 || r.waiting == 1 && full != nil {
		r.said(full)
	}
}

// vital is a file whose writes wait for room.
func (t *pebbleFS) vital(name string, f vfs.File) vfs.File {
	return vitalFile{f, name, t}
}

type vitalFile struct {
	vfs.File
	name string
	fs   *pebbleFS
}

// Write implements vfs.File.
func (f vitalFile) Write(p []byte) (written int, err error) {
	err = f.fs.untilRoom(f.name, func() error {
		n, err := f.File.Write(p[written:])
		written += n
		return err
	})
	return written, err
}

// WaitNoMore has writes that wait for room fail, which ends the process.
func (s *Store) WaitNoMore() { s.waitNoMore() }
