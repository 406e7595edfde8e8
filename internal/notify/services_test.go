package notify

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/textproto"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/redrive-mq/redrive/testenv/authority"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/subprocess"
)

const hostile = "boom\x1b[31m `x` *b* @here @everyone <!channel> <@U123> <b>\u202e\u200b [a](http://evil.example/) \r\nX-Injected: 1\r\n.\r\nQUIT https://evil.example/"

func openURL(raw string) (*target, error) {
	r := DefaultRoute()
	r.URL = Secret(raw)
	return open(&r)
}

func testMessage() *Message {
	at := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	m := &Message{Kind: Parked, At: at, Severity: Critical, Link: "https://redrive.example.com/messages?q=state%3Aparked", Items: []Item{
		{Kind: Parked, Queue: "orders " + hostile, N: 1234, Since: at, Until: at, Errors: []ErrorCount{{hostile, 1200}, {strings.Repeat("long ", 500), 34}}},
	}}
	return m
}

// delivered opens a URL, and delivers testMessage there.
func delivered(t *testing.T, c *client, raw string) error {
	t.Helper()
	to, err := openURL(raw)
	if err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	return to.deliver(t.Context(), c, testMessage())
}

// says checks that there is an error, and that it has a text.
func says(t *testing.T, err error, text, what string, args ...any) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("%s: %v, want %s", fmt.Sprintf(what, args...), err, text)
	}
}

// tripper answers without a network.
type tripper func(*http.Request) (*http.Response, error)

func (f tripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// sent returns the request that a URL's service makes of a message.
func sent(t *testing.T, raw, answer string, m *Message) (*http.Request, map[string]any, error) {
	t.Helper()
	to, err := openURL(raw)
	if err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	return sentBy(t, to, answer, m)
}

func sentBy(t *testing.T, to *target, answer string, m *Message) (at *http.Request, fields map[string]any, err error) {
	t.Helper()
	raw, c := to.scheme, newClient(nil)
	c.http.Transport = tripper(func(r *http.Request) (*http.Response, error) {
		data, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		at = r
		for _, bad := range []string{"@here", "@everyone", "<!channel", "<@U", "<b>", "://evil", `\u001b`, "\u202e", "\u200b"} {
			if bytes.Contains(data, []byte(bad)) {
				t.Errorf("%s: %q is in %s", raw, bad, data)
			}
		}
		return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader(answer)), Request: r}, json.Unmarshal(data, &fields)
	})
	err = to.deliver(context.Background(), c, m)
	return at, fields, err
}

func TestWhatServicesAreSent(t *testing.T) {
	page, err := os.ReadFile("../../docs/how-to/notifications.md")
	must(t, err)
	shown := map[string]bool{"alertmanager": true, "smtp": true} // by tests of their own
	for _, c := range []struct{ raw, url, has string }{
		{"slack+https://hooks.slack.com/services/T00000000/B00000000/123456789012345678901234", "https://hooks.slack.com/services/T00000000/B00000000/123456789012345678901234", `1,234 messages parked`},
		{"slack://xoxb:123456789012-1234567890123-4mt0t4l1YL3g1T5L4cK70k3N@C001CH4NN3L", "https://slack.com/api/chat.postMessage", `"channel":"C001CH4NN3L"`},
		{"discord+https://discord.com/api/webhooks/1234567/tokentoken", "https://discord.com/api/webhooks/1234567/tokentoken", `"allowed_mentions":{"parse":[]}`},
		{"mattermost+https://chat.example.com/hooks/tokentoken?$channel=town", "https://chat.example.com/hooks/tokentoken", `"channel":"town"`},
		{"teams+https://prod-1.logic.azure.com/workflows/1/invoke?sig=abc&sv=1.0", "https://prod-1.logic.azure.com/workflows/1/invoke?sig=abc&sv=1.0", `"AdaptiveCard"`},
		{"googlechat+https://chat.googleapis.com/v1/spaces/A/messages?key=k&token=t", "https://chat.googleapis.com/v1/spaces/A/messages?key=k&token=t", `"text":"Redrive: `},
		{"pagerduty://events.pagerduty.com/abcdef0123456789", "https://events.pagerduty.com/v2/enqueue", `"dedup_key":"redrive/parked"`},
		{"generic://hooks.example.com/a?b=c&@X-Key=k&$team=shop", "https://hooks.example.com/a?b=c", `"team":"shop"`},
	} {
		name, _, _ := strings.Cut(c.raw, ":")
		name, _, _ = strings.Cut(name, "+")
		shown[name] = true
		at, fields, err := sent(t, c.raw, "ok", testMessage())
		if err != nil {
			t.Errorf("%s: %v", c.raw, err)
			continue
		}
		if got := at.URL.Redacted(); strings.ReplaceAll(got, "xxxxx", "***") != c.url {
			t.Errorf("%s is sent to %s", c.raw, got)
		}
		data, err := json.Marshal(fields)
		must(t, err)
		if !bytes.Contains(data, []byte(c.has)) || !bytes.Contains(data, []byte("redrive.example.com/messages?q=state%3Aparked")) || !bytes.Contains(data, []byte("1,200× boom")) && !bytes.Contains(data, []byte("1,200× `boom")) {
			t.Errorf("%s is sent %s", c.raw, data)
		}
	}
	for name := range services {
		if !shown[name] || !bytes.Contains(page, []byte(name+"+http")) && !bytes.Contains(page, []byte(name+"://")) {
			t.Errorf("%s is not tested here, or not on the page of notifications", name)
		}
	}
}

