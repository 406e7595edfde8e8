// Package diskstore keeps messages in a folder, in an embedded Pebble database.
// One process owns a folder. Read it in this order:
//
//	keys.go         every key, and what is stored under it
//	diskstore.go    Options, Open, Close; the options of Pebble; the reserve of the disk
//	writebatch.go   the writes of one synced commit, with their counters; receipts
//	claim.go        the state and counts of each queue in memory; claiming and finishing
//	change.go       people's actions, and the side table in the same commit; forgetting
//	iterate.go      searches, over many ranges of keys in one order
//	ledger.go       the account of every message; error groups
//	history.go      past failures, in files beside the database
//	pebblefs.go     the files that Pebble writes, reads and removes, with their permissions
//	snapshot.go     copies of the store at one moment
//
// When the disk fails: witness.go knows how many commits were synced, so that Open refuses a store
// that lacks some; damage.go reads past damaged blocks, reports and remembers them; salvage.go
// saves what can be read to a new store, and recounts.
package diskstore

import (
	"cmp"
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

// Options are the options of a store; the zero value is ready for use.
type Options struct {
	// FS is the file system; nil is the machine's.
	FS vfs.FS
	// Log receives what needs a person; nil is slog.Default.
	Log *slog.Logger
	// Reserve is how many bytes of the disk are left free: Add returns
	// store.ErrFull rather than use them, so that finishing (which needs room
	// before it frees some) and Pebble's compactions never meet a full disk.
	// 0 is 256 MiB, and the minimum is 32 MiB.
	Reserve uint64
	// OnSync receives how long each commit took, including the sync.
	OnSync func(time.Duration)
	// OnFull, when not nil, makes the store wait when the disk is full in spite of Reserve, instead of
	// ending the process. It is called with the error when writes begin to wait, and with nil when
	// none waits any more.
	OnFull func(error)
	// Memory is shared with other stores of this process; nil: its own.
	Memory *Memory
	// Existing makes Open return ErrNone rather than make a store.
	Existing bool
	// AcceptLoss opens a store that lacks synced commits: see ErrLost.
	AcceptLoss bool
	// restrict takes other users' rights to the folder away: see isStoreFolder.
	restrict bool
	// salvage opens a damaged store to read it: it removes no file, and leaves the witness
	// as it is.
	salvage bool
}

var ErrNone = errors.New("it holds no store")

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
	// intoHistory is read-locked from the commit in which messages end until the history has them: in between they
	// would be found nowhere.
	intoHistory sync.RWMutex
	closeLock   func() error
	waitNoMore  func()

	// committing is read-locked by each commit until the witness and the history have its part. A snapshot locks it.
	committing sync.RWMutex
	snapshots  sync.Mutex // one at a time

	// changing serialises changes of kept records, so that none is moved twice.
	changing sync.Mutex
	// adding is read-locked from when new records get their numbers until they are committed: see NewestNumber.
	adding sync.RWMutex

	// large is held while a large body is added.
	large sync.Mutex

	mu     sync.Mutex
	queues map[string]*queue
	// targetsAgain is when to look again for forward targets that could not be read when
	// the store was opened; zero: all could.
	targetsAgain time.Time
	unstored     store.SumsBy // counts of messages that were never stored, for the next commit
	calls        store.OpenCalls
}

// Open opens the store in folder path, or makes it. It returns store.ErrLocked when
// another process has it open, and store.ErrFormat when it has the format of another
// version.
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
		defer o.Memory.Close() // the database has its own reference
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
	o.Log = cmp.Or(o.Log, slog.Default())
	o.Reserve = max(cmp.Or(o.Reserve, 256<<20), minReserve)
	if o.OnSync == nil {
		o.OnSync = func(time.Duration) {}
	}
}

func lockFolder(path string, o Options) (*pebble.Lock, error) {
	if info, err := o.FS.Stat(path); o.Existing && (err != nil || !info.IsDir()) {
		return nil, errors.Join(fmt.Errorf("data folder %s: %w", path, ErrNone), err)
	}
	if err := makeFolder(o.FS, path); err != nil {
		return nil, fmt.Errorf("making the data folder %s: %w: %s", path, err, folderHint)
	}
	// Pebble does not wait for the lock, but its error does not say what to do.
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

// makeFolder makes the folder and its missing parents, and syncs their entries: Pebble
// would sync only the lowest, and a power cut would remove all of them.
func makeFolder(disk vfs.FS, path string) error {
	var above []string // folders with new entries
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
		changed: make(chan struct{}, 1), queues: map[string]*queue{}, unstored: store.SumsBy{},
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
			o.Log.Warn("store: the remains of an interrupted snapshot cannot be removed, and take room",
				"folder", o.FS.PathJoin(path, stagingName), "error", err)
		}
	}
	s.deleted.bytes.Store(unknown)
	return s, nil
}

