package notify

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"
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

// tripper answers without a network.
type tripper func(*http.Request) (*http.Response, error)

func (f tripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// sent is the request that a URL's service makes of a message.
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
	for _, c := range []struct{ raw, url, has string }{
		{"slack+https://hooks.slack.com/services/T00000000/B00000000/123456789012345678901234", "https://hooks.slack.com/services/T00000000/B00000000/123456789012345678901234", `1,234 messages parked`},
		{"slack://xoxb:123456789012-1234567890123-4mt0t4l1YL3g1T5L4cK70k3N@C001CH4NN3L", "https://slack.com/api/chat.postMessage", `"channel":"C001CH4NN3L"`},
		{"discord+https://discord.com/api/webhooks/1234567/tokentoken", "https://discord.com/api/webhooks/1234567/tokentoken", `"allowed_mentions":{"parse":[]}`},
		{"mattermost+https://chat.example.com/hooks/tokentoken?$channel=town", "https://chat.example.com/hooks/tokentoken", `"channel":"town"`},
		{"teams+https://prod-1.logic.azure.com/workflows/1/invoke?sig=abc&sv=1.0", "https://prod-1.logic.azure.com/workflows/1/invoke?sig=abc&sv=1.0", `"AdaptiveCard"`},
		{"googlechat+https://chat.googleapis.com/v1/spaces/A/messages?key=k&token=t", "https://chat.googleapis.com/v1/spaces/A/messages?key=k&token=t", `"text":"Redrive: `},
		{"pagerduty://events.pagerduty.com/abcdef0123456789", "https://events.pagerduty.com/v2/enqueue", `"dedup_key":"redrive/parked/`},
		{"generic://hooks.example.com/a?b=c&@X-Key=k&$team=shop", "https://hooks.example.com/a?b=c", `"team":"shop"`},
	} {
		at, fields, err := sent(t, c.raw, "ok", testMessage())
		if err != nil {
			t.Errorf("%s: %v", c.raw, err)
			continue
		}
		if got := at.URL.Redacted(); strings.ReplaceAll(got, "xxxxx", "***") != c.url {
			t.Errorf("%s is sent to %s", c.raw, got)
		}
		data, err := json.Marshal(fields)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(data, []byte(c.has)) || !bytes.Contains(data, []byte("redrive.example.com/messages?q=state%3Aparked")) || !bytes.Contains(data, []byte("1,200× boom")) && !bytes.Contains(data, []byte("1,200× `boom")) {
			t.Errorf("%s is sent %s", c.raw, data)
		}
	}
}

// A URL of a form that Redrive read once is refused with the form to write.
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
		if _, err := openURL(raw); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", raw, err, want)
		}
	}
}

// A route's body is what its strings say, filled in; text of strangers is text there,
// whatever it is.
func TestABodyOfOnesOwn(t *testing.T) {
	r := DefaultRoute()
	r.URL = "generic+https://ntfy.example/?$tags=redrive"
	r.Body = map[string]any{"topic": "alerts", "title": "{{.severity}}: {{.title}}", "priority": 5, "click": []any{"{{.link}}", map[string]any{"n": "{{.count}}"}}}
	if err := CheckBody(r.Body); err != nil {
		t.Fatal(err)
	}
	to, err := open(&r)
	if err != nil {
		t.Fatal(err)
	}
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
	if _, err := open(&r); err == nil || !strings.Contains(err.Error(), "body of its own") {
		t.Errorf("a body for Slack: %v", err)
	}
}

// An incident is of one event and one queue; its key says which, also where PagerDuty does not take
// the name.
func TestIncidentsAreOfOneQueue(t *testing.T) {
	const raw = "pagerduty://events.pagerduty.com/abcdef0123456789?source=shop"
	long := strings.Repeat("q", 255)
	for _, c := range []struct {
		item Item
		want string
	}{
		{Item{Kind: BreakerOpen, Queue: "a"}, "trigger shop/breaker_open/a"},
		{Item{Kind: BreakerOpen, Queue: "a", Again: true}, "trigger shop/breaker_open/a"},
		{Item{Kind: BreakerOpen, Queue: "a", Resolved: true}, "resolve shop/breaker_open/a"},
		{Item{Kind: ForwardStopped, Queue: "a", Target: "queue b", Resolved: true}, "resolve shop/forward_stopped/a to queue b"},
		{Item{Kind: IntakeStopped}, "trigger shop/intake_stopped"},
		{Item{Kind: Parked, Queue: "a", N: 1, Ruled: "critical"}, "trigger shop/parked/a"},
		{Item{Kind: NoConsumer, Queue: long}, "trigger shop/no_consumer/" + fmt.Sprintf("%x", sha256.Sum256([]byte("shop/no_consumer/"+long)))},
		{Item{Kind: NoConsumer, Queue: "\xff"}, "trigger shop/no_consumer/" + fmt.Sprintf("%x", sha256.Sum256([]byte("shop/no_consumer/\xff")))},
	} {
		_, fields, err := sent(t, raw, "", &Message{Kind: c.item.Kind, Items: []Item{c.item}})
		if got := fmt.Sprint(fields["event_action"], " ", fields["dedup_key"]); err != nil || got != c.want {
			t.Errorf("%+v: %v, %s, want %s", c.item, err, got, c.want)
		}
	}
}

