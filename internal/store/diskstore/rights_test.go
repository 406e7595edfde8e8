package diskstore_test

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
	"github.com/redrive-mq/redrive/internal/store/storetest"
)

// The umask of a service is often 022, and a folder made for it often 0755.
func TestTheDataFolderIsClosedToOtherUsers(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "data")
	if s, err := diskstore.Open(folder, diskstore.Options{Reserve: 1}); err != nil || s.Close() != nil {
		t.Fatal(err)
	}
	// As an earlier version left it.
	all, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if f.Type().IsRegular() {
			err = errors.Join(err, os.Chmod(filepath.Join(folder, f.Name()), 0o644))
		}
	}
	if err := errors.Join(err, os.Chmod(folder, 0o755)); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	s, err := diskstore.Open(folder, diskstore.Options{Reserve: 1, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Add(t.Context(), []*store.Record{storetest.Everything()}); err != nil {
		t.Fatal(err)
	}
	seen := 0
	see := func() {
		err := filepath.WalkDir(folder, func(path string, e fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := e.Info()
			if seen++; err == nil && info.Mode().Perm()&0o077 != 0 && !strings.HasSuffix(path, "/LOCK") {
				t.Errorf("%s has the rights %o", path, info.Mode().Perm())
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
	see()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	see()
	if seen < 8 || !strings.Contains(log.String(), "other users had rights to the data folder") {
		t.Errorf("%d files seen; log:\n%s", seen, &log)
	}
}

// A wrong path, in the config or on the command line, changes nothing there.
func TestAFolderThatIsNoStoreKeepsItsRights(t *testing.T) {
	folder := t.TempDir()
	if err := os.Chmod(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	tool, file := filepath.Join(folder, "bin", "tool"), filepath.Join(folder, "passwd")
	if err := errors.Join(os.Mkdir(filepath.Join(folder, "bin"), 0o755), os.WriteFile(tool, nil, 0o755), os.WriteFile(file, nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	if _, err := diskstore.Open(folder, diskstore.Options{Existing: true}); !errors.Is(err, diskstore.ErrNone) {
		t.Errorf("opened: %v", err)
	}
	s, err := diskstore.Open(folder, diskstore.Options{Reserve: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	for path, want := range map[string]fs.FileMode{folder: 0o755, filepath.Dir(tool): 0o755, tool: 0o755, file: 0o644} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s has the rights %o, %v; want %o", path, info.Mode().Perm(), err, want)
		}
	}
}

func TestASalvagedStoreIsClosedToOtherUsers(t *testing.T) {
	from, to := filepath.Join(t.TempDir(), "from"), t.TempDir()
	if err := os.Chmod(to, 0o755); err != nil {
		t.Fatal(err)
	}
	s, err := diskstore.Open(from, diskstore.Options{Reserve: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Add(t.Context(), []*store.Record{storetest.Everything()}), s.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := diskstore.Salvage(t.Context(), from, to, diskstore.Options{Reserve: 1}); err != nil {
		t.Fatal(err)
	}
	for _, folder := range []string{from, to} {
		all, err := os.ReadDir(folder)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range all {
			if info, err := f.Info(); err != nil || info.Mode().Perm()&0o077 != 0 && f.Name() != "LOCK" {
				t.Errorf("%s in %s: %v, %v", f.Name(), folder, info.Mode(), err)
			}
		}
	}
}
