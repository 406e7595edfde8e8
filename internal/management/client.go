// Package management is a small client of RabbitMQ's management API.
package management

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

var (
	// ErrNotFound: there is no such thing.
	ErrNotFound = errors.New("not found")
	// ErrDenied: the user may not.
	ErrDenied = errors.New("not allowed")
)

// Client asks one broker about one virtual host.
type Client struct {
	base  *url.URL
	user  *url.Userinfo
	vhost string
	http  http.Client
}

// New makes a client for the API at rawURL (with credentials).
func New(rawURL, vhost string) (*Client, error) {
	u, err := url.Parse(rawURL)
	if err != nil || u.Host == "" {
		return nil, errors.New("the management URL is not a URL: expected http://user:password@host:15672")
	}
	c := &Client{base: u, user: u.User, vhost: vhost, http: http.Client{Timeout: 30 * time.Second}}
	u.User = nil
	return c, nil
}

// Queue is what the API knows of one.
type Queue struct {
	Name      string         `json:"name"`
	Type      string         `json:"type"`
	Arguments map[string]any `json:"arguments"`
	Policy    string         `json:"policy"`
	Consumers int            `json:"consumers"`
	Messages  int            `json:"messages"`
	Ready     int            `json:"messages_ready"`
	Unacked   int            `json:"messages_unacknowledged"`
}

// Policy is a policy of RabbitMQ's.
type Policy struct {
	Name       string         `json:"name,omitempty"`
	Pattern    string         `json:"pattern"`
	ApplyTo    string         `json:"apply-to"`
	Priority   int            `json:"priority"`
	Definition map[string]any `json:"definition"`
}

// Overview is the broker at a glance.
type Overview struct {
	Version string `json:"rabbitmq_version"`
	Node    string `json:"node"`
}

func (c *Client) Overview(ctx context.Context) (o Overview, err error) {
	return o, c.Call(ctx, http.MethodGet, "overview", nil, &o)
}

func (c *Client) Queue(ctx context.Context, name string) (q Queue, err error) {
	return q, c.Call(ctx, http.MethodGet, c.path("queues", name), nil, &q)
}

func (c *Client) Policies(ctx context.Context) (all []Policy, err error) {
	return all, c.Call(ctx, http.MethodGet, c.path("policies"), nil, &all)
}

func (c *Client) PutPolicy(ctx context.Context, p Policy) error {
	name := p.Name
	p.Name = ""
	return c.Call(ctx, http.MethodPut, c.path("policies", name), p, nil)
}

func (c *Client) DeletePolicy(ctx context.Context, name string) error {
	return c.Call(ctx, http.MethodDelete, c.path("policies", name), nil, nil)
}

// DeclareFanout makes a durable fanout exchange.
func (c *Client) DeclareFanout(ctx context.Context, name string) error {
	return c.Call(ctx, http.MethodPut, c.path("exchanges", name), map[string]any{"type": "fanout", "durable": true}, nil)
}

func (c *Client) DeleteExchange(ctx context.Context, name string) error {
	return c.Call(ctx, http.MethodDelete, c.path("exchanges", name), nil, nil)
}

// BindQueue binds a queue to an exchange, without a routing key.
func (c *Client) BindQueue(ctx context.Context, exchange, queue string) error {
	return c.Call(ctx, http.MethodPost, "bindings/"+url.PathEscape(c.vhost)+"/e/"+url.PathEscape(exchange)+"/q/"+url.PathEscape(queue), map[string]any{"routing_key": ""}, nil)
}

func (c *Client) path(kind string, names ...string) string {
	parts := []string{kind, url.PathEscape(c.vhost)}
	for _, n := range names {
		parts = append(parts, url.PathEscape(n))
	}
	return strings.Join(parts, "/")
}

// Call asks for a path below /api/.
func (c *Client) Call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(data)
	}
	for segment := range strings.SplitSeq(path, "/") {
		// RabbitMQ would take them for a step up, however they are escaped, and
		// answer for something else.
		if segment == "." || segment == ".." {
			return fmt.Errorf("RabbitMQ's management API cannot address the name %q", segment)
		}
	}
	at := strings.TrimSuffix(c.base.String(), "/") + "/api/" + path
	req, err := http.NewRequestWithContext(ctx, method, at, body)
	if err != nil {
		return err
	}
	user := c.user.Username()
	password, _ := c.user.Password()
	req.SetBasicAuth(user, password)
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(req)
	if err != nil {
		return fmt.Errorf("%w: %s", err, hint)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, at, err)
	}
	text = bytes.TrimSpace(text)
	switch {
	case len(text) > 0 && !json.Valid(text), out != nil && len(text) == 0 && resp.StatusCode < 300:
		return fmt.Errorf("%s %s: %s, but not in RabbitMQ's words: %s", method, at, resp.Status, hint)
	case resp.StatusCode == http.StatusNotFound:
		return fmt.Errorf("%s %s: %w, or not to be seen by user %q", method, at, ErrNotFound, user)
	case resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden:
		return fmt.Errorf("%s %s: %w for user %q (%s): check the password in broker.management or REDRIVE_MANAGEMENT_URL, and the user's tag and rights", method, at, ErrDenied, user, text)
	case resp.StatusCode >= 300:
		return fmt.Errorf("%s %s: %s: %s", method, at, resp.Status, text)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(text, out); err != nil {
		return fmt.Errorf("%s %s: %w", method, at, err)
	}
	return nil
}

const hint = "is this RabbitMQ's management API (plugin rabbitmq_management), and broker.management or REDRIVE_MANAGEMENT_URL right?"
