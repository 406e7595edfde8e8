package diskstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/store"
)

// stagingName is the folder, in the data folder, in which a snapshot is made: on one file
// system it can use links, which takes milliseconds. Open removes what a crash leaves of it.
const stagingName = "snapshot.partial"

// Snapshot implements store.Snapshotter. Commits wait for milliseconds; on the same file
// system the tables are links, and take room only once the store removes its own.
func (s *Store) Snapshot(ctx context.Context, to string) (messages int64, err error) {
	done, err := s.calls.Begin(ctx)
	if err != nil {
		return 0, err
	}
	defer done()
	s.snapshots.Lock()
	defer s.snapshots.Unlock()
	to = filepath.Clean(to) // with a slash at its end, to + ".partial" would be inside it
	if err := s.checkTarget(to); err != nil {
		return 0, fmt.Errorf("snapshot to %s: %w", to, err)
	}
	staging := s.fs.PathJoin(s.path, stagingName)
	defer func() { err = errors.Join(err, s.fs.RemoveAll(staging)) }()
	staged, has, err := s.stage(staging)
	if err == nil {
		err = s.publishSnapshot(ctx, staged, to)
	}
	if err != nil {
		return 0, fmt.Errorf("snapshot to %s: %w", to, err)
	}
	return has.sums.Kept(), nil
}

func (s *Store) checkTarget(to string) error {
	own, err := filepath.Abs(s.path)
	if err != nil {
		return err
	}
	if rel, err := filepath.Rel(own, to); err != nil || rel != ".." && !strings.HasPrefix(rel, "../") {
		return fmt.Errorf("%w: it must be an absolute path outside of the data folder %s", store.ErrSnapshotFolder, own)
	}
	info, err := s.fs.Stat(to)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w: %w", store.ErrSnapshotFolder, err)
	}
	if !info.IsDir() {
		return hint.Errorf("name a new folder", "%w: it is a file", store.ErrSnapshotFolder)
	}
	names, err := s.fs.List(to)
	if err != nil || len(names) > 0 {
		return errors.Join(hint.Errorf("name a new folder", "%w: it is not empty", store.ErrSnapshotFolder), err)
	}
	return nil
}

func (s *Store) stage(staging string) (staged string, has syncedCount, err error) {
	if err := errors.Join(s.fs.RemoveAll(staging), s.fs.MkdirAll(staging, privateFolder)); err != nil {
		return "", has, err
	}
	if err := s.flushUnstored(); err != nil {
		return "", has, err
	}
	if err := s.db.Flush(); err != nil { // so that little of the log is left to copy below
		return "", has, err
	}
	staged = s.fs.PathJoin(staging, "store")

	// A log that is copied while it is written may lack a chunk that a later chunk in the
	// copy says was synced: Pebble takes that for damage. And the witness must count exactly
	// the commits in the copy.
	s.committing.Lock()
	defer s.committing.Unlock()
	if err := s.db.Checkpoint(staged, pebble.WithFlushedWAL()); err != nil {
		return "", has, err
	}
	if _, onDisk := s.fs.(private); onDisk { // Pebble made it; other users cannot enter the parent
		if err := os.Chmod(staged, privateFolder); err != nil {
			return "", has, err
		}
	}
	if err := s.history.copyTo(s.fs.PathJoin(staged, "history")); err != nil {
		return "", has, err
	}
	if err := s.damage.lost.copyTo(staged); err != nil {
		return "", has, err
	}
	s.witness.mu.Lock()
	has = s.witness.now
	s.witness.mu.Unlock()
	w := witness{fs: s.fs, path: s.fs.PathJoin(staged, witnessName), log: s.log}
	return staged, has, errors.Join(w.begin(has), w.close())
}

// copyTo links the history's files into a folder, and copies the newest, which is still written.
func (h *history) copyTo(folder string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.fs.MkdirAll(folder, privateFolder); err != nil {
		return err
	}
	for i, name := range h.files {
		from := h.path(name)
		put := vfs.LinkOrCopy
		if i == len(h.files)-1 {
			put = func(fs vfs.FS, from, to string) error { return vfs.Copy(fs, from, to) }
		}
		if err := put(h.fs, from, h.fs.PathJoin(folder, h.fs.PathBase(from))); err != nil &&
			!errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return syncFolder(h.fs, folder)
}

func syncFolder(fs vfs.FS, path string) error {
	folder, err := fs.OpenDir(path)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

// publishSnapshot renames a staged snapshot to its name, so that what has the name is whole.
func (s *Store) publishSnapshot(ctx context.Context, staged, to string) error {
	parent := s.fs.PathDir(to)
	if err := s.fs.MkdirAll(parent, privateFolder); err != nil {
		return fmt.Errorf("%w: %w", store.ErrSnapshotFolder, err)
	}
	if err := s.fs.Remove(to); err != nil && !errors.Is(err, fs.ErrNotExist) { // it was empty
		return hint.Errorf("name a new folder (in it, where it is a mount point)", "%w: %w",
			store.ErrSnapshotFolder, err)
	}
	err := s.fs.Rename(staged, to)
	if errors.Is(err, syscall.EXDEV) {
		err = s.copySnapshot(ctx, staged, to)
	}
	switch {
	case err == nil:
		return syncFolder(s.fs, parent)
	case errors.Is(err, syscall.ENOSPC):
		return fmt.Errorf("%w: %w", store.ErrFull, err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: %w", store.ErrSnapshotFolder, err)
	}
	return err
}

func (s *Store) copySnapshot(ctx context.Context, staged, to string) error {
	partial := to + ".partial"
	if _, err := s.fs.Stat(partial); !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(fmt.Errorf("%w: %s is what a snapshot left that was cut short: remove it",
			store.ErrSnapshotFolder, partial), err)
	}
	size, err := copyFolder(ctx, s.fs, staged, "")
	if err != nil {
		return err
	}
	use, err := s.fs.GetDiskUsage(s.fs.PathDir(to))
	if err != nil {
		return err
	}
	if use.AvailBytes < uint64(size)+s.reserve {
		return fmt.Errorf("%w: it needs %d MiB, and of %d MiB that are free there %d MiB are kept in reserve",
			store.ErrFull, size>>20, use.AvailBytes>>20, s.reserve>>20)
	}
	if _, err = copyFolder(ctx, s.fs, staged, partial); err == nil {
		err = s.fs.Rename(partial, to)
	}
	if err != nil {
		err = errors.Join(err, s.fs.RemoveAll(partial))
	}
	return err
}

// copyFolder copies a folder durably, and returns its size in bytes; with an empty to it only
// measures.
func copyFolder(ctx context.Context, disk vfs.FS, from, to string) (size int64, err error) {
	names, err := disk.List(from)
	if err != nil {
		return 0, err
	}
	into := func(name string) string { return "" }
	if to != "" {
		into = func(name string) string { return disk.PathJoin(to, name) }
		if err := disk.MkdirAll(to, privateFolder); err != nil {
			return 0, err
		}
	}
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		path := disk.PathJoin(from, name)
		info, err := disk.Stat(path)
		if err != nil {
			return 0, err
		}
		n := info.Size()
		switch {
		case info.IsDir():
			n, err = copyFolder(ctx, disk, path, into(name))
		case to != "":
			err = vfs.Copy(disk, path, into(name))
		}
		if err != nil {
			return 0, err
		}
		size += n
	}
	if to == "" {
		return size, nil
	}
	return size, syncFolder(disk, to)
}
