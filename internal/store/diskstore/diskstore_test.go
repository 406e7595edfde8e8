package diskstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
	"github.com/redrive-mq/redrive/internal/store/storetest"
	"github.com/redrive-mq/redrive/testenv/expect"
)

func TestDiskEngine(t *testing.T) {
	t.Parallel()
	var paths sync.Map
	open := func(t *testing.T, path string) store.Store {
		s := openAt(t, path, diskstore.Options{})
		paths.Store(s, path)
		return s
	}
	storetest.Run(t, storetest.Engine{
		Name: "disk",
		Damage: func(s store.Store, key store.Key, damage func([]byte) []byte) error {
			return s.(*diskstore.Store).DamageRecord(key, damage)
		},
		Open: func(t *testing.T) store.Store { return open(t, filepath.Join(t.TempDir(), "data")) },
		Reopen: func(t *testing.T, s store.Store) store.Store {
			must(t, s.Close())
			path, _ := paths.Load(s)
			return open(t, path.(string))
		},
	})
}

func TestASecondOwnerIsRefused(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	s := openAt(t, path, diskstore.Options{})
	expect.Err(t, errOf(diskstore.Open(path, diskstore.Options{})), store.ErrLocked, "a second open")
	s.Close()
	openAt(t, path, diskstore.Options{}).Close()
}

// Only a held lock is reported as one: a person who stops the other process would not find a
// missing right.
func TestWhyAFolderCannotBeHad(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		op   errorfs.OpKind
		err  error
		held bool
	}{
		{"held, as Linux says it", errorfs.OpLock, syscall.EAGAIN, true},
		{"held, as others do", errorfs.OpLock, syscall.EACCES, true},
		{"the lock's file may not be written", errorfs.OpLock, &fs.PathError{Op: "open", Path: "data/LOCK", Err: syscall.EACCES}, false},
		{"the folder has vanished", errorfs.OpLock, &fs.PathError{Op: "open", Path: "data/LOCK", Err: syscall.ENOENT}, false},
		{"a file system without locks", errorfs.OpLock, syscall.ENOLCK, false},
		{"the folder may not be made", errorfs.OpMkdirAll, &fs.PathError{Op: "mkdir", Path: "data", Err: syscall.EACCES}, false},
		{"the folder may not be read", errorfs.OpList, &fs.PathError{Op: "open", Path: "data", Err: syscall.EACCES}, false},
	} {
		disk := errorfs.Wrap(roomy{vfs.NewMem()}, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind == c.op {
				return c.err
			}
			return nil
		}))
		_, err := diskstore.Open("data", diskstore.Options{FS: disk})
		if errors.Is(err, store.ErrLocked) != c.held || err == nil || !strings.Contains(err.Error(), "data folder data") || !strings.Contains(err.Error(), c.err.Error()) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestAFolderThatIsNone(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	file := filepath.Join(path, "file")
	must(t, os.WriteFile(file, nil, 0o600))
	must(t, os.Mkdir(filepath.Join(path, "LOCK"), 0o700))
	for _, at := range []string{file, filepath.Join(file, "below"), path} {
		_, err := diskstore.Open(at, diskstore.Options{})
		if err == nil || errors.Is(err, store.ErrLocked) || !strings.Contains(err.Error(), at) || !strings.Contains(err.Error(), "store.disk") {
			t.Errorf("%s: %v", at, err)
		}
	}
}