// A URL of an earlier form is refused, with the form to write.
func TestFormerURLs(t *testing.T) {
	for raw, want := range map[string]string{
		"slack://hook:T00000000-B00000000-123456789012345678901234@webhook":     "slack+https://hooks.slack.com/services/",
		"discord://tokentoken@1234567":                                          "discord+https://discord.com/api/webhooks/",
		"mattermost://chat.example.com/tokentoken/town":                         "mattermost+https://HOST/hooks/",
		"teams://1-1@2-2/3/4/5?host=test.webhook.office.com":                    "teams+https://HOST/PATH",
		"telegram://110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5@telegram?chats=42":    "write generic+https://HOST/PATH and a body",
		"ntfy://user:pass@ntfy.example.com/alerts":                              "write generic+https://HOST/PATH and a body",
		"gotify://gotify.example.com/sub/Aaaaaaaaaaaaaaa":                       "write generic+https://HOST/PATH and a body",
		"pagerduty://events.pagerduty.com/abcdef0123456789?disabletls=yes":      "pagerduty://events.pagerduty.com/INTEGRATION-KEY",
		"smtp://user:pass@mail.example/?from=a@b.example&to=c@d.e&auth=CRAMMD5": "with fromname, clienthost and encryption",
		"smtp://mail.example/?from=a@b.example&to=c@d.e&encryption=Perhaps":     "encryption (Auto, ExplicitTLS, ImplicitTLS, None)",
		"alertmanager://alertmanager.example":                                   "alertmanager+https://[USER[:PASSWORD]@]HOST",
	} {
		_, err := openURL(raw)
		says(t, err, want, "%s", raw)
	}
}

// The templates in a route's body are filled in; hostile text stays text there.
func TestABodyOfOnesOwn(t *testing.T) {
	r := DefaultRoute()
	r.URL = "generic+https://ntfy.example/?$tags=redrive"
	r.Body = map[string]any{"topic": "alerts", "title": "{{.severity}}: {{.title}}", "priority": 5, "click": []any{"{{.link}}", map[string]any{"n": "{{.count}}"}}}
	must(t, CheckBody(r.Body))
	to, err := open(&r)
	must(t, err)
	m := testMessage()
	m.Items[0].Queue = `a","topic":"b{{.link}}`
	_, fields, err := sentBy(t, to, "", m)
	click := []any{m.Link, map[string]any{"n": "1234"}}
	if want := map[string]any{"topic": "alerts", "title": `critical: Redrive: a","topic":"b{{.link}}: 1,234 messages parked`, "priority": 5.0, "click": click, "tags": "redrive"}; err != nil || !reflect.DeepEqual(fields, want) {
		t.Errorf("%v, it is sent %q", err, fields)
	}
	for _, bad := range []any{"{{.titel}}", "{{", "{{.title.x}}", []any{"{{.x}}"}} {
		if err := CheckBody(map[string]any{"text": bad}); err == nil {
			t.Errorf("%v is a body", bad)
		}
	}
	r.URL = "slack+https://hooks.slack.com/services/T/B/X"
	_, err = open(&r)
	says(t, err, "body of its own", "a body for Slack")
}

