package httpapi_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/inspect/inspecttest"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/store/memstore"
)

// ticking is a console whose watchers see what is sent to the channel, and which
// knows how many there are.
func ticking(ticks chan operations.Tick) (*scripted, *sync.WaitGroup) {
	watchers := new(sync.WaitGroup)
	return &scripted{watch: func(ctx context.Context) <-chan operations.Tick {
		out := make(chan operations.Tick)
		watchers.Go(func() {
			defer close(out)
			for {
				select {
				case t := <-ticks:
					select {
					case out <- t:
					case <-ctx.Done():
						return
					}
				case <-ctx.Done():
					return
				}
			}
		})
		return out
	}}, watchers
}

func TestWatching(t *testing.T) {
	ticks := make(chan operations.Tick, 3)
	s, watchers := ticking(ticks)
	c, _ := serve(t, config(s))
	for i := range 3 {
		ticks <- operations.Tick{Totals: inspect.Totals{Parked: int64(i), Problems: []string{"queue \"a\n\ndata: {}\nb\": gone"}}}
	}
	var seen []int64
	enough := errors.New("enough")
	err := c.Live(soon(t), func(tick operations.Tick) error {
		if seen = append(seen, tick.Parked); len(seen) < 3 {
			return nil
		}
		return enough
	})
	if !errors.Is(err, enough) || len(seen) != 3 || seen[2] != 2 {
		t.Errorf("saw %v, %v", seen, err)
	}
	watchers.Wait() // a watcher that has gone is not waited for
}

// A stream that the service ends is followed by another.
func TestWatchingGoesOn(t *testing.T) {
	streams := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		streams++
		fmt.Fprintf(w, "event: tick\ndata: {\"parked\": %d}\n\nevent: again\ndata: {}\n\n", streams)
	}))
	defer s.Close()
	c := httpapi.Client{Addr: s.URL, HTTP: s.Client()}
	enough := errors.New("enough")
	err := c.Live(soon(t), func(tick operations.Tick) error {
		if tick.Parked < 3 {
			return nil
		}
		return enough
	})
	if !errors.Is(err, enough) || streams != 3 {
		t.Errorf("%d streams, %v", streams, err)
	}
}

// A service that stops must not wait for those who watch.
func TestWatchersEndWithTheService(t *testing.T) {
	ticks := make(chan operations.Tick)
	s, watchers := ticking(ticks)
	c, server := serve(t, config(s))
	var client sync.WaitGroup
	client.Go(func() {
		err := c.Live(soon(t), func(operations.Tick) error {
			client.Go(func() { _ = server.Config.Shutdown(soon(t)) })
			return nil
		})
		if !errors.Is(err, httpapi.ErrUnreachable) {
			t.Errorf("the client says %v", err)
		}
	})
	ticks <- operations.Tick{}
	client.Wait()
	watchers.Wait()
}

func TestNotEverybodyCanWatchAtOnce(t *testing.T) {
	ticks := make(chan operations.Tick)
	s, watchers := ticking(ticks)
	c, server := serve(t, config(s))
	ctx, cancel := context.WithCancel(soon(t))
	var clients sync.WaitGroup
	begun := make(chan bool, 101)
	for i := range 101 {
		clients.Go(func() {
			r, _ := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/api/v1/live", nil)
			as(auth.Caller{Name: "user" + strconv.Itoa(i%6), How: "token", Role: auth.Admin})(r)
			resp, err := server.Client().Do(r)
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			if begun <- resp.StatusCode == http.StatusOK; resp.StatusCode != http.StatusOK && (resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") == "") {
				t.Errorf("%s", resp.Status)
			}
			<-ctx.Done()
		})
	}
	n := 0
	for range 101 {
		if <-begun {
			n++
		}
	}
	if n != 100 {
		t.Errorf("%d watch", n)
	}
	if err := c.Live(ctx, nil); !errors.Is(err, httpapi.ErrTooMany) {
		t.Errorf("one more: %v", err)
	}
	cancel()
	clients.Wait()
	watchers.Wait()
}

