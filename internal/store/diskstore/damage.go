package diskstore

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2"

	"github.com/redrive-mq/redrive/internal/store"
)

var (
	// ErrLost: writes that were synced are not there any more. See LostError.
	ErrLost = errors.New("writes that were synced are missing")
	// ErrDamaged: files of the store are damaged so that it cannot be opened.
	ErrDamaged = errors.New("it is damaged")
)

// LostError says what is missing of a store. Nothing in the folder was removed.
type LostError struct {
	Folder          string
	Commits         int64 // that are missing
	Promised, There store.Sums
}

func (e *LostError) Error() string {
	return fmt.Sprintf("%v: the last %d of its commits (it kept %s, and has %s): a file was damaged, cut or replaced by an older one. "+
		"Nothing was removed. Run `redrive store salvage %s --to NEW-FOLDER` to save all that can still be read, or `redrive store accept-loss %s` to go on without it",
		ErrLost, e.Commits, keptIn(e.Promised), keptIn(e.There), e.Folder, e.Folder)
}

// Unwrap makes it an ErrLost.
func (e *LostError) Unwrap() error { return ErrLost }

func keptIn(s store.Sums) string {
	return fmt.Sprintf("%d waiting, %d parked and %d discarded messages of %d that came", s[store.Waiting], s[store.Parked], s[store.Discarded], s[store.In])
}

// openError says what to do about an error that keeps a store from being opened.
func openError(path string, err error) error {
	if !isDamage(err) && !isOutOfPlace(err) {
		return err
	}
	return fmt.Errorf("%w: %w. Nothing was removed. Run `redrive store salvage %s --to NEW-FOLDER` to save all that can still be read", ErrDamaged, err, path)
}

// isOutOfPlace tells whether a file says what none of this store's says, though it can be read:
// a MANIFEST whose last edits are damaged names tables that were deleted since, and the OPTIONS
// of all stores have the same comparer and merger, and no other folder for logs.
func isOutOfPlace(err error) bool {
	var otherFolder pebble.ErrMissingWALRecoveryDir
	return errors.Is(err, fs.ErrNotExist) || errors.As(err, &otherFolder) || strings.Contains(err.Error(), "name from file")
}

// damage is what was found of damaged files while the store is open, and before.
type damage struct {
	log   *slog.Logger
	files *pebbleFS
	lost  *lostBlocks // nil: files are read as they are

	mu     sync.Mutex
	places map[string]string // files, or what cannot be read where the file is not known; and how
}

// newDamage has what is known of before. A store that is salvaged is left as it is.
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

// found is called by Pebble for a block whose checksum is wrong.
func (d *damage) found(info pebble.DataCorruptionInfo) {
	at, repaired, lost := d.files.bad.found(d.files.FS, info.Path, info.Details)
	switch {
	case repaired:
		d.log.Warn("store: a bit of a file has flipped; it is turned back whenever that is read, and nothing is lost by it", "file", info.Path, "error", info.Details)
	case lost && d.lost != nil && strings.HasSuffix(info.Path, ".sst"):
		l, err := lostIn(d.files, info.Path, at.at, at.size, info.Bounds.Start, info.Bounds.End.Key)
		if err == nil && l.blank() == nil {
			err = errors.New("it is too small")
		}
		if err == nil {
			err = d.lost.add(l)
		}
		if err != nil {
			d.log.Error("store: a damaged block cannot be set apart: what belongs between the same keys is not found until it is", "file", info.Path, "at", at.at, "error", err)
			return
		}
		d.leaveOut(&l)
	}
}

// leaveOut lets all else go on without a block.
func (d *damage) leaveOut(l *lostBlock) {
	d.files.bad.leaveOut(d.files.PathJoin(d.lost.folder, l.File), l)
	why := "its checksum is wrong: the records in it are lost, and all else goes on"
	if l.Index {
		why = "the checksum of an index is wrong: all records of the table that it leads to are lost, and all else goes on"
	}
	d.note(l.place(), errors.New(why))
}

// lostKey tells whether a key may have been in a block that cannot be read.
func (d *damage) lostKey(key []byte) bool { return d.lost != nil && d.lost.has(key) }

func (d *damage) note(place string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.places[place] == "" {
		d.places[place] = err.Error()
		d.log.Error("store: damaged: what cannot be read is set apart, and all else goes on", "at", place, "error", err)
	}
}

// skipped receives each stretch of keys that cannot be read.
func (d *damage) skipped(from []byte, err error) {
	if info := pebble.ExtractDataCorruptionInfo(err); info != nil && d.lost != nil && d.lost.of(d.files.PathBase(info.Path)) {
		return // it is noted
	} else if info != nil {
		d.note(info.Path, err)
		return
	}
	d.note(placeOfKey(from), err)
}

// unreadable takes note of what is wrong with one record, and lets the rest go on; other
// errors it returns.
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

// placeOfKey says which part of the store a key is of.
func placeOfKey(key []byte) string {
	if len(key) > 1 && stateOf(key[0]) != 0 && len(key) >= 2+int(key[1]) {
		return "queue " + queueOf(key)
	}
	return "index"
}

// Damage is what was found to be unreadable since the store was opened.
func (s *Store) Damage() map[string]string {
	s.damage.mu.Lock()
	defer s.damage.mu.Unlock()
	return maps.Clone(s.damage.places)
}