// Teams have services of their own at PagerDuty: the queue decides whose integration key is used.
func TestAPagersKeyIsThatOfTheQueue(t *testing.T) {
	r := DefaultRoute()
	r.URL = "pagerduty://events.pagerduty.com/0123456789abcdef"
	r.Keys = []RoutingKey{{[]string{"billing.*", "tax"}, "billing-s3cret"}, {[]string{"*"}, "others-s3cret"}}
	to, err := open(&r)
	if err != nil {
		t.Fatal(err)
	}
	for queue, want := range map[string]string{"billing.eu": "billing-s3cret", "tax": "billing-s3cret", "orders": "others-s3cret", "": "0123456789abcdef"} {
		_, fields, err := sentBy(t, to, "", &Message{Kind: Parked, Items: []Item{{Kind: Parked, Queue: queue, N: 1}}})
		if err != nil || fields["routing_key"] != want {
			t.Errorf("of %q: %v, by the key %v, want %s", queue, err, fields["routing_key"], want)
		}
	}
	if err := to.hide(errors.New("refused: billing-s3cret")); strings.Contains(err.Error(), "s3cret") {
		t.Errorf("an error has a key: %v", err)
	}
	r.URL = "slack+https://hooks.slack.com/services/T/B/X"
	if _, err := open(&r); err == nil || !strings.Contains(err.Error(), "a route's keys are for pagerduty://") {
		t.Errorf("keys for Slack: %v", err)
	}
}

// Queues of one name in two virtual hosts are two conditions: one that is over ends but
// its own incident.
func TestAMessageSaysOfWhichVirtualHostItIs(t *testing.T) {
	m := &Message{VHost: "billing", Kind: BreakerOpen, Items: []Item{{Kind: BreakerOpen, Queue: "a", Resolved: true}}}
	_, fields, err := sent(t, "pagerduty://events.pagerduty.com/abcdef0123456789", "", m)
	if err != nil || fields["dedup_key"] != "redrive/billing/breaker_open/a" {
		t.Errorf("%v, sent %v", err, fields)
	}
	if _, fields, err = sent(t, "generic+https://h.example.com/", "", m); err != nil || fields["vhost"] != "billing" || !strings.HasPrefix(fmt.Sprint(fields["title"]), "Redrive (billing): resolved: a: ") {
		t.Errorf("%v, sent %v", err, fields)
	}
}

func TestSlackSaysNoWith200(t *testing.T) {
	_, _, err := sent(t, "slack://xoxb:123456789012-1234567890123-4mt0t4l1YL3g1T5L4cK70k3N@C001CH4NN3L", `{"ok":false,"error":"channel_not_found"}`, testMessage())
	if err == nil || !strings.Contains(err.Error(), "channel_not_found") {
		t.Errorf("%v", err)
	}
}

// mailServer takes one mail, without TLS, and returns it.
func mailServer(t *testing.T) (addr string, end func() (commands, letter string)) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	var letter string
	var serving sync.WaitGroup
	serving.Go(func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		r := textproto.NewReader(bufio.NewReader(conn))
		answer := func(s string) { _, _ = io.WriteString(conn, s+"\r\n") }
		answer("220 mail.example")
		for {
			line, err := r.ReadLine()
			if err != nil {
				return
			}
			all = append(all, line)
			switch line {
			case "DATA":
				answer("354 go on")
				data, _ := r.ReadDotBytes()
				letter = string(data)
				answer("250 taken")
			case "QUIT":
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
		return strings.Join(all, " | "), letter
	}
}

// A mail is one mail, whatever a message says.
func TestMail(t *testing.T) {
	addr, end := mailServer(t)
	to, err := openURL("smtp://" + addr + "/?from=redrive@shop.example&fromname=Redrive&to=anna@shop.example,otto@shop.example")
	if err != nil {
		t.Fatal(err)
	}
	if err := to.deliver(context.Background(), newClient(loopback), testMessage()); err != nil {
		t.Error(err)
	}
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

// Where the URL asks for TLS, a server without gets neither password nor mail.
func TestMailAsksForTLS(t *testing.T) {
	addr, end := mailServer(t)
	to, err := openURL("smtp://user:s3cretpass@" + addr + "/?from=a@b.example&to=c@d.example&encryption=ExplicitTLS")
	if err != nil {
		t.Fatal(err)
	}
	if err := to.deliver(context.Background(), newClient(loopback), testMessage()); err == nil || !strings.Contains(err.Error(), "no STARTTLS") {
		t.Errorf("%v", err)
	}
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