// A full disk takes nothing new; people can still discard and move while half of the reserve
// is left, and always delete for good.
func TestAFullStoreTakesNothingAndGivesBack(t *testing.T) {
	t.Parallel()
	disk := &filling{FS: vfs.NewMem()}
	disk.free.Store(1 << 40)
	s := openAt(t, "data", diskstore.Options{FS: disk, Reserve: 100 << 20})
	var batch []*store.Record
	for range 3 {
		batch = append(batch, storetest.Waiting("q", 0, "kept"))
	}
	add := func() error { return s.Add(ctx, batch) }
	must(t, add())
	keys := storetest.Keys(t, s, store.Range{})
	change := func(e store.Edit) func() error {
		return func() error {
			_, err := s.Change(ctx, keys[:1], func(_ store.Key, r *store.Record) store.Edit { return e }, func(n int) []store.Entry {
				return []store.Entry{{Name: "account", Value: fmt.Append(nil, n)}}
			})
			return err
		}
	}
	put := func(size int) func() error {
		return func() error {
			return s.PutEntries(ctx, []store.Entry{{Name: "operation", Value: make([]byte, size)}})
		}
	}
	for _, c := range []struct {
		name  string
		do    func() error
		least uint64 // how many MiB must be free, about
	}{
		{"add", add, 100},
		{"remember", func() error { return s.Remember(ctx, make([]store.Receipt, 1)) }, 100},
		{"a change that adds", change(store.Edit{Add: batch}), 100},
		{"many entries", put(1 << 20), 75},
		{"a change that moves", change(store.Edit{Keep: true}), 50},
		{"few entries", put(1 << 10), 0},
		{"a change that only writes its account", change(store.Edit{}), 0},
		{"a change that deletes", change(store.Edit{Delete: true}), 0},
		{"forgetting entries", func() error { return s.DeleteEntries(ctx, "") }, 0},
		{"finishing", func() error {
			claims, err := s.Claim(ctx, store.Lane{Queue: "q"}, farAway, 1, 1)
			if err != nil || len(claims) != 1 {
				return fmt.Errorf("claimed %d, %w", len(claims), err)
			}
			_, err = s.Finish(ctx, []store.Outcome{{Claim: claims[0]}})
			return err
		}, 0},
	} {
		if c.least > 0 {
			disk.free.Store(c.least << 20)
			expect.Err(t, c.do(), store.ErrFull, "%s with %d MiB free", c.name, c.least)
		}
		disk.free.Store((c.least + 1) << 20)
		if c.least == 0 {
			disk.free.Store(0)
		}
		expect.Err(t, c.do(), nil, "%s with some more", c.name)
	}
}

// With a little more than the reserve free and nothing kept, a full batch of the intake is
// taken: RabbitMQ would offer the same one for ever.
func TestAnEmptyStoreNearItsReserveTakesMessages(t *testing.T) {
	t.Parallel()
	disk := &filling{FS: vfs.NewMem()}
	disk.free.Store(259 << 20)
	s := openAt(t, "data", diskstore.Options{FS: disk, Reserve: 256 << 20})
	batch := storetest.Batch(4096, func() time.Duration { return 0 })
	expect.Err(t, s.Add(ctx, batch), nil, "259 MiB are free, 256 MiB of them in reserve")
	disk.free.Store(256 << 20)
	if err := s.Add(ctx, batch[:1]); !errors.Is(err, store.ErrFull) || !strings.Contains(err.Error(), "1 MiB more") {
		t.Errorf("nothing but the reserve is free: %v", err)
	}
}

// filling is a disk in memory with as much room as a test sets.
type filling struct {
	vfs.FS
	free atomic.Uint64
}

func (f *filling) GetDiskUsage(string) (vfs.DiskUsage, error) {
	return vfs.DiskUsage{AvailBytes: f.free.Load()}, nil
}

// limited is a disk in memory of some size, in bytes.
type limited struct {
	vfs.FS
	size int64
	full atomic.Int64 // writes that it had no room for
}

// MaybeError makes a write without room fail.
func (l *limited) MaybeError(op errorfs.Op) error {
	if u, err := l.GetDiskUsage("data"); op.Kind != errorfs.OpFileWrite || err != nil || u.AvailBytes > 0 {
		return nil
	}
	l.full.Add(1)
	return syscall.ENOSPC
}

func (l *limited) String() string { return "a disk of a certain size" }

func (l *limited) GetDiskUsage(path string) (vfs.DiskUsage, error) {
	names, err := l.List(path)
	free := l.size
	for _, name := range names {
		if info, err := l.Stat(l.PathJoin(path, name)); err == nil {
			free -= info.Size()
		}
	}
	return vfs.DiskUsage{AvailBytes: uint64(max(free, 0))}, err
}

// A store that was full takes messages again once the ones in it were retried: what they had
// on the disk, in tables and in old logs, is free again, though Pebble had no other reason
// to remove it. The database's own upkeep fits into the reserve, or waits for what is being removed.
func TestAStoreThatWasFullAndIsEmptyTakesMessages(t *testing.T) {
	t.Parallel()
	reserves, rounds := []uint64{32 << 20, 1}, 4
	if storetest.Long() {
		reserves, rounds = append(reserves, 0), 12
	}
	for _, reserve := range reserves {
		disk := &limited{FS: vfs.NewMem(), size: 72 << 20}
		if reserve == 0 { // 256 MiB
			disk.size = 300 << 20
		}
		s := openAt(t, "data", diskstore.Options{FS: errorfs.Wrap(disk, disk), Reserve: reserve, OnFull: func(error) {}})
		body := make([]byte, 16<<10)
		_, _ = rand.NewChaCha8([32]byte{}).Read(body)
		least := 1 << 30
		for round := range rounds {
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
			if n := len(claimAll(t, s, store.Lane{Queue: "orders"})); n != added {
				t.Fatalf("%d of %d are claimed", n, added)
			}
		}
		t.Logf("reserve %d MiB: at least %d messages fit, each time; %d writes did not", reserve>>20, least, disk.full.Load())
		must(t, s.Close())
	}
}

