package diskstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"log/slog"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/redrive-mq/redrive/internal/store"
)

// witness records, in a file of its own, how many commits were synced. Pebble takes a
// damaged tail of its MANIFEST or of its newest log for a write that a crash cut short,
// and opens without the rest: one flipped bit would silently lose acknowledged messages.
// Each commit adds one to a counter in the database; a count below the witness's shows
// that synced commits are missing.
//
// After its own sync, a commit costs one unsynced write of some hundred bytes: so the
// witness never claims what a power cut may undo. It is synced within witnessLag. A killed
// process leaves it exact; after a power cut it may lack the last second, for which the
// log's own chunks tell how far it was synced.
type witness struct {
	fs   vfs.FS
	path string
	log  *slog.Logger

	mu       sync.Mutex
	out      vfs.File
	now      syncedCount
	slot     int64 // the next to write: the other stays whole meanwhile
	unsynced *time.Timer
	failing  bool
	syncing  sync.WaitGroup
}

type syncedCount struct {
	commits int64
	sums    store.Sums // over all queues
}

const (
	witnessName     = "witness"
	witnessLag      = time.Second
	witnessMagic    = "redrive1"
	witnessSlots    = 2
	slotSize        = 4096 // so that a flipped bit or a torn write damages only one slot
	syncedCountSize = len(witnessMagic) + 8 + 8*len(store.Sums{}) + crc32.Size
)

func (p *syncedCount) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(append(b, witnessMagic...), uint64(p.commits))
	for _, n := range p.sums {
		b = binary.BigEndian.AppendUint64(b, uint64(n))
	}
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, checksums))
}

func readSyncedCount(b []byte) *syncedCount {
	if len(b) < syncedCountSize || string(b[:len(witnessMagic)]) != witnessMagic {
		return nil
	}
	end := syncedCountSize - crc32.Size
	if crc32.Checksum(b[:end], checksums) != binary.BigEndian.Uint32(b[end:]) {
		return nil
	}
	p := &syncedCount{commits: int64(binary.BigEndian.Uint64(b[len(witnessMagic):]))}
	for i := range p.sums {
		p.sums[i] = int64(binary.BigEndian.Uint64(b[len(witnessMagic)+8+8*i:]))
	}
	return p
}

// read returns the newest count in the file; nil when there is none. damaged counts damaged
// slots.
func (w *witness) read() (newest *syncedCount, damaged int, err error) {
	f, err := w.fs.Open(w.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	b := make([]byte, syncedCountSize)
	for slot := range int64(witnessSlots) {
		if _, err := f.ReadAt(b, slot*slotSize); err != nil && !errors.Is(err, io.EOF) {
			return nil, 0, err
		}
		switch p := readSyncedCount(b); {
		case p == nil:
			damaged++
		case newest == nil || p.commits > newest.commits:
			newest = p
		}
		clear(b)
	}
	return newest, damaged, nil
}

func (w *witness) begin(now syncedCount) (err error) {
	if w.out, err = w.fs.OpenReadWrite(w.path, vfs.WriteCategoryUnspecified); err != nil {
		return err
	}
	w.now = now
	b := make([]byte, witnessSlots*slotSize)
	for slot := range witnessSlots {
		copy(b[slot*slotSize:], now.append(nil))
	}
	if _, err := w.out.WriteAt(b, 0); err != nil {
		return err
	}
	if err := w.out.Sync(); err != nil {
		return err
	}
	return syncFolder(w.fs, w.fs.PathDir(w.path))
}

// committed counts a synced commit. It returns no error: a witness that lags detects less, but
// claims nothing false.
func (w *witness) committed(sums *store.Sums) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now.commits++
	w.now.sums.Add(sums)
	_, err := w.out.WriteAt(w.now.append(make([]byte, 0, syncedCountSize)), w.slot*slotSize)
	w.slot = (w.slot + 1) % witnessSlots
	w.logTrouble(err)
	if w.unsynced == nil {
		w.syncing.Add(1)
		w.unsynced = time.AfterFunc(witnessLag, w.sync)
	}
}

// logTrouble logs once that the file cannot be written. The caller holds mu.
func (w *witness) logTrouble(err error) {
	if err != nil && !w.failing {
		w.log.Warn("store: the witness of what was synced cannot be written: damage to the newest data may go "+
			"unnoticed until it can", "file", w.path, "error", err)
	}
	w.failing = err != nil
}

func (w *witness) sync() {
	defer w.syncing.Done()
	w.mu.Lock()
	w.unsynced = nil
	w.mu.Unlock()
	if err := w.out.SyncData(); err != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.logTrouble(err)
	}
}

// close syncs and closes the file, after the last commit.
func (w *witness) close() error {
	if w.out == nil {
		return nil
	}
	w.mu.Lock()
	if w.unsynced != nil && w.unsynced.Stop() {
		w.syncing.Done()
	}
	w.mu.Unlock()
	w.syncing.Wait()
	return errors.Join(w.out.SyncData(), w.out.Close())
}

// checkWitness compares the database with its witness, and begins a new one. It returns ErrLost
// when synced commits are missing and accept is not set.
func (s *Store) checkWitness(accept bool) error {
	there, err := s.storedCount()
	if err != nil {
		return err
	}
	was, damaged, err := s.witness.read()
	if err != nil {
		return fmt.Errorf("reading %s: %w", s.witness.path, err)
	}
	if was != nil && there.commits < was.commits && s.damage.lostKey(keyCommits) {
		s.log.Warn("store: the count of commits is lost with a damaged block, so it is not known whether any are "+
			"missing", "folder", s.path)
		there.commits = was.commits
		if err := s.db.Set(keyCommits, binary.AppendVarint(nil, there.commits), pebble.Sync); err != nil {
			return err
		}
	}
	switch {
	case was == nil && there.commits > 0:
		s.log.Warn("store: the witness is missing or damaged, so it is not known whether synced commits are missing; "+
			"a new one begins", "file", s.witness.path)
	case was == nil: // new, or of a version without one
	case there.commits < was.commits && !accept:
		return &LostError{Folder: s.path, Commits: was.commits - there.commits, Promised: was.sums, There: there.sums}
	case there.commits < was.commits:
		s.log.Error("store: continuing without synced commits, since their loss was accepted", "folder",
			s.path, "commits", was.commits-there.commits)
		// Before the witness agrees: otherwise an Open that is cut short would never derive.
		if err := s.deriveAgain(); err != nil {
			return err
		}
		if there, err = s.storedCount(); err != nil {
			return err
		}
	case damaged > 0:
		s.log.Warn("store: one half of the witness is damaged; the other half shows that no commit is missing", "file",
			s.witness.path)
	}
	return s.witness.begin(there)
}

func (s *Store) storedCount() (p syncedCount, err error) {
	if p.commits, err = s.number(keyCommits); err != nil {
		return p, err
	}
	return p, eachSum(s.db, func(as store.Column, _ string, n int64) { p.sums[as] += n })
}
