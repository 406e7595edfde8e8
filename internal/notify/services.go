package notify

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net"
	"net/http"
	netmail "net/mail"
	"net/netip"
	"net/smtp"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/template"
	"time"

	"github.com/redrive-mq/redrive/internal/connect"
	"github.com/redrive-mq/redrive/internal/hint"
)

var errURL = errors.New("is not a URL that notifications can be sent to")

type send = func(context.Context, *client, *Message) error

type target struct {
	scheme  string
	send    send
	secrets []string
	groups  grouping
}

// grouping says how a route groups what it sends.
type grouping int

const (
	byRoute    grouping = iota // by kind, and quiet hours in one digest
	byKind                     // always by kind, for a service that opens and closes incidents
	byReceiver                 // not at all: the receiver groups and repeats, and gets everything again while it lasts
)

// service is a kind of URL: NAME+https, NAME+http, or NAME alone if bare.
type service struct {
	bare   bool
	form   string // of its URLs, for errors
	open   func(u *url.URL, r *Route) (send, error)
	groups grouping
	body   bool // a route may set its body
}

var services = map[string]service{
	"generic": {bare: true, form: "generic+https://HOST/PATH", body: true, open: webhook((*Message).fields)},
	"slack": {bare: true,
		form: "slack+https://hooks.slack.com/services/… (the webhook's URL with slack+ before it), " +
			"or slack://xoxb:…@CHANNEL",
		open: slack},
	"discord": {form: "discord+https://discord.com/api/webhooks/… (the webhook's URL with discord+ before it)",
		open: webhook(func(m *Message) map[string]any {
			return map[string]any{"content": cut(body(m, code), 2000),
				"allowed_mentions": map[string]any{"parse": []string{}}}
		})},
	"mattermost": {form: "mattermost+https://HOST/hooks/… (the webhook's URL with mattermost+ before it)",
		open: webhook(func(m *Message) map[string]any { return map[string]any{"text": body(m, code)} })},
	"teams": {form: "teams+https://HOST/PATH?… (a workflow's URL with teams+ before it)", open: webhook(teamsCard)},
	"googlechat": {form: "googlechat+https://chat.googleapis.com/v1/spaces/… (the webhook's URL with googlechat+ " +
		"before it)",
		open: webhook(func(m *Message) map[string]any { return map[string]any{"text": cut(body(m, code), 4096)} })},
	"alertmanager": {form: "alertmanager+https://[USER[:PASSWORD]@]HOST[:PORT][/PREFIX], with cacertfile, tokenfile " +
		"and passwordfile as parameters",
		open: alertmanager, groups: byReceiver},
	"pagerduty": {bare: true, form: "pagerduty://events.pagerduty.com/INTEGRATION-KEY", open: pagerduty,
		groups: byKind},
	"smtp": {bare: true, form: "smtp://USER:PASSWORD@HOST:PORT/?from=…&to=…, with fromname, clienthost and " +
		"encryption (Auto, ExplicitTLS, ImplicitTLS, None) as parameters", open: mail},
}

// Check returns what is wrong with a route's URL and body, without repeating the URL.
func Check(r *Route) error {
	_, err := open(r)
	return err
}

func open(r *Route) (*target, error) {
	u, err := url.Parse(strings.TrimSpace(string(r.URL)))
	if err != nil || u.Scheme == "" {
		return nil, errors.New("is not a URL; expected one such as generic+https://HOST/PATH")
	}
	name, transport, _ := strings.Cut(u.Scheme, "+")
	s, ok := services[name]
	switch {
	case !ok || transport != "" && transport != "https" && transport != "http":
		return nil, hint.Errorf("for any other service write generic+https://HOST/PATH and a body: "+
			"docs/how-to/notifications.md has examples", "is a URL of no known service; expected one of %s",
			strings.Join(slices.Sorted(maps.Keys(services)), ", "))
	case r.Body != nil && !s.body:
		return nil, errors.New("is of " + name +
			", which has a body of its own; a route's body is for generic+https://HOST/PATH")
	case s.groups == byReceiver && !r.leavesGrouping():
		return nil, hint.Errorf("leave out the route's group_wait, repeat, quiet and resolved",
			"is of %s, which groups, repeats and silences by itself", name)
	case transport == "" && !s.bare:
		return nil, errors.New("is not a URL of " + name + "; expected " + s.form)
	}
	t := &target{scheme: u.Scheme, secrets: secretsOf(u), groups: s.groups}
	if u.Scheme = "https"; transport == "http" {
		u.Scheme = "http"
	}
	if t.send, err = s.open(u, r); err != nil { // err may quote the secret
		return nil, errors.New("is not a URL of " + name + "; expected " + s.form)
	}
	return t, nil
}

