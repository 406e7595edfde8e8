package migrate_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/migrate"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
	"github.com/redrive-mq/redrive/internal/store/memstore"
	"github.com/redrive-mq/redrive/internal/store/storetest"
	"github.com/redrive-mq/redrive/wire"
)

// childEnv makes the test's binary a migration: two folders, and after how many
// batches it kills itself.
const childEnv = "REDRIVE_TEST_MIGRATION"

func TestMain(m *testing.M) {
	if args := os.Getenv(childEnv); args != "" {
		os.Exit(child(strings.Fields(args)))
	}
	goleak.VerifyTestMain(m)
}

func child(args []string) int {
	left, err := strconv.Atoi(args[2])
	if err != nil {
		panic(err)
	}
	from, err := diskstore.Open(args[0], diskstore.Options{})
	if err != nil {
		panic(err)
	}
	to, err := diskstore.Open(args[1], diskstore.Options{})
	if err != nil {
		panic(err)
	}
	m := between(from, to)
	m.Report = func(migrate.Progress) {
		if left--; left == 0 {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
	if err := errors.Join(m.Run(context.Background()), to.Close(), from.Close()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func between(from store.Store, to store.CopyTarget) *migrate.Migration {
	return &migrate.Migration{From: from, To: to, FromName: "disk:a", ToName: "disk:b"}
}

func disk(t *testing.T, path string) *diskstore.Store {
	t.Helper()
	s, err := diskstore.Open(path, diskstore.Options{})
	must(t, err)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// same compares but for the marks, which it takes away.
func same(t *testing.T, from, to store.Store) {
	t.Helper()
	for _, s := range []store.Store{from, to} {
		must(t, s.DeleteEntries(context.Background(), migrate.EntryName))
	}
	storetest.Same(t, from, to)
}

func TestAllThatAStoreKeepsIsMoved(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]func() (store.Store, store.CopyTarget){
		"disk to disk":   func() (store.Store, store.CopyTarget) { return disk(t, t.TempDir()), disk(t, t.TempDir()) },
		"memory to disk": func() (store.Store, store.CopyTarget) { return memstore.New(), disk(t, t.TempDir()) },
		"disk to memory": func() (store.Store, store.CopyTarget) { return disk(t, t.TempDir()), memstore.New() },
	} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			from, to := s()
			storetest.Lived(t, from)
			m := between(from, to)
			var last migrate.Progress
			m.Report = func(p migrate.Progress) { last = p }
			p, err := m.Check(ctx)
			if err != nil || p.All == 0 || p.Taken != 0 {
				t.Fatalf("%+v, %v", p, err)
			}
			must(t, m.Run(ctx))
			if last.Done != 2*p.All || last.All != 2*p.All {
				t.Errorf("at the end it was at %+v of %d", last, p.All)
			}
			if err := migrate.Refuse(ctx, to); err != nil {
				t.Errorf("the target: %v", err)
			}
			if err := migrate.Refuse(ctx, from); !errors.Is(err, migrate.ErrMoved) || !strings.Contains(err.Error(), "disk:b") {
				t.Errorf("the source: %v", err)
			}
			if err := m.Run(ctx); !errors.Is(err, migrate.ErrRefused) {
				t.Errorf("once more: %v", err)
			}
			same(t, from, to)
		})
	}
}

// Whose a store is goes with it, and a store of another's takes nothing in.
func TestAMigrationStaysInItsVirtualHost(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	of := func(vhost string) *memstore.Store {
		s := memstore.New()
		if vhost != "" {
			must(t, s.PutEntries(ctx, []store.Entry{{Name: store.OwnerEntry, Value: []byte(vhost)}}))
		}
		return s
	}
	for _, c := range []struct{ from, to, then string }{
		{"shop", "", "shop"}, {"shop", "shop", "shop"}, {"", "shop", "shop"}, {"", "", ""}, {"shop", "billing", "billing"},
	} {
		from, to := of(c.from), of(c.to)
		storetest.Lived(t, from)
		err := between(from, to).Run(ctx)
		if refused := c.to != "" && c.from != "" && c.from != c.to; refused != errors.Is(err, store.ErrOwner) || refused != errors.Is(err, migrate.ErrRefused) || !refused && err != nil {
			t.Errorf("from one of %q to one of %q: %v", c.from, c.to, err)
		}
		if is, err := to.Entry(ctx, store.OwnerEntry); err != nil || string(is) != c.then {
			t.Errorf("from one of %q to one of %q: it is then of %q, %v", c.from, c.to, is, err)
		}
		if n, err := from.Entry(ctx, migrate.EntryName); err != nil || (n == nil) != (c.then == "billing") {
			t.Errorf("from one of %q to one of %q: the source is marked %q, %v", c.from, c.to, n, err)
		}
	}
}

func TestAKilledMigrationGoesOn(t *testing.T) {
	t.Parallel()
	a, b := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")
	s, err := diskstore.Open(a, diskstore.Options{})
	must(t, err)
	storetest.Lived(t, s)
	var batch []*store.Record
	for i := range 2600 {
		r := storetest.Waiting("many", time.Duration(i), fmt.Sprint(i))
		r.State = store.State(1 + i%3)
		batch = append(batch, r)
	}
	must(t, errors.Join(s.Add(t.Context(), batch), s.Close()))
	kills := 0
	for ; ; kills++ {
		c := exec.Command(os.Args[0])
		c.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %d", childEnv, a, b, min(2+kills/2, 20)))
		c.Stderr = os.Stderr
		err := c.Run()
		if err == nil {
			break
		}
		if c.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Fatal(err)
		}
		if kills == 5 {
			from := disk(t, a)
			if err := migrate.Refuse(t.Context(), from); !errors.Is(err, migrate.ErrMoved) || !strings.Contains(err.Error(), "--abort") {
				t.Errorf("the source meanwhile: %v", err)
			}
			to := disk(t, b)
			if err := migrate.Refuse(t.Context(), to); !errors.Is(err, migrate.ErrMoved) {
				t.Errorf("the target meanwhile: %v", err)
			}
			if p, err := between(from, to).Check(t.Context()); err != nil || p.Taken == 0 || p.Taken > p.All {
				t.Errorf("%+v, %v", p, err)
			}
			must(t, errors.Join(from.Close(), to.Close()))
		}
	}
	if kills < 10 {
		t.Errorf("it was killed %d times only", kills)
	}
	same(t, disk(t, a), disk(t, b))
}

