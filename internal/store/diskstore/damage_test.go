package diskstore_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
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
	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
	"github.com/redrive-mq/redrive/internal/store/storetest"
	"github.com/redrive-mq/redrive/testenv/expect"
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
			body := incompressible(random, 600)
			w := storetest.Waiting(queue, time.Duration(i)*time.Second, fmt.Sprintf("%s-w-%d ", queue, i)+body)
			p := storetest.Waiting(queue, time.Duration(i)*time.Second, fmt.Sprintf("%s-p-%d ", queue, i)+body)
			p.State, p.ParkedFor = store.Parked, "why"
			batch = append(batch, w, p)
		}
		must(t, s.Add(ctx, batch))
	}
	must(t, s.Flush())
	must(t, s.Close())
	return disk
}

func incompressible(random *rand.Rand, size int) string {
	body := make([]byte, size)
	for at := range body {
		body[at] = byte(random.Uint32())
	}
	return string(body)
}

// largestTable returns the table with most of a disk's records.
func largestTable(t *testing.T, disk vfs.FS) (file string, size int64) {
	t.Helper()
	for _, at := range namesOf(t, disk, ".sst") {
		info, err := disk.Stat(at)
		if must(t, err); info.Size() > size {
			file, size = at, info.Size()
		}
	}
	return file, size
}

// harms are what happens to a table, and how many messages it may cost: what fits 32 KiB, and no
// message where a bit can be turned back.
var harms = []struct {
	name  string
	flips int64 // 0: the disk does not read it
	most  int
}{{"a flipped bit", 1, 0}, {"overwritten", 64, 2 * 64}, {"a bad sector", 0, 3 * 64}}

// A block that cannot be read costs the messages in it, and no other: all others of all
// queues are claimed, found in both directions, counted, changed and salvaged. A message that cannot
// be read is not said to be none, by Get, nor by a Change, which says so once.
func TestADamagedBlockCostsItsMessagesAlone(t *testing.T) {
	t.Parallel()
	disk := tabled(t, rand.New(rand.NewPCG(7, 12)), 200)
	file, size := largestTable(t, disk)
	one, keys, _, _ := keyed(t, 16)
	for _, h := range harms {
		t.Run(h.name, func(t *testing.T) {
			t.Parallel()
			missing := 0
			for i, part := range []int64{10, 60} {
				harmed := func(clone *vfs.MemFS, file string, at int64) vfs.FS {
					for i := range h.flips {
						flip(t, clone, file, at+i)
					}
					sector := &badSector{file: file, at: at}
					sector.armed.Store(h.flips == 0)
					return errorfs.Wrap(roomy{clone}, sector)
				}
				at := size * part / 100
				missing += costs(t, harmed(disk.CrashClone(vfs.CrashCloneCfg{}), file, at), at, len(keys), h.most)
				changes(t, one.CrashClone(vfs.CrashCloneCfg{}), keys, []int64{50, 85}[i], h.flips, h.most)

				o := diskstore.Options{FS: harmed(disk.CrashClone(vfs.CrashCloneCfg{}), file, at), Log: silent}
				done, err := diskstore.Salvage(ctx, "data", "new", o)
				if lost := len(keys) - int(done.Messages); err != nil || lost > h.most || lost > 0 && len(done.Unread) == 0 {
					t.Errorf("byte %d: salvaged %+v, %v", at, done, err)
				}
				if _, err := diskstore.Salvage(ctx, "data", "new", o); err == nil || !strings.Contains(err.Error(), "not empty") {
					t.Errorf("into a folder that is not empty: %v", err)
				}
			}
			if missing == 0 != (h.most == 0) {
				t.Errorf("%d messages were damaged", missing)
			}
		})
	}
}

