package diskstore_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/errorgroup"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
	"github.com/redrive-mq/redrive/internal/store/storetest"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
)

// After a power cut everything is there for which Add returned, nothing that Finish ended
// comes back, and a write under way is there whole or not at all; also when it was torn.
func TestAPowerCutLosesNothingThatWasPromised(t *testing.T) {
	t.Parallel()
	seeds := uint64(10)
	if storetest.Long() {
		seeds = 30
	}
	for seed := range seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(seed, 1))
			disk := vfs.NewCrashableMem()
			kept := map[string]bool{}  // by body: promised to be there
			ended := map[string]bool{} // promised to be gone
			for life := range 4 {
				s := openAt(t, "data", diskstore.Options{FS: roomy{disk}})
				check(t, s, kept, ended)
				for range 1 + random.IntN(10) {
					var batch []*store.Record
					for range 1 + random.IntN(40) {
						batch = append(batch, storetest.Waiting("q", time.Duration(random.IntN(1000)), fmt.Sprintf("%d-%d-%d", seed, life, len(kept)+len(batch)+random.IntN(1e9))))
					}
					must(t, s.Add(ctx, batch))
					for _, r := range batch {
						kept[string(r.Message.Body)] = true
					}
					finish(t, s, random, kept, ended)
					must(t, mutate(s, random.IntN))
				}
				// The power goes while the store is open and writes more.
				under := storetest.Waiting("q", 0, fmt.Sprint("under way ", life))
				written := make(chan error, 2)
				go func() { written <- s.Add(ctx, []*store.Record{under}) }()
				go func() { written <- mutate(s, rand.New(rand.NewPCG(seed, 2)).IntN) }()
				disk2 := disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: random.IntN(101), RNG: random})
				for range cap(written) {
					expect.Err(t, <-written, nil, "writing")
				}
				must(t, s.Close())
				disk = disk2
			}
		})
	}
}

// roomy is a disk in memory with unlimited room.
type roomy struct{ vfs.FS }

func (roomy) GetDiskUsage(string) (vfs.DiskUsage, error) {
	return vfs.DiskUsage{AvailBytes: 1 << 40, TotalBytes: 1 << 40}, nil
}

// finish ends some claims: half are deleted, half parked.
func finish(t *testing.T, s store.Store, random *rand.Rand, kept, ended map[string]bool) {
	t.Helper()
	claims, err := s.Claim(ctx, store.Lane{Queue: "q"}, time.Now().Add(1e6*time.Hour), 1+random.IntN(30), 1<<20)
	must(t, err)
	var out []store.Outcome
	for i, c := range claims {
		o := store.Outcome{Claim: c}
		if i%2 == 0 {
			o.Park, o.At = "why", time.Now()
		} else {
			delete(kept, string(c.Record.Message.Body))
			ended[string(c.Record.Message.Body)] = true
		}
		out = append(out, o)
	}
	must(t, errOf(s.Finish(ctx, out)))
}

// movedQueue holds what mutate changes; nothing claims from it.
const movedQueue = "moved"

// mutate moves records of a queue of its own from state to state, adds some and
// deletes some, and writes in the same step what has become of each: what accounts
// for compares.
func mutate(s store.Store, intN func(int) int) error {
	var keys []store.Key
	err := s.Scan(ctx, store.Range{Queues: []string{movedQueue}}, func(l store.Listed) (bool, error) {
		if intN(3) > 0 {
			keys = append(keys, l.Key)
		}
		return true, nil
	})
	if err != nil {
		return err
	}
	var entries []store.Entry
	tell := func(r *store.Record, value []byte) {
		entries = append(entries, store.Entry{Name: "moved/" + r.ID.String(), Value: value})
	}
	// A key of nothing, so that the first change has one too.
	_, err = s.Change(ctx, append(keys, ""), func(_ store.Key, r *store.Record) (e store.Edit) {
		switch {
		case r == nil:
			for range 1 + intN(4) {
				r := storetest.Waiting(movedQueue, time.Duration(intN(1000))*time.Second, "")
				tell(r, accountOf(r))
				e.Add = append(e.Add, r)
			}
		case intN(5) == 0:
			e.Delete = true
			tell(r, nil)
		default:
			r.State, r.Failures = store.State(1+intN(3)), r.Failures+1
			e.Keep = true
			tell(r, accountOf(r))
		}
		return e
	}, func(int) []store.Entry { return entries })
	return err
}

