package diskstore

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// lostBlocks are written down in a file of the data folder, before anything is read
// without them: a compaction makes the table again, and nothing but this file tells then
// that counters may be gone, and have to be counted again when the store is opened.
type lostBlocks struct {
	fs     vfs.FS
	folder string

	mu  sync.Mutex
	all []lostBlock
}

const (
	lostName = "lost-blocks"
	// damagedName is the folder where tables are kept that a block of cannot be read, once
	// the store does not need them any more.
	damagedName = "damaged"
)

// load reads those of before, and forgets the ones of tables that are gone: a person has
// removed what was kept of them.
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

// add writes down one more.
func (l *lostBlocks) add(b lostBlock) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.write(append(slices.Clip(l.all), b))
}

// rebuilt notes that all that follows from records was made again without them.
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

// list are all of them.
func (l *lostBlocks) list() []lostBlock {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.all)
}

// pending are those since whose loss counters and indexes were not rebuilt.
func (l *lostBlocks) pending() []lostBlock {
	return slices.DeleteFunc(l.list(), func(b lostBlock) bool { return b.Rebuilt })
}

// has tells whether a key may have been in one, as far as nothing was made again since.
func (l *lostBlocks) has(key []byte) bool {
	return slices.ContainsFunc(l.pending(), func(b lostBlock) bool { return b.has(key) })
}

// of tells whether a table has one.
func (l *lostBlocks) of(file string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.all, func(b lostBlock) bool { return b.File == file })
}

// setAside moves a table that has one out of the way instead of removing it.
func (l *lostBlocks) setAside(path string) error {
	folder := l.fs.PathJoin(l.folder, damagedName)
	if err := l.fs.MkdirAll(folder, privateFolder); err != nil {
		return err
	}
	return l.fs.Rename(path, l.fs.PathJoin(folder, l.fs.PathBase(path)))
}

// copyTo puts the list into a folder, beside a copy of the tables.
func (l *lostBlocks) copyTo(folder string) error {
	all := l.list()
	if len(all) == 0 {
		return nil
	}
	return (&lostBlocks{fs: l.fs, folder: folder}).write(all)
}