// An incident ends with the last queue of its condition. Queues of one name in two virtual
// hosts are two conditions: one that is over ends but its own incident.
func TestIncidentsEndWithTheLastQueueOfTheirVirtualHost(t *testing.T) {
	m := &Message{Kind: BreakerOpen, Items: []Item{{Kind: BreakerOpen, Queue: "a", Resolved: true}}, Open: 1}
	for _, c := range []struct {
		open               int
		vhost, query, want string
	}{
		{1, "", "?source=shop", ""}, {0, "", "?source=shop", "shop/breaker_open"},
		{0, "billing", "", "redrive/billing/breaker_open"},
	} {
		m.Open, m.VHost = c.open, c.vhost
		at, fields, err := sent(t, "pagerduty://events.pagerduty.com/abcdef0123456789"+c.query, "", m)
		ended := fields["event_action"] == "resolve" && fields["dedup_key"] == c.want
		if err != nil || (at == nil) != (c.want == "") || at != nil && !ended {
			t.Errorf("%d of %q are open: %v, sent %v", c.open, c.vhost, err, fields)
		}
	}
	_, fields, err := sent(t, "generic+https://h.example.com/", "", m)
	if err != nil || fields["vhost"] != "billing" || !strings.HasPrefix(fmt.Sprint(fields["title"]), "Redrive (billing): resolved: a: ") {
		t.Errorf("%v, sent %v", err, fields)
	}
}

func TestSlackSaysNoWith200(t *testing.T) {
	_, _, err := sent(t, "slack://xoxb:123456789012-1234567890123-4mt0t4l1YL3g1T5L4cK70k3N@C001CH4NN3L", `{"ok":false,"error":"channel_not_found"}`, testMessage())
	says(t, err, "channel_not_found", "Slack's answer")
}

// A notification is exactly one mail, whatever a message says.
func TestMail(t *testing.T) {
	addr, end := mailServer(t, nil, false)
	must(t, delivered(t, newClient(loopback),
		"smtp://"+addr+"/?from=redrive@shop.example&fromname=Redrive&to=anna@shop.example,otto@shop.example"))
	commands, letter := end()
	if commands != "EHLO localhost | MAIL FROM:<redrive@shop.example> | RCPT TO:<anna@shop.example> | RCPT TO:<otto@shop.example> | DATA | QUIT" {
		t.Errorf("the server was told %s", commands)
	}
	head, text, _ := strings.Cut(letter, "\n\n")
	if strings.Contains(head, "\nX-Injected") || !strings.Contains(head, "Subject: =?utf-8?q?Redrive:_orders") {
		t.Errorf("the head is\n%s", head)
	}
	plain, err := base64.StdEncoding.DecodeString(strings.ReplaceAll(text, "\n", ""))
	if err != nil || !strings.Contains(string(plain), "1,234 messages parked") || !strings.Contains(string(plain), "https://redrive.example.com/messages") {
		t.Errorf("%v: %s", err, plain)
	}
}

// If the URL requires TLS, a server without it gets neither password nor mail.
func TestMailAsksForTLS(t *testing.T) {
	addr, end := mailServer(t, nil, false)
	err := delivered(t, newClient(loopback),
		"smtp://user:s3cretpass@"+addr+"/?from=a@b.example&to=c@d.example&encryption=ExplicitTLS")
	says(t, err, "no STARTTLS", "a server without TLS")
	if commands, _ := end(); commands != "EHLO localhost" {
		t.Errorf("the server was told %s", commands)
	}
}

func FuzzClean(f *testing.F) {
	f.Add(hostile, 20)
	f.Add(strings.Repeat("a\u0301\u0301\u0301\u0301", 50), 200)
	f.Add("\xff\xfe\x00@\u2028<\u00ad", 5)
	f.Fuzz(func(t *testing.T, s string, most int) {
		if most < 1 || most > 1000 {
			return
		}
		got := clean(s, most)
		if !utf8.ValidString(got) || utf8.RuneCountInString(got) > 2*most+1 || strings.ContainsAny(got, "@<>\n\r\t") || strings.Contains(got, "://") {
			t.Errorf("%q becomes %q", s, got)
		}
		for _, r := range got {
			if !unicode.IsPrint(r) {
				t.Errorf("%q becomes %q with %U", s, got, r)
			}
		}
	})
}

