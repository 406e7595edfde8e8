package redisstore_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/redisstore"
	"github.com/redrive-mq/redrive/internal/store/storetest"
	"github.com/redrive-mq/redrive/testenv/redisnode"
)

// What a vanished process has written is there however much others store since, since
// RabbitMQ may deliver it again at any time; what it has written is read by others once.
func TestOthersDoNotPushOutAVanishedProcessesReceipts(t *testing.T) {
	redisnode.Each(t, func(t *testing.T, o redisnode.Options) {
		ctx := context.Background()
		at := redisstore.Options{URL: redisnode.New(t, o).URL()}
		vanishes, survives := openAt(t, at), openAt(t, at)
		held := written(t, vanishes, 512)
		for range 3 {
			written(t, survives, store.ReceiptsKept)
		}
		kept, read, err := survives.NewReceipts(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
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
	redisnode.Each(t, func(t *testing.T, o redisnode.Options) {
		ctx := context.Background()
		server := redisnode.New(t, o)
		at := redisstore.Options{URL: server.URL()}
		var all []map[store.Receipt]bool
		for range store.ReceiptsOwners + 3 {
			s := openAt(t, at)
			all = append(all, written(t, s, 10))
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
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
		if err != nil {
			t.Fatal(err)
		}
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
		if err := s.Add(context.Background(), batch); err != nil {
			t.Fatal(err)
		}
	}
	return all
}