const folderHint = "store.disk must be a folder on a local disk that this user may write"

// isHeld reports whether somebody holds the lock: fcntl then returns EAGAIN or EACCES without a path, whereas an EACCES
// with a path is about the file's rights. Pebble has no sentinel for a lock of this process.
func isHeld(err error) bool {
	var file *fs.PathError
	if errors.As(err, &file) {
		return false
	}
	return errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EACCES) ||
		strings.Contains(err.Error(), "lock held by current process")
}

// load reads what the store needs in memory: format, next number, counts and receipts.
// Of the records it reads only the first of each lane.
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
		if err := s.db.Set(keyFormat, []byte{formatVersion}, pebble.Sync); err != nil {
			return err
		}
	}
	if !o.salvage {
		if err := s.rebuild(); err != nil {
			return err
		}
	}
	for _, load := range []func() error{s.loadQueues, s.loadLedger, s.loadGroups, s.history.load} {
		if err := load(); err != nil {
			return err
		}
	}
	// Without a receipt a duplicate gets another id: no reason to stop.
	return s.damage.unreadable([]byte{prefixReceipt}, s.receipts.load(s.db))
}

// get returns a copy of a value; nil when there is none.
func (s *Store) get(key []byte) (value []byte, err error) {
	err = withValue(s.db, key, func(v []byte) error {
		value = append([]byte{}, v...)
		return nil
	})
	return value, err
}

