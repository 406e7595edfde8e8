package diskstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
	"github.com/redrive-mq/redrive/internal/store/storetest"
)

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
func (l *lives) load(ctx context.Context, s *diskstore.Store) error {
	for n := 0; ctx.Err() == nil; n++ {
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
		if err := s.Add(context.Background(), batch); err != nil {
			return err
		}
		l.mark(bodies, func(m *life, at int) { m.added = at })
		s.CountUnstored("rabbitmq", store.Delayed, 3)
		claims, err := s.Claim(context.Background(), store.Lane{Queue: "q"}, time.Now().Add(time.Hour), 12, 1<<30)
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
		if _, err := s.Finish(context.Background(), out); err != nil {
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
	if err := s.Check(); err != nil {
		t.Error(err)
	}
	if sums := storetest.Balances(t, s); sums["rabbitmq"][store.Delayed] == 0 {
		t.Errorf("the ledger lacks what was never kept: %v", sums)
	}
	there := map[string]int{}
	err := s.Scan(ctx, store.Range{Body: true}, func(r store.Listed) (bool, error) {
		there[string(r.Record.Message.Body)]++
		return true, nil
	})
	if err != nil {
		t.Fatal(err)
	}
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
	folder := t.TempDir()
	s := openAt(t, filepath.Join(folder, "data"), diskstore.Options{Reserve: 1})
	defer s.Close()
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
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, taken{from, l.mark(nil, nil), n})
	}
	stop()
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
	for i, x := range all {
		snapshot := filepath.Join(folder, "backups", fmt.Sprint(i))
		closedToOthers(t, snapshot)
		l.check(t, snapshot, x.from, x.to, x.messages)
	}
	if _, err := os.Stat(filepath.Join(folder, "data", "snapshot.partial")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what it was made in is left: %v", err)
	}
}

func closedToOthers(t *testing.T, folder string) {
	t.Helper()
	err := filepath.WalkDir(folder, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		want := fs.FileMode(0o600)
		if e.IsDir() {
			want = 0o700
		}
		info, err := e.Info()
		if err == nil && info.Mode().Perm() != want {
			t.Errorf("%s has the rights %o", path, info.Mode().Perm())
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// A snapshot on another disk is copied, and has its name only once it is whole; where that
// disk has no room, or the copy fails, nothing is left there.
func TestASnapshotOnAnotherDiskIsCopied(t *testing.T) {
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
	defer s.Close()
	if err := s.Add(ctx, []*store.Record{storetest.Waiting("q", 0, "kept")}); err != nil {
		t.Fatal(err)
	}
	disk.free.Store(100 << 20)
	if _, err := s.Snapshot(ctx, to); !errors.Is(err, store.ErrFull) {
		t.Errorf("into the reserve: %v", err)
	}
	disk.free.Store(1 << 40)
	torn = true
	if _, err := s.Snapshot(ctx, to); !errors.Is(err, syscall.EIO) {
		t.Errorf("a write that fails: %v", err)
	}
	torn = false
	if left, err := filepath.Glob(to + "*"); len(left) > 0 || err != nil {
		t.Errorf("left: %v, %v", left, err)
	}
	if n, err := s.Snapshot(ctx, to+"/"); n != 1 || err != nil {
		t.Fatalf("%d messages, %v", n, err)
	}
	copied := openAt(t, to, diskstore.Options{Reserve: 1, Existing: true})
	defer copied.Close()
	if err := copied.Check(); err != nil {
		t.Error(err)
	}
	if sums := storetest.Balances(t, copied); sums["q"][store.Waiting] != 1 {
		t.Errorf("it has %v", sums)
	}
}

// A snapshot never mixes with what is there, and is not put where the store itself is.
func TestWhereASnapshotIsRefused(t *testing.T) {
	folder := t.TempDir()
	data := filepath.Join(folder, "data")
	s := openAt(t, data, diskstore.Options{Reserve: 1})
	defer s.Close()
	full, file, empty := filepath.Join(folder, "full"), filepath.Join(folder, "file"), filepath.Join(folder, "empty")
	if err := errors.Join(os.MkdirAll(filepath.Join(full, "x"), 0o700), os.WriteFile(file, nil, 0o600), os.Mkdir(empty, 0o755)); err != nil {
		t.Fatal(err)
	}
	for to, word := range map[string]string{
		full: "not empty", file: "a file", data: "outside of the data folder", filepath.Join(data, "backup"): "outside of the data folder",
		"backup": "absolute", filepath.Join(file, "below"): "not a directory",
	} {
		if _, err := s.Snapshot(ctx, to); !errors.Is(err, store.ErrSnapshotFolder) || !strings.Contains(err.Error(), word) || !strings.Contains(err.Error(), to) {
			t.Errorf("%s: %v", to, err)
		}
	}
	if _, err := s.Snapshot(ctx, empty+"/"); err != nil {
		t.Errorf("an empty folder: %v", err)
	}
	closedToOthers(t, empty)
}

// What a crash leaves of a snapshot is removed at the next start.
func TestWhatIsLeftOfASnapshotIsRemoved(t *testing.T) {
	data := t.TempDir()
	left := filepath.Join(data, "snapshot.partial")
	if err := errors.Join(os.MkdirAll(filepath.Join(left, "store"), 0o700), os.WriteFile(filepath.Join(left, "store", "000005.sst"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	openAt(t, data, diskstore.Options{Reserve: 1}).Close()
	if _, err := os.Stat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is left: %v", err)
	}
}