// changes gets and changes all messages of a store of which a block that was never read is damaged.
func changes(t *testing.T, disk *vfs.MemFS, keys []store.Key, part, flips int64, most int) {
	t.Helper()
	sector := &badSector{}
	s := openAt(t, "data", diskstore.Options{FS: errorfs.Wrap(roomy{disk}, sector), Log: silent})
	defer s.Close()
	must(t, s.Compact()) // of the one table that it makes nothing was read yet
	s.AwaitRemovals()
	file, size := largestTable(t, disk)
	sector.file, sector.at = file, size*part/100
	for i := range flips {
		flip(t, disk, file, sector.at+i)
	}
	sector.armed.Store(flips == 0)
	gone := map[store.Key]bool{}
	for range 2 { // once it is known to be damaged, too
		for _, key := range keys {
			if _, err := s.Get(ctx, key); errors.Is(err, store.ErrUnreadable) {
				gone[key] = true
			} else if err != nil {
				t.Fatalf("%s: %v", key, err)
			}
		}
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
		must(t, err)
		left = left[n:]
	}
	missing := len(keys) - len(readAll(t, s, false))
	if unreadable > most || unreadable != missing || unreadable != len(gone) || len(read)+unreadable != len(keys) {
		t.Errorf("%d%%: %d are changed, %d are said to be unreadable, %d were to Get, and %d are", part, len(read), unreadable, len(gone), missing)
	}
	if n := sector.reads.Load(); n > 4 { // two blocks may be within its reach, each is read twice
		t.Errorf("%d%%: the bad sector was read %d times, which may take seconds each", part, n)
	}
	for key := range read {
		if l, err := s.Get(ctx, key); err != nil || !l.Record.Due.Equal(farAway) {
			t.Fatalf("%s was changed, and is not: %v", key, err)
		}
	}
}

// costs opens a damaged store, uses all of it, and returns how many messages are missing.
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
	must(t, err)
	off := int64(0)
	for i := range lines {
		off += lines[i].Off()
	}
	expect.Equal(t, int(off), missing, "byte %d: missing, and the ledger is off by %d", at, off)
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
	expect.Err(t, errOf(storetest.Replay(context.Background(), s, "b", farAway)), nil,
		"byte %d: replaying what is parked", at)
	return missing
}

// readAll returns what all messages begin with, sorted.
func readAll(t *testing.T, s *diskstore.Store, newest bool) (all []string) {
	t.Helper()
	for _, l := range storetest.Listed(t, s, store.Range{Body: true, NewestFirst: newest}) {
		head, _, _ := strings.Cut(string(l.Record.Message.Body), " ")
		all = append(all, head)
	}
	slices.Sort(all)
	return all
}

// claimAll claims all of a queue and finishes it.
func claimAll(t *testing.T, s *diskstore.Store, lane store.Lane) (all []store.Claim) {
	t.Helper()
	for {
		claims, err := s.Claim(ctx, lane, farAway, 512, 8<<20)
		must(t, err)
		if len(claims) == 0 {
			return all
		}
		if n, err := s.Finish(ctx, storetest.Ended(claims, farAway)); err != nil || n != len(claims) {
			t.Fatalf("%d of %d finished: %v", n, len(claims), err)
		}
		all = append(all, claims...)
	}
}

// claimNew claims all of queues, and counts what is new.
func claimNew(t *testing.T, s *diskstore.Store, queues ...string) (n int) {
	t.Helper()
	for _, queue := range queues {
		for _, c := range claimAll(t, s, store.Lane{Queue: queue}) {
			if strings.HasPrefix(string(c.Record.Message.Body), "new") {
				n++
			}
		}
	}
	return n
}

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
			must(t, s.Add(ctx, batch))
			finish(t, s, random, kept, ended)
		}
		if life == 1 {
			must(t, s.Flush())
		}
		if life < 2 {
			must(t, s.Close())
		}
	}
	disk = fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: random})
	must(t, s.Close())
	return disk, kept, ended
}

// One flipped bit, wherever it is in the folder, costs nothing that was promised, or is
// reported: the store refuses to open, a read fails, or the damage is counted.
func TestOneFlippedBitLosesNothingUnseen(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(6, 12))
	disk, kept, ended := killed(t, random)
	flipped(t, disk, flips(t, disk, random), kept, ended, "refused: lost", "nothing is missing")
}

