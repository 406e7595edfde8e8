package diskstore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
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

var threeQueues = []string{"a", "b", "c"}

// tabled is a disk with so many waiting messages of each of three queues, and as many
// parked, all in tables; bodies do not compress.
func tabled(t *testing.T, random *rand.Rand, each int) *vfs.MemFS {
	t.Helper()
	disk := vfs.NewCrashableMem()
	s := openAt(t, "data", diskstore.Options{FS: roomy{disk}, Log: silent})
	for i := range each {
		var batch []*store.Record
		for _, queue := range threeQueues {
			body := make([]byte, 600)
			for at := range body {
				body[at] = byte(random.Uint32())
			}
			w := storetest.Waiting(queue, time.Duration(i)*time.Second, fmt.Sprintf("%s-w-%d ", queue, i)+string(body))
			p := storetest.Waiting(queue, time.Duration(i)*time.Second, fmt.Sprintf("%s-p-%d ", queue, i)+string(body))
			p.State, p.ParkedFor = store.Parked, "why"
			batch = append(batch, w, p)
		}
		if err := s.Add(ctx, batch); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return disk
}

// largestTable is where most of a disk's records are.
func largestTable(t *testing.T, disk vfs.FS) (file string, size int64) {
	t.Helper()
	names, err := disk.List("data")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if at := disk.PathJoin("data", name); path.Ext(name) == ".sst" {
			if info, err := disk.Stat(at); err != nil {
				t.Fatal(err)
			} else if info.Size() > size {
				file, size = at, info.Size()
			}
		}
	}
	return file, size
}

// A block that cannot be read costs the messages in it, and no other: all others of all
// queues are claimed, found in both directions, counted and changed. A single flipped bit
// costs none.
func TestADamagedBlockCostsItsMessagesAlone(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 12))
	disk := tabled(t, random, 200)
	file, size := largestTable(t, disk)
	for _, c := range []struct {
		name string
		harm func(t *testing.T, disk vfs.FS, at int64) vfs.FS
		most int // messages that it costs: what fits 32 KiB
	}{
		{"a flipped bit", func(t *testing.T, disk vfs.FS, at int64) vfs.FS {
			flip(t, disk, file, at)
			return disk
		}, 0},
		{"overwritten", func(t *testing.T, disk vfs.FS, at int64) vfs.FS {
			for i := range int64(64) {
				flip(t, disk, file, at+i)
			}
			return disk
		}, 2 * 64},
		{"a bad sector", func(t *testing.T, disk vfs.FS, at int64) vfs.FS {
			return errorfs.Wrap(disk, errorfs.InjectorFunc(func(op errorfs.Op) error {
				if op.Kind == errorfs.OpFileReadAt && op.Path == file && op.Offset <= at && at < op.Offset+readSize {
					return syscall.EIO
				}
				return nil
			}))
		}, 3 * 64},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			missing := 0
			for _, part := range []int64{10, 60} {
				clone := disk.CrashClone(vfs.CrashCloneCfg{})
				at := size * part / 100
				missing += costs(t, c.harm(t, roomy{clone}, at), at, 6*200, c.most)
			}
			if missing == 0 != (c.most == 0) {
				t.Errorf("%d messages were damaged", missing)
			}
		})
	}
}

// readSize is about how much one read of a block is.
const readSize = 30 << 10

// costs opens a damaged store, uses all of it, and tells how many messages are missing.
func costs(t *testing.T, disk vfs.FS, at int64, all, most int) (missing int) {
	t.Helper()
	s, err := diskstore.Open("data", diskstore.Options{FS: disk, Log: silent})
	if err != nil {
		t.Errorf("byte %d: %v", at, err)
		return 0
	}
	defer s.Close()
	oldest, newest := readAll(t, s, false), readAll(t, s, true)
	missing = all - len(oldest)
	if missing > most || !slices.Equal(oldest, newest) {
		t.Errorf("byte %d: %d of %d are found, %d of them newest first", at, len(oldest), all, len(newest))
	}
	lines, err := s.Recount(ctx)
	if err != nil {
		t.Fatal(err)
	}
	off := int64(0)
	for i := range lines {
		off += lines[i].Off()
	}
	if int(off) != missing {
		t.Errorf("byte %d: %d are missing, and the ledger is off by %d", at, missing, off)
	}
	if missing > 0 != (len(s.Damage()) > 0) {
		t.Errorf("byte %d: %d are missing, and of damage is told %v", at, missing, s.Damage())
	}
	claimed := 0
	for _, queue := range threeQueues {
		claimed += len(claimAll(t, s, store.Lane{Queue: queue}))
	}
	if want := len(slices.DeleteFunc(oldest, func(body string) bool { return !strings.Contains(body, "-w-") })); claimed != want {
		t.Errorf("byte %d: %d are claimed of %d that can be read", at, claimed, want)
	}
	if _, err := storetest.Replay(context.Background(), s, "b", farAway); err != nil {
		t.Errorf("byte %d: replaying what is parked: %v", at, err)
	}
	return missing
}

// readAll is what all messages begin with, sorted.
func readAll(t *testing.T, s *diskstore.Store, newest bool) (all []string) {
	t.Helper()
	err := s.Scan(ctx, store.Range{Body: true, NewestFirst: newest}, func(l store.Listed) (bool, error) {
		head, _, _ := strings.Cut(string(l.Record.Message.Body), " ")
		all = append(all, head)
		return true, nil
	})
	if err != nil {
		t.Errorf("newest first %v: %v", newest, err)
	}
	slices.Sort(all)
	return all
}

// claimAll claims all of a queue and finishes it.
func claimAll(t *testing.T, s *diskstore.Store, lane store.Lane) (all []store.Claim) {
	t.Helper()
	for {
		claims, err := s.Claim(ctx, lane, farAway, 50, 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		if len(claims) == 0 {
			return all
		}
		var out []store.Outcome
		for _, c := range claims {
			out = append(out, store.Outcome{Claim: c, At: farAway})
		}
		if n, err := s.Finish(ctx, out); err != nil || n != len(claims) {
			t.Fatalf("%d of %d finished: %v", n, len(claims), err)
		}
		all = append(all, claims...)
	}
}

// What waits in a block that the disk did not read for a moment is claimed without a
// restart once it is read again.
func TestABlockThatIsReadAgainGivesItsMessagesBack(t *testing.T) {
	disk := tabled(t, rand.New(rand.NewPCG(7, 13)), 200)
	file, size := largestTable(t, disk)
	var bad atomic.Bool
	at := size * 80 / 100 // not in the first block of a queue, which is read when the store is opened
	s := openAt(t, "data", diskstore.Options{Log: silent, FS: errorfs.Wrap(roomy{disk}, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if bad.Load() && op.Kind == errorfs.OpFileReadAt && op.Path == file && op.Offset <= at && at < op.Offset+readSize {
			return syscall.EIO
		}
		return nil
	}))})
	defer s.Close()
	bad.Store(true)
	claimed := 0
	for _, queue := range threeQueues {
		claimed += len(claimAll(t, s, store.Lane{Queue: queue}))
	}
	if claimed == 600 || claimed < 500 {
		t.Fatalf("%d of 600 were claimed while a block was bad", claimed)
	}
	bad.Store(false)
	s.AfterEIO()
	next, err := s.Next(ctx)
	if err != nil || len(next) == 0 {
		t.Errorf("nothing is said to be due: %v, %v", next, err)
	}
	for _, n := range next {
		claimed += len(claimAll(t, s, n.Lane))
	}
	if claimed != 600 {
		t.Errorf("%d of 600 were claimed", claimed)
	}
}
