package diskstore_test

import (
	"errors"
	"math/rand/v2"
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

// badSector fails all reads of a block while it is armed, and counts them.
type badSector struct {
	file  string
	at    int64
	armed atomic.Bool
	reads atomic.Int64
}

func (b *badSector) String() string { return "a bad sector" }

func (b *badSector) MaybeError(op errorfs.Op) error {
	if b.armed.Load() && op.Kind == errorfs.OpFileReadAt && op.Path == b.file && op.Offset <= b.at && b.at < op.Offset+32<<10 {
		b.reads.Add(1)
		return syscall.EIO
	}
	return nil
}

// keyed is a disk as tabled makes it, with the keys of all messages, and the one table that
// has them.
func keyed(t *testing.T, seed uint64) (disk *vfs.MemFS, keys []store.Key, file string, size int64) {
	t.Helper()
	disk = tabled(t, rand.New(rand.NewPCG(7, seed)), 200)
	s := openAt(t, "data", diskstore.Options{FS: roomy{disk}, Log: silent})
	var err error
	for _, queue := range threeQueues { // in the order in which they are kept
		for _, state := range []store.State{store.Parked, store.Waiting} {
			err = errors.Join(err, s.Scan(ctx, store.Range{Queues: []string{queue}, State: state}, func(l store.Listed) (bool, error) {
				keys = append(keys, l.Key)
				return true, nil
			}))
		}
	}
	if err = errors.Join(err, s.Compact(), s.Close()); err != nil || len(keys) != 1200 {
		t.Fatalf("%d keys, %v", len(keys), err)
	}
	file, size = largestTable(t, disk)
	return disk, keys, file, size
}

// compacted makes one table of a store's, which nothing of was read yet.
func compacted(t *testing.T, s *diskstore.Store) (file string, size int64) {
	t.Helper()
	if err := s.Compact(); err != nil {
		t.Fatal(err)
	}
	file, size, err := s.LargestTable()
	if err != nil {
		t.Fatal(err)
	}
	return file, size
}

// A Change says of each message that cannot be read that it cannot, once, and changes all
// others: by overwritten blocks and by bad sectors, of records and of the index.
func TestAChangeSaysWhatCannotBeRead(t *testing.T) {
	disk, keys, _, _ := keyed(t, 16)
	for _, c := range []struct {
		name      string
		overwrite bool
		part      int64
	}{{"parked", true, 50}, {"waiting", true, 85}, {"bad sector, parked", false, 50}, {"bad sector, waiting", false, 85}} {
		t.Run(c.name, func(t *testing.T) {
			disk := disk.CrashClone(vfs.CrashCloneCfg{})
			sector := &badSector{}
			s := openAt(t, "data", diskstore.Options{FS: errorfs.Wrap(roomy{disk}, sector), Log: silent})
			defer s.Close()
			file, size := compacted(t, s)
			sector.file, sector.at = file, size*c.part/100
			if c.overwrite {
				overwrite(t, disk, file, sector.at)
			} else {
				sector.armed.Store(true)
			}
			read := map[store.Key]bool{}
			unreadable := 0
			for left := keys; len(left) > 0; {
				n, err := s.Change(ctx, left[:min(len(left), 100)], func(key store.Key, r *store.Record) store.Edit {
					switch {
					case r == nil:
						t.Errorf("%s is said not to be there", key)
						return store.Edit{}
					case errors.Is(r.Unreadable, store.ErrUnreadable):
						unreadable++
						return store.Edit{Keep: true, Delete: true}
					}
					read[key] = true
					r.State, r.Due = store.Parked, farAway
					return store.Edit{Keep: true}
				}, nil)
				if err != nil {
					t.Fatal(err)
				}
				left = left[n:]
			}
			missing := len(keys) - len(readAll(t, s, false))
			if unreadable == 0 || unreadable != missing || len(read)+unreadable != len(keys) {
				t.Errorf("%d are changed, %d are said to be unreadable, and %d are", len(read), unreadable, missing)
			}
			for key := range read {
				if l, err := s.Get(ctx, key); err != nil || !l.Record.Due.Equal(farAway) {
					t.Fatalf("%s was changed, and is not: %v", key, err)
				}
			}
		})
	}
}

// A message that cannot be read is not said to be none.
func TestAMessageThatCannotBeReadIsNotMissing(t *testing.T) {
	disk, keys, _, _ := keyed(t, 17)
	s := openAt(t, "data", diskstore.Options{FS: roomy{disk}, Log: silent})
	defer s.Close()
	file, size := compacted(t, s)
	overwrite(t, disk, file, size*85/100)
	for range 2 { // once it is known to be damaged, too
		unreadable := 0
		for _, key := range keys {
			switch _, err := s.Get(ctx, key); {
			case errors.Is(err, store.ErrUnreadable):
				unreadable++
			case err != nil:
				t.Fatalf("%s: %v", key, err)
			}
		}
		if unreadable == 0 || unreadable > 2*64 {
			t.Errorf("%d are unreadable", unreadable)
		}
	}
}

// What waits behind a block that the disk did not read while the store was opened is
// claimed, and what is in the block once the disk reads again: without a restart.
func TestABlockThatIsNotReadWhileOpeningStrandsNothing(t *testing.T) {
	disk, _, file, size := keyed(t, 18)
	t.Run("of queues", func(t *testing.T) { strandsNothing(t, disk, file, size) })
	file, size = forwardAll(t, disk)
	t.Run("of forward targets", func(t *testing.T) { strandsNothing(t, disk, file, size) })
}

// forwardAll sends each message that waits to a target of its own, and makes one table.
func forwardAll(t *testing.T, disk *vfs.MemFS) (file string, size int64) {
	t.Helper()
	s := openAt(t, "data", diskstore.Options{FS: roomy{disk}, Log: silent})
	var keys []store.Key
	err := s.Scan(ctx, store.Range{State: store.Waiting}, func(l store.Listed) (bool, error) { keys = append(keys, l.Key); return true, nil })
	if err == nil {
		_, err = s.Change(ctx, keys, func(key store.Key, r *store.Record) store.Edit {
			r.Forward = &store.Destination{RoutingKey: string(key)}
			return store.Edit{Keep: true}
		}, nil)
	}
	if err = errors.Join(err, s.Compact(), s.Close()); err != nil {
		t.Fatal(err)
	}
	return largestTable(t, disk)
}

func strandsNothing(t *testing.T, disk *vfs.MemFS, file string, size int64) {
	stranded := 0
	for _, part := range []int64{64, 70, 76, 82, 88, 92} {
		sector := &badSector{file: file, at: size * part / 100}
		sector.armed.Store(true)
		s, err := diskstore.Open("data", diskstore.Options{Log: silent, FS: errorfs.Wrap(roomy{disk.CrashClone(vfs.CrashCloneCfg{})}, sector)})
		if err != nil {
			t.Fatalf("%d%%: %v", part, err)
		}
		claimed := dueNow(t, s)
		if claimed < 600-3*64 {
			t.Errorf("%d%%: %d of 600 are claimed while a block is bad", part, claimed)
		}
		if claimed < 600 {
			stranded++
		}
		sector.armed.Store(false)
		s.AfterEIO()
		if claimed += dueNow(t, s); claimed != 600 {
			t.Errorf("%d%%: %d of 600 are claimed", part, claimed)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if stranded == 0 {
		t.Error("no block had anything that waits, so this shows nothing")
	}
}

// dueNow claims, as the scheduler does, what Next says is due.
func dueNow(t *testing.T, s *diskstore.Store) (claimed int) {
	t.Helper()
	for range 3 {
		next, err := s.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range next {
			claimed += len(claimAll(t, s, n.Lane))
		}
	}
	return claimed
}

// A block that the disk did not read is passed by for a while: each read of it may take
// seconds, and looking for what is behind it would read it a hundred times.
func TestABadSectorIsPassedBy(t *testing.T) {
	disk, _, _, _ := keyed(t, 19)
	sector := &badSector{}
	s := openAt(t, "data", diskstore.Options{Log: silent, FS: errorfs.Wrap(roomy{disk}, sector)})
	defer s.Close()
	file, size := compacted(t, s)
	sector.file, sector.at = file, size*85/100
	sector.armed.Store(true)
	for range 3 {
		if n := len(readAll(t, s, false)); n == 1200 {
			t.Error("nothing is missing, so this shows nothing")
		}
	}
	if _, err := storetest.Replay(ctx, s, "b", time.Now()); err != nil {
		t.Error(err)
	}
	if n := sector.reads.Load(); n > 4 { // two blocks may be within its reach, each is read twice
		t.Errorf("it was read %d times", n)
	}
}
