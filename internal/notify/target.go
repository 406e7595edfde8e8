package notify

import (
	"context"
	"errors"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/redrive-mq/redrive/internal/hint"
)

var errURL = errors.New("is not a URL that notifications can be sent to")

type send = func(context.Context, *client, *Message) error

// target sends to one URL.
type target struct {
	scheme  string
	send    send
	secrets []string
	// perQueue: the service opens and closes incidents, so each event of a queue is a message of its
	// own.
	perQueue bool
	// isAlertmanager: it receives all conditions repeatedly, see alertmanager.go.
	isAlertmanager bool
}

// service is a kind of URL: NAME+https, NAME+http, or NAME alone where bare.
type service struct {
	bare bool
	form string // its URLs, for errors
	open func(u *url.URL, r *Route) (send, error)
}

var services = map[string]service{
	"generic":      {true, "generic+https://HOST/PATH", webhook((*Message).fields)},
	"slack":        {true, "slack+https://hooks.slack.com/services/… (the webhook's URL with slack+ before it), or slack://xoxb:…@CHANNEL", slack},
	"discord":      {false, "discord+https://discord.com/api/webhooks/… (the webhook's URL with discord+ before it)", webhook(discordPost)},
	"mattermost":   {false, "mattermost+https://HOST/hooks/… (the webhook's URL with mattermost+ before it)", webhook(markdownPost)},
	"teams":        {false, "teams+https://HOST/PATH?… (a workflow's URL with teams+ before it)", webhook(teamsCard)},
	"googlechat":   {false, "googlechat+https://chat.googleapis.com/v1/spaces/… (the webhook's URL with googlechat+ before it)", webhook(googleChatPost)},
	"alertmanager": {false, "alertmanager+https://[USER[:PASSWORD]@]HOST[:PORT][/PREFIX], with cacertfile, tokenfile and passwordfile as parameters", alertmanager},
	"pagerduty":    {true, "pagerduty://events.pagerduty.com/INTEGRATION-KEY", pagerduty},
	"smtp":         {true, "smtp://USER:PASSWORD@HOST:PORT/?from=…&to=…, with fromname, clienthost and encryption (Auto, ExplicitTLS, ImplicitTLS, None) as parameters", mail},
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
	case r.Body != nil && name != "generic":
		return nil, errors.New("is of " + name + ", which has a body of its own; a route's body is for generic+https://HOST/PATH")
	case r.Keys != nil && name != "pagerduty":
		return nil, errors.New("is of " + name + "; a route's keys are for pagerduty://events.pagerduty.com/INTEGRATION-KEY")
	case name == "alertmanager" && !r.plain():
		return nil, hint.Errorf("leave out the route's group_wait, repeat, quiet and resolved", "is of alertmanager, which groups, repeats and silences by itself")
	case transport == "" && !s.bare:
		return nil, errors.New("is not a URL of " + name + "; expected " + s.form)
	}
	t := &target{scheme: u.Scheme, secrets: secretsOf(u), perQueue: name == "pagerduty", isAlertmanager: name == "alertmanager"}
	for _, k := range r.Keys {
		t.secrets = append(t.secrets, string(k.Key))
	}
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
	switch {
	case errors.As(err, &b):
		return busyError{hidden, b.after}
	case errors.As(err, new(refusedError)):
		return refusedError{hidden}
	}
	return hidden
}