func withValue(db pebble.Reader, key []byte, use func(value []byte) error) error {
	value, closer, err := db.Get(key)
	if err != nil && isDamage(err) { // the second read corrects a flipped bit
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

func (s *Store) Close() error {
	if !s.calls.Close() {
		return nil
	}
	var err error
	if len(s.unstored) > 0 {
		err = s.flushUnstored()
	}
	return errors.Join(err, s.history.close(), s.db.Close(), s.witness.close(), s.closeLock())
}

func (s *Store) signal() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

func (s *Store) Changed() <-chan struct{} { return s.changed }

// formatVersion is the format that is written, and the only one that is read. A change that
// earlier versions would read wrongly, or leave out, needs a new number. Formats 1 to 3 are
// of builds before the first release.
const formatVersion = 4

// checkFormat refuses a folder of another format before anything is written. numbered is
// false when the folder has no format number: it is new, or the number was in a damaged
// block.
func (s *Store) checkFormat() (numbered bool, err error) {
	f, err := s.get(keyFormat)
	switch {
	case err != nil:
		return false, err
	case f == nil && s.damage.lostKey(keyFormat):
		// Earlier formats had no witness (except the last builds of format 3).
		was, _, err := s.witness.read()
		if err == nil && was == nil {
			err = fmt.Errorf("%w: the number of its format cannot be read, and its witness is gone",
				pebble.ErrCorruption)
		}
		return false, err
	case f != nil && string(f) != string([]byte{formatVersion}):
		return false, fmt.Errorf("%w: it is format %s, and this version of Redrive reads format %d. Nothing was "+
			"changed. Run the version that wrote it: its `redrive export`, and `redrive import` of this version, "+
			"take the messages to a new folder. Or put a snapshot from before its upgrade in the place of the folder",
			store.ErrFormat, strings.Trim(fmt.Sprint(f), "[]"), formatVersion)
	}
	return f != nil, nil
}

// Memory is the cache and memtables that the stores of one process share: in all as much as one store alone would have.
// Close it after them.
type Memory struct {
	cache *pebble.Cache
	table uint64
}

// Memory of one store: some 64 MiB in all. Pebble takes the tables' memory out of the cache: with
// 16 MiB for both each read misses while something is written, and operations take four times as long.
const (
	cacheSize = 64 << 20
	tableSize = 24 << 20
	minTable  = 4 << 20
)

// minReserve has room for a memtable, and for a compaction while its input and output are
// both on the disk.
const minReserve = 32 << 20

func NewMemory(stores int) *Memory {
	return &Memory{pebble.NewCache(cacheSize), max(tableSize/uint64(stores), minTable)}
}

func (m *Memory) Close() { m.cache.Unref() }

// pebbleOptions bound memory (cache and memtables) and keep the number of files small.
func pebbleOptions(o Options, files *pebbleFS, damaged *damage, lock *pebble.Lock) *pebble.Options {
	p := &pebble.Options{
		FS: files, Lock: lock, Merger: adder,
		FormatMajorVersion: pebble.FormatNewest,
		Cache:              o.Memory.cache,
		// What a flush or compaction writes has to fit into the reserve.
		MemTableSize:                min(o.Memory.table, o.Reserve/8),
		LBaseMaxBytes:               int64(min(o.Reserve/4, 64<<20)),
		ErrorIfNotExists:            o.Existing,
		MemTableStopWritesThreshold: 4,
		L0CompactionThreshold:       4,
		L0StopWritesThreshold:       64,
		MaxOpenFiles:                500,
		Logger:                      logger{o.Log, new(sync.Map)},
		// Without a listener, Pebble calls Fatalf for each damaged block that it reads.
		EventListener: &pebble.EventListener{DataCorruption: damaged.found},
	}
	// Large bodies go to blob files, which compactions leave alone: otherwise each compaction
	// would have the bodies of all its tables in memory at once.
	p.Experimental.ValueSeparationPolicy = func() pebble.ValueSeparationPolicy {
		return pebble.ValueSeparationPolicy{Enabled: true, MinimumSize: largeValue, MaxBlobReferenceDepth: 16,
			RewriteMinimumAge: time.Minute, TargetGarbageRatio: 0.3}
	}
	for i := range p.Levels {
		// Claims read sequentially: large blocks mean fewer reads.
		p.Levels[i].BlockSize = 32 << 10
	}
	return p
}

// logger logs what a person should know. Pebble calls Fatalf when it cannot write its log: memory and disk may then
// differ, so the process must end and start again from the disk. Nothing that was acknowledged is lost.
type logger struct {
	log  *slog.Logger
	said *sync.Map // text to time: Pebble retries at once, for as long as it fails
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

func (s *Store) Free() (free, reserve uint64, err error) {
	u, err := s.fs.GetDiskUsage(s.path)
	return u.AvailBytes, s.reserve, err
}

// checkSpace returns store.ErrFull when there is no room for n more bytes besides reserve. They are
// written twice, to the log and to a table, before the log is cut. While more than the
// reserve is free, one batch may use up to half of it: a batch that never fits would be
// retried for ever.
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
		return fmt.Errorf("reading the free room of %s: %w", s.path, err)
	}
	if free >= need {
		return nil
	}
	return fmt.Errorf("%w: %s has %d MiB free, and %d MiB are kept in reserve: %d MiB more are needed on the disk",
		store.ErrFull, s.path, free>>20, reserve>>20, (need-free)>>20+1)
}

func (s *Store) emptyLogs(uint64) {
	s.files.emptyLogs(s.path, func() int { return int(s.db.Metrics().WAL.Files) })
}

// deleted is about how much of the disk deleted records still take. Pebble frees it when it compacts, which may be
// after 100 MiB or more: near the reserve, an empty store could refuse messages for ever.
type deleted struct {
	bytes atomic.Uint64 // since the last compaction by compactDeleted
	mu    sync.Mutex    // one compaction at a time
}

// unknown stands for what an earlier process deleted.
const unknown = math.MaxUint64 / 2

// compactDeleted frees the room of deleted records, unless less than missing was deleted
// since the last time: it would rewrite kept records and gain too little. Pebble logs what
// fails here, and fails again at the next commit.
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

// retried returns, for each lane, the range of keys in which nothing waits any more.
func (s *Store) retried() map[string][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	ranges := map[string][]byte{}
	for name, q := range s.queues {
		q.lanes(name, func(l store.Lane, state *lane) { ranges[string(lanePrefix(l))] = state.low })
	}
	return ranges
}

// compact rewrites a range of keys without deleted records, unless it is larger than the free
// room: until it is done, both are on the disk.
func (s *Store) compact(low, end []byte) (done bool) {
	used, err := s.db.EstimateDiskUsage(low, end)
	free, _, failed := s.Free()
	if err != nil || failed != nil || used > free {
		return false
	}
	return used == 0 || string(low) >= string(end) || s.db.Compact(context.Background(), low, end, false) == nil
}

// room makes writes wait while the disk is full, where Pebble would end the process: it treats a failed write of its
// log or MANIFEST as fatal. What waits is not acknowledged, and reads continue. Only a write that found no room can be
// retried; after a failed sync no one knows what is on the disk.
type room struct {
	folder string
	said   func(full error)
	opened atomic.Bool   // before, a failed write makes Open fail
	ended  chan struct{} // closed: nothing waits any more

	mu      sync.Mutex
	waiting int
}

const retryRoom = 200 * time.Millisecond

// untilRoom repeats a write to the file name while the disk is full; but not to tables, which Pebble
// makes again itself, nor to a snapshot, which takes room.
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

func (r *room) count(n int, full error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiting += n; r.waiting == 0 || r.waiting == 1 && full != nil {
		r.said(full)
	}
}

type vitalFile struct {
	vfs.File
	name string
	fs   *pebbleFS
}

func (f vitalFile) Write(p []byte) (written int, err error) {
	err = f.fs.untilRoom(f.name, func() error {
		n, err := f.File.Write(p[written:])
		written += n
		return err
	})
	return written, err
}

// WaitNoMore makes writes that wait for room fail, which ends the process.
func (s *Store) WaitNoMore() { s.waitNoMore() }
