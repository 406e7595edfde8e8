package diskstore_test

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
	"github.com/redrive-mq/redrive/internal/store/storetest"
)

var silent = slog.New(slog.NewTextHandler(io.Discard, nil))

// killed is a disk as a killed process leaves it, with tables, a MANIFEST of several
// edits, and commits that are in the newest log alone; and what was promised of it.
func killed(t *testing.T, random *rand.Rand) (disk *vfs.MemFS, kept, ended map[string]bool) {
	t.Helper()
	fs := vfs.NewCrashableMem()
	kept, ended = map[string]bool{}, map[string]bool{}
	var s *diskstore.Store
	for life := range 3 {
		s = openAt(t, "data", diskstore.Options{FS: roomy{fs}, Log: silent})
		for i := range 4 {
			var batch []*store.Record
			for n := range 25 {
				body := fmt.Sprintf("%d-%d-%d-%d", life, i, n, random.Uint64()) + strings.Repeat("x", random.IntN(1000))
				batch = append(batch, storetest.Waiting("q", time.Duration(random.IntN(1000))*time.Second, body))
				kept[body] = true
			}
			if err := s.Add(ctx, batch); err != nil {
				t.Fatal(err)
			}
			finish(t, s, random, kept, ended)
		}
		if life == 1 {
			if err := s.Flush(); err != nil {
				t.Fatal(err)
			}
		}
		if life < 2 {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	disk = fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: random})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return disk, kept, ended
}

// One flipped bit, wherever it is in the folder, costs nothing that was promised, or is
// reported: the store refuses to open, a read fails, or the damage is counted.
func TestOneFlippedBitLosesNothingUnseen(t *testing.T) {
	random := rand.New(rand.NewPCG(6, 12))
	disk, kept, ended := killed(t, random)
	outcomes := map[string]int{}
	for name, places := range flips(t, disk, random) {
		for _, at := range places {
			clone := disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: random})
			flip(t, clone, name, at)
			how, lost := opened(t, clone, kept, ended)
			if outcomes[how]++; lost != "" {
				t.Errorf("%s, byte %d: nothing was reported, and %s", name, at, lost)
			}
		}
	}
	t.Logf("%v", outcomes)
	if outcomes["refused: lost"] == 0 || outcomes["nothing is missing"] == 0 {
		t.Errorf("this shows nothing: %v", outcomes)
	}
}

// A store that does not open because a bit of its MANIFEST or OPTIONS has flipped, wherever
// that is, says that it is damaged and what to run: also where the MANIFEST then ends with a
// table that was deleted since, and where the OPTIONS name another comparer.
func TestAFlippedBitThatKeepsAStoreFromOpeningIsNamedDamage(t *testing.T) {
	random := rand.New(rand.NewPCG(6, 14))
	disk, kept := vfs.NewCrashableMem(), map[string]bool{}
	s := openAt(t, "data", diskstore.Options{FS: roomy{disk}, Log: silent})
	for body := range 4 {
		kept[fmt.Sprintf("%020d", body)] = true
		if err := s.Add(ctx, []*store.Record{storetest.Waiting("q", time.Hour, fmt.Sprintf("%020d", body))}); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(s.Flush(), s.Compact()); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	names, err := disk.List("data")
	if err != nil {
		t.Fatal(err)
	}
	outcomes := map[string]int{}
	for _, name := range names {
		if !strings.HasPrefix(name, "MANIFEST") && !strings.HasPrefix(name, "OPTIONS") {
			continue
		}
		path := disk.PathJoin("data", name)
		for at := range usedOf(t, disk, path) {
			if at%2 == 1 && strings.HasPrefix(name, "OPTIONS") {
				continue // most of it changes nothing
			}
			clone := disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: random})
			flip(t, clone, path, at)
			how, lost := opened(t, clone, kept, nil)
			if outcomes[how]++; lost != "" || strings.HasPrefix(how, "refused") && how != "refused: lost" && how != "refused: damaged" {
				t.Errorf("%s, byte %d: %s%s", name, at, how, lost)
			}
		}
	}
	if t.Logf("%v", outcomes); outcomes["refused: damaged"] == 0 {
		t.Errorf("this shows nothing: %v", outcomes)
	}
}

// flips are places in each file: some hundred, more of them at the end, where Pebble
// takes damage for a write that was cut short.
func flips(t *testing.T, disk vfs.FS, random *rand.Rand) map[string][]int64 {
	t.Helper()
	names, err := disk.List("data")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]int64{}
	for _, name := range names {
		path := disk.PathJoin("data", name)
		info, err := disk.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.IsDir() || info.Size() == 0 || name == "LOCK" {
			continue
		}
		used := usedOf(t, disk, path)
		for i := range min(24, used) {
			at := random.Int64N(used)
			if i%2 == 0 {
				at = max(0, used-1-random.Int64N(min(used, 4000)))
			}
			all[path] = append(all[path], at)
		}
	}
	return all
}

// usedOf is how far a file holds more than the zeros it was given as room.
func usedOf(t *testing.T, disk vfs.FS, path string) int64 {
	t.Helper()
	f, err := disk.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return int64(len(strings.TrimRight(string(b), "\x00")))
}

func flip(t *testing.T, disk vfs.FS, path string, at int64) {
	t.Helper()
	f, err := disk.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 1 << (at % 8)
	if _, err := f.WriteAt(b, at); err != nil {
		t.Fatal(err)
	}
}

// opened opens a damaged store and reads all of it: how the damage was reported, or what is
// wrong though it was not.
func opened(t *testing.T, disk vfs.FS, kept, ended map[string]bool) (how, lost string) {
	t.Helper()
	s, err := diskstore.Open("data", diskstore.Options{FS: roomy{disk}, Log: silent})
	switch {
	case errors.Is(err, diskstore.ErrLost):
		return "refused: lost", ""
	case errors.Is(err, diskstore.ErrDamaged):
		return "refused: damaged", ""
	case err != nil:
		return "refused: " + err.Error(), ""
	}
	defer s.Close()
	there := map[string]bool{}
	err = s.Scan(ctx, store.Range{Body: true}, func(l store.Listed) (bool, error) {
		there[string(l.Record.Message.Body)] = true
		return true, nil
	})
	if err != nil {
		return "a read failed", ""
	}
	for body := range kept {
		if !there[body] {
			return "", fmt.Sprintf("%q is not there", body[:20])
		}
	}
	for body := range ended {
		if there[body] {
			return "", fmt.Sprintf("%q is back", body[:20])
		}
	}
	return "nothing is missing", ""
}
