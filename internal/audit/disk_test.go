package audit

import (
	"bufio"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// faulty is a file whose disk may fail.
type faulty struct {
	*os.File
	disk *disk
}

type disk struct {
	mu    sync.Mutex
	room  int // bytes that can be written; less than 0: any
	sync  error
	trunc error
	syncs int
	// entered, when not nil, learns of a write before it is made.
	entered chan struct{}
}

func (d *disk) open(name string) (file, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	return faulty{f, d}, err
}

func (f faulty) WriteAt(b []byte, at int64) (int, error) {
	if f.disk.entered != nil {
		select {
		case f.disk.entered <- struct{}{}:
		default:
		}
	}
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if room := f.disk.room; room >= 0 && len(b) > room {
		n, _ := f.File.WriteAt(b[:room], at)
		return n, syscall.ENOSPC
	}
	return f.File.WriteAt(b, at)
}

func (f faulty) Sync() error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	f.disk.syncs++
	return f.disk.sync
}

func (f faulty) Truncate(n int64) error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if f.disk.trunc != nil {
		return f.disk.trunc
	}
	return f.File.Truncate(n)
}

// Without room for its line nothing may be done; with room again all goes on, an
// outcome that could not be written meanwhile comes first, and the chain is whole.
func TestAFullDisk(t *testing.T) {
	for _, rotate := range []int64{0, 1} {
		for _, c := range []struct {
			name string
			disk *disk
		}{
			{"no room", &disk{room: 0}}, {"some room", &disk{room: 40}},
			{"a sync that fails", &disk{room: -1, sync: syscall.EIO}},
			{"nothing works", &disk{room: 40, sync: syscall.EIO, trunc: syscall.EIO}},
		} {
			t.Run(fmt.Sprintf("%s, rotating at %d", c.name, rotate), func(t *testing.T) {
				folder, d := t.TempDir(), &disk{room: -1}
				o := quiet()
				o.Rotate = rotate
				l, err := open(folder, o, d.open)
				must(t, err)
				done, err := l.Begin(Entry{Did: "first"})
				must(t, err)
				d.room, d.sync, d.trunc = c.disk.room, c.disk.sync, c.disk.trunc
				for range 3 {
					want := syscall.ENOSPC
					if c.disk.room < 0 {
						want = syscall.EIO
					}
					if _, err := l.Begin(Entry{Did: "refused"}); !errors.Is(err, want) && !errors.Is(err, c.disk.trunc) {
						t.Fatalf("it says %v", err)
					}
				}
				done("done", 7)
				d.room, d.sync, d.trunc = -1, nil, nil
				if _, err := l.Begin(Entry{Did: "last"}); err != nil {
					t.Fatal(err)
				}
				must(t, l.Close())
				if _, err := l.Begin(Entry{}); !errors.Is(err, ErrClosed) {
					t.Errorf("closed, it says %v", err)
				}
				if r, err := verify(t, folder); err != nil || len(r.Repaired) != 0 {
					t.Fatal(r, err)
				}
				var did []string
				if err := openAt(t, folder, quiet()).Before(t.Context(), math.MaxInt64, func(e Entry) (bool, error) {
					if e.Did != didStart {
						did = append(did, e.Did+" "+e.Outcome)
					}
					return true, nil
				}); err != nil {
					t.Fatal(err)
				}
				if got := strings.Join(did, ", "); got != "last begun, first done, first begun" {
					t.Errorf("the log has, newest first: %s", got)
				}
			})
		}
	}
}

// Those who begin while another's line is written share the next sync.
func TestSyncsAreShared(t *testing.T) {
	d := &disk{room: -1, entered: make(chan struct{}, 1)}
	l, err := open(t.TempDir(), quiet(), d.open)
	must(t, err)
	defer l.Close()
	<-d.entered
	before := d.syncs
	var all sync.WaitGroup
	begin := func() {
		if _, err := l.Begin(Entry{Did: "replay"}); err != nil {
			t.Error(err)
		}
	}
	d.mu.Lock()
	all.Go(begin)
	<-d.entered // and waits to write
	const n = 50
	for range n {
		all.Go(begin)
	}
	for gathered := 0; gathered < n; {
		<-time.After(time.Millisecond)
		l.mu.Lock()
		if l.next != nil {
			gathered = len(l.next.lines)
		}
		l.mu.Unlock()
	}
	d.mu.Unlock()
	all.Wait()
	if got := d.syncs - before; got != 2 {
		t.Errorf("1 entry and then %d took %d syncs, want 2", n, got)
	}
}

func TestOneServiceWritesALog(t *testing.T) {
	folder := t.TempDir()
	openAt(t, folder, quiet())
	if _, err := Open(folder, quiet()); err == nil || !strings.Contains(err.Error(), "another service") {
		t.Errorf("a second one says: %v", err)
	}
}

// Texts of any length and content make a line that can be read again.
func TestHostileTexts(t *testing.T) {
	folder := t.TempDir()
	l := openAt(t, folder, quiet())
	e := Entry{Who: "\x00\"}\n{\"n\":1}", On: strings.Repeat("\x01", mostOn+1), Why: strings.Repeat("é", mostText), Did: "\xff\u2028"}
	if _, err := l.Begin(e); err != nil {
		t.Fatal(err)
	}
	whole(t, folder, 2)
	seen := 0
	if err := l.Before(t.Context(), math.MaxInt64, func(got Entry) (bool, error) { seen++; return true, nil }); err != nil || seen != 2 {
		t.Errorf("%d entries are there: %v", seen, err)
	}
}

