package redisstore_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/redisstore"
	"github.com/redrive-mq/redrive/internal/store/storetest"
)

// What a server cannot keep is not promised in its name.
func TestServersThatAreRefused(t *testing.T) {
	for _, c := range []struct {
		name       string
		config     string
		durability redisstore.Durability
		want       string // "": it is taken
	}{
		{"one that evicts", "maxmemory-policy allkeys-lru", redisstore.Cached, "set `maxmemory-policy noeviction`"},
		{"one that evicts what has a time to live", "maxmemory-policy volatile-ttl", redisstore.Synced, "noeviction"},
		{"no disk", "appendonly no", redisstore.Synced, "set `appendonly yes`"},
		{"no disk, and none is asked for", "appendonly no", redisstore.Cached, ""},
		{"a sync each second", "appendfsync everysec", redisstore.Synced, "set `appendfsync always`"},
		{"no sync", "appendfsync no", redisstore.Synced, "set `appendfsync always`"},
		{"no such promise", "", "eternal", "expected synced, replicated or cached"},
		{"all is well", "", redisstore.Synced, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := start(t, c.config)
			o := server.options()
			o.Durability = c.durability
			s, err := redisstore.Open(ctx, o)
			if err == nil {
				s.Close()
			}
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v; want %q", err, c.want)
			}
		})
	}
}

func TestStoresThatAreRefused(t *testing.T) {
	server := start(t, "")
	o := server.options()
	openAt(t, o)
	server.do(t, "SET", "{redrive}:format", "4")
	if _, err := redisstore.Open(ctx, o); !errors.Is(err, store.ErrFormat) || !strings.Contains(err.Error(), "reads format 3") {
		t.Errorf("a format of a newer version: %v", err)
	}
	server.do(t, "SET", "{redrive}:format", "3")
	server.do(t, "SET", "redrive{0}:format", "2 16")
	if _, err := redisstore.Open(ctx, o); !errors.Is(err, store.ErrFormat) || !strings.Contains(err.Error(), "redrive migrate") {
		t.Errorf("a store of several shards: %v", err)
	}
	for _, prefix := range []string{"a{b", "a b"} {
		o.Prefix = prefix
		if _, err := redisstore.Open(ctx, o); err == nil || !strings.Contains(err.Error(), prefix) {
			t.Errorf("prefix %q: %v", prefix, err)
		}
	}
	for _, url := range []string{"redis://:s3cret@127.0.0.1:1", "http://:s3cret@127.0.0.1", "redis://:s3cret@%zz"} {
		if _, err := redisstore.Open(ctx, redisstore.Options{URL: url}); err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", url, err)
		}
	}
}