func FuzzOpen(f *testing.F) {
	for name, s := range services {
		f.Add(name + "+https://user:password@host/path?a=b")
		f.Add(s.form)
	}
	f.Fuzz(func(t *testing.T, raw string) { _, _ = openURL(raw) })
}

// caEnv names the folder of an authority that a run of this test by itself trusts as the
// system's, by SSL_CERT_FILE: Go reads those once in a process.
const caEnv = "REDRIVE_TEST_MAIL_CA"

// A mail server with a wrong name, of an unknown authority, or whose certificate has
// expired gets neither password nor mail, by TLS from the start and by STARTTLS.
func TestPeersOfSMTPAreVerified(t *testing.T) {
	dir := os.Getenv(caEnv)
	if dir == "" {
		ca, err := authority.New(t.TempDir())
		must(t, err)
		c := exec.Command(os.Args[0], "-test.run=^TestPeersOfSMTPAreVerified$", "-test.count=1")
		c.Env = append(os.Environ(), caEnv+"="+ca.Dir, "SSL_CERT_FILE="+ca.CAFile())
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	ca, err := authority.Open(dir)
	must(t, err)
	stranger, err := authority.New(t.TempDir())
	must(t, err)
	here := []string{"127.0.0.1"}
	for _, c := range []struct {
		what string
		by   *authority.Authority
		leaf authority.Leaf
		says string // "": it is delivered
	}{
		{"the right one", ca, authority.Leaf{Hosts: here}, ""},
		{"another name", ca, authority.Leaf{Hosts: []string{"mail.example"}}, "cannot validate certificate for 127.0.0.1"},
		{"an unknown authority", stranger, authority.Leaf{Hosts: here}, "unknown authority"},
		{"an expired certificate", ca, authority.Leaf{Hosts: here, NotAfter: time.Now().Add(-time.Hour)}, "has expired"},
	} {
		for _, encryption := range []string{"ImplicitTLS", "ExplicitTLS"} {
			cert, key := filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
			must(t, c.by.Issue(c.leaf, cert, key))
			pair, err := tls.LoadX509KeyPair(cert, key)
			must(t, err)
			addr, end := mailServer(t, &pair, encryption == "ImplicitTLS")
			to, err := openURL("smtp://user:s3cretpass@" + addr + "/?from=a@b.example&to=c@d.example&encryption=" + encryption)
			must(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			err = to.deliver(ctx, newClient(loopback), testMessage())
			cancel()
			heard, _ := end()
			if c.says == "" && (err != nil || !strings.Contains(heard, "AUTH PLAIN") || !strings.Contains(heard, "RCPT TO:<c@d.example>")) {
				t.Errorf("%s, %s: %v, the server heard %q", c.what, encryption, err, heard)
			}
			if c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(heard, "AUTH") || strings.Contains(heard, "MAIL")) {
				t.Errorf("%s, %s: %v, the server heard %q", c.what, encryption, err, heard)
			}
		}
	}
}

// mailServer takes one mail, and tells what it heard: with a certificate by TLS, from the
// start or after STARTTLS.
func mailServer(t *testing.T, by *tls.Certificate, implicit bool) (addr string, end func() (commands, letter string)) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	var heard []string
	var letter string
	var serving sync.WaitGroup
	serving.Go(func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer func() { conn.Close() }()
		secure := func() { conn = tls.Server(conn, &tls.Config{Certificates: []tls.Certificate{*by}}) }
		if implicit {
			secure()
		}
		said := textproto.NewConn(conn)
		answer := func(s string) { _, _ = io.WriteString(conn, s+"\r\n") }
		for answer("220 mail.example"); ; {
			line, err := said.ReadLine()
			if err != nil {
				return
			}
			heard = append(heard, line)
			switch command, _, _ := strings.Cut(line, " "); {
			case command == "EHLO" && by != nil:
				answer("250-mail.example\r\n250-AUTH PLAIN\r\n250 STARTTLS")
			case command == "STARTTLS":
				answer("220 go on")
				secure()
				said = textproto.NewConn(conn)
			case command == "AUTH":
				answer("235 fine")
			case command == "DATA":
				answer("354 go on")
				data, _ := said.ReadDotBytes()
				letter = string(data)
				answer("250 taken")
			case command == "QUIT":
				answer("221 bye")
				return
			default:
				answer("250 fine")
			}
		}
	})
	return l.Addr().String(), func() (string, string) {
		_ = l.Close()
		serving.Wait()
		return strings.Join(heard, " | "), letter
	}
}