// notSecret lists the parameters that an error may repeat.
var notSecret = []string{"to", "from", "cacertfile", "tokenfile", "passwordfile"}

// secretsOf returns the parts of a URL that no log may show.
func secretsOf(u *url.URL) (all []string) {
	add := func(s string) {
		for _, part := range strings.FieldsFunc(s, func(r rune) bool { return r == '/' || r == ':' }) {
			if len(part) >= 4 {
				all = append(all, part)
			}
		}
	}
	if u.User != nil {
		add(u.User.Username())
		if password, _ := u.User.Password(); password != "" {
			add(password)
			all = append(all, password)
		}
	}
	add(u.Path)
	for name, values := range u.Query() {
		if !slices.Contains(notSecret, name) {
			add(strings.Join(values, "/"))
		}
	}
	slices.SortFunc(all, func(a, b string) int { return len(b) - len(a) })
	return all
}

func hasOnly(q url.Values, known ...string) bool {
	for name := range q {
		if !slices.Contains(known, name) {
			return false
		}
	}
	return true
}

// deliver sends a message within sendTimeout. Its errors contain no secrets.
func (t *target) deliver(ctx context.Context, c *client, m *Message) error {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	if err := t.send(ctx, c, m); err != nil {
		return t.hide(err)
	}
	return nil
}

// hide makes an error safe to log: one clean line without the URL's secrets.
func (t *target) hide(err error) error {
	text := err.Error()
	for _, s := range t.secrets {
		text = strings.ReplaceAll(text, s, "…")
	}
	hidden := errors.New(clean(text, maxTextLen))
	var b busyError
	if errors.As(err, &b) {
		return busyError{hidden, b.after}
	}
	return hidden
}

// CheckBody returns an error for a body with a template that cannot be filled in.
func CheckBody(body map[string]any) error {
	example := Message{Kind: Parked, At: time.Now(), Items: []Item{{Kind: Parked}}}
	_, err := fill(body, example.fields())
	return err
}

// webhook posts JSON to a URL: what post makes of a message, or the route's body. In the query, @NAME=VALUE is a header
// and $NAME=VALUE a field; the rest is passed on.
func webhook(post func(*Message) map[string]any) func(*url.URL, *Route) (send, error) {
	return func(u *url.URL, r *Route) (send, error) {
		header, fields, rest := http.Header{}, map[string]any{}, url.Values{}
		for name, values := range u.Query() {
			switch {
			case strings.HasPrefix(name, "@") && len(name) > 1:
				header.Set(name[1:], values[0])
			case strings.HasPrefix(name, "$") && len(name) > 1:
				fields[name[1:]] = values[0]
			default:
				rest[name] = values
			}
		}
		if u.Host == "" {
			return nil, errURL
		}
		to := *u
		to.RawQuery = rest.Encode()
		return func(ctx context.Context, c *client, m *Message) error {
			body := post(m)
			if r.Body != nil {
				filled, err := fill(r.Body, body)
				if err != nil {
					return fmt.Errorf("its body: %w", err)
				}
				body = filled.(map[string]any)
			}
			maps.Copy(body, fields)
			_, err := c.do(ctx, request{url: to.String(), header: header, body: body})
			return err
		}, nil
	}
}

// fill fills in the templates in a body's strings. The text of a notification always becomes part of a JSON string, and
// is never a template.
func fill(v any, fields map[string]any) (any, error) {
	switch v := v.(type) {
	case string:
		t, err := template.New("body").Option("missingkey=error").Parse(v)
		if err != nil {
			return nil, err
		}
		var b strings.Builder
		err = t.Execute(&b, fields)
		return b.String(), err
	case map[string]any:
		filled := map[string]any{}
		for name, v := range v {
			var err error
			if filled[name], err = fill(v, fields); err != nil {
				return nil, err
			}
		}
		return filled, nil
	case []any:
		filled := make([]any, len(v))
		for i, v := range v {
			var err error
			if filled[i], err = fill(v, fields); err != nil {
				return nil, err
			}
		}
		return filled, nil
	}
	return v, nil
}