func accountOf(r *store.Record) []byte {
	return fmt.Appendf(nil, "state %d, attempt %d", r.State, r.Failures)
}

// accountsFor checks that the account matches what was changed.
func accountsFor(t *testing.T, s store.Store) {
	t.Helper()
	told, is := map[string]string{}, map[string]string{}
	err := s.Entries(ctx, "moved/", "", func(e store.Entry) (bool, error) {
		told[e.Name] = string(e.Value)
		return true, nil
	})
	must(t, err)
	for _, l := range storetest.Listed(t, s, store.Range{Queues: []string{movedQueue}}) {
		is["moved/"+l.Record.ID.String()] = string(accountOf(l.Record))
	}
	expect.Equal(t, cmp.Diff(told, is), "", "what was done differs from the account of it (-account +is):\n")
}

// bodies returns the bodies of all messages, and how often each is there.
func bodies(t *testing.T, s *diskstore.Store) map[string]int {
	t.Helper()
	there := map[string]int{}
	for _, l := range storetest.Listed(t, s, store.Range{Body: true}) {
		there[string(l.Record.Message.Body)]++
	}
	return there
}

// check compares the messages and counts with what was promised.
func check(t *testing.T, s *diskstore.Store, kept, ended map[string]bool) {
	t.Helper()
	must(t, s.Check())
	accountsFor(t, s)
	groupsCount(t, s)
	// What was under way is in the ledger when it is there.
	if q := storetest.Balances(t, s)["q"]; q[store.In] < int64(len(kept)+len(ended)) || q[store.Retried] < int64(len(ended)) {
		t.Errorf("%d were kept and %d have ended, and the ledger says %v", len(kept), len(ended), q)
	}
	there, total := bodies(t, s), int64(0)
	for _, n := range there {
		total += int64(n)
	}
	for body := range kept {
		expect.Equal(t, there[body], 1, "%q is there … times after the power cut", body)
	}
	for body := range ended {
		expect.Equal(t, there[body], 0, "%q has come back … times", body)
	}
	counts, err := s.Counts(ctx)
	must(t, err)
	for _, c := range counts {
		total -= c.Waiting + c.Parked + c.Discarded
	}
	expect.Equal(t, total, 0, "the counts are … off")
}

const childFolder, childFault = "REDRIVE_TEST_CHILD_FOLDER", "REDRIVE_TEST_CHILD_FAULT"

// logFaults are the operations on the log that may fail.
var logFaults = map[string][]errorfs.OpKind{
	"write": {errorfs.OpFileWrite},
	"sync":  {errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo},
}

// says are the bodies that a child wrote behind each sign.
type says map[byte]map[string]bool

// runChild runs TestChild until it ends, or is killed after so many lines.
func (all says) runChild(t *testing.T, path, fault string, killAt int) (lines int, log string, err error) {
	t.Helper()
	child := exec.Command(os.Args[0], "-test.run=^TestChild$")
	child.Env = append(os.Environ(), childFolder+"="+path, childFault+"="+fault)
	var stderr bytes.Buffer
	child.Stderr = &stderr
	out, err := child.StdoutPipe()
	must(t, err)
	must(t, child.Start())
	for said := bufio.NewReader(out); ; lines++ {
		line, err := said.ReadString('\n')
		if err != nil { // a line cut short was not said
			err = child.Wait() // then its log is whole
			return lines, stderr.String(), err
		}
		if bodies := all[line[0]]; bodies != nil {
			bodies[strings.TrimSpace(line[1:])] = true
		} else {
			t.Errorf("the child says %q", line)
		}
		if lines == killAt {
			_ = child.Process.Kill()
		}
	}
}

