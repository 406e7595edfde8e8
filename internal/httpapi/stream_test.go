package httpapi_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/background"
	"github.com/redrive-mq/redrive/internal/condition"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/inspect/inspecttest"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/memstore"
	"github.com/redrive-mq/redrive/testenv/pipe"
)

func TestAnExportThatFailsIsNeverTakenForAWholeOne(t *testing.T) {
	part := strings.Repeat("x", 100_000)
	for what, c := range map[string]struct {
		export func(context.Context, io.Writer) (int64, error)
		n      int64
		err    bool
		out    string
	}{
		"whole": {func(_ context.Context, w io.Writer) (int64, error) { _, err := io.WriteString(w, part); return 7, err }, 7, false, part},
		"empty": {func(context.Context, io.Writer) (int64, error) { return 0, nil }, 0, false, ""},
		"fails": {func(_ context.Context, w io.Writer) (int64, error) {
			_, _ = io.WriteString(w, part)
			return 3, errors.New("the disk is gone")
		}, 0, true, ""},
		"fails before the first": {func(context.Context, io.Writer) (int64, error) { return 0, inspect.ErrInvalid }, 0, true, ""},
	} {
		client, _ := serve(t, config(&scripted{export: c.export}))
		var out bytes.Buffer
		n, err := client.Export(soon(t), "", "jsonl", &out)
		if n != c.n || (err != nil) != c.err || err == nil && out.String() != c.out {
			t.Errorf("%s: %d, %d bytes, %v", what, n, out.Len(), err)
		}
		if what == "fails before the first" && !errors.Is(err, inspect.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// An export that no one reads any more ends.
func TestAnExportEndsWithItsReader(t *testing.T) {
	ended := make(chan error, 1)
	_, server := serve(t, config(&scripted{export: func(ctx context.Context, w io.Writer) (int64, error) {
		_, err := w.Write(make([]byte, 100_000))
		<-ctx.Done()
		ended <- ctx.Err()
		return 0, errors.Join(err, ctx.Err())
	}}))
	ctx, cancel := context.WithCancel(soon(t))
	r, _ := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/api/v1/export", nil)
	resp, err := server.Client().Do(r)
	must(t, err)
	cancel()
	if err := <-ended; err == nil {
		t.Error("it has no end")
	}
	resp.Body.Close()
}

// What looks like a formula stays text, wherever a spreadsheet may split it.
func TestCSV(t *testing.T) {
	evil := []string{"=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", " =1", "a;=cmd|' /C calc'!A0", "a\n=1", "＝1", "|x", "%x", "\"=1", "a,\"b\n", "\u00a0=cmd|' /C calc'!A0", "\x00=1", "\ufeff=1", "harmless, a=b - c"}
	var page inspect.Page
	at := time.Unix(1_700_000_000, 5000).UTC()
	for _, e := range evil {
		page.Messages = append(page.Messages, inspect.Message{ID: "i", Queue: e, State: "parked", Error: e, Exchange: e, RoutingKey: e, Type: e, Reason: e, ContentType: e, ParkedFor: e, ParkedAt: &at})
	}
	pages := 0
	c, _ := serve(t, config(&scripted{search: func(_, after string) (inspect.Page, error) {
		if pages++; after == "" {
			return inspect.Page{Messages: page.Messages[:5], After: "5"}, nil
		}
		return inspect.Page{Messages: page.Messages[5:]}, nil
	}}))
	var out bytes.Buffer
	n, err := c.Export(soon(t), "", "csv", &out)
	if err != nil || n != int64(len(evil)) || pages != 2 {
		t.Fatalf("%d in %d pages, %v", n, pages, err)
	}
	rows, err := csv.NewReader(&out).ReadAll()
	const columns = "id queue state attempt due parked_at parked_for reason error policy first_failed failed exchange routing_key " +
		"type content_type size"
	if err != nil || len(rows) != len(evil)+1 || strings.Join(rows[0], " ") != columns {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	for i, row := range rows[1:] {
		if formula := strings.TrimLeft(evil[i], " \t\r\n\u00a0\ufeff\x00"); strings.ContainsRune("=+-@|%＝", []rune(formula)[0]) && !strings.HasPrefix(row[1], "'") {
			t.Errorf("%q becomes %q, which may be calculated", evil[i], row[1])
		}
		for _, cell := range row {
			for j, part := range strings.FieldsFunc(cell, func(r rune) bool { return strings.ContainsRune(";\t\r\n", r) }) {
				if j > 0 {
					part = strings.TrimLeft(part, " \"")
				}
				if strings.HasPrefix(strings.TrimLeft(part, " "), "=") {
					t.Errorf("%q may be calculated: %q", evil[i], cell)
				}
			}
			if cell != "" && strings.ContainsAny(cell[:1], "=+-@|%＝") {
				t.Errorf("%q begins with a sign: %q", evil[i], cell)
			}
		}
	}
	if last := rows[len(rows)-1]; last[1] != "harmless, a=b - c" || last[5] != "2023-11-14T22:13:20Z" {
		t.Errorf("what is harmless was changed: %q", last)
	}
}

// dialed is a connection on which a request was written.
func dialed(t *testing.T, server *httptest.Server, request string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	must(t, err)
	must(t, errOf(io.WriteString(conn, request)))
	return conn
}

// Who stops sending in the middle is not waited for; nor is who stops reading.
func TestTheOtherEndIsSlow(t *testing.T) {
	ended := make(chan error, 2)
	c := config(&scripted{
		taken: func(r io.Reader) (actions.Imported, error) {
			_, err := io.Copy(io.Discard, r)
			ended <- err
			return actions.Imported{}, err
		},
		export: func(_ context.Context, w io.Writer) (n int64, err error) {
			for err == nil {
				_, err = w.Write(make([]byte, 1<<20))
			}
			ended <- err
			return 0, err
		},
	})
	c.Idle = 50 * time.Millisecond
	_, server := serve(t, c)
	for what, request := range map[string]string{
		"an import": "POST /api/v1/import HTTP/1.1\r\nHost: x\r\nContent-Type: application/jsonl\r\nContent-Length: 1000\r\n\r\n{}",
		"an export": "GET /api/v1/export HTTP/1.1\r\nHost: x\r\n\r\n",
	} {
		conn := dialed(t, server, request)
		expect.Err(t, <-ended, os.ErrDeadlineExceeded, "%s ends with", what)
		if what == "an import" {
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil || resp.StatusCode != http.StatusRequestTimeout {
				t.Errorf("%s gives %+v, %v", what, resp, err)
			}
		}
		_ = conn.Close()
	}
}

// A body that HTTP does not know is its client's mistake, whichever route reads it.
func TestAMalformedBodyIsRefused(t *testing.T) {
	_, server := serve(t, config(&scripted{taken: func(r io.Reader) (actions.Imported, error) {
		_, err := io.Copy(io.Discard, r)
		return actions.Imported{}, err
	}}))
	for _, to := range []string{"/api/v1/import HTTP/1.1\r\nContent-Type: application/jsonl", "/api/v1/act HTTP/1.1\r\nContent-Type: application/json", "/api/v1/decode HTTP/1.1\r\nContent-Type: application/json"} {
		for _, chunks := range []string{"zz\r\n", "\r\n\r\n", "2\r\n{}}}\r\n", "fffffffffffffffff\r\n", "-1\r\n"} {
			conn := dialed(t, server, "POST "+to+"\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"+chunks)
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			must(t, err)
			var p httpapi.Problem
			if err := json.NewDecoder(resp.Body).Decode(&p); err != nil || resp.StatusCode != http.StatusBadRequest || p.Code != "malformed" {
				t.Errorf("%.30s with %q: %d %+v, %v", to, chunks, resp.StatusCode, p, err)
			}
			_ = conn.Close()
		}
	}
}

// Who sends drop by drop does not hold a connection for as long as they like.
func TestDropByDrop(t *testing.T) {
	ended := make(chan int64, 1)
	c := config(&scripted{taken: func(r io.Reader) (actions.Imported, error) {
		n, err := io.Copy(io.Discard, r)
		ended <- n
		return actions.Imported{}, err
	}})
	c.Idle = 200 * time.Millisecond
	_, server := serve(t, c)
	const all = 60
	conn := dialed(t, server, fmt.Sprintf("POST /api/v1/import HTTP/1.1\r\nHost: x\r\n"+
		"Content-Type: application/jsonl\r\nContent-Length: %d\r\n\r\n", all))
	defer conn.Close()
	var err error
	drop := time.NewTicker(20 * time.Millisecond) // 50 bytes a second
	defer drop.Stop()
	for err == nil {
		select {
		case n := <-ended:
			if n == all {
				t.Error("all of it was waited for")
			}
			return
		case <-drop.C:
			_, err = conn.Write([]byte("\n"))
		}
	}
	t.Fatal(err)
}

// A caller who is not signed in has as little time for a body as for a head.
func TestASlowBodyBeforeSignInIsCut(t *testing.T) {
	c := config(&scripted{})
	c.Guard = auth.NewGuard(auth.Config{Required: true, SignInPage: auth.SignInPath, Log: c.Log})
	c.Idle, c.Unauthenticated = time.Hour, 100*time.Millisecond
	_, server := serve(t, c)
	for _, path := range []string{auth.SignInPath, "/api/v1/import"} {
		conn := dialed(t, server, "POST "+path+" HTTP/1.1\r\nHost: x\r\n"+
			"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 1000\r\n\r\nuser")
		_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := io.Copy(io.Discard, conn); err != nil { // what it says, and that it closes
			t.Errorf("%s: the connection is still there: %v", path, err)
		}
		_ = conn.Close()
	}
}

// one is a listener of one connection.
type one struct {
	conns chan net.Conn
	ended sync.Once
}

func (o *one) Accept() (net.Conn, error) {
	c, ok := <-o.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (o *one) Close() error   { o.ended.Do(func() { close(o.conns) }); return nil }
func (o *one) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

// By HTTP/2 too a search may take longer between two pieces than the other end may
// to take one.
func TestAnExportThatTakesItsTimeByHTTP2(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := config(&scripted{export: func(ctx context.Context, w io.Writer) (int64, error) {
			for range 2 {
				if _, err := io.WriteString(w, "{}\n"); err != nil {
					return 0, err
				}
				select {
				case <-ctx.Done():
					return 0, ctx.Err()
				case <-time.After(time.Hour):
				}
			}
			return 2, nil
		}})
		server := httptest.NewUnstartedServer(httpapi.New(c))
		_ = server.Listener.Close()
		here, there := pipe.New("redrive")
		listener := &one{conns: make(chan net.Conn, 1)}
		listener.conns <- there
		server.Listener, server.EnableHTTP2 = listener, true
		server.StartTLS()
		defer server.Close()
		transport := server.Client().Transport.(*http.Transport)
		transport.DialContext = func(context.Context, string, string) (net.Conn, error) { return here, nil }
		var out strings.Builder
		n, err := httpapi.Client{Addr: server.URL, HTTP: server.Client()}.Export(t.Context(), "", "jsonl", &out)
		if err != nil || n != 2 || out.String() != "{}\n{}\n" {
			t.Errorf("%d, %v: %q", n, err, &out)
		}
		transport.CloseIdleConnections()
	})
}

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
		ticks <- operations.Tick{Totals: inspect.Totals{Parked: int64(i), Conditions: []condition.Condition{{Kind: condition.Unreachable, Queue: "a\n\ndata: {}\nb", Text: "gone"}}}}
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
		must(t, err)
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
		must(t, tokens.Revoke(t.Context(), root, "wall"))
		began := time.Now()
		<-ended
		if d := time.Since(began); d > 15*time.Second {
			t.Errorf("it went on for %s", d)
		}
		watchers.Wait()
	})
}

