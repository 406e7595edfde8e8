package diskstore

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
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
		return nil, hint.Errorf("stop the other one, or set store.disk to another folder", "data folder %s: %w (%v)", path, store.ErrLocked, err)
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
	s := &Store{path: path, db: db, damage: damaged, fs: o.FS, files: files, log: o.Log, reserve: o.Reserve, onSync: o.OnSync,
		changed: make(chan struct{}, 1), queues: map[string]*queue{}, unstored: unstored{},
		groups:    groups{known: map[errorgroup.ID]*groupState{}},
		history:   history{fs: o.FS, folder: o.FS.PathJoin(path, historyName), log: o.Log},
		witness:   witness{fs: o.FS, path: o.FS.PathJoin(path, witnessName), log: o.Log},
		closeLock: lock.Close, waitNoMore: sync.OnceFunc(func() { close(files.room.ended) })}
	if err := s.load(o); err != nil {
		return nil, errors.Join(fmt.Errorf("data folder %s: %w", path, openError(path, err)), db.Close(), s.witness.close())
	}
	if !o.salvage {
		files.keepNoMore()
		files.room.opened.Store(o.OnFull != nil)
		if err := o.FS.RemoveAll(o.FS.PathJoin(path, stagingName)); err != nil {
			o.Log.Warn("store: what is left of a snapshot that was cut short cannot be removed, and takes room", "folder", o.FS.PathJoin(path, stagingName), "error", err)
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
	return errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EACCES) || strings.Contains(err.Error(), "lock held by current process")
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
