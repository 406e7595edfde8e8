package diskstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/redrive-mq/redrive/internal/store"
)

// The newest passages are kept and found, older ones are forgotten, and the folder
// does not grow.
func TestOldPassagesAreForgotten(t *testing.T) {
	s, err := Open(t.TempDir(), Options{Reserve: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const n = 2*store.PastKept + dropSize + 12_345
	id := func(i int) (id uuid.UUID) {
		binary.LittleEndian.PutUint64(id[4:], uint64(i))
		binary.BigEndian.PutUint32(id[12:], uint32(i)*2_654_435_761)
		return id
	}
	for written := 0; written < n; {
		c := s.change(0)
		for size := min(n-written, []int{1, 700, 3000}[written%3]); size > 0; size-- {
			c.past.add(store.Passage{ID: id(written), Queue: "q", Attempt: written, Ending: store.EndedReturned})
			written++
		}
		if err := errors.Join(s.writePast(c.batch, &c.past), c.batch.Commit(pebble.NoSync)); err != nil {
			t.Fatal(err)
		}
		c.close()
	}
	kept := 0
	err = s.Returned(context.Background(), func(p store.Passage) (bool, error) {
		if kept++; p.Attempt != n-kept {
			return false, fmt.Errorf("%d from the end is %d", kept, p.Attempt)
		}
		return true, nil
	})
	if err != nil || kept < store.PastKept || kept > store.PastKept+dropSize+2*partSize {
		t.Errorf("%d of %d are kept, %v", kept, n, err)
	}
	for _, i := range []int{n - 1, n - store.PastKept/2, n - store.PastKept, n - kept} {
		if found, err := s.Past(context.Background(), id(i)); err != nil || len(found) != 1 || found[0].Attempt != i {
			t.Errorf("%d: %+v, %v", i, found, err)
		}
	}
	for _, i := range []int{0, n - kept - 1, n} {
		if found, err := s.Past(context.Background(), id(i)); err != nil || len(found) != 0 {
			t.Errorf("%d is found: %+v, %v", i, found, err)
		}
	}
}

func aPassage(t *rapid.T) store.Passage {
	aTime := rapid.Custom(func(t *rapid.T) time.Time {
		if rapid.Bool().Draw(t, "none") {
			return time.Time{}
		}
		return time.UnixMicro(rapid.Int64Range(-1<<50, 1<<55).Draw(t, "micros"))
	})
	text := rapid.OneOf(rapid.SampledFrom([]string{"", "a"}), rapid.String())
	return store.Passage{ID: uuid.UUID(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "id")),
		Queue: text.Draw(t, "queue"), Reason: text.Draw(t, "reason"), Error: text.Draw(t, "error"), Policy: text.Draw(t, "policy"),
		Attempt: rapid.Int().Draw(t, "attempt"), FailedAt: aTime.Draw(t, "failed"), Due: aTime.Draw(t, "due"), Ended: aTime.Draw(t, "ended"),
		Ending: store.Ending(rapid.Byte().Draw(t, "ending"))}
}

func TestPassagesAreTheSameAfterDecoding(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.SliceOfN(rapid.Custom(aPassage), 1, 5).Draw(t, "passages")
		var e passageEncoder
		for _, p := range want {
			e.add(&p)
		}
		got, err := decodePassages(e.data)
		if d := cmp.Diff(want, got); d != "" || err != nil {
			t.Fatalf("%v (-want +got):\n%s", err, d)
		}
		if cut, err := decodePassages(e.data[:len(e.data)-1]); err == nil {
			t.Fatalf("cut short it still decodes: %+v", cut)
		}
	})
}

func FuzzDecodePassages(f *testing.F) {
	var e passageEncoder
	e.add(&store.Passage{Queue: "q", Error: "e"})
	f.Add(e.data)
	f.Fuzz(func(_ *testing.T, data []byte) { _, _ = decodePassages(data) })
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

// BenchmarkPast looks for the passages of an id among all that are kept, when few
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
			for written := 0; written < store.PastKept; {
				c := s.change(0)
				for range batch {
					id = uuid.New()
					c.past.add(store.Passage{ID: id, Queue: "q", Attempt: 1, Ending: store.EndedReturned})
					written++
				}
				if err := errors.Join(s.writePast(c.batch, &c.past), c.batch.Commit(pebble.NoSync)); err != nil {
					b.Fatal(err)
				}
				c.close()
			}
			for b.Loop() {
				if found, err := s.Past(context.Background(), id); len(found) != 1 || err != nil {
					b.Fatal(found, err)
				}
			}
		})
	}
}