// answers answers requests by a handler, without a connection.
type answers struct{ http.Handler }

func (a answers) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	a.ServeHTTP(w, r)
	return w.Result(), nil
}

// A caller who asks again and again, for a display that has gone wrong perhaps, leaves
// streams for others, of whom not everybody can watch at once. The places are free again
// when the streams have ended.
func TestNotEverybodyCanWatchAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, watchers := ticking(make(chan operations.Tick))
		a := httpapi.New(config(s))
		var asking sync.WaitGroup
		codes := make(chan int, 300)
		watch := func(times int, name string, want ...int) { // what ends at once
			t.Helper()
			by := as(auth.Caller{Name: name, How: "token", Role: auth.Viewer})
			for range times {
				asking.Go(func() { codes <- ask(a, "GET", "/api/v1/live", "", by).Code })
			}
			synctest.Wait()
			var got []int
			for range len(codes) {
				got = append(got, <-codes)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%d streams of %s: %d end at once, with %v; want %v", times, name, len(got), got, want)
			}
		}
		watch(150, "one", slices.Repeat([]int{http.StatusTooManyRequests}, 130)...)
		for i := range 4 {
			watch(20, fmt.Sprint("other ", i))
		}
		watch(1, "late", http.StatusTooManyRequests)
		c := httpapi.Client{Addr: "127.0.0.1:1", HTTP: &http.Client{Transport: answers{a}}}
		var p *httpapi.Problem
		if err := c.Live(t.Context(), nil); !errors.Is(err, background.ErrTooMany) || !errors.As(err, &p) {
			t.Errorf("one more: %v", err)
		}
		if w := ask(a, "GET", "/api/v1/live", ""); w.Header().Get("Retry-After") == "" {
			t.Errorf("one more is not told when: %v", w.Header())
		}
		a.EndStreams()
		asking.Wait()
		watchers.Wait()
		for range 100 {
			expect.Equal(t, <-codes, http.StatusOK, "a stream ends with")
		}
		watch(1, "one", http.StatusOK) // at once, since streams have ended for good
		asking.Wait()
	})
}