// TestChild is the other process: it adds (+), finishes (~ before, - after), and changes, and
// says what it was promised, until it is killed; or adds until its log fails.
func TestChild(t *testing.T) {
	path, fault := os.Getenv(childFolder), os.Getenv(childFault)
	if path == "" {
		t.Skip("only as the child of another test")
	}
	var broken atomic.Bool
	disk := errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if broken.Load() && slices.Contains(logFaults[fault], op.Kind) && filepath.Ext(op.Path) == ".log" {
			return syscall.EIO
		}
		return nil
	}))
	s := openAt(t, path, diskstore.Options{FS: disk, Reserve: 1})
	say := func(sign string, bodies []string) {
		for _, b := range bodies {
			fmt.Println(sign + b)
		}
	}
	finishes := func() error {
		claims, err := s.Claim(ctx, store.Lane{Queue: "q"}, farAway, 2, 1<<20)
		if len(claims) == 0 && err == nil {
			<-s.Changed()
		}
		var bodies []string
		for _, c := range claims {
			bodies = append(bodies, string(c.Record.Message.Body))
		}
		say("~", bodies)
		if _, finishErr := s.Finish(ctx, storetest.Ended(claims, farAway)); finishErr != nil {
			return finishErr
		}
		say("-", bodies)
		return err
	}
	for _, does := range []func() error{finishes, func() error { return mutate(s, rand.IntN) }} {
		go func() {
			for fault == "" {
				if err := does(); err != nil {
					panic(err)
				}
			}
		}()
	}
	for n := 0; ; n++ {
		var batch []*store.Record
		var bodies []string
		for i := range 1 + n%20 {
			bodies = append(bodies, fmt.Sprintf("%d-%d-%d", os.Getpid(), n, i))
			batch = append(batch, storetest.Waiting("q", time.Duration(i)*time.Second, bodies[i]))
		}
		broken.Store(fault != "" && n == 3)
		err := s.Add(ctx, batch)
		if broken.Load() {
			bodies = []string{fmt.Sprint("went on after ", err)}
		}
		if say("+", bodies); err != nil || broken.Load() {
			return
		}
	}
}

// A process that is killed while it adds and finishes leaves all it was promised, and
// an account of its changes that says what was changed.
func TestAKilledProcessLosesNothingThatWasPromised(t *testing.T) {
	t.Parallel()
	path, said, changed := t.TempDir(), says{'+': {}, '~': {}, '-': {}}, 0
	lives := 5
	if storetest.Long() {
		lives = 20
	}
	for life := range lives {
		killAt := 1 + rand.IntN(150)
		t.Logf("life %d: killed after %d lines", life, killAt)
		if lines, log, err := said.runChild(t, path, "", killAt); err == nil || lines < killAt {
			t.Fatalf("the child ended by itself after %d lines: %v\n%s", lines, err, log)
		}
		kept := maps.Clone(said['+'])
		maps.DeleteFunc(kept, func(body string, _ bool) bool { return said['~'][body] })
		s := openAt(t, path, diskstore.Options{Reserve: 1})
		check(t, s, kept, said['-'])
		err := s.Entries(ctx, "moved/", "", func(store.Entry) (bool, error) { changed++; return false, nil })
		must(t, errors.Join(err, s.Close()))
	}
	if added, ended := len(said['+']), len(said['-']); changed == 0 || ended == 0 || added == ended {
		t.Errorf("%d added, %d finished and %d changed show nothing", added, ended, changed)
	}
}

// When the log cannot be written the process says so and ends, before anything is
// promised. What was promised is there afterwards; the batch that
// failed is there whole or not at all.
func TestALogThatCannotBeWrittenEndsTheProcess(t *testing.T) {
	t.Parallel()
	for fault := range logFaults {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			path, said := t.TempDir(), says{'+': {}}
			_, log, err := said.runChild(t, path, fault, -1)
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 1 {
				t.Errorf("the child ended with %v, want exit code 1", err)
			}
			if !strings.Contains(log, "the disk failed; ending") || !strings.Contains(log, syscall.EIO.Error()) {
				t.Errorf("the child said only:\n%s", log)
			}
			kept := said['+']
			expect.Equal(t, len(kept), 1+2+3, "promised of %v", kept)
			s := openAt(t, path, diskstore.Options{Reserve: 1})
			check(t, s, kept, nil)
			if n := len(bodies(t, s)) - len(kept); n != 0 && n != 4 {
				t.Errorf("of the batch that failed %d of 4 are there", n)
			}
		})
	}
}