// code writes hostile text as Markdown code, in which markup and mentions have no effect.
func code(s string) string { return "`" + strings.ReplaceAll(s, "`", "'") + "`" }

// slackText escapes Slack's own markup: <!channel>, <@U…>, links.
func slackText(s string) string {
	return "`" + strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "`", "'").Replace(s) + "`"
}

// body returns the whole text, with the link before the part that may be cut off.
func body(m *Message, f format) string {
	s := m.title(f) + "\n"
	if m.Link != "" {
		s += m.Link + "\n"
	}
	return s + m.text(f, time.UTC)
}

func slackPost(m *Message) map[string]any {
	return map[string]any{"text": body(m, slackText), "unfurl_links": false, "unfurl_media": false, "link_names": false}
}

// slack posts to a webhook or, with a bot's token, to Slack's API, which reports errors with status 200.
func slack(u *url.URL, r *Route) (send, error) {
	if u.User == nil && u.Path != "" {
		return webhook(slackPost)(u, r)
	}
	kind := u.User.Username()
	token, _ := u.User.Password()
	if kind != "xoxb" && kind != "xoxp" || token == "" || u.Host == "" {
		return nil, errURL
	}
	return func(ctx context.Context, c *client, m *Message) error {
		fields := slackPost(m)
		fields["channel"] = u.Host
		answer, err := c.do(ctx, request{url: "https://slack.com/api/chat.postMessage", body: fields,
			header: http.Header{"Authorization": {"Bearer " + kind + "-" + token}}})
		var said struct {
			OK    *bool  `json:"ok"`
			Error string `json:"error"`
		}
		if err == nil && json.Unmarshal(answer, &said) == nil && said.OK != nil && !*said.OK {
			err = errors.New("Slack refuses it: " + clean(said.Error, 60))
		}
		return err
	}, nil
}

// teamsCard returns an adaptive card of text runs, which have no markup.
func teamsCard(m *Message) map[string]any {
	block := func(text, weight string) map[string]any {
		return map[string]any{"type": "RichTextBlock",
			"inlines": []any{map[string]any{"type": "TextRun", "text": text, "weight": weight}}}
	}
	card := map[string]any{"type": "AdaptiveCard", "version": "1.4",
		"$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
		"body":    []any{block(m.title(plainText), "Bolder"), block(m.text(plainText, time.UTC), "Default")}}
	if m.Link != "" {
		card["actions"] = []any{map[string]any{"type": "Action.OpenUrl", "title": "Open Redrive", "url": m.Link}}
	}
	return map[string]any{"type": "message",
		"attachments": []any{map[string]any{"contentType": "application/vnd.microsoft.card.adaptive", "content": card}}}
}

// cut shortens s to a service's limit of characters.
func cut(s string, limit int) string {
	if r := []rune(s); len(r) > limit {
		return string(r[:limit-1]) + "…"
	}
	return s
}

const (
	// A lasting alert is sent every alertEvery; Alertmanager keeps it firing for alertLasts after the last time,
	// whatever its resolve_timeout.
	alertEvery = time.Minute
	// While its count grows, it is sent every countEvery: less than a group_wait, so that the notification has all of a
	// burst.
	countEvery = 10 * time.Second
	alertLasts = 5 * time.Minute
	// parkedLasts is how long an alert lasts after the last parked message: longer than a group_interval, since
	// Alertmanager does not send an alert that ended before.
	parkedLasts = 15 * time.Minute
	maxAlerts   = 100 // in a request
)

var labelName = regexp.MustCompile(`^\$[A-Za-z_][A-Za-z0-9_]*$`)