// A store that does not open because a bit of its MANIFEST or OPTIONS has flipped, wherever
// that is, says that it is damaged and what to run: also where the MANIFEST then ends with a
// table that was deleted since, and where the OPTIONS name another comparer.
func TestAFlippedBitThatKeepsAStoreFromOpeningIsNamedDamage(t *testing.T) {
	t.Parallel()
	disk, kept := vfs.NewCrashableMem(), map[string]bool{}
	s := openAt(t, "data", diskstore.Options{FS: roomy{disk}, Log: silent})
	for body := range 4 {
		kept[fmt.Sprintf("%020d", body)] = true
		must(t, s.Add(ctx, []*store.Record{storetest.Waiting("q", time.Hour, fmt.Sprintf("%020d", body))}))
		must(t, errors.Join(s.Flush(), s.Compact()))
	}
	must(t, s.Close())
	places := map[string][]int64{}
	for _, step := range []struct {
		part string
		of   int64
	}{{"MANIFEST", 1}, {"OPTIONS", 2}} { // most of OPTIONS changes nothing
		for _, path := range namesOf(t, disk, step.part) {
			for at := int64(0); at < usedOf(t, disk, path); at += step.of {
				places[path] = append(places[path], at)
			}
		}
	}
	flipped(t, disk, places, kept, nil, "refused: damaged")
}

// flipped flips each of some bits of a disk, and checks that what is then missing is reported, and
// that a store that does not open says what it is; and that some outcomes occur.
func flipped(t *testing.T, disk *vfs.MemFS, places map[string][]int64, kept, ended map[string]bool, occur ...string) {
	t.Helper()
	outcomes, random := map[string]int{}, rand.New(rand.NewPCG(6, 14))
	for name, places := range places {
		for _, at := range places {
			clone := disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: random})
			flip(t, clone, name, at)
			how, lost := opened(t, clone, kept, ended)
			outcomes[how]++
			if lost != "" || strings.HasPrefix(how, "refused") && how != "refused: lost" && how != "refused: damaged" {
				t.Errorf("%s, byte %d: %s%s", name, at, how, lost)
			}
		}
	}
	t.Logf("%v", outcomes)
	for _, how := range occur {
		if outcomes[how] == 0 {
			t.Errorf("this shows nothing: %v", outcomes)
		}
	}
}