// After a failure in the background, or before anything was written, the store stays usable:
// nothing was promised, and nothing promised is lost.
func TestAStoreLivesOnAfterOtherWriteErrors(t *testing.T) {
	t.Parallel()
	const batches, size = 30, 1 << 20 // more than a memtable, so that a table is written
	for _, c := range []struct {
		name  string
		kind  errorfs.OpKind
		ext   string
		fails bool // Add says so
	}{
		{"making a table", errorfs.OpCreate, ".sst", false},
		{"writing a table", errorfs.OpFileWrite, ".sst", false},
		{"syncing a table", errorfs.OpFileSyncData, ".sst", false},
		{"asking for room", errorfs.OpGetDiskUsage, "", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var armed, hit atomic.Bool
			base := vfs.NewMem()
			disk := errorfs.Wrap(roomy{base}, errorfs.InjectorFunc(func(op errorfs.Op) error {
				if op.Kind == c.kind && filepath.Ext(op.Path) == c.ext && armed.CompareAndSwap(true, false) {
					hit.Store(true)
					return syscall.EIO
				}
				return nil
			}))
			s := openAt(t, "data", diskstore.Options{FS: disk})
			armed.Store(true)
			kept, failed := map[string]bool{}, 0
			for i := range batches {
				body := fmt.Sprintf("%08d%s", i, strings.Repeat("x", size))
				err := s.Add(ctx, []*store.Record{storetest.Waiting("q", 0, body)})
				if err == nil {
					kept[body] = true
				} else if failed++; !errors.Is(err, syscall.EIO) {
					t.Error(err)
				}
			}
			reopened(t, s, disk, kept)
			if !hit.Load() {
				t.Error("nothing failed, so this shows nothing")
			}
			if want := map[bool]int{true: 1}[c.fails]; failed != want {
				t.Errorf("Add failed %d times, want %d", failed, want)
			}
		})
	}
}

// reopened checks a store before and after it is opened again, and closes it.
func reopened(t *testing.T, s *diskstore.Store, disk vfs.FS, kept map[string]bool) {
	t.Helper()
	for range 2 {
		check(t, s, kept, nil)
		must(t, s.Close())
		s = openAt(t, "data", diskstore.Options{FS: disk})
	}
	check(t, s, kept, nil)
	must(t, s.Close())
}

// A disk that is full at any write of Pebble's own files stops commits until there is room: none is
// lost, none is doubled, and reads go on.
func TestCommitsWaitWhileTheDiskIsFull(t *testing.T) {
	t.Parallel()
	for _, ext := range []string{".log", "", ".sst"} { // "" is the MANIFEST
		t.Run("file"+ext, func(t *testing.T) {
			t.Parallel()
			var armed atomic.Bool
			base, waits, failures := vfs.NewMem(), make(chan error, 1000), atomic.Int64{}
			disk := errorfs.Wrap(roomy{base}, errorfs.InjectorFunc(func(op errorfs.Op) error {
				if armed.Load() && (op.Kind == errorfs.OpFileWrite || op.Kind == errorfs.OpCreate) && filepath.Ext(op.Path) == ext {
					failures.Add(1)
					return syscall.ENOSPC
				}
				return nil
			}))
			s := openAt(t, "data", diskstore.Options{FS: disk, OnFull: func(err error) { waits <- err }})
			kept := map[string]bool{}
			armed.Store(true)
			added := make(chan error, 1)
			go func() {
				var all error
				for i := range 40 { // more than a memtable, so that a table is written
					body := fmt.Sprintf("%08d%s", i, strings.Repeat("x", 1<<20))
					kept[body] = true
					all = errors.Join(all, s.Add(ctx, []*store.Record{storetest.Waiting("q", 0, body)}))
				}
				added <- all
			}()
			if ext != ".sst" { // Pebble makes tables again itself
				expect.Err(t, <-waits, syscall.ENOSPC, "it waits")
				must(t, errOf(s.Counts(ctx)))
			} else {
				brokertest.Eventually(t, "a table fails", func() bool { return failures.Load() > 0 })
			}
			armed.Store(false)
			must(t, <-added)
			if ext != ".sst" && <-waits != nil {
				t.Error("it does not say that there is room")
			}
			reopened(t, s, disk, kept)
		})
	}
}

// faultAt fails the read of a table, or of history, with this number, counted from arm on.
type faultAt struct {
	left  atomic.Int64
	armed atomic.Bool
	hit   atomic.Bool
	twice bool // and the one after it: one that fails once is read again
}

func (f *faultAt) arm(read int) {
	f.left.Store(int64(read))
	f.armed.Store(true)
}

func (f *faultAt) String() string { return "one read of a table, or of history, fails" }