func TestPrivateAddressesAreNotDialled(t *testing.T) {
	check := guard(nil)
	for _, at := range []string{
		"127.0.0.1", "127.1.2.3", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "169.254.169.254", "100.64.0.1", "100.127.255.255",
		"0.0.0.0", "0.1.2.3", "192.0.0.8", "198.18.0.1", "224.0.0.1", "255.255.255.255", "240.0.0.1",
		"::1", "::", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:10.0.0.1", "::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "2002:7f00:1::1", "2001:0:1::1",
		"fc00::1", "fd00:ec2::254", "fe80::1%eth0", "fec0::1", "ff02::1", "2001:db8::1",
	} {
		expect.Err(t, check("tcp", netip.AddrPortFrom(netip.MustParseAddr(at), 80).String(), nil), errPrivate, "%s", at)
	}
	for _, at := range []string{"1.1.1.1", "172.32.0.1", "172.15.255.255", "100.128.0.1", "169.253.1.1", "192.167.1.1", "2606:4700::1111", "::ffff:1.1.1.1"} {
		expect.Err(t, check("tcp", netip.AddrPortFrom(netip.MustParseAddr(at), 80).String(), nil), nil, "%s", at)
	}
	allowed := guard([]netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00::/16")})
	for at, ok := range map[string]bool{"10.1.2.3": true, "::ffff:10.1.2.3": true, "10.2.0.1": false, "169.254.169.254": false, "fd00::1": true, "fd01::1": false} {
		if err := allowed("tcp", netip.AddrPortFrom(netip.MustParseAddr(at), 80).String(), nil); (err == nil) != ok {
			t.Errorf("%s: %v", at, err)
		}
	}
}

// The address of the connection decides, whatever the URL says.
func TestURLsThatLeadInward(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1") // is not asked
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	defer server.Close()
	port := server.URL[strings.LastIndex(server.URL, ":"):]
	for _, host := range []string{"127.0.0.1" + port, "localhost" + port, "[::ffff:127.0.0.1]" + port, "0.0.0.0" + port, "169.254.169.254", "[fd00:ec2::254]"} {
		for _, raw := range []string{"generic+http://" + host + "/latest/meta-data", "mattermost+http://" + host + "/hooks/tokentoken", "alertmanager+http://" + host,
			"pagerduty+http://" + host + "/keykeykey", "smtp://" + host + "/?from=a@b.example&to=c@d.example"} {
			says(t, delivered(t, newClient(nil), raw), errPrivate.Error(), "%s", raw)
		}
	}
	expect.Equal(t, asked.Load(), 0, "requests got through")
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
		says(t, delivered(t, c, raw), errPrivate.Error(), "%s", raw)
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
	must(t, err)
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
		says(t, delivered(t, newClient(loopback), outside), "redirect", "%d", code)
	}
	expect.Equal(t, asked.Load(), 0, "redirects were followed")
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
		err := delivered(t, newClient(loopback), at)
		if want == "" {
			must(t, err)
			continue
		}
		var b busyError
		if !errors.As(err, &b) || b.Error() != want || b.after != 7*time.Second {
			t.Errorf("%d: %v, want %s, and to be told when to try again", status, err, want)
		}
	}
}

// No error contains a secret of the URL.
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

var must = expect.NoError

// manager has alerts as Alertmanager keeps them: it refuses what its API's description
// does not allow, and resolves what it is sent no more.
type manager struct {
	mu     sync.Mutex
	alerts map[string]alert
	down   bool
}

func (a *manager) take(body io.Reader) error {
	var all []alert
	d := json.NewDecoder(body)
	d.DisallowUnknownFields()
	if err := d.Decode(&all); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.down {
		return errors.New("down")
	}
	for _, one := range all {
		if one.Labels["alertname"] == "" || one.StartsAt.IsZero() || one.EndsAt.Before(one.StartsAt) || len(all) > maxAlerts {
			return fmt.Errorf("alert %+v of %d", one, len(all))
		}
		a.alerts[one.Labels["alertname"]+" "+one.Labels["queue"]] = one
	}
	return nil
}

// firing are the alerts that have not ended.
func (a *manager) firing() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []string
	for name, one := range a.alerts {
		if time.Now().Before(one.EndsAt) {
			all = append(all, name+": "+strings.TrimPrefix(one.Annotations["summary"], "Redrive: "))
		}
	}
	slices.Sort(all)
	return all
}

