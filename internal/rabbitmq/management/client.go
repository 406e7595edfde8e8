// Package management is a small client of RabbitMQ's management API.
package management

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redrive-mq/redrive/internal/connect"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/wire"
)

var (
	// ErrNotFound: what was asked for does not exist.
	ErrNotFound = hint.New("missing", "not found")
	// ErrDenied: the user lacks a permission or a tag.
	ErrDenied = hint.New("denied", "not allowed")
	// ErrRefused: RabbitMQ does not take what was sent.
	ErrRefused = errors.New("refused")
	// ErrOther: the answer is about another object or virtual host than the request.
	ErrOther = errors.New("the answer is about something else")
)

// Client asks one broker, or one of a cluster's nodes, about one virtual host.
type Client struct {
	nodes *nodes
	user  *url.Userinfo
	vhost string
	http  http.Client
	login connect.Login // has the password of user, where it is in a file
}

// nodes are the API's addresses. Clients of several users share their state.
type nodes struct {
	bases []*url.URL
	at    atomic.Int64 // the index of the one to ask first
}

// nodeTimeout is how long a node may take while there is another to ask.
const nodeTimeout = 10 * time.Second

// New makes a client for the API at rawURL (with credentials). Where that is several
// (see addresses) it asks one of them, and another when that does not answer.
func New(rawURL, vhost string) (*Client, error) {
	n := &nodes{}
	var user *url.Userinfo
	for _, s := range connect.SplitURLs(rawURL) {
		u, err := url.Parse(s)
		if err != nil || u.Host == "" {
			return nil, errors.New("the management URL is not a URL: expected http://user:password@host:15672")
		}
		user, u.User = u.User, nil
		n.bases = append(n.bases, u)
	}
	n.at.Store(rand.Int64N(int64(len(n.bases))))
	return &Client{nodes: n, user: user, vhost: vhost, http: http.Client{Timeout: 30 * time.Second}}, nil
}

// WithCredentials sets the credentials to use: TLS files, which are read for each new connection,
// and a login, whose file is read for each request.
func (c *Client) WithCredentials(of connect.Client) *Client {
	c.login = of.Login
	if !slices.ContainsFunc(c.nodes.bases, func(u *url.URL) bool { return u.Scheme == "https" }) {
		return c
	}
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.ForceAttemptHTTP2 = false
	if through, err := of.TLS.Config(""); err == nil {
		t.TLSClientConfig = through // for a proxy: net/http itself begins TLS through it
	}
	t.DialTLSContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, err
		}
		secure, err := of.TLS.Config(host)
		if err != nil {
			return nil, err
		}
		return (&tls.Dialer{NetDialer: &net.Dialer{Timeout: nodeTimeout}, Config: secure}).DialContext(ctx,
			network, addr)
	}
	c.http.Transport = t
	return c
}

// As returns a client of the same API for another user.
func (c *Client) As(user, password string) *Client {
	return &Client{nodes: c.nodes, user: url.UserPassword(user, password), vhost: c.vhost, http: c.http}
}

// VHost is the virtual host that it asks about.
func (c *Client) VHost() string { return c.vhost }

// base is the URL of the node that is asked first.
func (c *Client) base() *url.URL { return c.nodes.bases[c.nodes.at.Load()] }

// Queue is a queue as the API describes it.
type Queue struct {
	Name      string         `json:"name"`
	Type      string         `json:"type"`
	Arguments map[string]any `json:"arguments"`
	Policy    string         `json:"policy"`
	Consumers int            `json:"consumers"`
	Messages  int            `json:"messages"`
	Ready     int            `json:"messages_ready"`
	Unacked   int            `json:"messages_unacknowledged"`
	Exclusive bool           `json:"exclusive"`
	Durable   bool           `json:"durable"`
	// AutoDelete: it goes with its last consumer.
	AutoDelete bool `json:"auto_delete"`
	// OperatorPolicy is in force besides Policy. Effective is what both set.
	OperatorPolicy string     `json:"operator_policy"`
	Effective      Definition `json:"effective_policy_definition"`
	// ConsumerDetails are known only to Client.Queue, which asks for one queue; nil: RabbitMQ's
	// statistics are switched off, and it counts neither messages nor consumers.
	ConsumerDetails []QueueConsumer `json:"consumer_details"`
}

