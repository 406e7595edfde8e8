package notify

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"text/template"
	"time"
)

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