// alertmanager posts alerts to Alertmanager's API, which groups, repeats, silences and routes them. $NAME=VALUE in the
// query is a label. It reads the files for each request, so a new token or authority needs no restart.
func alertmanager(u *url.URL, _ *Route) (send, error) {
	q, own := u.Query(), map[string]string{}
	for name, values := range q {
		if labelName.MatchString(name) {
			own[name[1:]] = values[0]
			q.Del(name)
		}
	}
	ca, tokenFile, passwordFile := q.Get("cacertfile"), q.Get("tokenfile"), q.Get("passwordfile")
	if !hasOnly(q, "cacertfile", "tokenfile", "passwordfile") || u.Host == "" || ca != "" && u.Scheme != "https" ||
		tokenFile != "" && u.User != nil || passwordFile != "" && u.User.Username() == "" {
		return nil, errURL
	}
	to := url.URL{Scheme: u.Scheme, Host: u.Host, Path: strings.TrimSuffix(u.Path, "/") + "/api/v2/alerts"}
	return func(ctx context.Context, c *client, m *Message) (err error) {
		at, r := to, request{header: http.Header{}}
		if ca != "" {
			if r.tls, err = (connect.TLS{CA: ca}).Config(u.Hostname()); err != nil {
				return err
			}
		}
		at.User = u.User
		if file := cmp.Or(tokenFile, passwordFile); file != "" {
			data, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			if secret := strings.TrimSpace(string(data)); tokenFile != "" {
				r.header.Set("Authorization", "Bearer "+secret)
			} else {
				at.User = url.UserPassword(u.User.Username(), secret)
			}
		}
		r.url = at.String()
		for some := range slices.Chunk(alerts(m, own), maxAlerts) {
			r.body = some
			if _, err := c.do(ctx, r); err != nil {
				return err
			}
		}
		return nil
	}, nil
}

// alert is an alert of Alertmanager's API. Two with the same labels are one.
type alert struct {
	Labels       map[string]string `json:"labels"`
	Annotations  map[string]string `json:"annotations"`
	StartsAt     time.Time         `json:"startsAt"`
	EndsAt       time.Time         `json:"endsAt"`
	GeneratorURL string            `json:"generatorURL,omitempty"`
}

func alerts(m *Message, own map[string]string) []alert {
	var all []alert
	for _, i := range m.Items {
		one := Message{Kind: i.Kind, Items: []Item{i}, VHost: m.VHost, Test: m.Test}
		a := alert{StartsAt: i.Since.UTC(), EndsAt: m.At.Add(alertLasts).UTC(), GeneratorURL: i.Link,
			Labels: map[string]string{"alertname": alertName(i.Kind), "severity": i.Severity.String()},
			Annotations: map[string]string{"summary": one.title(plainText),
				"description": one.text(plainText, time.UTC)}}
		if m.Test {
			a.Labels["alertname"] = "RedriveTest"
		}
		if i.Queue != "" {
			a.Labels["queue"] = clean(i.Queue, 255)
		}
		if i.Target != "" {
			a.Labels["target"] = clean(i.Target, 255)
		}
		if m.VHost != "" {
			a.Labels["vhost"] = clean(m.VHost, 255)
		}
		maps.Copy(a.Labels, own)
		if i.Resolved {
			a.EndsAt = i.Until.UTC()
		}
		if a.EndsAt.Before(a.StartsAt) { // a clock was set
			a.StartsAt = a.EndsAt
		}
		all = append(all, a)
	}
	return all
}

// alertName returns RedriveBreakerOpen for breaker_open.
func alertName(k Kind) string {
	s := "Redrive"
	for word := range strings.SplitSeq(string(k), "_") {
		s += strings.ToUpper(word[:1]) + word[1:]
	}
	return s
}

// pagerduty opens an incident for each kind of event, and resolves it when it is over for all queues.
func pagerduty(u *url.URL, _ *Route) (send, error) {
	routing := strings.Trim(u.Path, "/")
	if !hasOnly(u.Query(), "source") || u.Host == "" || routing == "" || strings.Contains(routing, "/") {
		return nil, errURL
	}
	source := cmp.Or(u.Query().Get("source"), "redrive")
	to := url.URL{Scheme: u.Scheme, Host: u.Host, Path: "/v2/enqueue"}
	return func(ctx context.Context, c *client, m *Message) error {
		of := source
		if m.VHost != "" {
			of += "/" + m.VHost
		}
		action, dedup := "trigger", of+"/"+string(m.Kind)
		if m.Test {
			dedup = of + "/test"
		} else if m.Resolved() {
			if m.Open > 0 {
				return nil // not over for all queues
			}
			action = "resolve"
		}
		fields := map[string]any{"routing_key": routing, "event_action": action, "dedup_key": dedup,
			"payload": map[string]any{
				"summary": cut(m.title(plainText), 1024), "source": source, "severity": m.Severity.String(),
				"custom_details": m.fields()}}
		if m.Link != "" {
			fields["links"] = []any{map[string]any{"href": m.Link, "text": "Redrive"}}
		}
		_, err := c.do(ctx, request{url: to.String(), body: fields})
		return err
	}, nil
}

