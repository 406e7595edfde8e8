package diskstore_test

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
	"github.com/redrive-mq/redrive/internal/store/memstore"
	"github.com/redrive-mq/redrive/internal/store/storetest"
)

// pair is the disk engine and its model, which must answer alike, whatever is
// asked in whatever order.
type pair struct {
	disk  *diskstore.Store
	model *memstore.Store
	fs    vfs.FS
	ids   []uuid.UUID
	added int
	loans [][2]store.Claim // the same record, of the disk and of the model
}

var ctx = context.Background()

func TestRandomOperationsAnswerAsTheModelDoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := &pair{fs: roomy{vfs.NewMem()}, model: memstore.New()}
		p.open(t)
		defer func() { p.disk.Close() }()
		t.Repeat(map[string]func(*rapid.T){
			"add": p.add, "claim": p.claim, "settle": p.settle, "release": p.release,
			"replay": p.replay, "reopen": p.reopen, "": p.same,
		})
	})
}

func (p *pair) open(t *rapid.T) {
	var err error
	if p.disk, err = diskstore.Open("data", diskstore.Options{FS: p.fs}); err != nil {
		t.Fatal(err)
	}
}

func aQueue(t *rapid.T) string { return rapid.SampledFrom([]string{"a", "a\x00", ""}).Draw(t, "queue") }

func someTime(t *rapid.T) time.Duration {
	return time.Duration(rapid.IntRange(-5, 5).Draw(t, "due")) * time.Second
}

func (p *pair) add(t *rapid.T) {
	var batch []*store.Record
	for range rapid.IntRange(1, 6).Draw(t, "n") {
		p.added++
		r := storetest.Waiting(aQueue(t), someTime(t), fmt.Sprintf("%0*d", rapid.IntRange(1, 30).Draw(t, "size"), p.added))
		if rapid.Bool().Draw(t, "parked") {
			r.State, r.ParkedFor = store.Parked, "it failed"
		}
		if len(p.ids) > 0 && rapid.Bool().Draw(t, "known id") {
			r.ID = rapid.SampledFrom(p.ids).Draw(t, "id")
		}
		r.Fingerprint[0] = byte(rapid.IntRange(0, 2).Draw(t, "fingerprint"))
		p.ids = append(p.ids, r.ID)
		batch = append(batch, r)
	}
	p.alike(t, "add", func(s store.Store) any { return s.Add(ctx, batch) })
}

func (p *pair) claim(t *rapid.T) {
	queue, upTo := aQueue(t), storetest.Waiting("", someTime(t), "").Due
	n, size := rapid.IntRange(0, 5).Draw(t, "n"), rapid.SampledFrom([]int{0, 20, 60, math.MaxInt}).Draw(t, "bytes")
	var got [2][]store.Claim
	for i, s := range []store.Store{p.disk, p.model} {
		var err error
		if got[i], err = s.Claim(ctx, queue, upTo, n, size); err != nil {
			t.Fatal(err)
		}
	}
	if len(got[0]) != len(got[1]) {
		t.Fatalf("claimed %d, the model %d", len(got[0]), len(got[1]))
	}
	for i := range got[0] {
		if d := gocmp.Diff(got[1][i].Record, got[0][i].Record); d != "" {
			t.Fatalf("claim %d (-model +disk):\n%s", i, d)
		}
		p.loans = append(p.loans, [2]store.Claim{got[0][i], got[1][i]})
	}
}

// someLoans takes some claims, and may name one of them twice. It names none
// again later: then the same record may be on loan to another.
func (p *pair) someLoans(t *rapid.T) (loans [][2]store.Claim) {
	if len(p.loans) == 0 {
		t.Skip("nothing is claimed")
	}
	chosen := rapid.SliceOfN(rapid.IntRange(0, len(p.loans)-1), 1, 6).Draw(t, "loans")
	for _, i := range chosen {
		loans = append(loans, p.loans[i])
	}
	slices.Sort(chosen)
	for _, i := range slices.Backward(slices.Compact(chosen)) {
		p.loans = slices.Delete(p.loans, i, i+1)
	}
	return loans
}

func (p *pair) settle(t *rapid.T) {
	at := storetest.Waiting("", someTime(t), "").Due
	var outcomes [2][]store.Outcome
	for _, loan := range p.someLoans(t) {
		park := rapid.SampledFrom([]string{"", "why"}).Draw(t, "park")
		for i, c := range loan {
			outcomes[i] = append(outcomes[i], store.Outcome{Claim: c, Park: park, At: at})
		}
	}
	got, err := p.disk.Settle(ctx, outcomes[0])
	want, _ := p.model.Settle(ctx, outcomes[1])
	if got != want || err != nil {
		t.Fatalf("settled %d, %v; the model %d", got, err, want)
	}
}

func (p *pair) release(t *rapid.T) {
	for _, loan := range p.someLoans(t) {
		for i, s := range []store.Store{p.disk, p.model} {
			if err := s.Release(ctx, []store.Claim{loan[i]}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func (p *pair) replay(t *rapid.T) {
	sel := store.Selection{Queue: aQueue(t)}
	if len(p.ids) > 0 && rapid.Bool().Draw(t, "by id") {
		sel.IDs = rapid.SliceOfN(rapid.SampledFrom(p.ids), 1, 4).Draw(t, "ids")
	}
	due := storetest.Waiting("", someTime(t), "").Due
	p.alike(t, "replay", func(s store.Store) any {
		n, err := s.Replay(ctx, sel, due, nil)
		return fmt.Sprint(n, err)
	})
}

// reopen ends all loans, as the death of their owner does.
func (p *pair) reopen(t *rapid.T) {
	if err := p.disk.Close(); err != nil {
		t.Fatal(err)
	}
	p.open(t)
	for _, loan := range p.loans {
		p.model.Release(ctx, []store.Claim{loan[1]})
	}
	p.loans = nil
}

// same compares all that can be seen.
func (p *pair) same(t *rapid.T) {
	p.alike(t, "next", func(s store.Store) any {
		next, err := s.Next(ctx)
		slices.SortFunc(next, func(a, b store.NextDue) int { return cmp.Compare(a.Queue, b.Queue) })
		return fmt.Sprint(next, err)
	})
	p.alike(t, "counts", func(s store.Store) any {
		counts, err := s.Counts(ctx)
		slices.SortFunc(counts, func(a, b store.QueueCount) int { return cmp.Compare(a.Queue, b.Queue) })
		return fmt.Sprint(counts, err)
	})
	p.alike(t, "receipts", func(s store.Store) any {
		receipts, err := s.Receipts(ctx)
		return fmt.Sprint(receipts, err)
	})
	filter := store.Filter{State: rapid.SampledFrom([]store.State{0, store.Waiting, store.Parked}).Draw(t, "state"), Queue: aQueue(t), Limit: rapid.IntRange(1, 9).Draw(t, "limit")}
	p.alike(t, "list", func(s store.Store) any {
		var all []string
		for f := filter; ; {
			page, err := s.List(ctx, f)
			if err != nil {
				return err
			}
			for _, l := range page.Records {
				all = append(all, fmt.Sprintf("%+v %d", *l.Record, l.BodySize))
			}
			if f.After = page.After; f.After == "" {
				slices.Sort(all)
				return all
			}
		}
	})
}

// alike asks both the same.
func (p *pair) alike(t *rapid.T, what string, ask func(store.Store) any) {
	t.Helper()
	if d := gocmp.Diff(ask(p.model), ask(p.disk)); d != "" {
		t.Fatalf("%s (-model +disk):\n%s", what, d)
	}
}
