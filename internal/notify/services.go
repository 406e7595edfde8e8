package notify

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/nicholas-fedor/shoutrrr/pkg/services/discord"
	"github.com/nicholas-fedor/shoutrrr/pkg/services/gotify"
	"github.com/nicholas-fedor/shoutrrr/pkg/services/mattermost"
	"github.com/nicholas-fedor/shoutrrr/pkg/services/ntfy"
	shoutslack "github.com/nicholas-fedor/shoutrrr/pkg/services/slack"
	"github.com/nicholas-fedor/shoutrrr/pkg/services/teams"
	"github.com/nicholas-fedor/shoutrrr/pkg/services/telegram"
)

type send = func(context.Context, *client, *Message) error

// code writes foreign text where markup is Markdown: in code nothing is markup, and
// nobody is mentioned.
var code = format{func(s string) string { return "`" + strings.ReplaceAll(s, "`", "'") + "`" }}

// slackText escapes what Slack takes for its own: <!channel>, <@U…>, links.
var slackText = format{func(s string) string {
	return "`" + strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "`", "'").Replace(s) + "`"
}}

// body is all of it, the link before what may be cut off.
func body(m *Message, f format) string {
	s := m.title(f) + "\n"
	if m.Link != "" {
		s += m.Link + "\n"
	}
	return s + m.text(f, time.UTC)
}

