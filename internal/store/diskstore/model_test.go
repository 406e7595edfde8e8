package diskstore_test

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/redrive-mq/redrive/internal/errorgroup"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
	"github.com/redrive-mq/redrive/internal/store/storetest"
	"github.com/redrive-mq/redrive/testenv/memstore"
)

// pair is the disk engine and its model, which must give the same answers to any calls.
type pair struct {
	disk   *diskstore.Store
	model  *memstore.Store
	fs     vfs.FS
	ids    []uuid.UUID
	added  int
	began  time.Time
	claims [][2]store.Claim // the same record, of the disk and of the model
}

var ctx = context.Background()

// In a short run rapid checks less; -rapid.checks says otherwise.
func init() {
	if !storetest.Long() {
		_ = flag.Set("rapid.checks", "30")
	}
}

func TestRandomOperationsAnswerAsTheModelDoes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := &pair{fs: roomy{vfs.NewMem()}, model: memstore.New(), began: time.Now()}
		p.open(t)
		defer func() { p.disk.Close() }()
		t.Repeat(map[string]func(*rapid.T){
			"add": p.add, "claim": p.claim, "finish": p.finish, "release": p.release,
			"replay": p.replay, "change": p.change, "forget": p.forget, "pass": p.pass, "entries": p.entries, "reopen": p.reopen, "": p.same,
		})
	})
}

func (p *pair) open(t *rapid.T) {
	var err error
	p.disk, err = diskstore.Open("data", diskstore.Options{FS: p.fs})
	must(t, err)
}

func aQueue(t *rapid.T) string { return rapid.SampledFrom([]string{"a", "a\x00", ""}).Draw(t, "queue") }

// aTarget draws nil, or one of two forward targets.
func aTarget(t *rapid.T) *store.Destination {
	return rapid.SampledFrom([]*store.Destination{nil, nil, {Exchange: "x"}, {RoutingKey: "a"}}).Draw(t, "target")
}

func someTime(t *rapid.T) time.Duration {
	return time.Duration(rapid.IntRange(-5, 5).Draw(t, "due")) * time.Second
}

