package diskstore

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"os"
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
	"pgregory.net/rapid"

	"github.com/redrive-mq/redrive/internal/store"
)

// The newest past failures are kept and found, older ones are forgotten, and the folder
// does not grow.
func TestOldPastFailuresAreForgotten(t *testing.T) {
	s, err := Open(t.TempDir(), Options{Reserve: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const n = 3*store.PastFailuresKept + 12_345
	id := func(i int) (id uuid.UUID) {
		binary.LittleEndian.PutUint64(id[4:], uint64(i))
		binary.BigEndian.PutUint32(id[12:], uint32(i)*2_654_435_761)
		return id
	}
	for written := 0; written < n; {
		var some pastFailures
		for size := min(n-written, []int{1, 700, 3000}[written%3]); size > 0; size-- {
			some.add(&store.PastFailure{ID: id(written), Queue: "q", Failures: written, Ending: store.EndedRetried})
			written++
		}
		s.history.write(&some)
	}
	kept := 0
	err = s.EachPastFailure(context.Background(), func(p store.PastFailure) (bool, error) {
		if kept++; p.Failures != n-kept {
			return false, fmt.Errorf("%d from the end is %d", kept, p.Failures)
		}
		return true, nil
	})
	if err != nil || kept < store.PastFailuresKept || kept > store.PastFailuresKept+2*historyFile/idSize {
		t.Errorf("%d of %d are kept, %v", kept, n, err)
	}
	for _, i := range []int{n - 1, n - store.PastFailuresKept/2, n - store.PastFailuresKept, n - kept} {
		if found, err := s.PastFailures(context.Background(), id(i)); err != nil || len(found) != 1 || found[0].Failures != i {
			t.Errorf("%d: %+v, %v", i, found, err)
		}
	}
	for _, i := range []int{0, n - kept - 1, n} {
		if found, err := s.PastFailures(context.Background(), id(i)); err != nil || len(found) != 0 {
			t.Errorf("%d is found: %+v, %v", i, found, err)
		}
	}
}

// What a crash has torn off is left out, and what ended after the next start is
// written in its place.
func TestHistoryGoesOnAfterATornWrite(t *testing.T) {
	path := t.TempDir()
	var want []int
	for life := range 4 {
		s, err := Open(path, Options{Reserve: 1})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			var one pastFailures
			one.add(&store.PastFailure{Failures: life*10 + i})
			s.history.write(&one)
			want = append(want, life*10+i)
		}
		var got []int
		err = s.EachPastFailure(t.Context(), func(p store.PastFailure) (bool, error) { got = append(got, p.Failures); return true, nil })
		slices.Reverse(got)
		if !slices.Equal(want, got) || err != nil {
			t.Errorf("life %d: %v, want %v, %v", life, got, want, err)
		}
		file, end := s.history.path(0), s.history.size
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		switch life {
		case 0:
			err = os.Truncate(file, end-1)
			want = want[:len(want)-1]
		case 1:
			err = os.Truncate(file, end+5000) // zeros, as a file system may leave
		case 2:
			err = os.RemoveAll(filepath.Dir(file))
			want = nil
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// A disk that takes no history still takes messages, and the log says so once.
func TestHistoryThatCannotBeWrittenStopsNothing(t *testing.T) {
	var failing atomic.Bool
	disk := errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if failing.Load() && strings.Contains(op.Path, "history") {
			return syscall.ENOSPC
		}
		return nil
	}))
	var said strings.Builder
	s, err := Open(t.TempDir(), Options{Reserve: 1, FS: disk, Log: slog.New(slog.NewTextHandler(&said, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for i := range 4 {
		failing.Store(i == 1 || i == 2)
		r := &store.Record{ID: uuid.UUID{byte(i)}, Queue: "q", State: store.Waiting, Due: time.Unix(0, 0), Failures: i}
		if err := s.Add(t.Context(), []*store.Record{r}); err != nil {
			t.Fatal(err)
		}
		claims, err := s.Claim(t.Context(), store.Lane{Queue: "q"}, time.Unix(1, 0), 2, 1)
		if len(claims) != 1 || err != nil {
			t.Fatal(claims, err)
		}
		if n, err := s.Finish(t.Context(), []store.Outcome{{Claim: claims[0]}}); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	var got []int
	err = s.EachPastFailure(t.Context(), func(p store.PastFailure) (bool, error) { got = append(got, p.Failures); return true, nil })
	if !slices.Equal(got, []int{3, 0}) || err != nil || strings.Count(said.String(), "level=WARN") != 1 || !strings.Contains(said.String(), "no space left") {
		t.Errorf("%v, %v, said %s", got, err, &said)
	}
}

func aPastFailure(t *rapid.T) store.PastFailure {
	aTime := rapid.Custom(func(t *rapid.T) time.Time {
		if rapid.Bool().Draw(t, "none") {
			return time.Time{}
		}
		return time.UnixMicro(rapid.Int64Range(-1<<50, 1<<55).Draw(t, "micros"))
	})
	text := rapid.OneOf(rapid.SampledFrom([]string{"", "a"}), rapid.String())
	return store.PastFailure{ID: uuid.UUID(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "id")),
		Queue: text.Draw(t, "queue"), Reason: text.Draw(t, "reason"), Error: text.Draw(t, "error"), Policy: text.Draw(t, "policy"),
		Failures: rapid.Int().Draw(t, "attempt"), FailedAt: aTime.Draw(t, "failed"), Due: aTime.Draw(t, "due"), Ended: aTime.Draw(t, "ended"),
		Ending: store.Ending(rapid.Byte().Draw(t, "ending"))}
}

func TestPastFailuresAreTheSameAfterDecoding(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.SliceOfN(rapid.Custom(aPastFailure), 1, 5).Draw(t, "pastFailures")
		var e pastFailures
		for _, p := range want {
			e.add(&p)
		}
		data := e.append(nil)
		got, err := decodePastFailures(data)
		if d := cmp.Diff(want, got); d != "" || err != nil {
			t.Fatalf("%v (-want +got):\n%s", err, d)
		}
		if cut, err := decodePastFailures(data[:len(data)-1]); err == nil {
			t.Fatalf("cut short it still decodes: %+v", cut)
		}
	})
}

func FuzzDecodePastFailures(f *testing.F) {
	var e pastFailures
	e.add(&store.PastFailure{Queue: "q", Error: "e"})
	f.Add(e.append(nil))
	f.Fuzz(func(_ *testing.T, data []byte) { _, _ = decodePastFailures(data) })
}

// However Pebble merges the pieces, the tally is the same.
func TestTalliesMergeInAnyOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var pieces [][]byte
		whole := new(tally)
		for range rapid.IntRange(1, 12).Draw(t, "n") {
			var one tally
			one.kept[rapid.IntRange(1, 3).Draw(t, "state")] = rapid.Int64Range(-5, 5).Draw(t, "more")
			for range rapid.IntRange(0, 3).Draw(t, "failures") {
				minute := 500_000*60 + rapid.Int64Range(0, 60*60).Draw(t, "minute")
				one.seen(minute)
				one.hours.add(minute/60, 1)
				one.reasons |= 1 << rapid.IntRange(0, 7).Draw(t, "reason")
			}
			whole.add(&one)
			pieces = append(pieces, one.append(nil))
		}
		// Two neighbours at a time, as compactions do.
		for len(pieces) > 1 {
			i := rapid.IntRange(0, len(pieces)-2).Draw(t, "pair")
			m, err := adder.Merge([]byte{prefixTally}, pieces[i])
			if err != nil {
				t.Fatal(err)
			}
			if err := m.MergeOlder(pieces[i+1]); err != nil {
				t.Fatal(err)
			}
			both, _, _ := m.Finish(false)
			pieces = append(pieces[:i+1], pieces[i+2:]...)
			pieces[i] = both
		}
		if want := whole.append(nil); string(want) != string(pieces[0]) {
			t.Fatalf("merged %x, counted %x", pieces[0], want)
		}
	})
}

// BenchmarkPast looks for the past failures of an id among all that are kept, when few
// ended at once and when many did.
func BenchmarkPast(b *testing.B) {
	for _, batch := range []int{1, 512} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			s, err := Open(b.TempDir(), Options{Reserve: 1})
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			var id uuid.UUID
			for written := 0; written < store.PastFailuresKept; {
				var some pastFailures
				for range batch {
					id = uuid.New()
					some.add(&store.PastFailure{ID: id, Queue: "q", Failures: 1, Ending: store.EndedRetried})
					written++
				}
				s.history.write(&some)
			}
			for b.Loop() {
				if found, err := s.PastFailures(context.Background(), id); len(found) != 1 || err != nil {
					b.Fatal(found, err)
				}
			}
		})
	}
}