// Counted reports whether a queue from Client.Queue has counts.
func (q *Queue) Counted() bool { return q.ConsumerDetails != nil }

// Setting is a queue's argument or, where it has none, what its RabbitMQ policies set. The key is
// that of a policy, without x-.
func (q *Queue) Setting(key string) any {
	if v, ok := q.Arguments["x-"+key]; ok {
		return v
	}
	return q.Effective[key]
}

// FixedDelayPrefix begins the names of the policies of `redrive topology fixed`.
const FixedDelayPrefix = "redrive-fixed."

// RetriedAlone reports whether RabbitMQ alone retries what is rejected, in queues of Redrive's.
func (q *Queue) RetriedAlone() bool {
	to, _ := q.Setting("dead-letter-exchange").(string)
	return strings.HasPrefix(to, wire.DelayPrefix) || to != "" && strings.HasPrefix(q.Policy, FixedDelayPrefix)
}

// TTL is the time to live of its messages: the shorter one of the argument and the policy. 0: none.
func (q *Queue) TTL() time.Duration {
	var ttl time.Duration
	for _, v := range []any{q.Arguments["x-message-ttl"], q.Effective["message-ttl"]} {
		if ms, ok := v.(float64); ok && (ttl == 0 || time.Duration(ms)*time.Millisecond < ttl) {
			ttl = time.Duration(ms) * time.Millisecond
		}
	}
	return ttl
}

// QueueConsumer is a consumer of a queue.
type QueueConsumer struct {
	Tag     string          `json:"consumer_tag"`
	Channel ConsumerChannel `json:"channel_details"`
}

// ConsumerChannel is where a consumer is.
type ConsumerChannel struct {
	Connection string `json:"connection_name"`
	User       string `json:"user"`
}

// UnmarshalJSON also accepts the empty list that RabbitMQ has for a channel that has just closed.
func (c *ConsumerChannel) UnmarshalJSON(data []byte) error {
	type plain ConsumerChannel
	return unlessEmpty(data, (*plain)(c))
}

// unlessEmpty reads an object, for which RabbitMQ answers [] where it has nothing.
func unlessEmpty(data []byte, into any) error {
	if string(data) == "[]" {
		return nil
	}
	return json.Unmarshal(data, into)
}

// Definition has the keys that a policy sets.
type Definition map[string]any

// UnmarshalJSON also accepts the empty list that RabbitMQ 3 has for no settings.
func (d *Definition) UnmarshalJSON(data []byte) error {
	if string(data) == "[]" {
		*d = Definition{}
		return nil
	}
	return json.Unmarshal(data, (*map[string]any)(d))
}

// Overview has the version, and the cluster and node that answered.
type Overview struct {
	Version string `json:"rabbitmq_version"`
	Cluster string `json:"cluster_name"`
	Node    string `json:"node"`
}

func (c *Client) Overview(ctx context.Context) (o Overview, err error) {
	return o, c.Call(ctx, http.MethodGet, "overview", nil, &o)
}

func (c *Client) Queue(ctx context.Context, name string) (q Queue, err error) {
	return q, c.Call(ctx, http.MethodGet, c.path("queues", name), nil, &q)
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
	_, err := c.call(ctx, method, path, in, out)
	return err
}

// unavailableError: a node does not answer, or answers that it cannot (5xx).
type unavailableError struct{ error }

func (e unavailableError) Unwrap() error { return e.error }

// noAnswerError means that nothing answers at an address.
type noAnswerError struct {
	host string
	err  error
}

func (e noAnswerError) Error() string {
	why := e.err
	if asked := new(url.Error); errors.As(why, &asked) {
		why = asked.Err
	}
	if dialed := new(net.OpError); errors.As(why, &dialed) && dialed.Op == "dial" {
		why = dialed.Err // the address is said
	}
	if call := new(os.SyscallError); errors.As(why, &call) {
		why = call.Err
	}
	return fmt.Sprintf("the management API at %s does not answer: %v", e.host, why)
}