// flips are places in each file: some hundred, more of them at the end, where Pebble
// takes damage for a write that was cut short.
func flips(t *testing.T, disk vfs.FS, random *rand.Rand) map[string][]int64 {
	t.Helper()
	all := map[string][]int64{}
	for _, path := range namesOf(t, disk, "") {
		info, err := disk.Stat(path)
		must(t, err)
		if info.IsDir() || info.Size() == 0 || path == "data/LOCK" {
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
	must(t, err)
	defer f.Close()
	b, err := io.ReadAll(f)
	must(t, err)
	return int64(len(strings.TrimRight(string(b), "\x00")))
}

func flip(t *testing.T, disk vfs.FS, path string, at int64) {
	t.Helper()
	f, err := disk.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	must(t, err)
	defer f.Close()
	b := make([]byte, 1)
	must(t, errOf(f.ReadAt(b, at)))
	b[0] ^= 1 << (at % 8)
	must(t, errOf(f.WriteAt(b, at)))
}

// overwrite damages more of a file than can be flipped back.
func overwrite(t *testing.T, disk vfs.FS, file string, at int64) {
	t.Helper()
	for i := range int64(64) {
		flip(t, disk, file, at+i)
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

// Beside a damaged block the store goes on for good: what comes later and belongs between
// the messages that the block had is claimed, and compactions go on.
func TestWhatComesBesideADamagedBlockIsKept(t *testing.T) {
	t.Parallel()
	disk := tabled(t, rand.New(rand.NewPCG(7, 14)), 200)
	file, size := largestTable(t, disk)
	overwrite(t, disk, file, size*85/100)
	s := openAt(t, "data", diskstore.Options{FS: roomy{disk}, Log: silent})
	const rounds, each = 3, 10
	for round := range rounds {
		var batch []*store.Record
		for _, queue := range threeQueues {
			for i := range each {
				at := time.Duration(20*i)*time.Second + 500*time.Millisecond
				batch = append(batch, storetest.Waiting(queue, at, fmt.Sprintf("new-%s-%d-%d ", queue, round, i)))
			}
		}
		must(t, s.Add(ctx, batch))
		must(t, s.Flush())
	}
	expect.Equal(t, claimNew(t, s, threeQueues...), rounds*each*len(threeQueues), "of what came later is claimed")
	expect.Err(t, s.Compact(), nil, "compacting beside a damaged block")
	if err := s.Close(); err != nil { // tables that are not needed are removed by then
		t.Error(err)
	}
	expect.Err(t, errOf(disk.Stat(disk.PathJoin("data", "damaged", path.Base(file)))), nil,
		"the damaged table is not kept")
}

// While one call sets a damaged block apart, another that finds it too (a compaction and a claim,
// mostly) leaves out nothing that came later.
func TestADamagedBlockThatTwoFindHidesNothing(t *testing.T) {
	t.Parallel()
	disk := tabled(t, rand.New(rand.NewPCG(7, 14)), 200)
	file, size := largestTable(t, disk)
	overwrite(t, disk, file, size*92/100) // of the last queue, and nothing that opening needs
	slow := &slowToLook{FS: roomy{disk}, file: file, looks: make(chan struct{}), goOn: make(chan struct{})}
	s := openAt(t, "data", diskstore.Options{FS: slow, Log: silent})
	slow.armed.Store(true)
	const each = 20
	for i := range each {
		at := time.Duration(10*i)*time.Second + 500*time.Millisecond
		must(t, s.Add(ctx, []*store.Record{storetest.Waiting("c", at, fmt.Sprintf("new-%d", i))}))
	}
	scanned := make(chan error, 1)
	go func() {
		r := store.Range{Queues: []string{"c"}, State: store.Waiting}
		scanned <- s.Scan(ctx, r, func(store.Listed) (bool, error) { return true, nil })
	}()
	select {
	case <-slow.looks:
	case err := <-scanned:
		t.Fatalf("the damage is not met, so this shows nothing: %v", err)
	}
	expect.Equal(t, claimNew(t, s, "c"), each, "of what came later is claimed")
	close(slow.goOn)
	expect.Err(t, <-scanned, nil, "the other call")
	expect.Equal(t, len(s.Damage()), 1, "%v is shown", s.Damage())
}

// slowToLook does not let the first call go on that looks which keys a damaged block of a file had.
type slowToLook struct {
	vfs.FS
	file        string
	armed       atomic.Bool
	opened      atomic.Int32
	looks, goOn chan struct{}
}

func (s *slowToLook) Open(name string, options ...vfs.OpenOption) (vfs.File, error) {
	// Pebble has options; then the block is read, and then the file's index.
	if s.armed.Load() && name == s.file && len(options) == 0 && s.opened.Add(1) == 2 {
		close(s.looks)
		<-s.goOn
	}
	return s.FS.Open(name, options...)
}

// Wherever a table is damaged, also where it has the counters, the groups, the indexes and
// its own index: the store opens, shows the damage, counts what there is, and what comes is
// kept. At the next start nothing is counted again.
func TestWhatFollowsFromTheRecordsIsMadeAnew(t *testing.T) {
	t.Parallel()
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
			must(t, s.Add(ctx, []*store.Record{storetest.Waiting("b", time.Second, "new ")}))
			expect.Equal(t, len(readAll(t, s, false)), was+1, "byte %d: of %d and a new one … are found", at, was)
			if len(s.Damage()) == 0 {
				t.Errorf("byte %d, life %d: no damage is shown", at, life)
			}
			if life > 0 {
				expect.Err(t, s.Check(), nil, "byte %d", at)
				groupsCount(t, s)
			}
			must(t, s.Close())
		}
	}
	t.Logf("%d times made again, %v messages were lost", rebuilt, lost)
	if rebuilt == 0 || len(lost) < 2 {
		t.Error("nothing that opening needs was damaged, so this shows nothing")
	}
}

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
	for _, queue := range threeQueues { // in the order in which they are kept
		for _, state := range []store.State{store.Parked, store.Waiting} {
			keys = append(keys, storetest.Keys(t, s, store.Range{Queues: []string{queue}, State: state})...)
		}
	}
	if err := errors.Join(s.Compact(), s.Close()); err != nil || len(keys) != 1200 {
		t.Fatalf("%d keys, %v", len(keys), err)
	}
	file, size = largestTable(t, disk)
	return disk, keys, file, size
}

// What waits behind a block that the disk did not read, while the store was opened or later, is
// claimed, and what is in the block once the disk reads again: without a restart.
func TestABlockThatIsNotReadStrandsNothing(t *testing.T) {
	t.Parallel()
	disk, _, file, size := keyed(t, 18)
	for _, opening := range []bool{true, false} {
		strandsNothing(t, "of queues", disk, file, size, opening)
	}
	file, size = forwardAll(t, disk)
	strandsNothing(t, "of forward targets", disk, file, size, true)
}

// forwardAll sends each message that waits to a target of its own, and makes one table.
func forwardAll(t *testing.T, disk *vfs.MemFS) (file string, size int64) {
	t.Helper()
	s := openAt(t, "data", diskstore.Options{FS: roomy{disk}, Log: silent})
	keys := storetest.Keys(t, s, store.Range{State: store.Waiting})
	_, err := s.Change(ctx, keys, func(key store.Key, r *store.Record) store.Edit {
		r.Forward = &store.Destination{RoutingKey: string(key)}
		return store.Edit{Keep: true}
	}, nil)
	must(t, errors.Join(err, s.Compact(), s.Close()))
	return largestTable(t, disk)
}

func strandsNothing(t *testing.T, what string, disk *vfs.MemFS, file string, size int64, opening bool) {
	t.Helper()
	stranded := 0
	for _, part := range []int64{64, 70, 76, 82, 88, 92} {
		sector := &badSector{file: file, at: size * part / 100}
		sector.armed.Store(opening)
		s, err := diskstore.Open("data", diskstore.Options{Log: silent, FS: errorfs.Wrap(roomy{disk.CrashClone(vfs.CrashCloneCfg{})}, sector)})
		if err != nil {
			t.Fatalf("%d%%: %v", part, err)
		}
		sector.armed.Store(true)
		claimed := dueNow(t, s)
		if claimed < 600-3*64 {
			t.Errorf("%s, %d%%: %d of 600 are claimed while a block is bad", what, part, claimed)
		}
		if claimed < 600 {
			stranded++
		}
		sector.armed.Store(false)
		s.AfterEIO()
		if claimed += dueNow(t, s); claimed != 600 {
			t.Errorf("%s, %d%%: %d of 600 are claimed", what, part, claimed)
		}
		must(t, s.Close())
	}
	if stranded == 0 {
		t.Errorf("%s: no block had anything that waits, so this shows nothing", what)
	}
}

// dueNow claims, as the scheduler does, what Next says is due.
func dueNow(t *testing.T, s *diskstore.Store) (claimed int) {
	t.Helper()
	for range 3 {
		next, err := s.Next(ctx)
		must(t, err)
		for _, n := range next {
			claimed += len(claimAll(t, s, n.Lane))
		}
	}
	return claimed
}

// Whatever file of a store is damaged, salvage saves what is in the others, also when
// services have tried to start on it; what it makes is a sound store. Any bit of the footer with
// which a table ends can be turned back, as one of its blocks can.
func TestSalvageSavesAllThatCanBeRead(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(7, 2))
	disk, kept, _ := killed(t, random)
	refused, footers := 0, 0
	salvage := func(name string, at int64, starts int) (diskstore.Salvaged, diskstore.Options) {
		clone := disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: random})
		flip(t, clone, name, at)
		o := diskstore.Options{FS: roomy{clone}, Log: silent}
		for range starts {
			if s, err := diskstore.Open("data", o); err != nil {
				refused++
			} else if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
		done, err := diskstore.Salvage(ctx, "data", "new", o)
		if err != nil {
			t.Fatalf("%s, byte %d: %v", name, at, err)
		}
		return done, o
	}
	for name, places := range flips(t, disk, random) {
		at := places[1%len(places)] // any
		done, o := salvage(name, at, 2)
		s := openAt(t, "new", o)
		expect.Err(t, s.Check(), nil, "%s, byte %d", name, at)
		storetest.Balances(t, s)
		there, missing := bodies(t, s), 0
		for body := range kept {
			if there[body] == 0 {
				missing++
			}
		}
		must(t, s.Close())
		// The newest log alone has the last 100; a table has more.
		most := map[bool]int{true: 100, false: 0}[strings.HasSuffix(name, ".log")]
		if missing > most || int(done.Messages) != len(there) {
			t.Errorf("%s, byte %d: %d of %d are missing, %d there: %+v", name, at, missing, len(kept), len(there), done)
		}
		size := usedOf(t, disk, name)
		for at := size - 61 + random.Int64N(3); at < size && strings.HasSuffix(name, ".sst"); at += 3 {
			if done, _ := salvage(name, at, 0); int(done.Messages) < len(kept) {
				t.Errorf("%s, byte %d of %d: of %d messages are saved: %+v", name, at, size, len(kept), done)
			}
			footers++
		}
	}
	if refused == 0 || footers == 0 {
		t.Errorf("%d flips kept a store from being opened, %d were in footers: this shows little", refused, footers)
	}
}

