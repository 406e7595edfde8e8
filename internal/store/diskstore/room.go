package diskstore

import (
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// room has writes wait while the disk is full, where Pebble would end the process: a failed write
// of its log or MANIFEST is a fatal error. What waits is not acknowledged, and reads go on. Only
// a write without room can be tried again; after a failed sync nobody knows what is on the disk.
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
