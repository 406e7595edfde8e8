package redisstore_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/redisstore"
	"github.com/redrive-mq/redrive/internal/store/storetest"
	"github.com/redrive-mq/redrive/testenv/redisnode"
)

// Forgetting queues reads a bounded part of a large ledger each time, and all of it in some
// rounds; queues that something is kept for stay.
func TestForgettingQueuesReadsTheLedgerInParts(t *testing.T) {
	const kept, gone, most = 3000, store.EmptyLinesKept + 500, 2000
	_, s, _ := two(t)
	add := func(prefix string, n int, state store.State, due time.Time) {
		t.Helper()
		for at := 0; at < n; at += 500 {
			var all []*store.Record
			for i := at; i < min(n, at+500); i++ {
				all = append(all, &store.Record{ID: uuid.New(), Queue: fmt.Sprintf("%s.%05d", prefix, i), State: state, Due: due, FailedAt: due, FirstFailed: due})
			}
			must(t, s.Add(ctx, all))
		}
	}
	now := time.Now()
	add("kept", kept, store.Parked, now)
	add("gone", gone, store.Discarded, now.Add(-time.Hour))
	s.ForgetMost(most)
	for rounds, whole := 0, kept*2+gone*2; s.Forgetting() < 2*whole; rounds++ {
		before := s.Forgetting()
		if _, err := s.Forget(ctx, now); err != nil {
			t.Fatal(err)
		}
		// Redis looks at whole buckets of its table, so a step reads somewhat more.
		if n := s.Forgetting() - before; n > 2*most {
			t.Fatalf("a round read %d of the ledger, want about %d", n, most)
		}
		if rounds > 100 {
			t.Fatal("it does not get on")
		}
	}
	lines, err := s.Ledger(ctx)
	must(t, err)
	var sum store.Sums
	left := 0
	for _, l := range lines {
		sum.Add(&l.Sums)
		if l.Queue != store.OtherQueues && l.Kept() == 0 {
			left++
		}
	}
	if left != store.EmptyLinesKept || sum[store.In] != kept+gone || sum[store.Parked] != kept || sum[store.Forgotten] != gone {
		t.Errorf("%d queues with nothing kept are left, want %d; in all %v", left, store.EmptyLinesKept, sum)
	}
}

// What a vanished process has written is there however much others store since, since
// RabbitMQ may deliver it again at any time; what it has written is read by others once.
func TestOthersDoNotPushOutAVanishedProcessesReceipts(t *testing.T) {
	on(t, "Redis", func(t *testing.T, o redisnode.Options) {
		at := redisstore.Options{URL: redisnode.New(t, o).URL()}
		vanishes, survives := openAt(t, at), openAt(t, at)
		held := written(t, vanishes, 512)
		for range 3 {
			written(t, survives, store.ReceiptsKept)
		}
		kept, read, err := survives.NewReceipts(ctx, nil)
		must(t, err)
		found, own := 0, len(kept)
		processes := map[string]int{}
		for _, r := range kept {
			process := r.Process
			if r.Process = ""; held[r] {
				found++
				own--
				processes[process]++
			}
		}
		if len(processes) != 1 || processes[""] != 0 {
			t.Errorf("those of the process that vanished are said to be of %v", processes)
		}
		if found != len(held) || own != store.ReceiptsKept {
			t.Errorf("%d of the %d of the process that vanished are kept, and %d others", found, len(held), own)
		}
		written(t, survives, 10)
		more := written(t, vanishes, 300) // it had only been slow
		kept, read, err = survives.NewReceipts(ctx, read)
		for _, r := range kept {
			if r.Process = ""; !more[r] {
				t.Errorf("%+v is read again, or one's own", r)
			}
		}
		if err != nil || len(kept) != len(more) {
			t.Errorf("%d of %d new ones are read, %v", len(kept), len(more), err)
		}
		if kept, _, err = survives.NewReceipts(ctx, read); err != nil || len(kept) != 0 {
			t.Errorf("%d are read again, %v", len(kept), err)
		}
	})
}

// Processes that are started again and again leave no more than a bounded number of
// receipts: those of the newest, and of the last minutes.
func TestReceiptsOfProcessesLongGoneAreForgotten(t *testing.T) {
	on(t, "Redis", func(t *testing.T, o redisnode.Options) {
		server := redisnode.New(t, o)
		at := redisstore.Options{URL: server.URL()}
		var all []map[store.Receipt]bool
		for range store.ReceiptsOwners + 3 {
			s := openAt(t, at)
			all = append(all, written(t, s, 10))
			must(t, s.Close())
		}
		last := openAt(t, at)
		check := func(what string, want int) {
			t.Helper()
			written(t, last, 1)
			kept, err := last.Receipts(ctx)
			gone := 0
			for i := range all {
				n := 0
				for _, r := range kept {
					if all[i][r] {
						n++
					}
				}
				if n == 0 && gone == i {
					gone++
				} else if n != 10 {
					t.Errorf("%s: %d receipts of process %d are kept", what, n, i)
				}
			}
			if err != nil || gone != want {
				t.Errorf("%s: the receipts of the first %d processes are forgotten, want %d; %v", what, gone, want, err)
			}
		}
		check("all are recent", 0)
		processes, err := server.Do(ctx, "ZRANGE", "{redrive}:receipts:by", "0", fmt.Sprint(len(all)-1))
		must(t, err)
		long := time.Now().Add(-store.ReceiptsAge - time.Minute).UnixMilli()
		for i, p := range processes.([]any) {
			if _, err := server.Do(ctx, "ZADD", "{redrive}:receipts:by", fmt.Sprint(long+int64(i)), fmt.Sprint(p)); err != nil {
				t.Fatal(err)
			}
		}
		check("all but one are old", len(all)+1-store.ReceiptsOwners)
	})
}

// written are the receipts of n messages that s keeps now.
func written(t *testing.T, s *redisstore.Store, n int) map[store.Receipt]bool {
	t.Helper()
	all := map[store.Receipt]bool{}
	for n > 0 {
		var batch []*store.Record
		for range min(n, 512) {
			r := storetest.Waiting("q", time.Hour, "")
			copy(r.Fingerprint[:], r.ID[:])
			batch = append(batch, r)
			all[r.Receipt()] = true
		}
		n -= len(batch)
		must(t, s.Add(ctx, batch))
	}
	return all
}

// What is put off while it is scanned comes again further on, and is visited once.
func TestAScanVisitsWhatMovesOnce(t *testing.T) {
	const scanned = 500 // more than a page
	t.Parallel()
	server := start(t, "")
	for _, down := range []bool{false, true} {
		o := server.options()
		o.Prefix = map[bool]string{false: "up", true: "down"}[down]
		s := openAt(t, o)
		for range 2 {
			add(t, s, scanned/2)
		}
		by := time.Hour
		if down {
			by = -by
		}
		seen := map[store.Key]int{}
		err := s.Scan(ctx, store.Range{NewestFirst: down}, func(l store.Listed) (bool, error) {
			if seen[l.Key]++; seen[l.Key] > 1 {
				return false, fmt.Errorf("%s is visited again", l.Key)
			}
			_, err := s.Change(ctx, []store.Key{l.Key}, storetest.Keep(func(r *store.Record) { r.Due = r.Due.Add(by) }), nil)
			return true, err
		})
		if err != nil || len(seen) != scanned {
			t.Errorf("visited %d of %d, %v", len(seen), scanned, err)
		}
	}
}