// Records of 1 MiB and more are in files of their own: salvage saves them too, whether the
// database opens or not, and damage in such a file costs the record that it hits alone.
func TestSalvageSavesLargeRecords(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name             string
		manifest, damage bool
		missing          int
	}{
		{"it opens", false, false, 0},
		{"it opens, and a body is damaged", false, true, 1},
		{"it does not open", true, false, 0},
		{"it does not open, and a body is damaged", true, true, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			disk, kept := withLarge(t)
			if c.manifest {
				for _, manifest := range namesOf(t, disk, "MANIFEST") {
					if usedOf(t, disk, manifest) > 0 { // that which says which is in use is empty
						overwrite(t, disk, manifest, 8)
					}
				}
				for _, log := range namesOf(t, disk, ".log") { // or it has them
					must(t, disk.Remove(log))
				}
			}
			if c.damage {
				overwrite(t, disk, namesOf(t, disk, ".blob")[0], 1<<20)
			}
			o := diskstore.Options{FS: roomy{disk}, Log: silent}
			if s, err := diskstore.Open("data", o); err == nil {
				if c.manifest {
					t.Fatal("it opens with a damaged MANIFEST, so this shows nothing")
				}
				must(t, s.Close())
			} else if !c.manifest {
				t.Fatal(err)
			}
			done, err := diskstore.Salvage(ctx, "data", "new", o)
			if err != nil || int(done.Messages) != len(kept)-c.missing || c.damage && len(done.Unread) == 0 {
				t.Errorf("%+v, %v", done, err)
			}
			s := openAt(t, "new", o)
			must(t, s.Check())
			there := storetest.Listed(t, s, store.Range{Body: true})
			for _, l := range there {
				if kept[l.Record.ID] != string(l.Record.Message.Body) {
					t.Errorf("message %s has a body of %d bytes that is not its own", l.Record.ID, len(l.Record.Message.Body))
				}
			}
			expect.Equal(t, len(there), len(kept)-c.missing, "are there")
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
			body := incompressible(random, 2<<20)
			r, small := storetest.Waiting("q", 0, body), storetest.Waiting("q", 0, "small")
			kept[r.ID], kept[small.ID] = body, "small"
			batch = append(batch, r, small)
		}
		must(t, s.Add(ctx, batch))
		must(t, s.Flush())
	}
	must(t, s.Close())
	if blobs := namesOf(t, disk, ".blob"); len(blobs) < 2 {
		t.Fatalf("the bodies are in %v", blobs)
	}
	return disk, kept
}