// newManager is a desk whose route ends at an Alertmanager, in fake time.
func newManager(t *testing.T) (*desk, *manager) {
	a := &manager{alerts: map[string]alert{}}
	d := &desk{o: options(t), s: DefaultSettings(), began: time.Now()}
	r := DefaultRoute()
	r.Name, r.URL = "desk", "alertmanager+https://alertmanager.example/"
	d.s.Page, d.s.Routes = "https://redrive.example/", []Route{r}
	d.to = func(m *Message, send send) error {
		c := newClient(nil)
		c.http.Transport = tripper(func(r *http.Request) (*http.Response, error) {
			if err := a.take(r.Body); err != nil {
				return nil, err
			}
			return &http.Response{StatusCode: 200, Body: http.NoBody, Request: r}, nil
		})
		return send(context.Background(), c, m)
	}
	d.open(t)
	return d, a
}

func (a *manager) want(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	if got := a.firing(); !slices.Equal(got, want) {
		t.Errorf("it has %q, want %q", got, want)
	}
}

// An alert fires all the time that its condition lasts, and not long after.
func TestAlertsAreSentWhileTheyLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, a := newManager(t)
		time.Sleep(2 * time.Minute) // the start is over
		d.set(Condition{Kind: BreakerOpen, Queue: "orders", Text: "90% failed"}, Condition{Kind: BrokerBlocked})
		time.Sleep(20 * time.Second)
		const open, blocked = "RedriveBreakerOpen orders: orders: the circuit breaker is open: 90% failed", "RedriveBrokerBlocked : an alarm of RabbitMQ's blocks publishing"
		for range 60 {
			a.want(t, open, blocked)
			time.Sleep(time.Minute)
		}
		a.mu.Lock()
		one := a.alerts["RedriveBreakerOpen orders"]
		clear(a.alerts) // it starts again, and knows nothing
		a.mu.Unlock()
		if one.Labels["severity"] != "critical" || one.GeneratorURL != "https://redrive.example/queues" || time.Since(one.StartsAt) < time.Hour || !strings.Contains(one.Annotations["description"], "orders") {
			t.Errorf("it has %+v", one)
		}
		time.Sleep(alertEvery)
		a.want(t, open, blocked)
		d.set(Condition{Kind: BrokerBlocked})
		time.Sleep(20 * time.Second)
		a.want(t, blocked)
		expect.Equal(t, a.alerts["RedriveBreakerOpen orders"].Annotations["summary"],
			"Redrive: resolved: orders: the circuit breaker is closed again", "it says")
	})
}

// Alerts that could not be sent are sent as soon as Alertmanager answers; a start sends lasting ones at once; after the
// end of the service alerts end by themselves.
func TestAnAlertmanagerThatIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, a := newManager(t)
		time.Sleep(2 * time.Minute)
		a.mu.Lock()
		a.down = true
		a.mu.Unlock()
		d.set(Condition{Kind: LedgerOff, Queue: "orders"})
		time.Sleep(time.Hour)
		a.want(t)
		a.mu.Lock()
		a.down = false
		a.mu.Unlock()
		time.Sleep(alertEvery)
		const off = "RedriveLedgerOff orders: orders: the ledger is off: messages came in that are neither retried, parked, discarded nor waiting"
		a.want(t, off)
		d.stop()
		d.open(t)
		time.Sleep(2 * time.Second)
		a.want(t, off)
		d.stop()
		time.Sleep(alertLasts)
		a.want(t)
		d.set()
		d.open(t)
		time.Sleep(startGrace + 20*time.Second) // until it is known to be over it goes on
		a.want(t)
		expect.Equal(t, entries(t, d.o.Store, "desk"), 0, "entries are kept")
	})
}

