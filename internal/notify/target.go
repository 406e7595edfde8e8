package notify

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"strings"
)

var errURL = errors.New("is not a URL that can be sent to")

// target sends to one URL.
type target struct {
	scheme  string
	send    func(ctx context.Context, c *client, m *Message) error
	secrets []string
	// each has a message for each kind of event, since it opens and closes incidents.
	each bool
}

// service is a kind of URL.
type service struct {
	form string // how its URLs look
	open func(*url.URL) (func(context.Context, *client, *Message) error, error)
}

// services are by a URL's scheme. The URLs of all but teams+https and pagerduty are
// read by shoutrrr, or as it does.
var services = map[string]service{
	"slack":         {"slack://hook:T…-B…-…@webhook, or slack://xoxb:…@CHANNEL", slack},
	"discord":       {"discord://TOKEN@WEBHOOK-ID", discordHook},
	"mattermost":    {"mattermost://HOST/TOKEN[/CHANNEL]", mattermostHook},
	"teams":         {"teams://GROUP@TENANT/ALT-ID/GROUP-OWNER/EXTRA-ID?host=ORG.webhook.office.com", teamsHook},
	"teams+https":   {"teams+https://HOST/PATH?…, the URL of a workflow", teamsWorkflow},
	"telegram":      {"telegram://TOKEN@telegram?chats=CHAT[,CHAT]", telegramBot},
	"ntfy":          {"ntfy://[USER:PASSWORD@]HOST/TOPIC", ntfyTopic},
	"gotify":        {"gotify://HOST/TOKEN", gotifyApp},
	"pagerduty":     {"pagerduty://events.pagerduty.com/INTEGRATION-KEY", pagerduty},
	"smtp":          {"smtp://USER:PASSWORD@HOST:PORT/?from=…&to=…", mail},
	"generic":       {"generic://HOST/PATH", webhook},
	"generic+https": {"generic+https://HOST/PATH", webhook},
	"generic+http":  {"generic+http://HOST/PATH", webhook},
}

// CheckURL says what is wrong with a route's URL, without repeating it.
func CheckURL(raw string) error {
	_, err := open(raw)
	return err
}

func open(raw string) (*target, error) {
	u, err := url.Parse(strings.TrimSpace(raw))
	if err != nil || u.Scheme == "" {
		return nil, errors.New("is not a URL; expected one such as generic+https://HOST/PATH")
	}
	s, ok := services[u.Scheme]
	if !ok {
		return nil, errors.New("is a URL of no known service; expected one of " + strings.Join(schemes(), ", "))
	}
	t := &target{scheme: u.Scheme, secrets: secretsOf(u), each: u.Scheme == "pagerduty"}
	if t.send, err = s.open(u); err != nil {
		// shoutrrr's errors quote what they do not like, which may be the secret.
		return nil, errors.New("is not a URL of " + u.Scheme + "; expected " + s.form)
	}
	return t, nil
}

func schemes() (all []string) {
	for s := range services {
		all = append(all, s)
	}
	slices.Sort(all)
	return all
}

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
		if name == "to" || name == "from" || name == "toaddresses" || name == "fromaddress" {
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

// tell sends in bounded time. Its errors have no secrets.
func (t *target) tell(ctx context.Context, c *client, m *Message) error {
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
	var b busy
	if errors.As(err, &b) {
		return busy{hidden, b.after}
	}
	return hidden
}