// namesOf returns the files of a store whose names contain a part.
func namesOf(t *testing.T, disk vfs.FS, part string) (paths []string) {
	t.Helper()
	names, err := disk.List("data")
	must(t, err)
	slices.Sort(names)
	for _, name := range names {
		if strings.Contains(name, part) {
			paths = append(paths, disk.PathJoin("data", name))
		}
	}
	return paths
}

// A table whose footer is overwritten cannot be read at all: the store is refused with the
// remedy, or says what is damaged, and salvage saves what all other tables have. A table that the
// damaged end of the MANIFEST named is saved, too.
func TestSalvageBesideATableWithoutAFooter(t *testing.T) {
	t.Parallel()
	disk := vfs.NewCrashableMem()
	s := openAt(t, "data", diskstore.Options{FS: roomy{disk}, Log: silent})
	const tables, each = 3, 50
	var cut *vfs.MemFS
	for n := range tables {
		var batch []*store.Record
		for i := range each {
			batch = append(batch, storetest.Waiting("q", time.Duration(i)*time.Second, fmt.Sprintf("%d-%d ", n, i)))
		}
		must(t, errors.Join(s.Add(ctx, batch), s.Flush()))
		if n == 0 { // later, a compaction may be what its MANIFEST ends with
			must(t, s.Close())
			cut = disk.CrashClone(vfs.CrashCloneCfg{})
			s = openAt(t, "data", diskstore.Options{FS: roomy{disk}, Log: silent})
		}
	}
	must(t, s.Close())
	manifest := slices.MaxFunc(namesOf(t, cut, "MANIFEST"), func(a, b string) int { return cmp.Compare(usedOf(t, cut, a), usedOf(t, cut, b)) })
	flip(t, cut, manifest, usedOf(t, cut, manifest)-1)
	for _, log := range namesOf(t, cut, ".log") { // or it has them
		must(t, cut.Remove(log))
	}
	done, err := diskstore.Salvage(ctx, "data", "new", diskstore.Options{FS: roomy{cut}, Log: silent})
	if err != nil || done.Loose != each || done.Messages != each {
		t.Errorf("without the end of its MANIFEST: %+v, %v", done, err)
	}
	for _, file := range namesOf(t, disk, ".sst") {
		disk := disk.CrashClone(vfs.CrashCloneCfg{})
		o := diskstore.Options{FS: roomy{disk}, Log: silent}
		info, err := disk.Stat(file)
		must(t, err)
		overwrite(t, disk, file, info.Size()-64)
		if s, err := diskstore.Open("data", o); err == nil {
			if len(readAll(t, s, false)) < tables*each && len(s.Damage()) == 0 {
				t.Errorf("%s: messages are missing, and no damage is shown", file)
			}
			must(t, s.Close())
		} else if !errors.Is(err, diskstore.ErrDamaged) || !strings.Contains(err.Error(), "redrive store salvage") {
			t.Errorf("%s: it is refused with %v", file, err)
		}
		done, err := diskstore.Salvage(ctx, "data", "new", o)
		if err != nil || done.Messages < each || done.Unread[file] == "" {
			t.Errorf("%s: %+v, %v", file, done, err)
		}
	}
}

