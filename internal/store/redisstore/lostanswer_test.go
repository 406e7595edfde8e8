package redisstore_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/redisstore"
	"github.com/redrive-mq/redrive/internal/store/storetest"
	"github.com/redrive-mq/redrive/testenv/proxy"
	"github.com/redrive-mq/redrive/testenv/redisnode"
)

// held dials by proxies, one for each connection. Those made up to free can be held while
// others are made later.
type held struct {
	mu      sync.Mutex
	all     []*proxy.Proxy
	hold    func(*proxy.Proxy) func() // nil: what is made now is not held
	release []func()
}

func (h *held) options(t *testing.T, o redisstore.Options) redisstore.Options {
	o.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
		p := proxy.New(t, addr)
		h.mu.Lock()
		h.all = append(h.all, p)
		if h.hold != nil {
			h.release = append(h.release, h.hold(p))
		}
		h.mu.Unlock()
		return (&net.Dialer{}).DialContext(ctx, "tcp", p.Addr())
	}
	return o
}

// holdAll holds the connections that there are, and those that are made until free.
func (h *held) holdAll(hold func(*proxy.Proxy) func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hold = hold
	for _, p := range h.all {
		h.release = append(h.release, hold(p))
	}
}

func (h *held) free() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hold = nil
}

// arrive lets through what was held.
func (h *held) arrive() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, release := range h.release {
		release()
	}
}

// untilAnswered asks again until Redis answers.
func untilAnswered(t *testing.T, ask func() error) {
	t.Helper()
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		err := ask()
		if err == nil {
			return
		}
		if time.Since(began) > time.Minute {
			t.Fatal(err)
		}
	}
}

// A Change whose commands, or whose answers, are lost on the way is done or never will
// be once the side table was read: what arrives at Redis later does nothing.
func TestAChangeWhoseAnswerWasLostIsDoneOrNeverWillBe(t *testing.T) {
	redisnode.Each(t, func(t *testing.T, o redisnode.Options) {
		server := startOn(t, o, "")
		for lost, hold := range map[string]func(*proxy.Proxy) func(){"command": (*proxy.Proxy).Hold, "answer": (*proxy.Proxy).HoldAnswers} {
			t.Run(lost, func(t *testing.T) {
				var conns held
				so := server.options()
				so.Prefix = lost
				direct := openAt(t, so)
				so.Timeout = 2 * time.Second
				s := openAt(t, conns.options(t, so))
				add(t, direct, 3)
				all := keys(t, direct)
				// Its script is there, and the connection that confirms writes: what is held on
				// that does arrive later, and is no script that Redis does not know.
				if _, err := s.Change(ctx, all[:1], func(store.Key, *store.Record) store.Edit { return store.Edit{Keep: true} }, nil); err != nil {
					t.Fatal(err)
				}
				if _, _, err := s.Free(); err != nil { // for a second nothing but the Change asks Redis
					t.Fatal(err)
				}
				n, err := s.Change(ctx, all, func(_ store.Key, r *store.Record) store.Edit {
					if r == nil {
						return store.Edit{}
					}
					copied := *r
					copied.Queue = "copies"
					return store.Edit{Add: []*store.Record{&copied}}
				}, func(n int) []store.Entry {
					conns.holdAll(hold)
					t.Cleanup(conns.arrive)
					return []store.Entry{{Name: "account", Value: fmt.Append(nil, n)}}
				})
				conns.free()
				if err == nil || n != 0 {
					t.Fatalf("%d are changed by a server that does not answer", n)
				}
				var account []byte
				untilAnswered(t, func() (err error) { account, err = s.Entry(ctx, "account"); return err })
				copies := func() (n int64) {
					counts, err := direct.Counts(ctx)
					if err != nil {
						t.Fatal(err)
					}
					for _, c := range counts {
						if c.Queue == "copies" {
							n = c.Waiting
						}
					}
					return n
				}
				want := int64(0)
				if account != nil {
					want = int64(len(all))
				}
				if got := copies(); got != want || lost == "command" && account != nil {
					t.Errorf("%d copies, and the account says %q", got, account)
				}
				conns.arrive()
				for until := time.Now().Add(200 * time.Millisecond); time.Now().Before(until); { // all along
					later, err := direct.Entry(ctx, "account")
					if got := copies(); got != want || string(later) != string(account) || err != nil {
						t.Fatalf("later: %d copies, and the account says %q, %v; it was %q", got, later, err, account)
					}
				}
				storetest.Balances(t, direct)
				// Nothing stays locked.
				if n := len(claim(t, direct, 100)); n != len(all) {
					t.Errorf("%d can be claimed", n)
				}
			})
		}
	})
}