func slack(u *url.URL) (send, error) {
	var at shoutslack.Config
	if err := at.SetURL(u); err != nil {
		return nil, err
	}
	return func(ctx context.Context, c *client, m *Message) error {
		fields := map[string]any{"text": body(m, slackText), "unfurl_links": false, "unfurl_media": false, "link_names": false}
		if at.BotName != "" {
			fields["username"] = at.BotName
		}
		r := request{url: at.Token.WebhookURL(), body: fields}
		if at.Token.IsAPIToken() {
			fields["channel"] = at.Channel
			r.url, r.header = "https://slack.com/api/chat.postMessage", http.Header{"Authorization": {at.Token.Authorization()}}
		}
		answer, err := c.do(ctx, r)
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

func discordHook(u *url.URL) (send, error) {
	var at discord.Config
	if err := at.SetURL(u); err != nil {
		return nil, err
	}
	to := discord.CreateAPIURLFromConfig(&at)
	if to == "" {
		return nil, errURL
	}
	return func(ctx context.Context, c *client, m *Message) error {
		_, err := c.do(ctx, request{url: to, body: map[string]any{"content": cut(body(m, code), 2000), "allowed_mentions": map[string]any{"parse": []string{}}}})
		return err
	}, nil
}

func mattermostHook(u *url.URL) (send, error) {
	var at mattermost.Config
	if err := at.SetURL(u); err != nil || at.Host == "" {
		return nil, errors.Join(errURL, err)
	}
	to := url.URL{Scheme: scheme(at.DisableTLS), Host: at.Host, Path: "/hooks/" + at.Token}
	return func(ctx context.Context, c *client, m *Message) error {
		fields := map[string]any{"text": body(m, code)}
		if at.Channel != "" {
			fields["channel"] = at.Channel
		}
		if at.UserName != "" {
			fields["username"] = at.UserName
		}
		_, err := c.do(ctx, request{url: to.String(), body: fields})
		return err
	}, nil
}

// teamsHook is a connector of Office 365's, which Microsoft takes away; workflows take
// their place.
func teamsHook(u *url.URL) (send, error) {
	if u.User == nil {
		return nil, errURL
	}
	var at teams.Config
	if err := at.SetURL(u); err != nil {
		return nil, err
	}
	to := teams.BuildWebhookURL(at.Host, at.Group, at.Tenant, at.AltID, at.GroupOwner, at.ExtraID)
	if err := teams.ValidateWebhookURL(to); err != nil {
		return nil, err
	}
	return func(ctx context.Context, c *client, m *Message) error {
		_, err := c.do(ctx, request{url: to, body: map[string]any{"@type": "MessageCard", "@context": "http://schema.org/extensions",
			"summary": m.title(plainText), "title": m.title(code), "text": strings.ReplaceAll(body(m, code), "\n", "\n\n")}})
		return err
	}, nil
}

// teamsWorkflow posts an adaptive card of text runs, which have no markup at all.
func teamsWorkflow(u *url.URL) (send, error) {
	if u.Host == "" {
		return nil, errURL
	}
	to := *u
	to.Scheme = "https"
	return func(ctx context.Context, c *client, m *Message) error {
		block := func(text, weight string) map[string]any {
			return map[string]any{"type": "RichTextBlock", "inlines": []any{map[string]any{"type": "TextRun", "text": text, "weight": weight}}}
		}
		card := map[string]any{"type": "AdaptiveCard", "version": "1.4", "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
			"body": []any{block(m.title(plainText), "Bolder"), block(m.text(plainText, time.UTC), "Default")}}
		if m.Link != "" {
			card["actions"] = []any{map[string]any{"type": "Action.OpenUrl", "title": "Open Redrive", "url": m.Link}}
		}
		_, err := c.do(ctx, request{url: to.String(), body: map[string]any{"type": "message",
			"attachments": []any{map[string]any{"contentType": "application/vnd.microsoft.card.adaptive", "content": card}}}})
		return err
	}, nil
}

func telegramBot(u *url.URL) (send, error) {
	var at telegram.Config
	if err := at.SetURL(u); err != nil {
		return nil, err
	}
	return func(ctx context.Context, c *client, m *Message) error {
		var errs []error
		for _, chat := range at.Chats {
			_, err := c.do(ctx, request{url: "https://api.telegram.org/bot" + at.Token + "/sendMessage",
				body: map[string]any{"chat_id": chat, "text": cut(body(m, plainText), 4096), "disable_web_page_preview": true, "disable_notification": !at.Notification}})
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	}, nil
}

func ntfyTopic(u *url.URL) (send, error) {
	at := ntfy.Config{Scheme: "https"}
	if err := at.SetURL(u); err != nil || at.Host == "" || at.Topic == "" {
		return nil, errors.Join(errURL, err)
	}
	to := url.URL{Scheme: scheme(at.Scheme == "http"), Host: at.Host, Path: "/"}
	if at.Password != "" {
		to.User = url.UserPassword(at.Username, at.Password)
	}
	return func(ctx context.Context, c *client, m *Message) error {
		fields := map[string]any{"topic": at.Topic, "title": m.title(plainText), "message": cut(m.text(plainText, time.UTC), 3500), "priority": 3 + min(int(m.Severity), 2)}
		if m.Link != "" {
			fields["click"] = m.Link
		}
		_, err := c.do(ctx, request{url: to.String(), body: fields})
		return err
	}, nil
}

func gotifyApp(u *url.URL) (send, error) {
	var at gotify.Config
	if err := at.SetURL(u); err != nil || at.Host == "" || at.Token == "" {
		return nil, errors.Join(errURL, err)
	}
	to := url.URL{Scheme: scheme(at.DisableTLS), Host: at.Host, Path: strings.TrimSuffix(at.Path, "/") + "/message"}
	return func(ctx context.Context, c *client, m *Message) error {
		text := m.text(plainText, time.UTC)
		if m.Link != "" {
			text += "\n" + m.Link
		}
		_, err := c.do(ctx, request{url: to.String(), header: http.Header{"X-Gotify-Key": {at.Token}},
			body: map[string]any{"title": m.title(plainText), "message": text, "priority": 2 + 3*int(m.Severity)}})
		return err
	}, nil
}

// pagerduty opens an incident for each kind of event, and resolves it when no queue
// is in that trouble any more. shoutrrr has it only from versions on that raise
// libraries we share with our users.
func pagerduty(u *url.URL) (send, error) {
	routing := strings.Trim(u.Path, "/")
	if u.Host == "" || routing == "" || strings.Contains(routing, "/") {
		return nil, errURL
	}
	source := u.Query().Get("source")
	if source == "" {
		source = "redrive"
	}
	to := url.URL{Scheme: scheme(yes(u.Query().Get("disabletls"))), Host: u.Host, Path: "/v2/enqueue"}
	return func(ctx context.Context, c *client, m *Message) error {
		of := source
		if m.Of != "" {
			of += "/" + m.Of
		}
		action, dedup := "trigger", of+"/"+string(m.Kind)
		if m.Test {
			dedup = of + "/test"
		} else if m.Resolved() {
			if m.Open > 0 {
				return nil // others are in it still
			}
			action = "resolve"
		}
		fields := map[string]any{"routing_key": routing, "event_action": action, "dedup_key": dedup, "payload": map[string]any{
			"summary": cut(m.title(plainText), 1024), "source": source, "severity": m.Severity.String(), "custom_details": m.fields()}}
		if m.Link != "" {
			fields["links"] = []any{map[string]any{"href": m.Link, "text": "Redrive"}}
		}
		_, err := c.do(ctx, request{url: to.String(), body: fields})
		return err
	}, nil
}

func scheme(plain bool) string {
	if plain {
		return "http"
	}
	return "https"
}

// cut keeps to a service's limit.
func cut(s string, most int) string {
	if r := []rune(s); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return s
}
