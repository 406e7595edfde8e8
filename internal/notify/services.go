package notify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"text/template"
	"time"

	"github.com/redrive-mq/redrive/internal/hint"
)

var errURL = errors.New("is not a URL that notifications can be sent to")

type send = func(context.Context, *client, *Message) error

// target sends to one URL.
type target struct {
	scheme  string
	send    send
	secrets []string
	groups  grouping
}

// grouping is how a route groups what it sends.
type grouping int

const (
	byRoute grouping = iota // by kind, but in one digest what happened in quiet hours
	byKind                  // always, for a service that opens and closes incidents
	itself                  // not: the service groups and repeats, and is sent all again while it lasts
)

// service is a kind of URL: NAME+https, NAME+http, or NAME alone where bare.
type service struct {
	bare   bool
	form   string // its URLs, for errors
	open   func(u *url.URL, r *Route) (send, error)
	groups grouping
	body   bool // a route may give its body
}

var services = map[string]service{
	"generic": {bare: true, form: "generic+https://HOST/PATH", body: true, open: webhook((*Message).fields)},
	"slack": {bare: true, form: "slack+https://hooks.slack.com/services/… (the webhook's URL with slack+ before it), or slack://xoxb:…@CHANNEL",
		open: slack},
	"discord": {form: "discord+https://discord.com/api/webhooks/… (the webhook's URL with discord+ before it)",
		open: webhook(func(m *Message) map[string]any {
			return map[string]any{"content": cut(body(m, code), 2000), "allowed_mentions": map[string]any{"parse": []string{}}}
		})},
	"mattermost": {form: "mattermost+https://HOST/hooks/… (the webhook's URL with mattermost+ before it)",
		open: webhook(func(m *Message) map[string]any { return map[string]any{"text": body(m, code)} })},
	"teams": {form: "teams+https://HOST/PATH?… (a workflow's URL with teams+ before it)", open: webhook(teamsCard)},
	"googlechat": {form: "googlechat+https://chat.googleapis.com/v1/spaces/… (the webhook's URL with googlechat+ before it)",
		open: webhook(func(m *Message) map[string]any { return map[string]any{"text": cut(body(m, code), 4096)} })},
	"alertmanager": {form: "alertmanager+https://[USER[:PASSWORD]@]HOST[:PORT][/PREFIX], with cacertfile, tokenfile and passwordfile as parameters",
		open: alertmanager, groups: itself},
	"pagerduty": {bare: true, form: "pagerduty://events.pagerduty.com/INTEGRATION-KEY", open: pagerduty, groups: byKind},
	"smtp": {bare: true, form: "smtp://USER:PASSWORD@HOST:PORT/?from=…&to=…, with fromname, clienthost and encryption (Auto, ExplicitTLS, " +
		"ImplicitTLS, None) as parameters", open: mail},
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
		return nil, hint.Errorf("for any other service write generic+https://HOST/PATH and a body: docs/how-to/notifications.md has examples", "is a URL of no known service; expected one of %s", strings.Join(slices.Sorted(maps.Keys(services)), ", "))
	case r.Body != nil && !s.body:
		return nil, errors.New("is of " + name + ", which has a body of its own; a route's body is for generic+https://HOST/PATH")
	case s.groups == itself && !r.plain():
		return nil, hint.Errorf("leave out the route's group_wait, repeat, quiet and resolved",
			"is of %s, which groups, repeats and silences by itself", name)
	case transport == "" && !s.bare:
		return nil, errors.New("is not a URL of " + name + "; expected " + s.form)
	}
	t := &target{scheme: u.Scheme, secrets: secretsOf(u), groups: s.groups}
	if u.Scheme = "https"; transport == "http" {
		u.Scheme = "http"
	}
	if t.send, err = s.open(u, r); err != nil { // it may quote the secret
		return nil, errors.New("is not a URL of " + name + "; expected " + s.form)
	}
	return t, nil
}

// notSecret are parameters that an error may repeat.
var notSecret = []string{"to", "from", "cacertfile", "tokenfile", "passwordfile"}