// unsynced is a file of a test that looks at what is written and not at when it is durable.
type unsynced struct{ *os.File }

func (unsynced) Sync() error { return nil }

func openUnsynced(name string) (file, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	return unsynced{f}, err
}

// However much of what was not yet synced a crash leaves, what was is there, and
// a line tells of the rest; a second crash while that is written changes nothing.
func TestAnythingThatACrashLeavesIsMended(t *testing.T) {
	folder := t.TempDir()
	fill(t, folder, quiet(), 1)
	file := filepath.Join(folder, nameOf(1))
	kept, err := os.ReadFile(file)
	must(t, err)
	fill(t, folder, quiet(), 2)
	all, err := os.ReadFile(file)
	must(t, err)
	write := func(data []byte) {
		t.Helper()
		// A file that is cut to nothing and closed would be put on the disk each time.
		must(t, errors.Join(os.Remove(file), os.WriteFile(file, data, 0o600)))
	}
	repaired := func() ([]byte, int) {
		t.Helper()
		l, err := open(folder, quiet(), openUnsynced)
		must(t, err)
		must(t, l.Close())
		r, err := verify(t, folder)
		must(t, err)
		now, err := os.ReadFile(file)
		must(t, err)
		return now, len(r.Repaired)
	}
	zeros := string(make([]byte, 300))
	for _, left := range []string{"", "x", "\n", "\n\n", "{", "no line\n", "no line\nnor this", zeros, zeros + "\n" + zeros} {
		write(append(kept[:len(kept):len(kept)], left...))
		if _, n := repaired(); (n == 1) != (left != "") {
			t.Errorf("after %.20q: %d places were repaired", left, n)
		}
	}
	for cut := len(kept); cut <= len(all); cut++ {
		write(all[:cut])
		once, n := repaired()
		if lines := all[cut-1] == '\n' || cut < len(all) && all[cut] == '\n'; lines == (n == 1) {
			t.Fatalf("cut to %d of %d bytes: %d places were repaired", cut, len(all), n)
		}
		if n == 1 {
			again := cut + rand.IntN(len(once)-cut)
			write(once[:again])
			if _, n := repaired(); n != 1 {
				t.Fatalf("cut to %d bytes and, repairing, to %d: %d places were repaired", cut, again, n)
			}
		}
	}
	// A file that was only just begun.
	for _, left := range []string{"", "{\"n\":", "no line\n"} {
		write(all)
		last := whole(t, folder, 7).Last
		second := filepath.Join(folder, nameOf(last+1))
		must(t, os.WriteFile(second, []byte(left), 0o600))
		if _, n := repaired(); n != 1 {
			t.Errorf("a second file with %q: %d places were repaired", left, n)
		}
		must(t, os.Remove(second))
	}
}

const childFolder = "REDRIVE_TEST_AUDIT_FOLDER"

// A process that is killed while it writes has every entry that it was promised.
func TestAKilledProcessKeepsItsEntries(t *testing.T) {
	folder := t.TempDir()
	promised, repaired := map[int64]bool{}, 0
	for life := range 10 {
		child := exec.Command(os.Args[0], "-test.run=^TestChildThatIsKilled$")
		child.Env = append(os.Environ(), childFolder+"="+folder)
		out, err := child.StdoutPipe()
		must(t, err)
		must(t, child.Start())
		killAt := 1 + rand.IntN(200)
		said, lines := bufio.NewReader(out), 0
		for ; ; lines++ {
			line, err := said.ReadString('\n')
			if err != nil {
				break // a line cut short was not said
			}
			n, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
			if err != nil || promised[n] {
				t.Fatalf("the child says %q", line)
			}
			promised[n] = true
			if lines == killAt {
				_ = child.Process.Kill()
			}
		}
		if err := child.Wait(); err == nil || lines < killAt {
			t.Fatalf("life %d: the child ended by itself after %d lines: %v", life, lines, err)
		}
	}
	l := openAt(t, folder, quiet())
	r, err := verify(t, folder)
	must(t, err)
	repaired += len(r.Repaired)
	must(t, l.Before(t.Context(), math.MaxInt64, func(e Entry) (bool, error) { delete(promised, e.N); return true, nil }))
	if len(promised) != 0 {
		t.Errorf("%d entries that were promised are not there: %v", len(promised), promised)
	}
	t.Logf("%d entries in %d files, repaired in %d places", r.Last, r.Files, repaired)
}

// TestChildThatIsKilled is the other process: it says the number of each entry that
// it was promised, until it is killed.
func TestChildThatIsKilled(t *testing.T) {
	folder := os.Getenv(childFolder)
	if folder == "" {
		t.Skip("only as the child of another test")
	}
	o := quiet()
	o.Rotate = 20_000
	l := openAt(t, folder, o)
	for i := range 8 {
		go func() {
			for {
				e := Entry{Who: "ann", Did: "replay", On: strings.Repeat("x", 10*i)}
				if err := l.add(&e); err != nil {
					panic(err)
				}
				fmt.Printf("%d\n", e.N)
			}
		}()
	}
	select {}
}