// A write that not as many replicas have as are asked for is an error, within the
// timeout.
func TestAWriteThatNoReplicaHas(t *testing.T) {
	server := start(t, "")
	o := server.options()
	o.Durability, o.Timeout = redisstore.Replicated, 2*time.Second
	s := openAt(t, o)
	for name, write := range map[string]func() error{
		"Add":        func() error { return s.Add(ctx, []*store.Record{storetest.Waiting("q", 0, "x")}) },
		"PutEntries": func() error { return s.PutEntries(ctx, []store.Entry{{Name: "n", Value: []byte("v")}}) },
		"Remember":   func() error { return s.Remember(ctx, []store.Receipt{{ID: uuid.New()}}) },
		"Finish": func() error {
			_, err := s.Finish(ctx, []store.Outcome{{Claim: claim(t, s, 1)[0]}})
			return err
		},
		"Change": func() error {
			_, err := s.Change(ctx, keys(t, s), func(_ store.Key, r *store.Record) store.Edit { return store.Edit{Keep: r != nil} }, nil)
			return err
		},
	} {
		if name == "Finish" || name == "Change" {
			_ = s.Add(ctx, []*store.Record{storetest.Waiting("q", 0, "x")})
		}
		if err := write(); !errors.Is(err, redisstore.ErrUnconfirmed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := s.Counts(ctx); err != nil {
		t.Errorf("reading needs no replica: %v", err)
	}
}

func TestScriptsAreLoadedAgain(t *testing.T) {
	server := start(t, "")
	o := server.options()
	s := openAt(t, o)
	flush := func() { server.do(t, "SCRIPT", "FLUSH") }
	for range 5 {
		flush()
		add(t, s, 4)
	}
	flush()
	claims := claim(t, s, 20)
	flush()
	if n := done(t, s, claims[:10]); n != 10 {
		t.Errorf("finished %d of 10", n)
	}
	flush()
	if err := s.Release(ctx, claims[10:]); err != nil {
		t.Error(err)
	}
	flush()
	if n, err := s.Change(ctx, keys(t, s), func(store.Key, *store.Record) store.Edit { return store.Edit{Delete: true} }, nil); n != 10 || err != nil {
		t.Errorf("changed %d, %v", n, err)
	}
	flush()
	storetest.Balances(t, s)
}

// Full, it takes nothing new; what frees room, and what that needs, works always.
func TestAFullRedisTakesNothingAndGivesBack(t *testing.T) {
	const limit = 60 << 20
	server := start(t, fmt.Sprint("maxmemory ", limit))
	s := openAt(t, server.options())
	big := func() *store.Record { return storetest.Waiting("q", 0, strings.Repeat("x", 64<<10)) }
	var err error
	kept := 0
	for kept < 2000 {
		if err = s.Add(ctx, []*store.Record{big(), big(), big(), big()}); err != nil {
			break
		}
		kept += 4
	}
	if !errors.Is(err, store.ErrFull) {
		t.Fatalf("after %d of 64 KiB: %v", kept, err)
	}
	s.Forgot()
	if free, reserve, err := s.Free(); err != nil || reserve != limit/10 || free < reserve/2 || free > 2*reserve {
		t.Errorf("%d are free, %d in reserve, %v", free, reserve, err)
	}
	// Others use up what was in reserve: Redis itself refuses.
	for i := 0; ; i++ {
		m := server.do(t, "EVAL", "return redis.pcall('SET', KEYS[1], string.rep('x', 1048576))['err'] or 'ok'", "1", fmt.Sprint("other", i))
		if text, _ := m.ToString(); text != "ok" {
			break
		}
		if i > 100 {
			t.Fatal("Redis is never full")
		}
	}
	for range 2 {
		if err := s.Add(ctx, []*store.Record{big()}); !errors.Is(err, store.ErrFull) {
			t.Errorf("Add: %v", err)
		}
		if err := s.Remember(ctx, []store.Receipt{{ID: uuid.New()}}); !errors.Is(err, store.ErrFull) {
			t.Errorf("Remember: %v", err)
		}
		s.Forgot()
	}
	all := keys(t, s)
	changing := func(e store.Edit) error {
		_, err := s.Change(ctx, all[:1], func(store.Key, *store.Record) store.Edit { return e }, func(n int) []store.Entry {
			return []store.Entry{{Name: "account", Value: fmt.Append(nil, n)}}
		})
		return err
	}
	if err := changing(store.Edit{Keep: true}); !errors.Is(err, store.ErrFull) {
		t.Errorf("moving: %v", err)
	}
	if err := s.PutEntries(ctx, []store.Entry{{Name: "operation", Value: make([]byte, 1<<20)}}); !errors.Is(err, store.ErrFull) {
		t.Errorf("many entries: %v", err)
	}
	if err := s.PutEntries(ctx, []store.Entry{{Name: "operation", Value: make([]byte, 1<<10)}}); err != nil {
		t.Errorf("few entries: %v", err)
	}
	if err := changing(store.Edit{}); err != nil {
		t.Errorf("an account: %v", err)
	}
	if err := changing(store.Edit{Delete: true}); err != nil {
		t.Errorf("deleting: %v", err)
	}
	if n := done(t, s, claim(t, s, 200)); n != 200 {
		t.Errorf("finished %d of 200", n)
	}
	s.Forgot()
	if err := s.Add(ctx, []*store.Record{big()}); err != nil {
		t.Errorf("with room again: %v", err)
	}
	storetest.Balances(t, s)
}

// Redis stands still, then goes on: each call ends in time, and then all works.
func TestRedisStandsStill(t *testing.T) {
	server := start(t, "")
	o := server.options()
	o.Timeout = 500 * time.Millisecond
	s := openAt(t, o)
	add(t, s, 2)
	claims := claim(t, s, 1)
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for name, call := range map[string]func() error{
		"Add":    func() error { return s.Add(ctx, []*store.Record{storetest.Waiting("q", 0, "x")}) },
		"Claim":  func() error { _, err := s.Claim(ctx, store.Lane{Queue: "q"}, late, 1, 1); return err },
		"Counts": func() error { _, err := s.Counts(ctx); return err },
		"Finish": func() error { _, err := s.Finish(ctx, []store.Outcome{{Claim: claims[0], At: late}}); return err },
	} {
		if err := call(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("four calls took %s", took)
	}
	if err := server.Continue(); err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); s.Add(ctx, []*store.Record{storetest.Waiting("p", 0, "new")}) != nil; {
		if time.Since(began) > time.Minute {
			t.Fatal("it does not work again")
		}
	}
	// Finishing again is the same, whether it was done or not.
	if _, err := s.Finish(ctx, []store.Outcome{{Claim: claims[0], At: late}}); err != nil {
		t.Error(err)
	}
	if lines := storetest.Balances(t, s); lines["q"][store.Retried] != 1 {
		t.Errorf("the ledger says %v", lines)
	}
}

// Killed, and started again on its disk, it has all that it confirmed; connections
// that are cut meanwhile lose nothing and finish nothing twice.
func TestKilledAndCut(t *testing.T) {
	server := start(t, "")
	o := server.options()
	o.Timeout = 2 * time.Second
	s := openAt(t, o)
	stop := make(chan struct{})
	var mu sync.Mutex
	added := map[uuid.UUID]bool{} // those that Add has confirmed
	finished := map[uuid.UUID]bool{}
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				r := storetest.Waiting("q", 0, "x")
				if s.Add(ctx, []*store.Record{r}) == nil {
					mu.Lock()
					added[r.ID] = true
					mu.Unlock()
				}
			}
		})
	}
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			claims, err := s.Claim(ctx, store.Lane{Queue: "q"}, late, 3, 1<<20)
			if err != nil {
				continue
			}
			var out []store.Outcome
			for _, c := range claims {
				out = append(out, store.Outcome{Claim: c, At: late})
			}
			for err = errors.New("not yet"); err != nil; {
				_, err = s.Finish(ctx, out)
			}
			mu.Lock()
			for _, c := range claims {
				finished[c.Record.ID] = true
			}
			mu.Unlock()
		}
	})
	for range 10 {
		time.Sleep(100 * time.Millisecond) // work goes on for a while
		server.do(t, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
	}
	for range 2 {
		time.Sleep(300 * time.Millisecond)
		server.Kill()
		if err := server.Restart(ctx); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	wg.Wait()
	if len(added) < 20 || len(finished) == 0 {
		t.Errorf("%d added, %d finished: too few to tell", len(added), len(finished))
	}
	left := map[uuid.UUID]bool{}
	if err := s.Scan(ctx, store.Range{}, func(l store.Listed) (bool, error) { left[l.Record.ID] = true; return true, nil }); err != nil {
		t.Fatal(err)
	}
	for id := range added {
		past, err := s.PastFailures(ctx, id)
		if err != nil || !left[id] && len(past) == 0 {
			t.Errorf("%s is lost, %v", id, err)
		}
	}
	storetest.Balances(t, s)
}

// A record that is damaged, or gone, stops no other.
func TestARecordThatIsGone(t *testing.T) {
	var log bytes.Buffer
	server := start(t, "")
	o := server.options()
	o.Log = slog.New(slog.NewTextHandler(&log, nil))
	s := openAt(t, o)
	add(t, s, 3)
	server.do(t, "DEL", "{redrive}:m:00000000000001")
	if got := claim(t, s, 9); len(got) != 2 || !strings.Contains(log.String(), "{redrive}:m:00000000000001") {
		t.Errorf("claimed %d of the 2 others: %s", len(got), log.String())
	}
	claims := claim(t, s, 9)
	add(t, s, 1)
	claims = append(claims, claim(t, s, 9)...)
	server.do(t, "DEL", "{redrive}:m:00000000000004")
	done(t, s, claims)
	lines, err := s.Recount(ctx)
	if err != nil || lines[0].Off() != 2 {
		t.Errorf("the recount misses nothing: %v, %v", lines, err)
	}
}

// A record that cannot be read is changed by nothing, and the others are changed and claimed.
func TestAChangeLeavesARecordThatCannotBeRead(t *testing.T) {
	server := start(t, "")
	s := openAt(t, server.options())
	add(t, s, 5)
	all := keys(t, s)
	const damaged, garbage = "{redrive}:m:00000000000001", "{redrive}:m:00000000000002"
	server.do(t, "SETRANGE", damaged, "75", strings.Repeat("\xff", 20))
	server.do(t, "SET", garbage, "no record")
	get := func(key string) string {
		answer := server.do(t, "GET", key)
		text, err := answer.ToString()
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	before := get(damaged)
	unreadable, missing, changed := 0, 0, 0
	n, err := s.Change(ctx, all[:4], func(_ store.Key, r *store.Record) store.Edit {
		switch {
		case r == nil:
			missing++
			return store.Edit{}
		case errors.Is(r.Unreadable, store.ErrUnreadable) && strings.Contains(r.Unreadable.Error(), damaged):
			unreadable++
			return store.Edit{Delete: true}
		}
		changed++
		r.State = store.Parked
		return store.Edit{Keep: true}
	}, nil)
	if err != nil || n != 4 || unreadable != 1 || missing != 1 || changed != 2 {
		t.Errorf("%d of 4, %d unreadable, %d missing, %d changed, %v", n, unreadable, missing, changed, err)
	}
	for key, want := range map[string]string{damaged: before, garbage: "no record"} {
		if text := get(key); text != want {
			t.Errorf("%s is now %q", key, text)
		}
	}
	if got := claim(t, s, 9); len(got) != 1 || string(got[0].Record.Message.Body) != "4" {
		t.Errorf("%d are claimed, want the last one", len(got))
	}
}
