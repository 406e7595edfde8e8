package notify

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestPrivateAddressesAreNotDialled(t *testing.T) {
	check := guard(nil)
	for _, at := range []string{
		"127.0.0.1", "127.1.2.3", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "169.254.169.254", "100.64.0.1", "100.127.255.255",
		"0.0.0.0", "0.1.2.3", "192.0.0.8", "198.18.0.1", "224.0.0.1", "255.255.255.255", "240.0.0.1",
		"::1", "::", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:10.0.0.1", "::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "2002:7f00:1::1", "2001:0:1::1",
		"fc00::1", "fd00:ec2::254", "fe80::1%eth0", "fec0::1", "ff02::1", "2001:db8::1",
	} {
		if err := check("tcp", netip.AddrPortFrom(netip.MustParseAddr(at), 80).String(), nil); !errors.Is(err, errPrivate) {
			t.Errorf("%s: %v", at, err)
		}
	}
	for _, at := range []string{"1.1.1.1", "172.32.0.1", "172.15.255.255", "100.128.0.1", "169.253.1.1", "192.167.1.1", "2606:4700::1111", "::ffff:1.1.1.1"} {
		if err := check("tcp", netip.AddrPortFrom(netip.MustParseAddr(at), 80).String(), nil); err != nil {
			t.Errorf("%s: %v", at, err)
		}
	}
	allowed := guard([]netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00::/16")})
	for at, ok := range map[string]bool{"10.1.2.3": true, "::ffff:10.1.2.3": true, "10.2.0.1": false, "169.254.169.254": false, "fd00::1": true, "fd01::1": false} {
		if err := allowed("tcp", netip.AddrPortFrom(netip.MustParseAddr(at), 80).String(), nil); (err == nil) != ok {
			t.Errorf("%s: %v", at, err)
		}
	}
}

// Whatever a URL says, what counts is where the connection goes.
func TestURLsThatLeadInward(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1") // is not asked
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	defer server.Close()
	port := server.URL[strings.LastIndex(server.URL, ":"):]
	for _, host := range []string{"127.0.0.1" + port, "localhost" + port, "[::ffff:127.0.0.1]" + port, "0.0.0.0" + port, "169.254.169.254", "[fd00:ec2::254]"} {
		for _, raw := range []string{"generic+http://" + host + "/latest/meta-data", "mattermost+http://" + host + "/hooks/tokentoken", "alertmanager+http://" + host,
			"pagerduty+http://" + host + "/keykeykey", "smtp://" + host + "/?from=a@b.example&to=c@d.example"} {
			to, err := openURL(raw)
			if err != nil {
				t.Fatalf("%s: %v", raw, err)
			}
			if err := to.deliver(context.Background(), newClient(nil), testMessage()); err == nil || !strings.Contains(err.Error(), "private addresses") {
				t.Errorf("%s: %v", raw, err)
			}
		}
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("%d requests got through", n)
	}
}

// A name may lead to a public address when it is looked up first, and to a private one when it is
// connected to: what counts is the address of the connection.
func TestANameThatIsRebound(t *testing.T) {
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	defer server.Close()
	port := server.URL[strings.LastIndex(server.URL, ":"):]
	names, looked := rebinding(t)
	c := newClient(nil)
	c.dial.Resolver = names
	if ip, err := names.LookupHost(t.Context(), "hooks.example"); err != nil || ip[0] != "1.1.1.1" {
		t.Fatalf("at first it is %v, %v", ip, err)
	}
	for _, raw := range []string{"generic+http://hooks.example" + port + "/x", "alertmanager+http://hooks.example" + port, "smtp://hooks.example" + port + "/?from=a@b.example&to=c@d.example"} {
		to, err := openURL(raw)
		if err != nil {
			t.Fatal(err)
		}
		if err := to.deliver(t.Context(), c, testMessage()); err == nil || !strings.Contains(err.Error(), "private addresses") {
			t.Errorf("%s: %v", raw, err)
		}
	}
	if asked.Load() != 0 || looked.Load() < 3 {
		t.Errorf("%d requests got through, after %d look-ups", asked.Load(), looked.Load())
	}
}

// rebinding resolves every name to 1.1.1.1 when it is first asked for an address, and to
// 127.0.0.1 from then on.
func rebinding(t *testing.T) (*net.Resolver, *atomic.Int32) {
	t.Helper()
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var looked atomic.Int32
	var serving sync.WaitGroup
	t.Cleanup(func() {
		_ = server.Close()
		serving.Wait()
	})
	serving.Go(func() {
		query := make([]byte, 512)
		for {
			n, from, err := server.ReadFrom(query)
			if err != nil {
				return
			}
			end := 12 + bytes.IndexByte(query[12:n], 0) + 5 // of the question: name, type and class
			answer := append([]byte(nil), query[:end]...)
			answer[2], answer[3] = 0x81, 0x80 // a response, without error
			copy(answer[6:12], make([]byte, 6))
			if answer[end-3] == 1 { // A
				ip := []byte{127, 0, 0, 1}
				if looked.Add(1) == 1 {
					ip = []byte{1, 1, 1, 1}
				}
				answer[7] = 1
				answer = append(append(answer, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4), ip...)
			}
			_, _ = server.WriteTo(answer, from)
		}
	})
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", server.LocalAddr().String())
	}}, &looked
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	var asked atomic.Int32
	inside := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	defer inside.Close()
	for _, code := range []int{301, 302, 303, 307, 308} {
		outside, _ := hook(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, inside.URL, code) })
		to, err := openURL(outside)
		if err != nil {
			t.Fatal(err)
		}
		if err := to.deliver(context.Background(), newClient(loopback), testMessage()); err == nil || !strings.Contains(err.Error(), "redirect") {
			t.Errorf("%d: %v", code, err)
		}
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("%d redirects were followed", n)
	}
}

