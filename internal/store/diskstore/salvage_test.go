package diskstore_test

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
	"github.com/redrive-mq/redrive/internal/store/storetest"
)

// Whatever file of a store is damaged, salvage saves what is in the others, also when
// services have tried to start on it; what it makes is a sound store.
func TestSalvageSavesAllThatCanBeRead(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 2))
	disk, kept, _ := killed(t, random)
	refused := 0
	for name, places := range flips(t, disk, random) {
		at := places[1%len(places)] // any; TestAFlippedBitAtTheEndOfATableCostsNothing has the last bytes of tables
		clone := disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: random})
		flip(t, clone, name, at)
		o := diskstore.Options{FS: roomy{clone}, Log: silent}
		for range 2 {
			if s, err := diskstore.Open("data", o); err != nil {
				refused++
			} else if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
		done, err := diskstore.Salvage(ctx, "data", "new", o)
		if err != nil {
			t.Errorf("%s, byte %d: %v", name, at, err)
			continue
		}
		s := openAt(t, "new", o)
		if err := s.Check(); err != nil {
			t.Errorf("%s, byte %d: %v", name, at, err)
		}
		storetest.Balances(t, s)
		there := map[string]int{}
		err = s.Scan(ctx, store.Range{Body: true}, func(l store.Listed) (bool, error) {
			there[string(l.Record.Message.Body)]++
			return true, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		missing := 0
		for body := range kept {
			if there[body] == 0 {
				missing++
			}
		}
		// The newest log alone has the last 100; a table has more.
		if most := map[bool]int{true: 100, false: 0}[strings.HasSuffix(name, ".log")]; missing > most {
			t.Errorf("%s, byte %d: %d of %d are missing: %+v", name, at, missing, len(kept), done)
		}
		if int(done.Messages) != len(there) {
			t.Errorf("%s: %d are said to be saved, and %d are", name, done.Messages, len(there))
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if refused == 0 {
		t.Error("no flip kept a store from being opened, so this shows little")
	}
}

// A block that cannot be read costs what is in it, and a folder that is not empty is not
// written to.
func TestSalvageBesideADamagedBlock(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 3))
	disk := tabled(t, random, 100)
	file, size := largestTable(t, disk)
	for i := range int64(64) {
		flip(t, disk, file, size*85/100+i)
	}
	o := diskstore.Options{FS: roomy{disk}, Log: silent}
	done, err := diskstore.Salvage(ctx, "data", "new", o)
	if err != nil || done.Messages < 600-64 || done.Messages == 600 || len(done.Unread) == 0 {
		t.Errorf("%+v, %v", done, err)
	}
	if _, err := diskstore.Salvage(ctx, "data", "new", o); err == nil || !strings.Contains(err.Error(), "not empty") {
		t.Errorf("into a folder that is not empty: %v", err)
	}
}

// Records of 1 MiB and more are in files of their own: salvage saves them too, whether the
// database opens or not, and damage in such a file costs the record that it hits alone.
func TestSalvageSavesLargeRecords(t *testing.T) {
	for _, c := range []struct {
		name                string
		cutManifest, damage bool
		missing             int
	}{
		{"it opens", false, false, 0},
		{"it opens, and a body is damaged", false, true, 1},
		{"it does not open", true, false, 0},
		{"it does not open, and a body is damaged", true, true, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			disk, kept := withLarge(t)
			if c.cutManifest {
				cutManifest(t, disk)
				for _, log := range namesOf(t, disk, ".log") { // or it has them
					if err := disk.Remove(log); err != nil {
						t.Fatal(err)
					}
				}
			}
			if c.damage {
				file := namesOf(t, disk, ".blob")[0]
				for i := range int64(64) {
					flip(t, disk, file, 1<<20+i)
				}
			}
			o := diskstore.Options{FS: roomy{disk}, Log: silent}
			if s, err := diskstore.Open("data", o); err == nil {
				if c.cutManifest {
					t.Fatal("it opens without its MANIFEST, so this shows nothing")
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			} else if !c.cutManifest {
				t.Fatal(err)
			}
			done, err := diskstore.Salvage(ctx, "data", "new", o)
			if err != nil || int(done.Messages) != len(kept)-c.missing || c.damage && len(done.Unread) == 0 {
				t.Errorf("%+v, %v", done, err)
			}
			s := openAt(t, "new", o)
			defer s.Close()
			if err := s.Check(); err != nil {
				t.Error(err)
			}
			there := 0
			err = s.Scan(ctx, store.Range{Body: true}, func(l store.Listed) (bool, error) {
				if there++; kept[l.Record.ID] != string(l.Record.Message.Body) {
					t.Errorf("message %s has a body of %d bytes that is not its own", l.Record.ID, len(l.Record.Message.Body))
				}
				return true, nil
			})
			if err != nil || there != len(kept)-c.missing {
				t.Errorf("%d are there, %v", there, err)
			}
		})
	}
}

// withLarge is a disk with large messages, all due at once, in several .blob files; and their
// bodies.
func withLarge(t *testing.T) (*vfs.MemFS, map[uuid.UUID]string) {
	t.Helper()
	random := rand.New(rand.NewPCG(7, 4))
	disk, kept := vfs.NewMem(), map[uuid.UUID]string{}
	s := openAt(t, "data", diskstore.Options{FS: roomy{disk}, Log: silent})
	for range 2 {
		var batch []*store.Record
		for range 3 {
			body := make([]byte, 2<<20)
			for at := range body {
				body[at] = byte(random.Uint32())
			}
			r, small := storetest.Waiting("q", 0, string(body)), storetest.Waiting("q", 0, "small")
			kept[r.ID], kept[small.ID] = string(body), "small"
			batch = append(batch, r, small)
		}
		if err := s.Add(ctx, batch); err != nil {
			t.Fatal(err)
		}
		if err := s.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if blobs := namesOf(t, disk, ".blob"); len(blobs) < 2 {
		t.Fatalf("the bodies are in %v", blobs)
	}
	return disk, kept
}

// namesOf are the files of a store whose names have a part.
func namesOf(t *testing.T, disk vfs.FS, part string) (paths []string) {
	t.Helper()
	names, err := disk.List("data")
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	for _, name := range names {
		if strings.Contains(name, part) {
			paths = append(paths, disk.PathJoin("data", name))
		}
	}
	return paths
}

// cutManifest leaves the half of it.
func cutManifest(t *testing.T, disk vfs.FS) {
	t.Helper()
	for _, path := range namesOf(t, disk, "MANIFEST") {
		f, err := disk.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(f)
		if err = errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		to, err := disk.Create(path, vfs.WriteCategoryUnspecified)
		if err == nil {
			_, err = to.Write(b[:20])
		}
		if err = errors.Join(err, to.Sync(), to.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// A table whose footer is overwritten cannot be read at all: the store is refused with the
// remedy, or says what is damaged, and salvage saves what all other tables have.
func TestSalvageBesideATableWithoutAFooter(t *testing.T) {
	disk := vfs.NewCrashableMem()
	s := openAt(t, "data", diskstore.Options{FS: roomy{disk}, Log: silent})
	const tables, each = 3, 50
	for n := range tables {
		var batch []*store.Record
		for i := range each {
			batch = append(batch, storetest.Waiting("q", time.Duration(i)*time.Second, fmt.Sprintf("%d-%d ", n, i)))
		}
		if err := errors.Join(s.Add(ctx, batch), s.Flush()); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, file := range namesOf(t, disk, ".sst") {
		disk := disk.CrashClone(vfs.CrashCloneCfg{})
		o := diskstore.Options{FS: roomy{disk}, Log: silent}
		info, err := disk.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		overwrite(t, disk, file, info.Size()-64)
		if s, err := diskstore.Open("data", o); err == nil {
			if len(readAll(t, s, false)) < tables*each && len(s.Damage()) == 0 {
				t.Errorf("%s: messages are missing, and no damage is shown", file)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		} else if !errors.Is(err, diskstore.ErrDamaged) || !strings.Contains(err.Error(), "redrive store salvage") {
			t.Errorf("%s: it is refused with %v", file, err)
		}
		done, err := diskstore.Salvage(ctx, "data", "new", o)
		if err != nil || done.Messages < each || done.Unread[file] == "" {
			t.Errorf("%s: %+v, %v", file, done, err)
		}
	}
}

// A table ends with a footer, without which nothing of it can be read: any bit of it can be turned
// back, as one of its blocks can.
func TestAFlippedBitAtTheEndOfATableCostsNothing(t *testing.T) {
	random := rand.New(rand.NewPCG(9, 71))
	disk, kept, _ := killed(t, random)
	const footer = 61
	tables := 0
	for name := range flips(t, disk, random) {
		if !strings.HasSuffix(name, ".sst") {
			continue
		}
		tables++
		size := usedOf(t, disk, name)
		for at := size - footer + random.Int64N(3); at < size; at += 3 {
			clone := disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: random})
			flip(t, clone, name, at)
			done, err := diskstore.Salvage(ctx, "data", "new", diskstore.Options{FS: roomy{clone}, Log: silent})
			if err != nil {
				t.Fatalf("%s, byte %d: %v", name, at, err)
			}
			if int(done.Messages) < len(kept) {
				t.Errorf("%s, byte %d of %d: %d of %d messages are saved; not read: %v", name, at, size, done.Messages, len(kept), done.Unread)
			}
		}
	}
	if tables == 0 {
		t.Error("there is no table")
	}
}