// Parked messages are one alert of a queue with their number, until no more have been
// parked for parkedLasts.
func TestParkedMessagesAreAnAlert(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, a := newManager(t)
		d.park("orders", 200)
		time.Sleep(2 * time.Second)
		d.park("orders", 400)
		time.Sleep(countEvery + 2*time.Second)
		a.want(t, "RedriveParked orders: orders: 600 messages parked")
		time.Sleep(10 * time.Minute)
		d.park("orders", 400)
		time.Sleep(alertEvery)
		a.want(t, "RedriveParked orders: orders: 1,000 messages parked")
		d.stop()
		d.open(t) // the count is kept
		time.Sleep(parkedLasts - alertEvery - 2*time.Second)
		a.want(t, "RedriveParked orders: orders: 1,000 messages parked")
		time.Sleep(5 * time.Second)
		a.want(t)
		d.park("orders", 1)
		time.Sleep(2 * time.Second)
		a.want(t, "RedriveParked orders: orders: 1 message parked")
		for i := range 3 * maxAlerts {
			d.park(fmt.Sprint("q", i), 1)
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		expect.Equal(t, len(a.firing()), 3*maxAlerts+1, "alerts fire")
	})
}

// A route to Alertmanager leaves to it what it does by itself.
func TestARouteToAlertmanagerIsPlain(t *testing.T) {
	for _, change := range []func(*Route){
		func(r *Route) { r.GroupWait = 0 }, func(r *Route) { r.Repeat = time.Hour }, func(r *Route) { r.Resolved = false },
		func(r *Route) { r.Quiet = Quiet{22 * 60, 7 * 60, time.UTC} },
	} {
		r := DefaultRoute()
		r.URL = "alertmanager+https://alertmanager.example/"
		must(t, Check(&r))
		if change(&r); Check(&r) == nil {
			t.Errorf("it may have %+v", r)
		}
	}
	for _, query := range []string{"cacertfil=x", "$a-b=c", "passwordfile=x"} {
		if _, err := openURL("alertmanager+https://alertmanager.example/?" + query); err == nil {
			t.Errorf("it may have %s", query)
		}
	}
	if _, err := openURL("alertmanager+http://alertmanager.example/?cacertfile=x"); err == nil {
		t.Error("plain HTTP may have an authority")
	}
}

// Token and authority are read from their files for each request.
func TestAlertmanagersTokenAndAuthority(t *testing.T) {
	var got http.Header
	var path string
	server := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got, path = r.Header, r.URL.Path }))
	defer server.Close()
	token, ca := filepath.Join(t.TempDir(), "token"), filepath.Join(t.TempDir(), "ca.pem")
	to, err := openURL(strings.Replace(server.URL, "https://", "alertmanager+https://", 1) + "/alerts/?tokenfile=" + token + "&cacertfile=" + ca)
	must(t, err)
	stranger, err := authority.New(t.TempDir())
	must(t, err)
	strange, err := os.ReadFile(stranger.CAFile())
	must(t, err)
	right := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	for _, c := range []struct {
		token string
		ca    []byte
		says  string
	}{{"one", right, ""}, {"two", right, ""}, {"three", strange, "unknown authority"}, {"four", nil, "ca.pem"}} {
		_ = os.Remove(ca)
		if c.ca != nil {
			must(t, os.WriteFile(ca, c.ca, 0o600))
		}
		must(t, os.WriteFile(token, []byte(c.token+"\n"), 0o600))
		got = nil
		err := to.deliver(t.Context(), newClient(loopback), testMessage())
		if c.says == "" && (err != nil || got.Get("Authorization") != "Bearer "+c.token || path != "/alerts/api/v2/alerts") {
			t.Errorf("%s: %v, %s has %s", c.token, err, path, got)
		}
		if c.says != "" && (err == nil || got != nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v, it has %s", c.token, err, got)
		}
	}
}