func TestAnAnswerWithoutEnd(t *testing.T) {
	for status, want := range map[int]string{200: "", 429: "it answers 429 Too Many Requests", 500: "it answers 500 Internal Server Error"} {
		at, _ := hook(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(status)
			for r.Context().Err() == nil {
				if _, err := w.Write(make([]byte, 64<<10)); err != nil {
					return
				}
			}
		})
		to, err := openURL(at)
		if err != nil {
			t.Fatal(err)
		}
		err = to.deliver(context.Background(), newClient(loopback), testMessage())
		if got := ""; err != nil {
			got = err.Error()
			if got != want {
				t.Errorf("%d: %s", status, got)
			}
			if b := (busyError{}); !errors.As(err, &b) || b.after != 7*time.Second {
				t.Errorf("%d: it is not told when to try again: %v", status, err)
			}
		} else if want != "" {
			t.Errorf("%d is a success", status)
		}
	}
}

// No error repeats what a URL keeps secret.
func TestSecretsAreNotInErrors(t *testing.T) {
	for _, raw := range []string{
		"generic+http://user:s3cretpass@127.0.0.1:1/s3cretpath?key=s3cretkey&@Authorization=s3cretheader", "slack://hook:s3cret-s3cret-s3cret@webhook", "slack+https://127.0.0.1:1/services/s3cret/s3cret", "generic+https://s3cret host/",
		"telegram://s3cret:s3cret@telegram?chats=1", "pagerduty://127.0.0.1/s3cretkey/s3cret", "teams://s3cret@s3cret/s3cret", "discord://s3cret", "smtp://s3cret:s3cret@host/?from=s3cret",
		"s3cret", "s3cret://x", "ntfy://a:s3cretpass@127.0.0.1:1/s3crettopic?scheme=http",
		"alertmanager+http://user:s3cretpass@127.0.0.1:1/", "alertmanager+http://user:s3cretpass@127.0.0.1:1/?s3cret=1", "://s3cret", "generic+http://%zzs3cret/",
		"smtp://user:s3cretpass@127.0.0.1:1/?from=a@b.example&to=c@d.example",
	} {
		to, err := openURL(raw)
		if err == nil {
			err = to.deliver(context.Background(), newClient(loopback), testMessage())
		}
		if err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", raw, err)
		}
	}
	hidden := (&target{secrets: []string{"T0K3N"}}).hide(&url.Error{Op: "Post", URL: "x", Err: errors.New("dial T0K3N\x1b[2J")})
	if s := hidden.Error(); strings.ContainsAny(s, "\x1b") || strings.Contains(s, "T0K3N") {
		t.Errorf("%q", s)
	}
}