func (p *pair) add(t *rapid.T) {
	var batch []*store.Record
	for range rapid.IntRange(1, 6).Draw(t, "n") {
		p.added++
		r := storetest.Waiting(aQueue(t), someTime(t), fmt.Sprintf("%0*d", rapid.IntRange(1, 30).Draw(t, "size"), p.added))
		r.Forward = aTarget(t)
		r.State, r.Error = aState(t), rapid.SampledFrom([]string{"", "e", "f"}).Draw(t, "error")
		r.FailedAt = p.began.Add(-rapid.SampledFrom([]time.Duration{0, time.Hour, 5 * time.Hour}).Draw(t, "ago")).Truncate(time.Microsecond)
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
	lane, upTo := (&store.Record{Queue: aQueue(t), Forward: aTarget(t)}).Lane(), storetest.Waiting("", someTime(t), "").Due
	n, size := rapid.IntRange(0, 5).Draw(t, "n"), rapid.SampledFrom([]int{0, 20, 60, math.MaxInt}).Draw(t, "bytes")
	var got [2][]store.Claim
	for i, s := range []store.Store{p.disk, p.model} {
		var err error
		got[i], err = s.Claim(ctx, lane, upTo, n, size)
		must(t, err)
	}
	if len(got[0]) != len(got[1]) {
		t.Fatalf("claimed %d, the model %d", len(got[0]), len(got[1]))
	}
	for i := range got[0] {
		if d := gocmp.Diff(got[1][i].Record, got[0][i].Record); d != "" {
			t.Fatalf("claim %d (-model +disk):\n%s", i, d)
		}
		p.claims = append(p.claims, [2]store.Claim{got[0][i], got[1][i]})
	}
}

// someClaims takes some claims, and may name one of them twice. It names none
// again later: then the same record may be claimed by another.
func (p *pair) someClaims(t *rapid.T) (claims [][2]store.Claim) {
	if len(p.claims) == 0 {
		t.Skip("nothing is claimed")
	}
	chosen := rapid.SliceOfN(rapid.IntRange(0, len(p.claims)-1), 1, 6).Draw(t, "claims")
	for _, i := range chosen {
		claims = append(claims, p.claims[i])
	}
	slices.Sort(chosen)
	for _, i := range slices.Backward(slices.Compact(chosen)) {
		p.claims = slices.Delete(p.claims, i, i+1)
	}
	return claims
}

func (p *pair) finish(t *rapid.T) {
	at := storetest.Waiting("", someTime(t), "").Due
	var outcomes [2][]store.Outcome
	for _, claim := range p.someClaims(t) {
		park := rapid.SampledFrom([]string{"", "why"}).Draw(t, "park")
		for i, c := range claim {
			outcomes[i] = append(outcomes[i], store.Outcome{Claim: c, Park: park, At: at})
		}
	}
	got, err := p.disk.Finish(ctx, outcomes[0])
	want, _ := p.model.Finish(ctx, outcomes[1])
	if got != want || err != nil {
		t.Fatalf("finished %d, %v; the model %d", got, err, want)
	}
}

func (p *pair) release(t *rapid.T) {
	for _, claim := range p.someClaims(t) {
		for i, s := range []store.Store{p.disk, p.model} {
			must(t, s.Release(ctx, []store.Claim{claim[i]}))
		}
	}
}

func (p *pair) replay(t *rapid.T) {
	queue := aQueue(t)
	due := storetest.Waiting("", someTime(t), "").Due
	p.alike(t, "replay", func(s store.Store) any {
		n, err := storetest.Replay(ctx, s, queue, due)
		return fmt.Sprint(n, err)
	})
}

func aState(t *rapid.T) store.State {
	return rapid.SampledFrom([]store.State{store.Waiting, store.Parked, store.Discarded}).Draw(t, "state")
}

// shown returns all that is in a record.
func shown(r *store.Record) string {
	flat := *r
	flat.Forward = nil
	return fmt.Sprintf("%s %+v", r.Lane(), flat)
}

// scanned is what a range visits, and what names the places and records.
func scanned(s store.Store, r store.Range, most int) (all, cursors []string, keys []store.Key, err error) {
	err = s.Scan(ctx, r, func(l store.Listed) (bool, error) {
		all = append(all, fmt.Sprintf("%s %d", shown(l.Record), l.BodySize))
		cursors, keys = append(cursors, l.Cursor), append(keys, l.Key)
		return len(all) < most, nil
	})
	return all, cursors, keys, err
}

// change does the same to some records of both, which may be claimed, or gone.
func (p *pair) change(t *rapid.T) {
	type does struct {
		what  int
		state store.State
		due   time.Duration
		add   *store.Record
	}
	pick := rapid.SliceOfN(rapid.IntRange(0, 40), 0, 5).Draw(t, "records")
	edits := map[int]does{}
	for _, i := range pick {
		edits[i] = does{rapid.IntRange(0, 2).Draw(t, "what"), aState(t), someTime(t), nil}
		if rapid.Bool().Draw(t, "adds") {
			p.added++
			r := storetest.Waiting(aQueue(t), someTime(t), fmt.Sprintf("%03d", p.added))
			r.State, r.Forward, r.Fingerprint[1] = aState(t), aTarget(t), 1
			p.ids = append(p.ids, r.ID)
			edits[i] = does{edits[i].what, edits[i].state, edits[i].due, r}
		}
	}
	queue, target, note := aQueue(t), aTarget(t), rapid.SampledFrom([]string{"", "a"}).Draw(t, "note")
	p.alike(t, "change", func(s store.Store) any {
		_, _, all, err := scanned(s, store.Range{}, math.MaxInt)
		if err != nil {
			return err
		}
		var keys []store.Key
		for _, i := range pick {
			if i < len(all) {
				keys = append(keys, all[i])
			} else {
				keys = append(keys, store.MakeKey(uuid.Nil, uint64(i)))
			}
		}
		var given []string
		n, err := s.Change(ctx, keys, func(_ store.Key, r *store.Record) store.Edit {
			d := edits[pick[len(given)]]
			e := store.Edit{Keep: d.what == 1, Delete: d.what == 2}
			if d.add != nil {
				e.Add = []*store.Record{d.add}
			}
			if r == nil {
				given = append(given, "nil")
				return e
			}
			given = append(given, shown(r))
			if d.due == time.Second {
				r.Forward = target
			}
			r.State, r.Due, r.Failures = d.state, storetest.Waiting("", d.due, "").Due, r.Failures+1
			if d.due == 0 {
				r.Queue = queue
			}
			return e
		}, func(n int) []store.Entry {
			return []store.Entry{{Name: "changed" + note, Value: fmt.Append(nil, n, given)}}
		})
		return fmt.Sprint(n, err, given)
	})
}

func (p *pair) forget(t *rapid.T) {
	now := storetest.Waiting("", someTime(t), "").Due
	p.alike(t, "forget", func(s store.Store) any {
		n, err := s.Forget(ctx, now)
		return fmt.Sprint(n, err)
	})
}

func (p *pair) pass(t *rapid.T) {
	queue, as := aQueue(t), rapid.SampledFrom([]store.Column{store.Delayed, store.DiscardedAtOnce}).Draw(t, "as")
	p.alike(t, "pass", func(s store.Store) any {
		s.CountUnstored(queue, as, 3)
		_, err := s.Change(ctx, nil, nil, func(int) []store.Entry { return []store.Entry{{Name: "passed", Value: []byte{1}}} })
		return err
	})
}

func (p *pair) entries(t *rapid.T) {
	aName := rapid.SampledFrom([]string{"", "a", "a/", "a/b", "a\x00", "b", "\xff", "changed"})
	var all []store.Entry
	for range rapid.IntRange(0, 3).Draw(t, "n") {
		all = append(all, store.Entry{Name: aName.Draw(t, "name"), Value: rapid.SampledFrom([][]byte{nil, {}, {1}, {2}}).Draw(t, "value")})
	}
	prefix, forget := aName.Draw(t, "prefix"), rapid.Bool().Draw(t, "forget")
	from := aName.Draw(t, "from")
	p.alike(t, "entries", func(s store.Store) any {
		if err := s.PutEntries(ctx, all); err != nil {
			return err
		}
		if forget {
			if err := s.DeleteEntries(ctx, prefix); err != nil {
				return err
			}
		}
		var got []string
		err := s.Entries(ctx, prefix, from, func(e store.Entry) (bool, error) {
			one, err := s.Entry(ctx, e.Name)
			got = append(got, fmt.Sprintf("%q=%q=%q", e.Name, e.Value, one))
			return true, err
		})
		return fmt.Sprint(got, err)
	})
}

// reopen ends all claims, as the death of their owner does.
func (p *pair) reopen(t *rapid.T) {
	must(t, p.disk.Close())
	p.open(t)
	for _, claim := range p.claims {
		p.model.Release(ctx, []store.Claim{claim[1]})
	}
	p.claims = nil
}

// same compares all that the two show.
func (p *pair) same(t *rapid.T) {
	must(t, p.disk.Check())
	p.alike(t, "next", func(s store.Store) any {
		next, err := s.Next(ctx)
		slices.SortFunc(next, func(a, b store.NextDue) int { return cmp.Compare(a.Lane.String(), b.Lane.String()) })
		return fmt.Sprint(next, err)
	})
	p.alike(t, "counts", func(s store.Store) any {
		counts, err := s.Counts(ctx)
		slices.SortFunc(counts, func(a, b store.QueueCount) int { return cmp.Compare(a.Queue, b.Queue) })
		return fmt.Sprint(counts, err)
	})
	storetest.SameCounts(t, p.model, p.disk)
	r := store.Range{NewestFirst: rapid.Bool().Draw(t, "newest first"), Body: true}
	some := func(what string) bool { return rapid.IntRange(0, 2).Draw(t, what) == 0 }
	if some("by state") {
		r.State = aState(t)
	}
	if some("by queue") {
		r.Queues = []string{aQueue(t), aQueue(t)}
	}
	if some("by group") {
		r.Groups = []errorgroup.ID{errorgroup.Of(aQueue(t), "rejected", "e", "").ID, errorgroup.Of(aQueue(t), "rejected", "", "").ID}
	}
	if some("from") {
		r.From = storetest.Waiting("", someTime(t), "").Due
	}
	if some("to") {
		r.To = storetest.Waiting("", someTime(t), "").Due
	}
	most := rapid.IntRange(1, 9).Draw(t, "page")
	p.alike(t, "scan", func(s store.Store) any {
		whole, _, _, err := scanned(s, r, math.MaxInt)
		if err != nil {
			return err
		}
		var paged []string
		for at := r; ; {
			page, cursors, _, err := scanned(s, at, most)
			if paged = append(paged, page...); err != nil || len(page) < most {
				if d := gocmp.Diff(whole, paged); d != "" {
					t.Fatalf("by pages (-whole +paged):\n%s", d)
				}
				return fmt.Sprint(whole, err)
			}
			at.After = cursors[most-1]
		}
	})
	if len(p.ids) == 0 {
		return
	}
	id := rapid.SampledFrom(p.ids).Draw(t, "id")
	p.alike(t, "past", func(s store.Store) any {
		all, err := s.PastFailures(ctx, id)
		return fmt.Sprintf("%+v %v", all, err)
	})
	p.alike(t, "find", func(s store.Store) any {
		found, err := s.Find(ctx, id)
		var got []string
		for _, l := range found {
			one, err := s.Get(ctx, l.Key)
			if d := gocmp.Diff(l, one); d != "" || err != nil {
				t.Fatalf("get: %v (-find +get):\n%s", err, d)
			}
			got = append(got, fmt.Sprintf("%+v", *l.Record))
		}
		return fmt.Sprint(got, err)
	})
}

// alike compares the answers of both to a call.
func (p *pair) alike(t *rapid.T, what string, ask func(store.Store) any) {
	t.Helper()
	if d := gocmp.Diff(ask(p.model), ask(p.disk)); d != "" {
		t.Fatalf("%s (-model +disk):\n%s", what, d)
	}
}
