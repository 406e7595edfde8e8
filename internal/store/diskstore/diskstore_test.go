package diskstore_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

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
// process, nobody would find a missing right.
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

func TestAFullStoreTakesNothingAndGivesBack(t *testing.T) {
	path := t.TempDir()
	ctx := context.Background()
	s := openAt(t, path, diskstore.Options{})
	if err := s.Add(ctx, []*store.Record{storetest.Waiting("q", 0, "kept")}); err != nil {
		t.Fatal(err)
	}
	s.Close()
	s = openAt(t, path, diskstore.Options{Reserve: 1 << 60})
	defer s.Close()
	if err := s.Add(ctx, []*store.Record{storetest.Waiting("q", 0, "refused")}); !errors.Is(err, store.ErrFull) {
		t.Errorf("adding without room: %v", err)
	}
	next, err := s.Next(ctx)
	if err != nil || len(next) != 1 {
		t.Fatal(next, err)
	}
	claims, err := s.Claim(ctx, "q", next[0].Due, 10, 1<<20)
	if err != nil || len(claims) != 1 {
		t.Fatalf("claimed %d, %v", len(claims), err)
	}
	if n, err := s.Settle(ctx, []store.Outcome{{Claim: claims[0]}}); n != 1 || err != nil {
		t.Errorf("settling without room for more: %d, %v", n, err)
	}
}