// A real Alertmanager, by TLS and with a password, takes what a route sends, and notifies
// of it: of a breaker that opens and closes again, and of a test.
func TestARealAlertmanager(t *testing.T) {
	notified := make(chan map[string]any, 100)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var group struct{ Alerts []map[string]any }
		if err := json.NewDecoder(r.Body).Decode(&group); err != nil {
			t.Error(err)
		}
		for _, a := range group.Alerts {
			notified <- a
		}
	}))
	defer receiver.Close()
	url := startAlertmanager(t, receiver.URL)
	s, r := DefaultSettings(), DefaultRoute()
	r.Name, r.URL = "alerts", Secret(url)
	s.AllowPrivate, s.Routes, s.VHost, s.Page = loopback, []Route{r}, "billing", "https://redrive.example/"
	must(t, Test(t.Context(), &s, &r, BreakerOpen))
	labels := map[string]any{"alertname": "RedriveTest", "queue": "test", "severity": "critical", "vhost": "billing", "env": "prod"}
	if a := <-notified; a["status"] != "firing" || !maps.Equal(a["labels"].(map[string]any), labels) {
		t.Errorf("it notifies of %v", a)
	}
	b, now := newPending(&s, &r, byReceiver), time.Now()
	b.update(now, []Condition{{Kind: BreakerOpen, Queue: "orders"}}, false)
	tell := func() {
		messages, _ := b.plan(time.Now())
		for _, m := range messages {
			to, err := open(&r)
			if err == nil {
				err = to.deliver(t.Context(), newClient(loopback), m)
			}
			must(t, err)
			b.sent(m, time.Now())
		}
	}
	for _, status := range []string{"firing", "resolved"} {
		tell()
		for a := range notified {
			if l := a["labels"].(map[string]any); l["alertname"] == "RedriveBreakerOpen" && a["status"] == status {
				if a["generatorURL"] != "https://redrive.example/queues" || l["queue"] != "orders" {
					t.Errorf("it notifies of %v", a)
				}
				break
			}
		}
		b.update(time.Now(), nil, false)
	}
}

// startAlertmanager returns the URL of a route to one that sends to receiver at once.
func startAlertmanager(t *testing.T, receiver string) string {
	t.Helper()
	program, err := exec.LookPath(filepath.Join(os.Getenv("REDRIVE_PROMETHEUS"), "prometheus-alertmanager"))
	if err != nil {
		t.Fatalf("this needs Alertmanager: run `make test`, or `make install-prometheus` once (%v)", err)
	}
	dir := t.TempDir()
	ca, err := authority.New(dir)
	must(t, err)
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if text != "" {
			must(t, os.WriteFile(path, []byte(text), 0o600))
		}
		return path
	}
	must(t, ca.Issue(authority.Leaf{Hosts: []string{"127.0.0.1"}}, file("cert.pem", ""), file("key.pem", "")))
	config := file("alertmanager.yml", `route: {receiver: hook, group_by: [...], group_wait: 10ms, group_interval: 100ms}
receivers: [{name: hook, webhook_configs: [{url: "`+receiver+`"}]}]
`)
	// The hash is of "s3cretpass".
	web := file("web.yml", `tls_server_config: {cert_file: cert.pem, key_file: key.pem}
basic_auth_users: {redrive: "$2b$04$abcdefghijklmnopqrstuuTFU2YlDDEIrOadTjCt/rbRIdDpciJuq"}
`)
	ports, err := subprocess.Ports(1)
	must(t, err)
	host := fmt.Sprintf("127.0.0.1:%d", ports[0])
	log := &strings.Builder{}
	c := exec.Command(program, "--config.file="+config, "--web.config.file="+web, "--storage.path="+dir, "--web.listen-address="+host, "--cluster.listen-address=")
	c.Stderr = log
	p, err := subprocess.Start(c, dir)
	must(t, err)
	t.Cleanup(func() {
		if p.Kill(); t.Failed() {
			t.Logf("alertmanager said:\n%s", log)
		}
	})
	url := "alertmanager+https://redrive@" + host + "/?$env=prod&cacertfile=" + ca.CAFile() + "&passwordfile=" + file("password", "s3cretpass\n")
	to, err := openURL(url)
	must(t, err)
	past := &Message{At: time.Now(), Items: []Item{{Kind: OldestWaiting, Resolved: true, Until: time.Now().Add(-time.Hour)}}}
	for {
		err := to.deliver(t.Context(), newClient(loopback), past)
		if err == nil {
			return url
		}
		if !strings.Contains(err.Error(), "connection refused") {
			t.Fatal(err)
		}
		select {
		case <-p.Ended():
			t.Fatal("it ended")
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// A notice of a queue that stands, or is too long, leads to that queue.
func TestAStandingQueueLeadsToItsPage(t *testing.T) {
	const page = "https://redrive.example.com"
	for _, kind := range []Kind{QueueStanding, QueueLong, QueueUnacked} {
		m := &Message{Kind: kind, Items: []Item{{Kind: kind, Queue: "old/orders"}}}
		expect.Equal(t, link(page+"/", m), page+"/queues/old%2Forders", "%s of one", kind)
		m.Items = append(m.Items, Item{Kind: kind, Queue: "mail"})
		expect.Equal(t, link(page, m), page+"/", "%s of two", kind)
	}
}