// A power cut soon after the first start must not take the folder itself, which would look like
// a first start again.
func TestAFolderThatWasJustMadeSurvivesAPowerCut(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"data", "/var/lib/redrive", "/var/lib/redrive/data"} {
		disk := vfs.NewCrashableMem()
		must(t, disk.MkdirAll("/var/lib", 0o755))
		for _, folder := range []string{"/", "/var"} {
			d, err := disk.OpenDir(folder)
			must(t, err)
			must(t, d.Sync())
		}
		s := openAt(t, path, diskstore.Options{FS: roomy{disk}})
		must(t, s.Add(ctx, []*store.Record{storetest.Waiting("q", 0, "one")}))
		left := disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 0, RNG: rand.New(rand.NewPCG(1, 2))})
		must(t, s.Close())
		s, err := diskstore.Open(path, diskstore.Options{FS: roomy{left}, Existing: true})
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		expect.Equal(t, waiting(t, s), 1, "%s: messages are left", path)
		must(t, s.Close())
	}
}

func waiting(t *testing.T, s *diskstore.Store) (n int64) {
	t.Helper()
	counts, err := s.Counts(ctx)
	must(t, err)
	for _, c := range counts {
		n += c.Waiting
	}
	return n
}

// The umask of a service is often 022, and a folder made for it often 0755.
func TestTheDataFolderIsClosedToOtherUsers(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(t.TempDir(), "data")
	if s, err := diskstore.Open(folder, diskstore.Options{Reserve: 1}); err != nil || s.Close() != nil {
		t.Fatal(err)
	}
	// As an earlier version left it.
	all, err := os.ReadDir(folder)
	must(t, err)
	for _, f := range all {
		if f.Type().IsRegular() {
			err = errors.Join(err, os.Chmod(filepath.Join(folder, f.Name()), 0o644))
		}
	}
	must(t, errors.Join(err, os.Chmod(folder, 0o755)))
	var log bytes.Buffer
	s := openAt(t, folder, diskstore.Options{Reserve: 1, Log: slog.New(slog.NewTextHandler(&log, nil))})
	must(t, s.Add(t.Context(), []*store.Record{storetest.Everything()}))
	seen := closedToOthers(t, folder)
	must(t, s.Close())
	if seen += closedToOthers(t, folder); seen < 8 || !strings.Contains(log.String(), "other users had rights to the data folder") {
		t.Errorf("%d files seen; log:\n%s", seen, &log)
	}
	to := t.TempDir()
	must(t, os.Chmod(to, 0o755))
	must(t, errOf(diskstore.Salvage(t.Context(), folder, to, diskstore.Options{Reserve: 1})))
	closedToOthers(t, folder)
	closedToOthers(t, to)
}

// closedToOthers checks the rights of a folder and all in it, and counts that.
func closedToOthers(t *testing.T, folder string) (seen int) {
	t.Helper()
	must(t, filepath.WalkDir(folder, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		want := fs.FileMode(0o600)
		if e.IsDir() {
			want = 0o700
		}
		info, err := e.Info()
		if seen++; err == nil && info.Mode().Perm() != want && e.Name() != "LOCK" {
			t.Errorf("%s has the rights %o", path, info.Mode().Perm())
		}
		return err
	}))
	return seen
}

