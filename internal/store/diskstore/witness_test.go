package diskstore_test

import (
	"errors"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
)

// A store without the end of its newest log refuses to open, says what is missing and
// what to do, and removes nothing: with that file as it was, all is there. Who accepts
// the loss is asked once.
func TestMissingCommitsAreRefused(t *testing.T) {
	random := rand.New(rand.NewPCG(6, 1))
	disk, kept, ended := killed(t, random)
	names, err := disk.List("data")
	if err != nil {
		t.Fatal(err)
	}
	newest := ""
	for _, name := range names {
		if path.Ext(name) == ".log" {
			newest = max(newest, name)
		}
	}
	log := disk.PathJoin("data", newest)
	end := usedOf(t, disk, log) - 1
	flip(t, disk, log, end)
	o := diskstore.Options{FS: roomy{disk}, Log: silent}
	var lost *diskstore.LostError
	for range 2 {
		_, err := diskstore.Open("data", o)
		if !errors.As(err, &lost) || lost.Commits != 1 || lost.Promised == lost.There {
			t.Fatalf("the last commit is missing, and opening it says %v (%+v)", err, lost)
		}
		for _, word := range []string{"data folder data", "salvage", "accept-loss", "last 1 of its commits"} {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("the error lacks %q: %v", word, err)
			}
		}
	}
	after, err := disk.List("data")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if !slices.Contains(after, name) {
			t.Errorf("%s was removed", name)
		}
	}
	o.AcceptLoss = true
	if err := openAt(t, "data", o).Close(); err != nil {
		t.Fatal(err)
	}
	o.AcceptLoss = false
	s := openAt(t, "data", o)
	defer s.Close()
	there := map[string]bool{}
	err = s.Scan(ctx, store.Range{Body: true}, func(l store.Listed) (bool, error) {
		there[string(l.Record.Message.Body)] = true
		return true, nil
	})
	if err != nil || len(there) < len(kept)-30 {
		t.Errorf("%d of %d are there without the last commit: %v; %d had ended", len(there), len(kept), err, len(ended))
	}
}

// A witness that lags, as after a power cut, is no alarm; nor is one that is damaged, or
// that an older version did not write.
func TestAWitnessThatIsBehindIsNoAlarm(t *testing.T) {
	for name, harm := range map[string]func(disk vfs.FS, file string) error{
		"gone": func(disk vfs.FS, file string) error { return disk.Remove(file) },
		"half": func(disk vfs.FS, file string) error { flip(t, disk, file, 10); return nil },
		"damaged": func(disk vfs.FS, file string) error {
			flip(t, disk, file, 10)
			flip(t, disk, file, 4096+10)
			return nil
		},
	} {
		disk, kept, ended := killed(t, rand.New(rand.NewPCG(6, 2)))
		if err := harm(disk, "data/witness"); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if how, lost := opened(t, disk, kept, ended); how != "nothing is missing" {
				t.Errorf("%s: %s, %s", name, how, lost)
			}
		}
	}
}

// A store whose MANIFEST is gone is not a new one.
func TestAFolderWithoutItsDatabaseIsNotNew(t *testing.T) {
	disk, _, _ := killed(t, rand.New(rand.NewPCG(6, 3)))
	names, err := disk.List("data")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if name != "witness" && name != "history" && name != "LOCK" {
			if err := disk.Remove(disk.PathJoin("data", name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := diskstore.Open("data", diskstore.Options{FS: roomy{disk}, Log: silent}); !errors.Is(err, diskstore.ErrLost) {
		t.Errorf("a folder with nothing but its witness: %v", err)
	}
}
