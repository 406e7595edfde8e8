package notify

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"
)

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

func markdownPost(m *Message) map[string]any { return map[string]any{"text": body(m, code)} }

func googleChatPost(m *Message) map[string]any {
	return map[string]any{"text": cut(body(m, code), 4096)}
}

func discordPost(m *Message) map[string]any {
	return map[string]any{"content": cut(body(m, code), 2000), "allowed_mentions": map[string]any{"parse": []string{}}}
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