// A wrong path, in the config or on the command line, changes nothing in that folder.
func TestAFolderThatIsNoStoreKeepsItsRights(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	must(t, os.Chmod(folder, 0o755))
	tool, file := filepath.Join(folder, "bin", "tool"), filepath.Join(folder, "passwd")
	must(t, errors.Join(os.Mkdir(filepath.Join(folder, "bin"), 0o755), os.WriteFile(tool, nil, 0o755), os.WriteFile(file, nil, 0o644)))
	expect.Err(t, errOf(diskstore.Open(folder, diskstore.Options{Existing: true})), diskstore.ErrNone, "opened")
	s := openAt(t, folder, diskstore.Options{Reserve: 1})
	must(t, s.Close())
	for path, want := range map[string]fs.FileMode{folder: 0o755, filepath.Dir(tool): 0o755, tool: 0o755, file: 0o644} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s has the rights %o, %v; want %o", path, info.Mode().Perm(), err, want)
		}
	}
}

// A folder of another format than this version's is refused with what to do, and stays as it is:
// the version that wrote it, and its witness, find it unchanged. A snapshot from before the upgrade
// opens: that is the way back.
func TestAFolderOfAnotherFormatIsRefused(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	path, before := filepath.Join(folder, "data"), filepath.Join(folder, "before")
	s := openAt(t, path, diskstore.Options{Reserve: 1})
	storetest.Lived(t, s)
	_, err := s.Snapshot(ctx, before)
	must(t, errors.Join(err, s.Close()))
	witness, err := os.ReadFile(filepath.Join(path, "witness"))
	must(t, err)
	for _, format := range [][]byte{{1}, {3}, {5}, {250}, {4, 1}, {0}, {}} {
		must(t, diskstore.AsFormat(path, format...))
		for _, o := range []diskstore.Options{{Reserve: 1}, {Reserve: 1, AcceptLoss: true}} {
			_, err := diskstore.Open(path, o)
			if !errors.Is(err, store.ErrFormat) || !strings.Contains(err.Error(), fmt.Sprintf("data folder %s", path)) ||
				!strings.Contains(err.Error(), fmt.Sprintf("format %s, and this version of Redrive reads format 4. Nothing was changed", strings.Trim(fmt.Sprint(format), "[]"))) || !strings.Contains(err.Error(), "a snapshot from before its upgrade") {
				t.Errorf("format %v: %v", format, err)
			}
		}
		if now, err := os.ReadFile(filepath.Join(path, "witness")); err != nil || !bytes.Equal(now, witness) {
			t.Errorf("format %v: its witness was written, %v", format, err)
		}
	}
	must(t, diskstore.AsFormat(path, 4))
	now, was := openAt(t, path, diskstore.Options{Reserve: 1}), openAt(t, before, diskstore.Options{Reserve: 1})
	storetest.Same(t, was, now)
	if n := len(bodies(t, now)); n < 5 {
		t.Errorf("%d messages are there, so this shows little", n)
	}
	must(t, errors.Join(now.Close(), was.Close()))
}

func TestTheGuideToUpgradesNamesTheFormat(t *testing.T) {
	t.Parallel()
	guide, err := os.ReadFile("../../../docs/how-to/backup.md")
	must(t, err)
	if now := fmt.Sprintf("format number, now %d.", diskstore.FormatVersion); !strings.Contains(string(guide), now) {
		t.Errorf("docs/how-to/backup.md does not say %q", now)
	}
}

// Recount shows a record that vanished without a change of counters.
func TestALostRecordIsMissed(t *testing.T) {
	t.Parallel()
	s := openAt(t, t.TempDir(), diskstore.Options{Reserve: 1})
	must(t, s.Add(ctx, storetest.Batch(3, func() time.Duration { return 0 })))
	storetest.Balances(t, s)
	must(t, s.Lose("orders"))
	if found, err := s.Recount(ctx); err != nil || len(found) != 1 || found[0].Off() != 1 {
		t.Errorf("one of three is gone, and it is off: %v, %v", found, err)
	}
	if counted, _ := s.Ledger(ctx); counted[0].Off() != 0 {
		t.Errorf("nothing was counted, and yet %v", counted)
	}
}

