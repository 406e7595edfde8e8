package diskstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/errorgroup"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
	"github.com/redrive-mq/redrive/internal/store/storetest"
)

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
		claims, err := s.Claim(context.Background(), store.Lane{Queue: "q"}, farAway, 1000, 1<<30)
		var got []string
		for _, c := range claims {
			got = append(got, string(c.Record.Message.Body[:8]))
		}
		return fmt.Sprint(got), err
	},
	"list": func(s *diskstore.Store, _ uuid.UUID) (string, error) {
		return listed(s, storetest.Filter{Body: true, Limit: 1000})
	},
	"list by ID": func(s *diskstore.Store, id uuid.UUID) (string, error) {
		return listed(s, storetest.Filter{ID: id, Body: true})
	},
	"past": func(s *diskstore.Store, id uuid.UUID) (string, error) {
		all, err := s.PastFailures(context.Background(), id)
		return fmt.Sprint(all), err
	},
	"returned": func(s *diskstore.Store, _ uuid.UUID) (string, error) {
		var all []store.PastFailure
		err := s.EachPastFailure(context.Background(), func(p store.PastFailure) (bool, error) { all = append(all, p); return true, nil })
		return fmt.Sprint(all), err
	},
	"scan newest first": func(s *diskstore.Store, _ uuid.UUID) (string, error) {
		return visited(s, store.Range{NewestFirst: true, Body: true})
	},
	"scan a group": func(s *diskstore.Store, _ uuid.UUID) (string, error) {
		return visited(s, store.Range{Groups: []errorgroup.ID{errorgroup.Of("p", "rejected", "", "").ID}})
	},
	"change": func(s *diskstore.Store, id uuid.UUID) (string, error) {
		found, err := s.Find(context.Background(), id)
		if err != nil {
			return "", err
		}
		keys := []store.Key{found[0].Key}
		for i := range byte(20) {
			found, err := s.Find(context.Background(), idOf(i))
			if err != nil {
				return "", err
			}
			keys = append(keys, found[0].Key)
		}
		_, err = s.Change(context.Background(), keys, func(_ store.Key, r *store.Record) store.Edit {
			r.State, r.Due = store.Waiting, farAway
			return store.Edit{Keep: true}
		}, nil)
		if err != nil {
			return "", err
		}
		return visited(s, store.Range{From: farAway})
	},
	"replay": func(s *diskstore.Store, _ uuid.UUID) (string, error) {
		if _, err := storetest.Replay(context.Background(), s, "p", farAway); err != nil {
			return "", err
		}
		return listed(s, storetest.Filter{State: store.Waiting, Queue: "p", Limit: 1000})
	},
}

var farAway = time.UnixMicro(4_000_000_000_000_000)

func visited(s *diskstore.Store, r store.Range) (string, error) {
	var got []string
	err := s.Scan(context.Background(), r, func(l store.Listed) (bool, error) {
		got = append(got, fmt.Sprint(l.Record.ID, l.Record.State, l.Record.Due, l.BodySize))
		return true, nil
	})
	return fmt.Sprint(got), err
}

// idOf is the id of a waiting record of filled.
func idOf(i byte) uuid.UUID { return uuid.UUID{1, i} }

func listed(s *diskstore.Store, f storetest.Filter) (string, error) {
	page, err := storetest.List(context.Background(), s, f)
	var got []string
	for _, l := range page.Records {
		got = append(got, fmt.Sprint(l.Record.ID, l.Record.State, l.Record.Due, l.BodySize))
	}
	return fmt.Sprint(got), err
}

// Whichever read of the disk fails: the answer is an error, not a wrong answer,
// and the same question is answered when the disk reads again. So a claim that
// failed claims nothing.
func TestAReadThatFailsIsAnErrorAndLosesNothing(t *testing.T) {
	for name, read := range readers {
		t.Run(name, func(t *testing.T) {
			disk, id := filled(t)
			sound := openAt(t, "data", diskstore.Options{FS: roomy{disk.CrashClone(vfs.CrashCloneCfg{})}})
			want, err := read(sound, id)
			if err != nil || len(want) < 10 {
				t.Fatalf("without a fault: %q, %v", want, err)
			}
			if err := sound.Close(); err != nil {
				t.Fatal(err)
			}
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
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
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

// A store that cannot be opened says why, and is free to be opened again.
func TestAReadThatFailsWhileOpening(t *testing.T) {
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
		counts, err := s.Counts(context.Background())
		if err != nil || len(counts) != 2 || counts[0].Waiting+counts[1].Waiting != 200 || counts[0].Parked+counts[1].Parked != 200 {
			t.Errorf("after read %d failed: %+v, %v", n, counts, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
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
		if err := s.Add(context.Background(), part); err != nil {
			t.Fatal(err)
		}
	}
	for {
		claims, err := s.Claim(context.Background(), store.Lane{Queue: "returned"}, farAway, 30, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if len(claims) == 0 {
			break
		}
		var out []store.Outcome
		for _, c := range claims {
			out = append(out, store.Outcome{Claim: c, At: farAway})
		}
		if _, err := s.Finish(context.Background(), out); err != nil {
			t.Fatal(err)
		}
	}
	// Opening again makes tables of what the log has.
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = openAt(t, "data", diskstore.Options{FS: roomy{disk}})
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return disk, batch[200].ID
}