func (f *faultAt) MaybeError(op errorfs.Op) error {
	table := op.Kind == errorfs.OpFileReadAt && strings.HasSuffix(op.Path, ".sst")
	history := op.Kind == errorfs.OpFileRead && strings.Contains(op.Path, "history")
	if !f.armed.Load() || !table && !history {
		return nil
	}
	if left := f.left.Add(-1); left == -1 || f.twice && left == -2 {
		f.hit.Store(true)
		return syscall.EIO
	}
	return nil
}

var readers = map[string]func(*diskstore.Store, uuid.UUID) (string, error){
	"claim": func(s *diskstore.Store, _ uuid.UUID) (string, error) {
		claims, err := s.Claim(ctx, store.Lane{Queue: "q"}, farAway, 1000, 1<<30)
		var got []string
		for _, c := range claims {
			got = append(got, string(c.Record.Message.Body[:8]))
		}
		return fmt.Sprint(got), err
	},
	"find": func(s *diskstore.Store, id uuid.UUID) (string, error) {
		found, err := s.Find(ctx, id)
		if err != nil {
			return "", err
		}
		l, err := s.Get(ctx, found[0].Key)
		return fmt.Sprint(l.Record, l.BodySize), err
	},
	"scan": func(s *diskstore.Store, _ uuid.UUID) (string, error) { return visited(s, store.Range{Body: true}) },
	"past": func(s *diskstore.Store, id uuid.UUID) (string, error) {
		all, err := s.PastFailures(ctx, id)
		return fmt.Sprint(all), err
	},
	"returned": func(s *diskstore.Store, _ uuid.UUID) (string, error) {
		var all []store.PastFailure
		err := s.EachPastFailure(ctx, func(p store.PastFailure) (bool, error) { all = append(all, p); return true, nil })
		return fmt.Sprint(all), err
	},
	"scan newest first": func(s *diskstore.Store, _ uuid.UUID) (string, error) {
		return visited(s, store.Range{NewestFirst: true, Body: true})
	},
	"scan a group": func(s *diskstore.Store, _ uuid.UUID) (string, error) {
		return visited(s, store.Range{Groups: []errorgroup.ID{errorgroup.Of("p", "rejected", "", "").ID}})
	},
	"change": func(s *diskstore.Store, id uuid.UUID) (string, error) {
		found, err := s.Find(ctx, id)
		if err != nil {
			return "", err
		}
		keys := []store.Key{found[0].Key}
		for i := range byte(20) {
			found, err := s.Find(ctx, idOf(i))
			if err != nil {
				return "", err
			}
			keys = append(keys, found[0].Key)
		}
		_, err = s.Change(ctx, keys, storetest.Keep(func(r *store.Record) { r.State, r.Due = store.Waiting, farAway }), nil)
		if err != nil {
			return "", err
		}
		return visited(s, store.Range{From: farAway})
	},
}

var farAway = time.UnixMicro(4_000_000_000_000_000)

func visited(s *diskstore.Store, r store.Range) (string, error) {
	var got []string
	err := s.Scan(ctx, r, func(l store.Listed) (bool, error) {
		got = append(got, fmt.Sprint(l.Record.ID, l.Record.State, l.Record.Due, l.BodySize))
		return true, nil
	})
	return fmt.Sprint(got), err
}

// idOf is the id of a waiting record of filled.
func idOf(i byte) uuid.UUID { return uuid.UUID{1, i} }

// Whichever read of the disk fails: the call returns an error, not a wrong answer, and
// succeeds when the disk reads again. So a claim that failed claims nothing.
func TestAReadThatFailsIsAnErrorAndLosesNothing(t *testing.T) {
	t.Parallel()
	for name, read := range readers {
		t.Run(name, func(t *testing.T) {
			disk, id := filled(t)
			sound := openAt(t, "data", diskstore.Options{FS: roomy{disk.CrashClone(vfs.CrashCloneCfg{})}})
			want, err := read(sound, id)
			if err != nil || len(want) < 10 {
				t.Fatalf("without a fault: %q, %v", want, err)
			}
			must(t, sound.Close())
			for n := 0; ; n++ {
				fault := &faultAt{}
				s := openAt(t, "data", diskstore.Options{FS: errorfs.Wrap(roomy{disk.CrashClone(vfs.CrashCloneCfg{})}, fault)})
				fault.arm(n)
				got, err := read(s, id)
				fault.armed.Store(false)
				switch {
				case err != nil && !errors.Is(err, syscall.EIO):
					t.Errorf("read %d failed: %v", n, err)
				case err == nil && got != want:
					t.Errorf("read %d failed, and the answer is wrong:\n%s\nwant\n%s", n, got, want)
				}
				if err != nil {
					got, err = read(s, id)
				}
				if err != nil || got != want {
					t.Errorf("after read %d failed: %v\n%s\nwant\n%s", n, err, got, want)
				}
				must(t, s.Close())
				if !fault.hit.Load() {
					t.Logf("%d reads, each failed once", n)
					if n == 0 {
						t.Error("it never read the disk, so this shows nothing")
					}
					return
				}
			}
		})
	}
}