// The ledger begins with the kept messages, and again when counts are lost.
func TestTheLedgerBegins(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	s := openAt(t, path, diskstore.Options{Reserve: 1})
	must(t, s.Add(ctx, storetest.Batch(5, func() time.Duration { return 0 })))
	again := func() store.Sums {
		t.Helper()
		must(t, s.Close())
		s = openAt(t, path, diskstore.Options{Reserve: 1})
		return storetest.Balances(t, s)["orders"]
	}
	finishOne := func() {
		t.Helper()
		claims, err := s.Claim(ctx, store.Lane{Queue: "orders"}, farAway, 1, 1)
		must(t, err)
		if n, err := s.Finish(ctx, []store.Outcome{{Claim: claims[0]}}); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	finishOne()
	expect.Equal(t, again(), (store.Sums{store.In: 5, store.Waiting: 4, store.Retried: 1}), "opened again")
	must(t, s.LoseLedger())
	expect.Equal(t, again(), (store.Sums{store.In: 4, store.Waiting: 4}), "after a loss")
	finishOne()
	expect.Equal(t, again(), (store.Sums{store.In: 4, store.Waiting: 3, store.Retried: 1}), "from then on")
	s.Close()
}

// lives knows when each message was added and ended, in the order of events.
type lives struct {
	mu   sync.Mutex
	now  int
	when map[string]*life
}

type life struct{ adding, added, ending, ended int }

func (l *lives) mark(bodies []string, set func(*life, int)) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now++
	for _, b := range bodies {
		if l.when[b] == nil {
			l.when[b] = &life{}
		}
		set(l.when[b], l.now)
	}
	return l.now
}

// load adds messages, some of them large, and ends others until the context does.
func (l *lives) load(until context.Context, s *diskstore.Store) error {
	for n := 0; until.Err() == nil; n++ {
		var batch []*store.Record
		var bodies []string
		for i := range 20 {
			body := fmt.Sprintf("%d-%d", n, i)
			if i == 0 && n%10 == 0 {
				body += strings.Repeat("x", 2<<20)
			}
			bodies = append(bodies, body)
			batch = append(batch, storetest.Waiting("q", time.Duration(i)*time.Second, body))
		}
		l.mark(bodies, func(m *life, at int) { m.adding = at })
		if err := s.Add(ctx, batch); err != nil {
			return err
		}
		l.mark(bodies, func(m *life, at int) { m.added = at })
		s.CountUnstored("rabbitmq", store.Delayed, 3)
		claims, err := s.Claim(ctx, store.Lane{Queue: "q"}, time.Now().Add(time.Hour), 12, 1<<30)
		if err != nil {
			return err
		}
		var out []store.Outcome
		bodies = nil
		for i, c := range claims {
			o := store.Outcome{Claim: c, At: time.Now()}
			if i%3 == 0 {
				o.Park = "for a look"
			} else {
				bodies = append(bodies, string(c.Record.Message.Body))
			}
			out = append(out, o)
		}
		l.mark(bodies, func(m *life, at int) { m.ending = at })
		if _, err := s.Finish(ctx, out); err != nil {
			return err
		}
		l.mark(bodies, func(m *life, at int) { m.ended = at })
	}
	return nil
}

// check holds a snapshot, taken between two events, against what was going on.
func (l *lives) check(t *testing.T, folder string, from, to int, messages int64) {
	t.Helper()
	var log bytes.Buffer
	s := openAt(t, folder, diskstore.Options{Reserve: 1, Existing: true, Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))})
	defer s.Close()
	must(t, s.Check())
	if sums := storetest.Balances(t, s); sums["rabbitmq"][store.Delayed] == 0 {
		t.Errorf("the ledger lacks what was never kept: %v", sums)
	}
	there := bodies(t, s)
	if log.Len() > 0 || len(s.Damage()) > 0 || len(there) != int(messages) {
		t.Errorf("%d of %d messages, damage %v, and it logs:\n%s", len(there), messages, s.Damage(), &log)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	sure := 0
	for body, m := range l.when {
		must := m.added > 0 && m.added < from && (m.ending == 0 || m.ending > to)
		mustNot := m.ended > 0 && m.ended < from || m.adding > to
		if n := there[body]; must && n != 1 || mustNot && n != 0 || n > 1 {
			t.Errorf("message %.20s, %+v, is there %d times in the snapshot of %d to %d", body, *m, n, from, to)
		}
		if must {
			sure++
		}
	}
	if sure == 0 {
		t.Error("nothing had to be there, so this shows nothing")
	}
}

