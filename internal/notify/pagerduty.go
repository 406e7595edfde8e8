package notify

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/url"
	"strings"
)

// pagerduty opens an incident for each event and queue, and resolves it when that is over. Its
// routing key may depend on the queue.
func pagerduty(u *url.URL, r *Route) (send, error) {
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
		action, key := "trigger", routing
		if m.Resolved() {
			action = "resolve"
		}
		for _, k := range r.Keys {
			if q := m.queue(); q != "" && matches(k.Queues, q) {
				key = string(k.Key)
				break
			}
		}
		fields := map[string]any{"routing_key": key, "event_action": action, "dedup_key": dedupKey(of, m), "payload": map[string]any{
			"summary": cut(m.title(plainText), 1024), "source": source, "severity": m.Severity.String(), "custom_details": m.fields()}}
		if m.Link != "" {
			fields["links"] = []any{map[string]any{"href": m.Link, "text": "Redrive"}}
		}
		_, err := c.do(ctx, request{url: to.String(), body: fields})
		return err
	}, nil
}

// longestDedup is PagerDuty's limit.
const longestDedup = 255

// dedupKey names the incident of an event and its queue, the same each time. A name that is too long
// for PagerDuty, or not clean, is its hash.
func dedupKey(source string, m *Message) string {
	if m.Test {
		return source + "/test"
	}
	k := source + "/" + string(m.Kind)
	if m.queue() != "" {
		i := m.Items[0]
		i.Ruled = "" // more severe messages belong to the same incident
		k = source + "/" + i.key().name()
	}
	if len(k) <= longestDedup && clean(k, longestDedup) == k {
		return k
	}
	sum := sha256.Sum256([]byte(k))
	return clean(source, 100) + "/" + string(m.Kind) + "/" + hex.EncodeToString(sum[:])
}
