package redisstore_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/redisstore"
	"github.com/redrive-mq/redrive/internal/store/storetest"
	"github.com/redrive-mq/redrive/testenv/redisnode"
)

// What is done again, since its safety was not confirmed, is not taken for safe
// because there was nothing to write: with a replica that stands still, or a disk that
// nothing syncs, each try is unconfirmed, and one after that has ended is not.
func TestWhatIsRepeatedIsConfirmed(t *testing.T) {
	redisnode.Each(t, func(t *testing.T, o redisnode.Options) {
		t.Run("replicated", func(t *testing.T) {
			server, replica := startOn(t, o, ""), redisnode.New(t, o)
			var port string
			if _, err := fmt.Sscanf(server.Addr(), "127.0.0.1:%s", &port); err != nil {
				t.Fatal(err)
			}
			if _, err := replica.Do(ctx, "REPLICAOF", "127.0.0.1", port); err != nil {
				t.Fatal(err)
			}
			for began := time.Now(); replica.Info(ctx, "replication", "master_link_status") != "up"; time.Sleep(10 * time.Millisecond) {
				if time.Since(began) > time.Minute {
					t.Fatal("the replica does not follow")
				}
			}
			so := server.options()
			so.Durability = redisstore.Replicated
			repeated(t, server, so, func() { must(t, replica.Pause()) }, func() { must(t, replica.Continue()) })
		})
		t.Run("everysec", func(t *testing.T) {
			server := startOn(t, o, "")
			so := server.options()
			if !redisstore.TellsSyncs(ctx, t, so) {
				return // a Redis that cannot say when it has synced is refused with everysec
			}
			server.do(t, "CONFIG", "SET", "appendfsync", "everysec")
			repeated(t, server, so, func() { server.do(t, "CONFIG", "SET", "appendfsync", "no") }, func() { server.do(t, "CONFIG", "SET", "appendfsync", "everysec") })
		})
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// repeated writes while nothing is confirmed, and again when it is.
func repeated(t *testing.T, server *server, o redisstore.Options, stop, goOn func()) {
	o.Timeout = 2 * time.Second
	s := openAt(t, o)
	untilAnswered(t, func() error { return s.PutEntries(ctx, []store.Entry{{Name: "n", Value: []byte("v")}}) })
	add(t, s, 3)
	claims := claim(t, s, 1)
	all := keys(t, s)[1:]
	stop()
	calls := map[string]func() error{
		"Finish": func() error {
			_, err := s.Finish(ctx, []store.Outcome{{Claim: claims[0], At: late}})
			return err
		},
		"PutEntries":    func() error { return s.PutEntries(ctx, []store.Entry{{Name: "n"}}) },
		"DeleteEntries": func() error { return s.DeleteEntries(ctx, "n") },
		"Change": func() error { // is done again by itself, within its time
			_, err := s.Change(ctx, all, func(store.Key, *store.Record) store.Edit { return store.Edit{Keep: true} }, nil)
			return err
		},
	}
	// Each try is on another connection: of the first one Redis still knows what it wrote.
	cut := func() { server.do(t, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes") }
	for name, call := range calls {
		for try := range 2 {
			// Connections that were cut before are found out.
			untilAnswered(t, func() error { _, err := s.Counts(ctx); return err })
			var cutting sync.WaitGroup
			cutting.Go(func() {
				time.Sleep(300 * time.Millisecond) // it is written, and waits to be confirmed
				cut()
			})
			if err := call(); err == nil {
				t.Errorf("%s, try %d, while nothing is confirmed: %v", name, try+1, err)
			}
			cutting.Wait()
		}
	}
	goOn()
	for name, call := range calls {
		untilAnswered(t, call)
		t.Log(name)
	}
	// Each connection that was cut costs one question.
	untilAnswered(t, func() error { _, err := s.Ledger(ctx); return err })
	untilAnswered(t, func() error { _, err := s.Recount(ctx); return err })
	storetest.Balances(t, s)
}