// A store without the end of its newest log refuses to open, says what is missing and
// what to do, and removes nothing: with that file as it was, all is there. Who accepts
// the loss is asked once.
func TestMissingCommitsAreRefused(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(6, 1))
	disk, kept, ended := killed(t, random)
	before, log := namesOf(t, disk, ""), slices.Max(namesOf(t, disk, ".log"))
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
	for _, name := range before {
		if !slices.Contains(namesOf(t, disk, ""), name) {
			t.Errorf("%s was removed", name)
		}
	}
	o.AcceptLoss = true
	must(t, openAt(t, "data", o).Close())
	o.AcceptLoss = false
	s := openAt(t, "data", o)
	there := bodies(t, s)
	if len(there) < len(kept)-30 {
		t.Errorf("%d of %d are there without the last commit; %d had ended", len(there), len(kept), len(ended))
	}
}

// A witness that lags, as after a power cut, is no alarm; nor is one that is damaged, or
// that an older version did not write.
func TestAWitnessThatIsBehindIsNoAlarm(t *testing.T) {
	t.Parallel()
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
		must(t, harm(disk, "data/witness"))
		for range 2 {
			if how, lost := opened(t, disk, kept, ended); how != "nothing is missing" {
				t.Errorf("%s: %s, %s", name, how, lost)
			}
		}
	}
}

// A store whose MANIFEST is gone is not a new one.
func TestAFolderWithoutItsDatabaseIsNotNew(t *testing.T) {
	t.Parallel()
	disk, _, _ := killed(t, rand.New(rand.NewPCG(6, 3)))
	for _, name := range namesOf(t, disk, "") {
		if !slices.Contains([]string{"witness", "history", "LOCK"}, path.Base(name)) {
			must(t, disk.Remove(name))
		}
	}
	expect.Err(t, errOf(diskstore.Open("data", diskstore.Options{FS: roomy{disk}, Log: silent})), diskstore.ErrLost,
		"a folder with nothing but its witness")
}