// secretsOf are the parts of a URL that no log may show.
func secretsOf(u *url.URL) (all []string) {
	add := func(s string) {
		for _, part := range strings.FieldsFunc(s, func(r rune) bool { return r == '/' || r == ':' }) {
			if len(part) >= 4 {
				all = append(all, part)
			}
		}
	}
	if u.User != nil {
		password, _ := u.User.Password()
		add(u.User.Username())
		add(password)
		all = append(all, password)
	}
	add(u.Path)
	for name, values := range u.Query() {
		if slices.Contains(notSecret, name) {
			continue
		}
		for _, v := range values {
			add(v)
		}
	}
	all = slices.DeleteFunc(all, func(s string) bool { return s == "" })
	slices.SortFunc(all, func(a, b string) int { return len(b) - len(a) })
	return all
}

// hasOnly tells whether a query has no other parameters.
func hasOnly(q url.Values, known ...string) bool {
	for name := range q {
		if !slices.Contains(known, name) {
			return false
		}
	}
	return true
}

// deliver sends in bounded time. Its errors have no secrets.
func (t *target) deliver(ctx context.Context, c *client, m *Message) error {
	ctx, cancel := context.WithTimeout(ctx, longestSend)
	defer cancel()
	if err := t.send(ctx, c, m); err != nil {
		return t.hide(err)
	}
	return nil
}

// hide makes an error fit to be logged: one clean line without the URL's secrets.
func (t *target) hide(err error) error {
	text := err.Error()
	for _, s := range t.secrets {
		text = strings.ReplaceAll(text, s, "…")
	}
	hidden := errors.New(clean(text, longestText))
	var b busyError
	if errors.As(err, &b) {
		return busyError{hidden, b.after}
	}
	return hidden
}

// CheckBody reports a template of a body that cannot be filled in.
func CheckBody(body map[string]any) error {
	example := Message{Kind: Parked, At: time.Now(), Items: []Item{{Kind: Parked}}}
	_, err := fill(body, example.fields())
	return err
}

// webhook posts JSON to a URL: what post makes of a message, or the route's body. Of the
// query @NAME=VALUE is a header and $NAME=VALUE a field; the rest is passed on.
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

// fill fills in the templates that are a body's strings. The text of a
// notification becomes part of a JSON string, whatever it is, and is no template.
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

// code writes hostile text where markup is Markdown: in code nothing is markup, and no
// mention takes effect.
var code = format{func(s string) string { return "`" + strings.ReplaceAll(s, "`", "'") + "`" }}

// slackText escapes Slack's own markup: <!channel>, <@U…>, links.
var slackText = format{func(s string) string {
	return "`" + strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "`", "'").Replace(s) + "`"
}}

// body is the whole text, with the link before the part that may be cut off.
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

// slack is a webhook, or with a bot's token its API, which reports errors with status 200.
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
		answer, err := c.do(ctx, request{url: "https://slack.com/api/chat.postMessage", body: fields, header: http.Header{"Authorization": {"Bearer " + kind + "-" + token}}})
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

// teamsCard is an adaptive card of text runs, which have no markup at all.
func teamsCard(m *Message) map[string]any {
	block := func(text, weight string) map[string]any {
		return map[string]any{"type": "RichTextBlock", "inlines": []any{map[string]any{"type": "TextRun", "text": text, "weight": weight}}}
	}
	card := map[string]any{"type": "AdaptiveCard", "version": "1.4", "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
		"body": []any{block(m.title(plainText), "Bolder"), block(m.text(plainText, time.UTC), "Default")}}
	if m.Link != "" {
		card["actions"] = []any{map[string]any{"type": "Action.OpenUrl", "title": "Open Redrive", "url": m.Link}}
	}
	return map[string]any{"type": "message",
		"attachments": []any{map[string]any{"contentType": "application/vnd.microsoft.card.adaptive", "content": card}}}
}

// cut shortens to a service's limit.
func cut(s string, most int) string {
	if r := []rune(s); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return s
}