// A store that cannot be opened says why, and can be opened again.
func TestAReadThatFailsWhileOpening(t *testing.T) {
	t.Parallel()
	disk, _ := filled(t)
	failed := 0
	for n := 0; ; n++ {
		fault := &faultAt{twice: true}
		fs := errorfs.Wrap(roomy{disk.CrashClone(vfs.CrashCloneCfg{})}, fault)
		fault.arm(n)
		s, err := diskstore.Open("data", diskstore.Options{FS: fs})
		fault.armed.Store(false)
		if err != nil {
			if failed++; !errors.Is(err, syscall.EIO) || !strings.Contains(err.Error(), "data") {
				t.Errorf("read %d failed: %v", n, err)
			}
			s = openAt(t, "data", diskstore.Options{FS: fs})
		}
		counts, err := s.Counts(ctx)
		if err != nil || len(counts) != 2 || counts[0].Waiting+counts[1].Waiting != 200 || counts[0].Parked+counts[1].Parked != 200 {
			t.Errorf("after read %d failed: %+v, %v", n, counts, err)
		}
		must(t, s.Close())
		if !fault.hit.Load() {
			break
		}
	}
	if failed == 0 {
		t.Error("opening never failed, so this shows nothing")
	}
}

// filled is a disk with 200 waiting and 200 parked messages in tables, and the
// ID of one in the middle.
func filled(t *testing.T) (*vfs.MemFS, uuid.UUID) {
	t.Helper()
	disk := vfs.NewCrashableMem()
	s := openAt(t, "data", diskstore.Options{FS: roomy{disk}})
	var batch []*store.Record
	for i := range 200 {
		w := storetest.Waiting("q", time.Duration(i)*time.Second, fmt.Sprintf("%08d", i)+strings.Repeat("x", 2000))
		p := storetest.Waiting("p", time.Duration(i)*time.Second, fmt.Sprintf("%08d", i)+strings.Repeat("x", 2000))
		p.State, p.ParkedFor = store.Parked, "why"
		w.ID = idOf(byte(i))
		w.Fingerprint[0], p.Fingerprint[0] = byte(i), byte(i)
		batch = append(batch, w, p)
	}
	for i := range byte(200) {
		r := storetest.Waiting("returned", 0, "")
		r.ID = idOf(i)
		batch = append(batch, r)
	}
	for part := range slices.Chunk(batch, 50) {
		must(t, s.Add(ctx, part))
	}
	claimAll(t, s, store.Lane{Queue: "returned"})
	// Opening again makes tables of what the log has.
	for range 2 {
		must(t, s.Close())
		s = openAt(t, "data", diskstore.Options{FS: roomy{disk}})
	}
	must(t, s.Close())
	return disk, batch[200].ID
}

// groupsCount compares the counts of groups with the kept records.
func groupsCount(t *testing.T, s store.Store) {
	t.Helper()
	kept, counted := map[errorgroup.ID][3]int64{}, map[errorgroup.ID][3]int64{}
	for _, l := range storetest.Listed(t, s, store.Range{}) {
		id := s.GroupOf(l.Record)
		n := kept[id]
		n[l.Record.State-1]++
		kept[id] = n
	}
	for _, g := range storetest.Groups(t, s) {
		if n := [3]int64{g.Waiting, g.Parked, g.Discarded}; n != [3]int64{} {
			counted[g.ID] = n
		}
	}
	expect.Equal(t, cmp.Diff(kept, counted), "", "groups count something else than what is kept (-kept +counted):\n")
}

var must, errOf, openAt = expect.NoError, expect.ErrOf, diskstore.OpenAt
