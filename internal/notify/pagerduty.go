package notify

import (
	"cmp"
	"context"
	"net/url"
	"strings"
)

// pagerduty opens an incident for each kind of event, and resolves it when that is over
// for all queues.
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
		fields := map[string]any{"routing_key": routing, "event_action": action, "dedup_key": dedup, "payload": map[string]any{
			"summary": cut(m.title(plainText), 1024), "source": source, "severity": m.Severity.String(), "custom_details": m.fields()}}
		if m.Link != "" {
			fields["links"] = []any{map[string]any{"href": m.Link, "text": "Redrive"}}
		}
		_, err := c.do(ctx, request{url: to.String(), body: fields})
		return err
	}, nil
}