func TestWhatIsRefusedChangesNothing(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	from, to, third := memstore.New(), memstore.New(), memstore.New()
	storetest.Lived(t, from)
	must(t, to.PutEntries(ctx, []store.Entry{{Name: "pause/q", Value: []byte("x")}}))
	m := between(from, to)
	if err := m.Run(ctx); !errors.Is(err, migrate.ErrRefused) {
		t.Errorf("to a store that is in use: %v", err)
	}
	if err := errors.Join(migrate.Refuse(ctx, from), migrate.Refuse(ctx, to)); err != nil {
		t.Errorf("after it: %v", err)
	}
	// One that ends in between, and then another target, or another source.
	ending, end := context.WithCancel(ctx)
	m = between(from, third)
	m.Report = func(migrate.Progress) { end() }
	if err := m.Run(ending); err != nil && !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	other := between(from, memstore.New())
	other.ToName = "disk:c"
	if err := other.Run(ctx); !errors.Is(err, migrate.ErrRefused) {
		t.Errorf("to another target: %v", err)
	}
	other = between(memstore.New(), third)
	other.FromName = "disk:c"
	if err := other.Run(ctx); !errors.Is(err, migrate.ErrRefused) {
		t.Errorf("from another source: %v", err)
	}
}

func TestAnAbortedMigrationLetsTheSourceServe(t *testing.T) {
	t.Parallel()
	ctx, from := t.Context(), memstore.New()
	storetest.Lived(t, from)
	m := between(from, &failing{Store: memstore.New()})
	if err := m.Abort(ctx); !errors.Is(err, migrate.ErrRefused) {
		t.Errorf("before it began: %v", err)
	}
	if err := m.Run(ctx); !errors.Is(err, errFull) {
		t.Fatal(err)
	}
	if err := migrate.Refuse(ctx, from); !errors.Is(err, migrate.ErrMoved) {
		t.Errorf("under way: %v", err)
	}
	must(t, m.Abort(ctx))
	if err := migrate.Refuse(ctx, from); err != nil {
		t.Errorf("after it: %v", err)
	}
	if err := migrate.Refuse(ctx, m.To); !errors.Is(err, migrate.ErrMoved) {
		t.Errorf("the target: %v", err)
	}
}

var errFull = errors.New("no room")

type failing struct{ *memstore.Store }

func (failing) AddListed(context.Context, []store.Listed) error { return errFull }

// lossy keeps a message but for a header.
type lossy struct{ *memstore.Store }

func (l lossy) AddListed(ctx context.Context, records []store.Listed) error {
	for i := range records {
		if r := *records[i].Record; len(r.Message.Headers) > 0 {
			r.Message = wire.Message{Body: r.Message.Body}
			records[i].Record = &r
		}
	}
	return l.Store.AddListed(ctx, records)
}

func TestADifferenceIsFound(t *testing.T) {
	t.Parallel()
	ctx, from := t.Context(), memstore.New()
	storetest.Lived(t, from)
	m := between(from, lossy{memstore.New()})
	if err := m.Run(ctx); !errors.Is(err, migrate.ErrDiffers) {
		t.Errorf("a header is missing: %v", err)
	}
	if err := errors.Join(migrate.Refuse(ctx, from)); !errors.Is(err, migrate.ErrMoved) {
		t.Errorf("the source: %v", err)
	}
	from = memstore.New()
	storetest.Lived(t, from)
	to := memstore.New()
	m = between(from, to)
	m.Report = func(p migrate.Progress) { // one more comes from nowhere
		if p.Step == "moving" {
			stray := storetest.Waiting("stray", 0, "")
			if err := to.AddListed(ctx, []store.Listed{{Key: store.MakeKey(stray.ID, 1<<40), Record: stray}}); err != nil {
				t.Error(err)
			}
		}
	}
	if err := m.Run(ctx); !errors.Is(err, migrate.ErrDiffers) {
		t.Errorf("a message too many: %v", err)
	}
}

// torn is a store of which a message cannot be read.
type torn struct{ *memstore.Store }

func (torn) Damage() map[string]string { return map[string]string{"key 7": "record is cut short"} }

// A message that cannot be read is not left behind without a word, and the source can be used again.
func TestDamagedMessagesAreNotLeftBehind(t *testing.T) {
	t.Parallel()
	from, to := torn{memstore.New()}, memstore.New()
	storetest.Lived(t, from)
	m := between(from, to)
	if err := m.Run(t.Context()); !errors.Is(err, migrate.ErrDamaged) || !strings.Contains(err.Error(), "disk:a is damaged at key 7 (record is cut short)") || hint.Of(err) == "" {
		t.Errorf("%v (%s)", err, hint.Of(err))
	}
	if err := migrate.Refuse(t.Context(), from); !errors.Is(err, migrate.ErrMoved) {
		t.Errorf("before the migration is given up: %v", err)
	}
	must(t, m.Abort(t.Context()))
	if err := migrate.Refuse(t.Context(), from); err != nil {
		t.Errorf("after it: %v", err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