func (e noAnswerError) Unwrap() []error { return []error{errNoAnswer, e.err} }

var errNoAnswer = hint.New("unreachable", "no answer")

// call is Call, and returns the answer's Date. When a node does not answer, the next one is asked:
// that is safe, since no request of this package has another result when it is made twice.
func (c *Client) call(ctx context.Context, method, path string, in, out any) (date string, err error) {
	var body []byte
	if in != nil {
		if body, err = json.Marshal(in); err != nil {
			return "", err
		}
	}
	for segment := range strings.SplitSeq(path, "/") {
		// However they are escaped, RabbitMQ would resolve them as parts of a path, and answer
		// for another name.
		if segment == "." || segment == ".." {
			return "", fmt.Errorf("RabbitMQ's management API cannot address the name %q", segment)
		}
	}
	var failed []error
	for first, n, all := c.nodes.at.Load(), int64(0), int64(len(c.nodes.bases)); n < all; n++ {
		i := (first + n) % all
		trying, cancel := ctx, context.CancelFunc(func() {})
		if n < all-1 {
			trying, cancel = context.WithTimeout(ctx, nodeTimeout)
		}
		date, err = c.callNode(trying, c.nodes.bases[i], method, path, body, out)
		cancel()
		if !errors.As(err, new(unavailableError)) {
			c.nodes.at.Store(i)
			return date, err
		}
		failed = append(failed, err)
		c.nodes.at.Store((i + 1) % all) // also for who asks next, when ctx is over
		if ctx.Err() != nil {
			break
		}
	}
	return "", errors.Join(failed...)
}

// callNode is call on one node.
func (c *Client) callNode(
	ctx context.Context, base *url.URL, method, path string, body []byte, out any,
) (date string, err error) {
	root := strings.TrimSuffix(base.String(), "/") + "/api"
	escaped := strings.Contains(strings.ToUpper(path), "%2F")
	// Elsewhere the write could change another object.
	if escaped && method != http.MethodGet && c.decodesSlashes(ctx, root) {
		return "", otherError(fmt.Errorf("%s %s/%s: not sent", method, root, path))
	}
	at := root + "/" + path
	req, err := http.NewRequestWithContext(ctx, method, at, bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	login := c.login.Current(c.user)
	user := login.Username()
	password, _ := login.Password()
	req.SetBasicAuth(user, password)
	req.Header.Set("Content-Type", "application/json")
	// RabbitMQ closes a connection that was idle for a minute, 4.3.6 after five seconds. With this key, which
	// is not sent, net/http repeats a PUT or DELETE that met such a close, as it repeats any GET.
	req.Header["Idempotency-Key"] = nil
	resp, err := c.http.Do(req)
	if err = connect.ExplainTLS(err); errors.Is(err, wire.ErrTLS) {
		return "", unavailableError{fmt.Errorf("%s %s: %w", method, at, err)}
	}
	if errors.Is(err, context.Canceled) {
		return "", unavailableError{err}
	}
	if err != nil {
		return "", unavailableError{hint.Errorf(isItTheAPI, "%w", noAnswerError{base.Host, err})}
	}
	defer resp.Body.Close()
	date = resp.Header.Get("Date")
	text, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	if err != nil {
		return "", unavailableError{fmt.Errorf("%s %s: %w", method, at, err)}
	}
	text = bytes.TrimSpace(text)
	switch {
	case resp.StatusCode >= 500:
		return "", unavailableError{fmt.Errorf("%s %s: %s: %s", method, at, resp.Status, text)}
	case len(text) > 0 && !json.Valid(text), out != nil && len(text) == 0 && resp.StatusCode < 300:
		return "", hint.Errorf(isItTheAPI, "%s %s: %s, but not an answer of RabbitMQ's", method, at, resp.Status)
	case resp.StatusCode == http.StatusNotFound && escaped && c.decodesSlashes(ctx, root):
		return "", otherError(fmt.Errorf("%s %s: %s", method, at, resp.Status))
	case resp.StatusCode == http.StatusNotFound:
		return "", fmt.Errorf("%s %s: %w, or not to be seen by user %q", method, at, ErrNotFound, user)
	case resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden:
		return "", hint.Errorf("check the password in broker.management or REDRIVE_MANAGEMENT_URL, and the user's "+
			"tag and rights", "%s %s: %w for user %q (%s)", method, at, ErrDenied, user, text)
	case resp.StatusCode == http.StatusBadRequest:
		return "", fmt.Errorf("%s %s: %w: %s", method, at, ErrRefused, text)
	case resp.StatusCode >= 300:
		return "", fmt.Errorf("%s %s: %s: %s", method, at, resp.Status, text)
	}
	if out == nil {
		return date, nil
	}
	if method == http.MethodGet {
		err := checkAnswer(path, text)
		if empty := string(text) == "[]"; empty && escaped && c.decodesSlashes(ctx, root) {
			err = errors.New("an empty list")
		}
		if err != nil {
			return "", otherError(fmt.Errorf("%s %s: %w", method, at, err))
		}
	}
	if err := json.Unmarshal(text, out); err != nil {
		return "", fmt.Errorf("%s %s: %w", method, at, err)
	}
	return date, nil
}

// otherError names the likely cause: proxies such as nginx, with a URI in proxy_pass, decode %2F.
func otherError(err error) error {
	return hint.Errorf("let the proxy in front of RabbitMQ's management API pass on paths as they are (nginx: "+
		"proxy_pass without a path; Apache: AllowEncodedSlashes NoDecode and nocanon), or let broker.management lead "+
		"to RabbitMQ itself",
		"%w: %w; a proxy seems to decode %%2F", err, ErrOther)
}

// decodesSlashes reports whether a proxy does: RabbitMQ itself has nothing at this path.
func (c *Client) decodesSlashes(ctx context.Context, root string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, root+"%2Foverview", nil)
	if err != nil {
		return false
	}
	login := c.login.Current(c.user)
	password, _ := login.Password()
	req.SetBasicAuth(login.Username(), password)
	resp, err := c.http.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	var o Overview
	return json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&o) == nil && o.Version != ""
}

