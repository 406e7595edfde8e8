package diskstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
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
	// with store.ErrFull rather than use it, so that settling (which frees room,
	// but needs some first) and the database's own upkeep never meet a full
	// disk. 0 is 256 MiB, and 32 MiB is the least that upkeep can do with.
	Reserve uint64
	// OnSync receives how long each commit took, the sync included.
	OnSync func(time.Duration)
	// Memory is shared with other stores of this process; nil: it has its own.
	Memory *Memory
	// Existing refuses, with ErrNone, to make a store where there is none.
	Existing bool
	// AcceptLoss opens a store that lacks what was synced: see ErrLost.
	AcceptLoss bool
	// salvage opens what is left of a store to read it: it removes no file, and leaves the
	// witness as it is.
	salvage bool
}

// ErrNone: there is no store in the folder.
var ErrNone = errors.New("it holds no store")

// Memory is what the stores of one process read and write with, as much for all of them
// as one alone would have. Close it after them.
type Memory struct {
	cache *pebble.Cache
	table uint64
}

// Memory of one store: some 64 MiB in all.
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

// Store implements store.Store.
type Store struct {
	path      string
	db        *pebble.DB
	fs        vfs.FS
	tables    *tables
	log       *slog.Logger
	reserve   uint64
	onSync    func(time.Duration)
	seq       atomic.Uint64
	changed   chan struct{}
	receipts  receiptLog
	groups    groups
	history   history
	witness   witness
	damage    *damage
	deleted   deleted
	ending    sync.RWMutex // see commitWithPast
	closeLock func() error

	// committing is held, for reading, by each commit with what belongs to it outside of
	// the database.
	committing sync.RWMutex
	snapshots  sync.Mutex // one at a time

	// moving lets one goroutine at a time change what is kept, so that nothing is
	// moved twice.
	moving sync.Mutex
	// adding is held, for reading, from when new records get their numbers until
	// they are committed: see NewestKey.
	adding sync.RWMutex

	// large is held while a large body is added.
	large sync.Mutex

	mu     sync.Mutex
	queues map[string]*queue
	// targetsAgain is when forward targets are looked for again that could not be read when
	// the store was opened; zero: all were.
	targetsAgain time.Time
	passing      passing
	users        sync.WaitGroup // calls under way, for Close
	closed       bool
}

// Open opens the store in folder path and makes it when there is none. It fails
// with store.ErrLocked when another process has it open, and store.ErrFormat
// when a newer version wrote it.
func Open(path string, o Options) (*Store, error) {
	onDisk := o.FS == nil
	mine := false
	if onDisk {
		o.FS = private{vfs.Default}
		var err error
		if mine, err = ours(path); err != nil {
			return nil, fmt.Errorf("looking into the data folder %s: %w: %s", path, err, folderHint)
		}
	}
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
	if o.Memory == nil {
		o.Memory = NewMemory(1)
		defer o.Memory.Close() // the database has its own hold on it
	}
	if info, err := o.FS.Stat(path); o.Existing && (err != nil || !info.IsDir()) {
		return nil, errors.Join(fmt.Errorf("data folder %s: %w", path, ErrNone), err)
	}
	if err := o.FS.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("making the data folder %s: %w: %s", path, err, folderHint)
	}
	// Pebble waits for nothing here, but its error does not say what to do.
	lock, err := pebble.LockDirectory(path, o.FS)
	if err != nil && owned(err) {
		return nil, hint.Errorf("stop the other one, or set store.disk to another folder", "data folder %s: %w (%v)", path, store.ErrLocked, err)
	}
	if err != nil {
		return nil, fmt.Errorf("locking the data folder %s: %w: %s", path, err, folderHint)
	}
	files := newTables(o.FS)
	harm, err := newDamage(o.Log, files, path, o.salvage)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("opening the data folder %s: %w", path, err), lock.Close())
	}
	db, err := pebble.Open(path, pebbleOptions(o, files, harm, lock))
	if o.Existing && errors.Is(err, pebble.ErrDBDoesNotExist) {
		return nil, errors.Join(fmt.Errorf("data folder %s: %w", path, ErrNone), lock.Close())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("opening the data folder %s: %w", path, opening(path, err)), lock.Close())
	}
	if mine { // only now: a wrong path must not change what is there
		if err := restrict(path, o.Log); err != nil {
			return nil, errors.Join(err, db.Close(), lock.Close())
		}
	}
	s := &Store{path: path, db: db, damage: harm, fs: o.FS, tables: files, log: o.Log, reserve: o.Reserve, onSync: o.OnSync,
		changed: make(chan struct{}, 1), queues: map[string]*queue{}, passing: passing{},
		groups:  groups{known: map[errorgroup.ID]*groupState{}, others: map[string]*groupState{}},
		history: history{fs: o.FS, folder: o.FS.PathJoin(path, historyName), log: o.Log},
		witness: witness{fs: o.FS, path: o.FS.PathJoin(path, witnessName), log: o.Log}}
	if err := s.load(o); err != nil {
		return nil, errors.Join(fmt.Errorf("data folder %s: %w", path, opening(path, err)), db.Close(), s.witness.close(), lock.Close())
	}
	if !o.salvage {
		files.keepNoMore()
		if err := o.FS.RemoveAll(o.FS.PathJoin(path, stagingName)); err != nil {
			o.Log.Warn("store: what is left of a snapshot that was cut short cannot be removed, and takes room", "folder", o.FS.PathJoin(path, stagingName), "error", err)
		}
	}
	s.users.Add(1)
	s.closeLock = lock.Close
	s.deleted.bytes.Store(unknown)
	return s, nil
}