// A client asks again at once only where a stream has had its time. One that ends because the
// store does not answer does not say so: its clients wait.
func TestOnlyAStreamThatHasHadItsTimeIsAskedForAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for after, again := range map[time.Duration]bool{0: false, time.Minute: false, time.Hour: true} {
			began := time.Now()
			w := ask(httpapi.New(config(&scripted{watch: func(ctx context.Context) <-chan operations.Tick {
				over := make(chan operations.Tick)
				go func() {
					defer close(over)
					select {
					case <-ctx.Done():
					case <-time.After(after):
					}
				}()
				return over
			}})), "GET", "/api/v1/live", "")
			if w.Header().Get("Content-Type") != "text/event-stream" || !strings.HasPrefix(w.Body.String(), "retry: 2000\n: redrive\n\n") || strings.HasSuffix(w.Body.String(), "event: again\ndata: {}\n\n") != again {
				t.Errorf("a stream that ended after %s says %q", time.Since(began), w.Body)
			}
		}
	})
}

// Who can no longer watch is not shown more, though the stream was begun before.
func TestARevokedTokenEndsItsStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tokens := auth.NewTokens(memstore.New(), &inspecttest.AuditLog{})
		secret, _, err := tokens.Create(t.Context(), root, auth.NewToken{Name: "wall", Role: "viewer"})
		if err != nil {
			t.Fatal(err)
		}
		ticks := make(chan operations.Tick)
		s, watchers := ticking(ticks)
		c := config(s)
		c.Guard = auth.NewGuard(auth.Config{Required: true, Tokens: tokens, Log: c.Log})
		a := httpapi.New(c)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			ask(a, "GET", "/api/v1/live", "", header("Authorization", "Bearer "+secret))
		}()
		ticks <- operations.Tick{}
		time.Sleep(time.Minute)
		select {
		case <-ended:
			t.Error("it ended before")
		default:
		}
		if err := tokens.Revoke(t.Context(), root, "wall"); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		<-ended
		if d := time.Since(began); d > 15*time.Second {
			t.Errorf("it went on for %s", d)
		}
		watchers.Wait()
	})
}

// One who asks again and again, for a display that has gone wrong perhaps, leaves
// streams for others.
func TestOneCallerDoesNotTakeAllStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tokens := auth.NewTokens(memstore.New(), &inspecttest.AuditLog{})
		token := func(name string) string {
			secret, _, err := tokens.Create(t.Context(), root, auth.NewToken{Name: name, Role: "viewer"})
			if err != nil {
				t.Fatal(err)
			}
			return "Bearer " + secret
		}
		one, other := token("one"), token("other")
		s, watchers := ticking(make(chan operations.Tick))
		c := config(s)
		c.Guard = auth.NewGuard(auth.Config{Required: true, Tokens: tokens, Log: c.Log})
		a := httpapi.New(c)
		var asking sync.WaitGroup
		codes := make(chan int, 200)
		watch := func(by string) {
			asking.Go(func() { codes <- ask(a, "GET", "/api/v1/live", "", header("Authorization", by)).Code })
		}
		for range 150 {
			watch(one)
		}
		synctest.Wait()
		watch(other)
		synctest.Wait()
		refused := len(codes)
		for range refused {
			if code := <-codes; code != http.StatusTooManyRequests {
				t.Errorf("a stream ends at once with %d", code)
			}
		}
		if refused != 130 {
			t.Errorf("of 150 streams of one caller and one of another %d are refused; want 130", refused)
		}
		a.EndStreams()
		asking.Wait()
		watchers.Wait()
		watch(one) // the places are free again
		asking.Wait()
		for range 22 {
			if code := <-codes; code != http.StatusOK {
				t.Errorf("a stream ends with %d", code)
			}
		}
	})
}