// nameFields are how objects of the virtual host say which one they are, by the kind that a path
// begins with.
var nameFields = map[string]string{"queues": "name", "exchanges": "name", "policies": "name",
	"operator-policies": "name", "bindings": ""}

// checkAnswer compares the names in an answer with those in the path that was asked for.
func checkAnswer(path string, text []byte) error {
	path, _, _ = strings.Cut(path, "?")
	asked := strings.Split(path, "/")
	field, known := nameFields[asked[0]]
	if !known || len(asked) < 2 {
		return nil
	}
	for i := range asked {
		var err error
		if asked[i], err = url.PathUnescape(asked[i]); err != nil {
			return err
		}
	}
	want := map[string]string{"vhost": asked[1]}
	switch {
	case len(asked) == 3:
		want[field] = asked[2]
	case len(asked) > 3 && asked[3] == "bindings" && field != "":
		want["destination"] = asked[2]
	}
	var all []map[string]json.RawMessage
	var paged struct{ Items json.RawMessage }
	if len(asked) == 2 && text[0] == '{' && json.Unmarshal(text, &paged) == nil && paged.Items != nil {
		text = bytes.TrimSpace(paged.Items)
	}
	if isList := text[0] == '['; isList != (len(asked) != 3) {
		return errors.New("a list instead of one, or one instead of a list")
	} else if !isList {
		text = slices.Concat([]byte("["), text, []byte("]"))
	}
	if err := json.Unmarshal(text, &all); err != nil {
		return err
	}
	for _, one := range all {
		for field, want := range want {
			var is string
			if err := json.Unmarshal(one[field], &is); err != nil || is != want {
				return fmt.Errorf("%s %s instead of %q", field, cmp.Or(string(one[field]), "missing"), want)
			}
		}
	}
	return nil
}

const isItTheAPI = "check that this is RabbitMQ's management API (plugin rabbitmq_management), and that " +
	"broker.management or REDRIVE_MANAGEMENT_URL is right"
