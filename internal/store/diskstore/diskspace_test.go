package diskstore_test

import (
	"crypto/rand"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
	"github.com/redrive-mq/redrive/internal/store/storetest"
)

// limited is a disk in memory of some size, in bytes.
type limited struct {
	vfs.FS
	size int64
	over atomic.Int64 // by how much it was overdrawn at most
}

func (l *limited) GetDiskUsage(path string) (vfs.DiskUsage, error) {
	names, err := l.List(path)
	free := l.size
	for _, name := range names {
		if info, err := l.Stat(l.PathJoin(path, name)); err == nil {
			free -= info.Size()
		}
	}
	l.over.Store(max(l.over.Load(), -free))
	return vfs.DiskUsage{AvailBytes: uint64(max(free, 0))}, err
}

// A store that was full takes messages again once the ones in it were retried: what they had
// on the disk, in tables and in old logs, is free again, though Pebble had no other reason
// to remove it. Meanwhile the database's own upkeep fits into the reserve.
func TestAStoreThatWasFullAndIsEmptyTakesMessages(t *testing.T) {
	for _, reserve := range []uint64{0, 32 << 20, 1} {
		disk := &limited{FS: vfs.NewMem(), size: 72 << 20}
		if reserve == 0 { // 256 MiB
			disk.size = 300 << 20
		}
		s := openAt(t, "data", diskstore.Options{FS: disk, Reserve: reserve})
		body := make([]byte, 16<<10)
		_, _ = rand.Read(body)
		least := 1 << 30
		for round := range 12 {
			added, waited := 0, false
			for batch := 512; batch > 0; {
				var records []*store.Record
				for range batch {
					records = append(records, storetest.Waiting("orders", 0, string(body)))
				}
				switch err := s.Add(ctx, records); {
				case errors.Is(err, store.ErrFull) && !waited:
					// What a compaction leaves behind is removed a moment after it.
					s.AwaitRemovals()
					waited = true
				case errors.Is(err, store.ErrFull):
					batch /= 2
				case err != nil:
					t.Fatal(err)
				default:
					added += batch
				}
			}
			if least = min(least, added); added == 0 {
				t.Fatalf("reserve %d MiB, round %d: an empty store is full", reserve>>20, round)
			}
			finishAll(t, s, "orders", added)
		}
		if over := disk.over.Load(); over > 0 {
			t.Errorf("reserve %d MiB: %d bytes more than the disk has were written", reserve>>20, over)
		}
		t.Logf("reserve %d MiB: at least %d messages fit, each time", reserve>>20, least)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// finishAll claims and deletes the n messages of a queue.
func finishAll(t *testing.T, s *diskstore.Store, queue string, n int) {
	t.Helper()
	for n > 0 {
		claims, err := s.Claim(ctx, store.Lane{Queue: queue}, time.Now().AddDate(100, 0, 0), 512, 8<<20)
		if err != nil || len(claims) == 0 {
			t.Fatalf("%d are left, and %d are claimed: %v", n, len(claims), err)
		}
		outcomes := make([]store.Outcome, len(claims))
		for i, c := range claims {
			outcomes[i] = store.Outcome{Claim: c, At: time.Now()}
		}
		if _, err := s.Finish(ctx, outcomes); err != nil {
			t.Fatal(err)
		}
		n -= len(claims)
	}
}