type account struct {
	host, port, user, password string
	clientHost                 string // our name, in EHLO
	// encryption is ImplicitTLS, ExplicitTLS (STARTTLS or an error), None, or Auto (TLS on port 465, else STARTTLS if
	// offered), in lower case.
	encryption string
	from       *netmail.Address
	to         []string
}

// mail sends by SMTP. net/smtp sends a password only over TLS.
func mail(u *url.URL, _ *Route) (send, error) {
	q := u.Query()
	if u.Hostname() == "" || !hasOnly(q, "from", "fromname", "to", "encryption", "clienthost") {
		return nil, errURL
	}
	at := account{host: u.Hostname(), port: cmp.Or(u.Port(), "25"),
		clientHost: cmp.Or(q.Get("clienthost"), "localhost"), user: u.User.Username()}
	at.password, _ = u.User.Password()
	at.encryption = strings.ToLower(cmp.Or(q.Get("encryption"), "auto"))
	if !slices.Contains([]string{"auto", "none", "explicittls", "implicittls"}, at.encryption) {
		return nil, errURL
	}
	if at.encryption == "auto" && at.port == "465" {
		at.encryption = "implicittls"
	}
	var err error
	if at.from, err = netmail.ParseAddress(q.Get("from")); err != nil {
		return nil, err
	}
	at.from.Name = cmp.Or(q.Get("fromname"), at.from.Name)
	all, err := netmail.ParseAddressList(q.Get("to"))
	if err != nil {
		return nil, err
	}
	for _, a := range all {
		at.to = append(at.to, a.Address)
	}
	return func(ctx context.Context, c *client, m *Message) error {
		conn, err := c.dial.DialContext(ctx, "tcp", net.JoinHostPort(at.host, at.port))
		if err != nil {
			return err
		}
		defer conn.Close()
		// net/smtp takes no context.
		deadline, _ := ctx.Deadline()
		_ = conn.SetDeadline(deadline)
		defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
		return sendMail(conn, &at, letter(at.from, at.to, m))
	}, nil
}

func sendMail(conn net.Conn, at *account, text []byte) error {
	security := &tls.Config{ServerName: at.host, MinVersion: tls.VersionTLS12}
	if at.encryption == "implicittls" {
		conn = tls.Client(conn, security)
	}
	s, err := smtp.NewClient(conn, at.host)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := s.Hello(at.clientHost); err != nil {
		return err
	}
	_, secure := conn.(*tls.Conn)
	if can, _ := s.Extension("STARTTLS"); can && !secure && at.encryption != "none" {
		if err := s.StartTLS(security); err != nil {
			return err
		}
	} else if !secure && at.encryption == "explicittls" {
		return errors.New("the mail server has no STARTTLS, which the URL requires")
	}
	if at.user != "" {
		if err := s.Auth(smtp.PlainAuth("", at.user, at.password, at.host)); err != nil {
			return err
		}
	}
	if err := s.Mail(at.from.Address); err != nil {
		return err
	}
	for _, a := range at.to {
		if err := s.Rcpt(a); err != nil {
			return err
		}
	}
	w, err := s.Data()
	if err != nil {
		return err
	}
	if _, err := w.Write(text); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	_ = s.Quit() // the server has accepted the mail
	return nil
}

