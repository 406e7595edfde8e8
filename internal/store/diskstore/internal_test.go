package diskstore

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
	"pgregory.net/rapid"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/wire"
)

// The newest past failures are kept and found, older ones are forgotten, and the folder
// does not grow.
func TestOldPastFailuresAreForgotten(t *testing.T) {
	t.Parallel()
	s := OpenAt(t, t.TempDir(), Options{Reserve: 1})
	const n = 3*store.PastFailuresKept + 12_345
	id := func(i int) (id uuid.UUID) {
		binary.LittleEndian.PutUint64(id[4:], uint64(i))
		binary.BigEndian.PutUint32(id[12:], uint32(i)*2_654_435_761)
		return id
	}
	for written := 0; written < n; {
		var some pastFailures
		for size := min(n-written, []int{1, 700, 3000}[written%3]); size > 0; size-- {
			some.add(store.PastFailure{ID: id(written), Queue: "q", Failures: written, Ending: store.EndedRetried})
			written++
		}
		s.history.write(&some)
	}
	kept := 0
	err := s.EachPastFailure(context.Background(), func(p store.PastFailure) (bool, error) {
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

// A torn chunk is left out, and the next one is written in its place.
func TestHistoryGoesOnAfterATornWrite(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	var want []int
	for life := range 4 {
		s := OpenAt(t, path, Options{Reserve: 1})
		for i := range 3 {
			var one pastFailures
			one.add(store.PastFailure{Failures: life*10 + i})
			s.history.write(&one)
			want = append(want, life*10+i)
		}
		var got []int
		err := s.EachPastFailure(t.Context(), func(p store.PastFailure) (bool, error) { got = append(got, p.Failures); return true, nil })
		slices.Reverse(got)
		if !slices.Equal(want, got) || err != nil {
			t.Errorf("life %d: %v, want %v, %v", life, got, want, err)
		}
		file, end := s.history.path(0), s.history.size
		must(t, s.Close())
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
		must(t, err)
	}
}

// A disk that takes no history still takes messages, and the log says so once.
func TestHistoryThatCannotBeWrittenStopsNothing(t *testing.T) {
	t.Parallel()
	var failing atomic.Bool
	disk := errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if failing.Load() && strings.Contains(op.Path, "history") {
			return syscall.ENOSPC
		}
		return nil
	}))
	var said strings.Builder
	s := OpenAt(t, t.TempDir(), Options{Reserve: 1, FS: disk, Log: slog.New(slog.NewTextHandler(&said, nil))})
	for i := range 4 {
		failing.Store(i == 1 || i == 2)
		r := &store.Record{ID: uuid.UUID{byte(i)}, Queue: "q", State: store.Waiting, Due: time.Unix(0, 0), Failures: i}
		must(t, s.Add(t.Context(), []*store.Record{r}))
		claims, err := s.Claim(t.Context(), store.Lane{Queue: "q"}, time.Unix(1, 0), 2, 1)
		if len(claims) != 1 || err != nil {
			t.Fatal(claims, err)
		}
		if n, err := s.Finish(t.Context(), []store.Outcome{{Claim: claims[0]}}); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	var got []int
	err := s.EachPastFailure(t.Context(), func(p store.PastFailure) (bool, error) { got = append(got, p.Failures); return true, nil })
	if !slices.Equal(got, []int{3, 0}) || err != nil || strings.Count(said.String(), "level=WARN") != 1 || !strings.Contains(said.String(), "no space left") {
		t.Errorf("%v, %v, said %s", got, err, &said)
	}
}

// A Finish that fails ends no claim: repeated, it ends them all.
func TestAFinishThatFailsIsRepeated(t *testing.T) {
	t.Parallel()
	s := OpenAt(t, t.TempDir(), Options{Reserve: 1})
	for i := range byte(2) {
		must(t, s.Add(t.Context(), []*store.Record{{ID: uuid.UUID{i}, Queue: "q", State: store.Waiting, Due: time.Unix(0, 0)}}))
	}
	claims, err := s.Claim(t.Context(), store.Lane{Queue: "q"}, time.Unix(1, 0), 2, 1)
	if len(claims) != 2 || err != nil {
		t.Fatal(claims, err)
	}
	out := []store.Outcome{{Claim: claims[0]}, {Claim: claims[1], Park: "why"}}
	out[1].Claim.Record.Message.Headers = amqp.Table{"x": struct{}{}} // no type of AMQP's
	if n, err := s.Finish(t.Context(), out); n != 0 || err == nil {
		t.Fatal(n, err)
	}
	out[1].Claim.Record.Message.Headers = nil
	if n, err := s.Finish(t.Context(), out); n != 2 || err != nil {
		t.Errorf("repeated: %d, %v", n, err)
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
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.SliceOfN(rapid.Custom(aPastFailure), 1, 5).Draw(t, "pastFailures")
		var e pastFailures
		for _, p := range want {
			e.add(p)
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
	e.add(store.PastFailure{Queue: "q", Error: "e"})
	f.Add(e.append(nil))
	f.Fuzz(func(_ *testing.T, data []byte) { _, _ = decodePastFailures(data) })
}

// The tally is the same in whatever order Pebble merges.
func TestTalliesMergeInAnyOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var pieces [][]byte
		var whole store.Tally
		for range rapid.IntRange(1, 12).Draw(t, "n") {
			var one store.Tally
			one.Kept[rapid.IntRange(1, 3).Draw(t, "state")] = rapid.Int64Range(-5, 5).Draw(t, "more")
			for range rapid.IntRange(0, 3).Draw(t, "failures") {
				second := 500_000*3600 + rapid.Int64Range(0, 60*3600).Draw(t, "second")
				one.Seen(second)
				one.Hours.Add(second/3600, 1)
				one.Reasons |= 1 << rapid.IntRange(0, 7).Draw(t, "reason")
			}
			whole.Add(&one)
			pieces = append(pieces, one.Append(nil))
		}
		// Two neighbours at a time, as compactions do.
		for len(pieces) > 1 {
			i := rapid.IntRange(0, len(pieces)-2).Draw(t, "pair")
			m, err := adder.Merge([]byte{prefixTally}, pieces[i])
			must(t, err)
			must(t, m.MergeOlder(pieces[i+1]))
			both, _, _ := m.Finish(false)
			pieces = append(pieces[:i+1], pieces[i+2:]...)
			pieces[i] = both
		}
		if want := whole.Append(nil); string(want) != string(pieces[0]) {
			t.Fatalf("merged %x, counted %x", pieces[0], want)
		}
	})
}

