package diskstore_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
	"github.com/redrive-mq/redrive/internal/store/storetest"
)

func openAt(t *testing.T, path string, o diskstore.Options) *diskstore.Store {
	t.Helper()
	s, err := diskstore.Open(path, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestDiskEngine(t *testing.T) {
	paths := map[store.Store]string{}
	open := func(t *testing.T, path string) store.Store {
		s := openAt(t, path, diskstore.Options{})
		paths[s] = path
		return s
	}
	storetest.Run(t, storetest.Engine{
		Name: "disk",
		Tear: func(s store.Store, key store.Key) error { return s.(*diskstore.Store).Tear(key) },
		Open: func(t *testing.T) store.Store { return open(t, filepath.Join(t.TempDir(), "data")) },
		Reopen: func(t *testing.T, s store.Store) store.Store {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			again := open(t, paths[s])
			t.Cleanup(func() { again.Close() })
			return again
		},
	})
}

func TestASecondOwnerIsRefused(t *testing.T) {
	path := t.TempDir()
	s := openAt(t, path, diskstore.Options{})
	if _, err := diskstore.Open(path, diskstore.Options{}); !errors.Is(err, store.ErrLocked) {
		t.Errorf("a second open: %v", err)
	}
	s.Close()
	openAt(t, path, diskstore.Options{}).Close()
}

// Only a lock that somebody holds is said to be one: told to stop the other
// process, a missing right would not be found.
func TestWhyAFolderCannotBeHad(t *testing.T) {
	for _, c := range []struct {
		name string
		op   errorfs.OpKind
		err  error
		held bool
	}{
		{"held, as Linux says it", errorfs.OpLock, syscall.EAGAIN, true},
		{"held, as others do", errorfs.OpLock, syscall.EACCES, true},
		{"the lock's file may not be written", errorfs.OpLock, &fs.PathError{Op: "open", Path: "data/LOCK", Err: syscall.EACCES}, false},
		{"the folder has vanished", errorfs.OpLock, &fs.PathError{Op: "open", Path: "data/LOCK", Err: syscall.ENOENT}, false},
		{"a file system without locks", errorfs.OpLock, syscall.ENOLCK, false},
		{"the folder may not be made", errorfs.OpMkdirAll, &fs.PathError{Op: "mkdir", Path: "data", Err: syscall.EACCES}, false},
		{"the folder may not be read", errorfs.OpList, &fs.PathError{Op: "open", Path: "data", Err: syscall.EACCES}, false},
	} {
		disk := errorfs.Wrap(roomy{vfs.NewMem()}, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind == c.op {
				return c.err
			}
			return nil
		}))
		_, err := diskstore.Open("data", diskstore.Options{FS: disk})
		if errors.Is(err, store.ErrLocked) != c.held || err == nil || !strings.Contains(err.Error(), "data folder data") || !strings.Contains(err.Error(), c.err.Error()) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestAFolderThatIsNone(t *testing.T) {
	path := t.TempDir()
	file := filepath.Join(path, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(path, "LOCK"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{file, filepath.Join(file, "below"), path} {
		_, err := diskstore.Open(at, diskstore.Options{})
		if err == nil || errors.Is(err, store.ErrLocked) || !strings.Contains(err.Error(), at) || !strings.Contains(err.Error(), "store.disk") {
			t.Errorf("%s: %v", at, err)
		}
	}
}

// A full disk takes nothing new; people can still let go and move, as long as half
// of the reserve is left, and delete for good always.
func TestAFullStoreTakesNothingAndGivesBack(t *testing.T) {
	disk := &filling{FS: vfs.NewMem()}
	disk.free.Store(1 << 40)
	s := openAt(t, "data", diskstore.Options{FS: disk, Reserve: 100 << 20})
	defer s.Close()
	var batch []*store.Record
	for range 3 {
		batch = append(batch, storetest.Waiting("q", 0, "kept"))
	}
	add := func() error { return s.Add(ctx, batch) }
	if err := add(); err != nil {
		t.Fatal(err)
	}
	var keys []store.Key
	err := s.Scan(ctx, store.Range{}, func(l store.Listed) (bool, error) {
		keys = append(keys, l.Key)
		return true, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	change := func(e store.Edit) func() error {
		return func() error {
			_, err := s.Change(ctx, keys[:1], func(_ store.Key, r *store.Record) store.Edit { return e }, func(n int) []store.Entry {
				return []store.Entry{{Name: "account", Value: fmt.Append(nil, n)}}
			})
			return err
		}
	}
	put := func(size int) func() error {
		return func() error {
			return s.PutEntries(ctx, []store.Entry{{Name: "operation", Value: make([]byte, size)}})
		}
	}
	for _, c := range []struct {
		name  string
		do    func() error
		least uint64 // how many MiB must be free, about
	}{
		{"add", add, 100},
		{"remember", func() error { return s.Remember(ctx, make([]store.Receipt, 1)) }, 100},
		{"a change that adds", change(store.Edit{Add: batch}), 100},
		{"many entries", put(1 << 20), 75},
		{"a change that moves", change(store.Edit{Keep: true}), 50},
		{"few entries", put(1 << 10), 0},
		{"a change that only writes its account", change(store.Edit{}), 0},
		{"a change that deletes", change(store.Edit{Delete: true}), 0},
		{"forgetting entries", func() error { return s.DeleteEntries(ctx, "") }, 0},
		{"finishing", func() error {
			claims, err := s.Claim(ctx, store.Lane{Queue: "q"}, farAway, 1, 1)
			if err != nil || len(claims) != 1 {
				return fmt.Errorf("claimed %d, %w", len(claims), err)
			}
			_, err = s.Finish(ctx, []store.Outcome{{Claim: claims[0]}})
			return err
		}, 0},
	} {
		if c.least > 0 {
			disk.free.Store(c.least << 20)
			if err := c.do(); !errors.Is(err, store.ErrFull) {
				t.Errorf("%s with %d MiB free: %v", c.name, c.least, err)
			}
		}
		disk.free.Store((c.least + 1) << 20)
		if c.least == 0 {
			disk.free.Store(0)
		}
		if err := c.do(); err != nil {
			t.Errorf("%s with some more: %v", c.name, err)
		}
	}
}

// With a little more than the reserve free and nothing kept, a full batch of the intake is
// taken: RabbitMQ would offer the same one for ever.
func TestAnEmptyStoreNearItsReserveTakesMessages(t *testing.T) {
	disk := &filling{FS: vfs.NewMem()}
	disk.free.Store(259 << 20)
	s := openAt(t, "data", diskstore.Options{FS: disk, Reserve: 256 << 20})
	defer s.Close()
	batch := batchOf(4096, func() time.Duration { return 0 })
	if err := s.Add(ctx, batch); err != nil {
		t.Errorf("259 MiB are free, 256 MiB of them in reserve: %v", err)
	}
	disk.free.Store(256 << 20)
	if err := s.Add(ctx, batch[:1]); !errors.Is(err, store.ErrFull) || !strings.Contains(err.Error(), "1 MiB more") {
		t.Errorf("nothing but the reserve is free: %v", err)
	}
}

// filling is a disk in memory with as much room as a test says.
type filling struct {
	vfs.FS
	free atomic.Uint64
}

func (f *filling) GetDiskUsage(string) (vfs.DiskUsage, error) {
	return vfs.DiskUsage{AvailBytes: f.free.Load()}, nil
}