// letter returns a mail with its text in base64, so that no line of it can be a header or a command.
func letter(from *netmail.Address, to []string, m *Message) []byte {
	var b strings.Builder
	for _, h := range [][2]string{
		{"From", from.String()}, {"To", strings.Join(to, ", ")},
		{"Subject", mime.QEncoding.Encode("utf-8", cut(m.title(plainText), 200))},
		{"Date", m.At.Format(time.RFC1123Z)}, {"MIME-Version", "1.0"}, {"Content-Type", "text/plain; charset=utf-8"},
		{"Content-Transfer-Encoding", "base64"}, {"Auto-Submitted", "auto-generated"},
	} {
		fmt.Fprintf(&b, "%s: %s\r\n", h[0], h[1])
	}
	b.WriteString("\r\n")
	text := base64.StdEncoding.EncodeToString([]byte(body(m, plainText)))
	for len(text) > 76 {
		b.WriteString(text[:76] + "\r\n")
		text = text[76:]
	}
	b.WriteString(text + "\r\n")
	return []byte(b.String())
}

var (
	errPrivate  = errors.New("notifications do not go to private addresses")
	errRedirect = hint.Errorf("give the final URL", "it answers with a redirect, which is not followed")
)

const (
	sendTimeout = 20 * time.Second
	maxAnswer   = 4 << 10
)

// client is the only HTTP client: for public addresses, without proxies and redirects, in bounded time.
type client struct {
	http *http.Client
	dial *net.Dialer
}

func newClient(allowed []netip.Prefix) *client {
	dial := &net.Dialer{Timeout: 10 * time.Second, Control: guard(allowed)}
	return &client{dial: dial, http: &http.Client{
		Timeout:       sendTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return errRedirect },
		Transport:     transport(dial, nil),
	}}
}

// transport sets no Proxy: a proxy from the environment would dial for us.
func transport(dial *net.Dialer, security *tls.Config) *http.Transport {
	return &http.Transport{
		DialContext: dial.DialContext, DisableKeepAlives: true, ForceAttemptHTTP2: true, TLSClientConfig: security,
		TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: sendTimeout, MaxResponseHeaderBytes: 16 << 10,
	}
}

type request struct {
	url    string
	header http.Header
	body   any // as JSON
	tls    *tls.Config
}

// busyError is an answer that says when to try again.
type busyError struct {
	error
	after time.Duration
}

func (b busyError) Unwrap() error { return b.error }

// do sends a request, and returns the beginning of the answer. Its errors repeat neither URL nor answer: either may
// contain a secret.
func (c *client) do(ctx context.Context, r request) ([]byte, error) {
	body, err := json.Marshal(r.body)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url, bytes.NewReader(body))
	if err != nil {
		return nil, errURL
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "redrive")
	maps.Copy(req.Header, r.header)
	sender := *c.http
	if r.tls != nil {
		sender.Transport = transport(c.dial, r.tls)
	}
	resp, err := sender.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err
		}
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		err := fmt.Errorf("it answers %d %s", resp.StatusCode, http.StatusText(resp.StatusCode))
		if s, e := strconv.Atoi(resp.Header.Get("Retry-After")); e == nil && s > 0 {
			return nil, busyError{err, min(time.Duration(min(s, 3600))*time.Second, time.Hour)}
		}
		return nil, err
	}
	return answer, err
}

// privateNetworks lists networks that are not on the internet: this machine, its neighbours and its cloud's metadata.
// It includes IPv6 networks that embed an IPv4 address, which may lead anywhere.
var privateNetworks = prefixes(
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
	"192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24",
	"203.0.113.0/24", "224.0.0.0/3",
	"::/96", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20",
	"5f00::/16",
	"fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8",
)

func prefixes(all ...string) (out []netip.Prefix) {
	for _, p := range all {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

// guard returns a net.Dialer's Control: it sees the address after name resolution, so a name cannot lead elsewhere in
// between.
func guard(allowed []netip.Prefix) func(network, address string, _ syscall.RawConn) error {
	return func(_, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err != nil {
			return fmt.Errorf("%q is no address", address)
		}
		ip := at.Addr().Unmap().WithZone("")
		in := func(p netip.Prefix) bool { return p.Contains(ip) }
		if slices.ContainsFunc(privateNetworks, in) && !slices.ContainsFunc(allowed, in) {
			return fmt.Errorf("%w: %s (if that is meant, add it to notify.allow_private)", errPrivate, ip)
		}
		return nil
	}
}