// A group that is known is the one that would be found again, and no more are kept
// than should be, none of them of an error that came once.
func TestWhatIsAlikeIsInItsOwnGroup(t *testing.T) {
	t.Parallel()
	var a groupCache
	pick := rand.New(rand.NewPCG(1, 1))
	one := func(texts ...string) string { return texts[pick.IntN(len(texts))] }
	for i := range 20_000 {
		r := &store.Record{Queue: one("p", "q"), Reason: one("rejected", "expired"), Message: wire.Message{Type: one("", "t")}}
		r.Error = one("", "no stock", "order 7 not found", fmt.Sprintf("only once %d", i), fmt.Sprintf("order %d", pick.IntN(3000)), strings.Repeat("long ", 200))
		if got := a.of(r, i%3 > 0); got != r.Group() {
			t.Fatalf("%+v: %+v, want %+v", r, got, r.Group())
		}
		if len(a.own) > groupsCached {
			t.Fatalf("%d are kept", len(a.own))
		}
	}
	if len(a.own) == 0 {
		t.Error("none is kept, so this shows nothing")
	}
	for l := range a.own {
		if len(l.error) > maxCached || strings.HasPrefix(l.error, "only once") {
			t.Errorf("%.40q is kept", l.error)
		}
	}
}

// A group without kept messages is forgotten a day after its last failure.
func TestOldGroupsAreForgotten(t *testing.T) {
	t.Parallel()
	path, now := t.TempDir(), time.Now()
	s := OpenAt(t, path, Options{Reserve: 1})
	r := &store.Record{ID: uuid.New(), Queue: "q", State: store.Parked, Due: now, FailedAt: now}
	must(t, s.Add(t.Context(), []*store.Record{r}))
	found, err := s.Find(t.Context(), r.ID)
	must(t, err)
	sweeps := func(after time.Duration, left int) {
		t.Helper()
		must(t, s.groups.sweep(s.db, now.Add(after)))
		expect.Equal(t, len(s.groups.known), left, "%s later … groups are known", after)
	}
	sweeps(48*time.Hour, 1) // something is kept of it
	_, err = s.Change(t.Context(), []store.Key{found[0].Key}, func(store.Key, *store.Record) store.Edit { return store.Edit{Delete: true} }, nil)
	must(t, err)
	sweeps(23*time.Hour, 1)
	sweeps(25*time.Hour, 0)
	must(t, s.Close())
	s = OpenAt(t, path, Options{Reserve: 1})
	expect.Equal(t, len(s.groups.known), 0, "opened again, it knows … groups")
}