const folderHint = "store.disk must be a folder on a local disk that this user may write"

// owned tells a lock that somebody holds from one that cannot be had at all:
// fcntl gives EAGAIN or EACCES without a path for the first, whereas EACCES with
// a path is the file's. Pebble has no error of its own for this process.
func owned(err error) bool {
	var file *fs.PathError
	if errors.As(err, &file) {
		return false
	}
	return errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EACCES) || strings.Contains(err.Error(), "lock held by current process")
}

// pebbleOptions bound memory (cache and memtables) and keep the number of files small.
func pebbleOptions(o Options, files *tables, harm *damage, lock *pebble.Lock) *pebble.Options {
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
		EventListener: &pebble.EventListener{DataCorruption: harm.found},
	}
	// A large body has a file of its own: compactions leave it where it is, where each
	// would have those of all its tables in memory at once.
	p.Experimental.ValueSeparationPolicy = func() pebble.ValueSeparationPolicy {
		return pebble.ValueSeparationPolicy{Enabled: true, MinimumSize: largeValue, MaxBlobReferenceDepth: 16, RewriteMinimumAge: time.Minute, TargetGarbageRatio: 0.3}
	}
	for i := range p.Levels {
		// Claims read on from where they were: large blocks are fewer reads.
		p.Levels[i].BlockSize = 32 << 10
	}
	return p
}

// load reads what is needed to begin: the format, the next number, the counts
// and receipts. It reads no record but the first of each queue.
func (s *Store) load(o Options) error {
	if err := s.probe(); err != nil {
		return err
	}
	format, err := s.format()
	if err != nil {
		return err
	}
	if !o.salvage {
		if err := s.promised(o.AcceptLoss); err != nil {
			return err
		}
	}
	if err := s.upgrade(format); err != nil {
		return err
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
	err = with(s.db, key, func(v []byte) error {
		value = append([]byte{}, v...)
		return nil
	})
	return value, err
}

// with gives a value to use, unless there is none.
func with(db pebble.Reader, key []byte, use func(value []byte) error) error {
	value, closer, err := db.Get(key)
	if err != nil && harmful(err) { // a flipped bit is turned back when it is read again
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

// use keeps the database open during a call.
func (s *Store) use(ctx context.Context) (done func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, store.ErrClosed
	}
	s.users.Add(1)
	return s.users.Done, nil
}

// Close waits for calls under way.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.mu.Unlock()
	s.users.Done()
	s.users.Wait()
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
	l.log.Error("store: the disk failed; ending, nothing that was acknowledged is lost: " + fmt.Sprintf(format, args...))
	os.Exit(1)
}
