package diskstore_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
	"github.com/redrive-mq/redrive/internal/store/storetest"
)

// overwrite damages more of a file than can be turned back.
func overwrite(t *testing.T, disk vfs.FS, file string, at int64) {
	t.Helper()
	for i := range int64(64) {
		flip(t, disk, file, at+i)
	}
}

// Beside a damaged block the store goes on for good: what comes later and belongs between
// the messages that the block had is claimed, and compactions go on.
func TestWhatComesBesideADamagedBlockIsKept(t *testing.T) {
	disk := tabled(t, rand.New(rand.NewPCG(7, 14)), 200)
	file, size := largestTable(t, disk)
	overwrite(t, disk, file, size*85/100)
	s := openAt(t, "data", diskstore.Options{FS: roomy{disk}, Log: silent})
	defer s.Close()
	const rounds, each = 3, 10
	for round := range rounds {
		var batch []*store.Record
		for _, queue := range threeQueues {
			for i := range each {
				at := time.Duration(20*i)*time.Second + 500*time.Millisecond
				batch = append(batch, storetest.Waiting(queue, at, fmt.Sprintf("new-%s-%d-%d ", queue, round, i)))
			}
		}
		if err := s.Add(ctx, batch); err != nil {
			t.Fatal(err)
		}
		if err := s.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	fresh := 0
	for _, queue := range threeQueues {
		for _, c := range claimAll(t, s, store.Lane{Queue: queue}) {
			if strings.HasPrefix(string(c.Record.Message.Body), "new") {
				fresh++
			}
		}
	}
	if fresh != rounds*each*len(threeQueues) {
		t.Errorf("%d of %d that came later are claimed", fresh, rounds*each*len(threeQueues))
	}
	if err := s.Compact(); err != nil {
		t.Errorf("compacting beside a damaged block: %v", err)
	}
	if err := s.Close(); err != nil { // tables that are not needed are removed by then
		t.Error(err)
	}
	if _, err := disk.Stat(disk.PathJoin("data", "damaged", path.Base(file))); err != nil {
		t.Errorf("the damaged table is not kept: %v", err)
	}
}

// Wherever a table is damaged, also where it has the counters, the groups, the indexes and
// its own index: the store opens, shows the damage, counts what there is, and what comes is
// kept. At the next start nothing is counted again.
func TestWhatFollowsFromTheRecordsIsMadeAnew(t *testing.T) {
	disk := tabled(t, rand.New(rand.NewPCG(7, 15)), 60)
	file, size := largestTable(t, disk)
	rebuilt, lost := 0, map[int]bool{}
	for at := int64(100); at < size-2500; at += size / 8 {
		disk := disk.CrashClone(vfs.CrashCloneCfg{})
		overwrite(t, disk, file, at)
		var log bytes.Buffer
		o := diskstore.Options{FS: roomy{disk}, Log: slog.New(slog.NewTextHandler(&log, nil))}
		for life := range 3 {
			log.Reset()
			s, err := diskstore.Open("data", o)
			if err != nil {
				t.Errorf("byte %d: %v", at, err)
				break
			}
			was := len(readAll(t, s, false))
			if life == 0 {
				lost[6*60-was] = true
			}
			if again := strings.Contains(log.String(), "made again"); again {
				rebuilt++
				if life == 2 {
					t.Errorf("byte %d: it is made again once more:\n%s", at, &log)
				}
			}
			if err := s.Add(ctx, []*store.Record{storetest.Waiting("b", time.Second, "new ")}); err != nil {
				t.Error(err)
			}
			if now := len(readAll(t, s, false)); now != was+1 {
				t.Errorf("byte %d: of %d and a new one %d are found", at, was, now)
			}
			if len(s.Damage()) == 0 {
				t.Errorf("byte %d, life %d: no damage is shown", at, life)
			}
			if life > 0 {
				if err := s.Check(); err != nil {
					t.Errorf("byte %d: %v", at, err)
				}
				groupsCount(t, s)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	t.Logf("%d times made again, %v messages were lost", rebuilt, lost)
	if rebuilt == 0 || len(lost) < 2 {
		t.Error("nothing that opening needs was damaged, so this shows nothing")
	}
}