// A page of many queues holds iterators of those that it shows alone: each costs memory,
// and more time than finding where a queue begins.
func TestAPageOpensTheQueuesThatItShows(t *testing.T) {
	t.Parallel()
	s := OpenAt(t, t.TempDir(), Options{})
	var all []*store.Record
	const queues, page = 500, 20
	for i := range 2 * queues {
		all = append(all, &store.Record{ID: uuid.Must(uuid.NewV7()), Queue: fmt.Sprint("q", i%queues), State: store.Waiting, Due: time.UnixMicro(int64(i))})
	}
	must(t, s.Add(t.Context(), all))
	snap := s.db.NewSnapshot()
	defer snap.Close()
	m, err := s.merge(snap, store.Range{})
	must(t, err)
	defer m.close()
	for i := range page {
		at, err := m.top()
		if err != nil || dueOf(at.it.Key()).UnixMicro() != int64(i) {
			t.Fatalf("%d: at %v, %v", i, at, err)
		}
		must(t, m.next())
	}
	open := 0
	for _, s := range m.sources {
		if s.it != nil {
			open++
		}
	}
	if len(m.sources) != queues || open != page {
		t.Errorf("%d iterators are open of %d queues, after a page of %d", open, len(m.sources), page)
	}
}

// Writes and sequential reads of tables yield; the log and lookups never wait.
func TestTablesGiveWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := newPebbleFS(vfs.NewMem())
		rested := func(piece func() error) time.Duration {
			began := time.Now()
			const pieces, each = 100, 200 * time.Microsecond
			for range pieces {
				time.Sleep(each) // of fake time: what the piece takes
				must(t, piece())
			}
			return time.Since(began) - pieces*each
		}
		made, err := fs.Create("000001.sst", vfs.WriteCategoryUnspecified)
		must(t, err)
		write := func(f vfs.File) func() error {
			return func() error { _, err := f.Write(make([]byte, 100)); return err }
		}
		if rested(write(made)) == 0 {
			t.Error("a table is written without a rest")
		}
		must(t, made.Close())
		log, err := fs.Create("000002.log", vfs.WriteCategoryUnspecified)
		must(t, err)
		expect.Equal(t, rested(write(log)), 0, "the log waited")
		must(t, log.Close())
		read := func(options ...vfs.OpenOption) time.Duration {
			f, err := fs.Open("000001.sst", options...)
			must(t, err)
			defer f.Close()
			return rested(func() error { _, err := f.ReadAt(make([]byte, 100), 0); return err })
		}
		if read(vfs.SequentialReadsOption) == 0 {
			t.Error("a table is read from begin to end without a rest")
		}
		expect.Equal(t, read(vfs.RandomReadsOption), 0, "who looks something up waited")
	})
}

// The disk keeps as many receipts as are needed and no batch more, also those of before a
// restart; which of them are returned says nothing of that.
func TestOldReceiptsAreTakenOffTheDisk(t *testing.T) {
	t.Parallel()
	ctx, dir := context.Background(), t.TempDir()
	const size = 1000
	most := (store.ReceiptsKept+size-1)/size*size + size // the oldest batch may be needed in part
	var all []store.Receipt
	for _, batches := range []int{12, 2, 12} {
		s := OpenAt(t, dir, Options{})
		for range batches {
			for range size {
				n := len(all)
				all = append(all, store.Receipt{Fingerprint: [16]byte{byte(n >> 16), byte(n >> 8), byte(n), 1}})
			}
			must(t, s.Remember(ctx, all[len(all)-size:]))
		}
		kept := 0
		must(t, eachIn(s.db, prefixReceipt, func(_, v []byte) error { kept += len(v) / store.ReceiptSize; return nil }))
		if kept < store.ReceiptsKept || kept > most {
			t.Errorf("%d receipts are on disk; want from %d to %d", kept, store.ReceiptsKept, most)
		}
		got, err := s.Receipts(ctx)
		if want := all[len(all)-store.ReceiptsKept:]; err != nil || !slices.EqualFunc(got, want, func(a, b store.Receipt) bool { return a.Fingerprint == b.Fingerprint }) {
			t.Errorf("%d receipts are read, %v; want the newest %d in order", len(got), err, len(want))
		}
		must(t, s.Close())
	}
}
