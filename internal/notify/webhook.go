package notify

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
)

// webhook posts the message as JSON. Of shoutrrr's generic URLs: @NAME=VALUE in the
// query is a header, $NAME=VALUE a field besides; disabletls=yes is plain HTTP. The
// rest of the query goes along.
func webhook(u *url.URL) (func(context.Context, *client, *Message) error, error) {
	if u.Host == "" {
		return nil, errURL
	}
	to := *u
	to.Scheme = "https"
	if u.Scheme == "generic+http" {
		to.Scheme = "http"
	}
	header, fields, rest := http.Header{}, map[string]string{}, url.Values{}
	for name, values := range u.Query() {
		switch {
		case strings.HasPrefix(name, "@") && len(name) > 1:
			header.Set(name[1:], values[0])
		case strings.HasPrefix(name, "$") && len(name) > 1:
			fields[name[1:]] = values[0]
		case strings.EqualFold(name, "disabletls"):
			if yes(values[0]) {
				to.Scheme = "http"
			}
		case strings.EqualFold(name, "template"): // JSON is the only one
			if !strings.EqualFold(values[0], "json") {
				return nil, errors.New("no such template")
			}
		case name != "" && name[0] == '_': // shoutrrr's way to pass its own names on
			rest[name[1:]] = values
		default:
			rest[name] = values
		}
	}
	to.RawQuery = rest.Encode()
	return func(ctx context.Context, c *client, m *Message) error {
		body := m.fields()
		for name, v := range fields {
			body[name] = v
		}
		_, err := c.do(ctx, request{url: to.String(), header: header, body: body})
		return err
	}, nil
}

func yes(s string) bool {
	s = strings.ToLower(s)
	return s == "yes" || s == "true" || s == "1"
}
