package audit

import (
	"errors"
	"fmt"
	"math"
	"os"
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
				if err != nil {
					t.Fatal(err)
				}
				done, err := l.Begin(Entry{Did: "first"})
				if err != nil {
					t.Fatal(err)
				}
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
				if err := l.Close(); err != nil {
					t.Fatal(err)
				}
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
	if err != nil {
		t.Fatal(err)
	}
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
