package diskstore_test

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
	"github.com/redrive-mq/redrive/internal/store/storetest"
)

// A power cut soon after the first start must not take the folder itself, which would look like
// a first start again.
func TestAFolderThatWasJustMadeSurvivesAPowerCut(t *testing.T) {
	for _, path := range []string{"data", "/var/lib/redrive", "/var/lib/redrive/data"} {
		disk := vfs.NewCrashableMem()
		if err := disk.MkdirAll("/var/lib", 0o755); err != nil {
			t.Fatal(err)
		}
		for _, folder := range []string{"/", "/var"} {
			d, err := disk.OpenDir(folder)
			if err != nil {
				t.Fatal(err)
			}
			if err := d.Sync(); err != nil {
				t.Fatal(err)
			}
		}
		s, err := diskstore.Open(path, diskstore.Options{FS: roomy{disk}})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Add(context.Background(), []*store.Record{storetest.Waiting("q", 0, "one")}); err != nil {
			t.Fatal(err)
		}
		left := disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 0, RNG: rand.New(rand.NewPCG(1, 2))})
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s, err = diskstore.Open(path, diskstore.Options{FS: roomy{left}, Existing: true})
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		if n := waiting(t, s); n != 1 {
			t.Errorf("%s: %d messages are left, want 1", path, n)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func waiting(t *testing.T, s *diskstore.Store) (n int64) {
	t.Helper()
	counts, err := s.Counts(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range counts {
		n += c.Waiting
	}
	return n
}