// Snapshots of a store that messages come to and go from meanwhile open by themselves,
// whole: what was there is there once, what had ended is not, and nothing warns.
func TestASnapshotUnderLoadIsAStoreByItself(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	s := openAt(t, filepath.Join(folder, "data"), diskstore.Options{Reserve: 1})
	l := &lives{when: map[string]*life{}}
	load, stop := context.WithCancel(ctx)
	failed := make(chan error, 1)
	go func() { failed <- l.load(load, s) }()
	type taken struct {
		from, to int
		messages int64
	}
	var all []taken
	for i := range 4 {
		for before := l.mark(nil, nil); l.mark(nil, nil) < before+100; { // messages came and went since the last
			time.Sleep(time.Millisecond)
		}
		from := l.mark(nil, nil)
		n, err := s.Snapshot(ctx, filepath.Join(folder, "backups", fmt.Sprint(i)))
		must(t, err)
		all = append(all, taken{from, l.mark(nil, nil), n})
	}
	stop()
	must(t, <-failed)
	for i, x := range all {
		snapshot := filepath.Join(folder, "backups", fmt.Sprint(i))
		closedToOthers(t, snapshot)
		l.check(t, snapshot, x.from, x.to, x.messages)
	}
	expect.Err(t, errOf(os.Stat(filepath.Join(folder, "data", "snapshot.partial"))), fs.ErrNotExist,
		"what it was made in is left")
}

// A snapshot on another disk is copied, and has its name only once it is whole; where that
// disk has no room, or the copy fails, nothing is left there.
func TestASnapshotOnAnotherDiskIsCopied(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	to := filepath.Join(folder, "backup")
	torn := false
	disk := &filling{FS: errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpRename && strings.HasSuffix(op.Path, "snapshot.partial/store") {
			return &fs.PathError{Op: "rename", Path: op.Path, Err: syscall.EXDEV}
		}
		if torn && op.Kind == errorfs.OpFileWrite && strings.HasPrefix(op.Path, to) && strings.HasSuffix(op.Path, ".log") {
			return syscall.EIO
		}
		return nil
	}))}
	disk.free.Store(1 << 40)
	s := openAt(t, filepath.Join(folder, "data"), diskstore.Options{FS: disk, Reserve: 100 << 20})
	must(t, s.Add(ctx, []*store.Record{storetest.Waiting("q", 0, "kept")}))
	disk.free.Store(100 << 20)
	expect.Err(t, errOf(s.Snapshot(ctx, to)), store.ErrFull, "into the reserve")
	disk.free.Store(1 << 40)
	torn = true
	expect.Err(t, errOf(s.Snapshot(ctx, to)), syscall.EIO, "a write that fails")
	torn = false
	if left, err := filepath.Glob(to + "*"); len(left) > 0 || err != nil {
		t.Errorf("left: %v, %v", left, err)
	}
	if n, err := s.Snapshot(ctx, to+"/"); n != 1 || err != nil {
		t.Fatalf("%d messages, %v", n, err)
	}
	copied := openAt(t, to, diskstore.Options{Reserve: 1, Existing: true})
	must(t, copied.Check())
	if sums := storetest.Balances(t, copied); sums["q"][store.Waiting] != 1 {
		t.Errorf("it has %v", sums)
	}
}

// A snapshot never mixes with what is there, and is not put where the store itself is.
func TestWhereASnapshotIsRefused(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	data := filepath.Join(folder, "data")
	s := openAt(t, data, diskstore.Options{Reserve: 1})
	full, file, empty := filepath.Join(folder, "full"), filepath.Join(folder, "file"), filepath.Join(folder, "empty")
	must(t, errors.Join(os.MkdirAll(filepath.Join(full, "x"), 0o700), os.WriteFile(file, nil, 0o600), os.Mkdir(empty, 0o755)))
	for to, word := range map[string]string{
		full: "not empty", file: "a file", data: "outside of the data folder", filepath.Join(data, "backup"): "outside of the data folder",
		"backup": "absolute", filepath.Join(file, "below"): "not a directory",
	} {
		if _, err := s.Snapshot(ctx, to); !errors.Is(err, store.ErrSnapshotFolder) || !strings.Contains(err.Error(), word) || !strings.Contains(err.Error(), to) {
			t.Errorf("%s: %v", to, err)
		}
	}
	expect.Err(t, errOf(s.Snapshot(ctx, empty+"/")), nil, "an empty folder")
	closedToOthers(t, empty)
}

// Open removes what a crash leaves of a snapshot.
func TestWhatIsLeftOfASnapshotIsRemoved(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	left := filepath.Join(data, "snapshot.partial")
	must(t, errors.Join(os.MkdirAll(filepath.Join(left, "store"), 0o700), os.WriteFile(filepath.Join(left, "store", "000005.sst"), nil, 0o600)))
	openAt(t, data, diskstore.Options{Reserve: 1}).Close()
	expect.Err(t, errOf(os.Stat(left)), fs.ErrNotExist, "it is left")
}
