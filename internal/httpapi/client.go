package httpapi

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"

	"golang.org/x/oauth2"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/connect"
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/operations"
)

// Client asks a running service: a method for each route. Its methods may be called
// at once. Their errors are ErrUnreachable, or what the service says: a *Problem,
// which errors.Is takes for inspect.ErrNotFound, auth.ErrForbidden and so on.
type Client struct {
	// Addr is host:port, asked without TLS, or a URL: https://redrive.example:8250.
	Addr string
	// Token signs in; or User with Password; or Session, a cookie that FinishDevice has returned.
	Token, User, Password, Session string
	// Insecure sends them without TLS beyond this machine too.
	Insecure bool
	// HTTP does the calls; nil: one with the system's certificates.
	HTTP *http.Client
}

// NewClient makes a client of an address and the environment:
//
//	REDRIVE_TOKEN     signs in; or …_FILE
//	REDRIVE_USER      … with REDRIVE_PASSWORD (or …_FILE), as a user of RabbitMQ's
//	REDRIVE_CA_FILE   certificates that sign the service's, besides the system's
//	REDRIVE_INSECURE  1 sends them without TLS beyond this machine
func NewClient(addr string, getenv func(string) string) (Client, error) {
	c := Client{Addr: addr, User: getenv("REDRIVE_USER"), Insecure: getenv("REDRIVE_INSECURE") == "1"}
	for name, to := range map[string]*string{"REDRIVE_TOKEN": &c.Token, "REDRIVE_PASSWORD": &c.Password} {
		*to = getenv(name)
		if file := getenv(name + "_FILE"); file != "" {
			data, err := os.ReadFile(file)
			if err != nil {
				return c, fmt.Errorf("%s_FILE: %w", name, err)
			}
			*to = strings.TrimSpace(string(data))
		}
	}
	file := getenv("REDRIVE_CA_FILE")
	if file == "" {
		return c, nil
	}
	pem, err := os.ReadFile(file)
	if err != nil {
		return c, fmt.Errorf("REDRIVE_CA_FILE: %w", err)
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		roots = x509.NewCertPool()
	}
	if !roots.AppendCertsFromPEM(pem) {
		return c, fmt.Errorf("REDRIVE_CA_FILE: %s has no certificate in PEM", file)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	c.HTTP = &http.Client{Transport: transport}
	return c, nil
}

// URL is where the service is, checked.
func (c Client) URL() (string, error) {
	u, err := c.base()
	if err != nil {
		return "", err
	}
	return u.Scheme + "://" + u.Host + strings.TrimSuffix(u.EscapedPath(), "/"), nil
}

// base is the URL before the path of each route.
func (c Client) base() (*url.URL, error) {
	addr := c.Addr
	if !strings.Contains(addr, "://") {
		addr = "http://" + addr
	}
	u, err := url.Parse(addr)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, fmt.Errorf("%q is no address of a service: expected host:port or https://host:port", c.Addr)
	}
	if c.Token+c.User+c.Session != "" {
		return u, c.private(u)
	}
	return u, nil
}

// private returns why others could read what signs in.
func (c Client) private(u *url.URL) error {
	if u.Scheme == "http" && !c.Insecure && !auth.Loopback(u.Host) {
		return hint.Errorf("use https://, or set REDRIVE_INSECURE=1 where the network may read it",
			"a token or password is not sent to %s without TLS", u.Host)
	}
	return nil
}

// request is a call to make.
type request struct {
	method, path string // the path with its parts escaped
	query        url.Values
	body         io.Reader
	contentType  string
	accept       string
}

// do makes a call. An answer that is not a success is an error; the caller closes
// the body of any other.
func (c Client) do(ctx context.Context, r request) (*http.Response, error) {
	u, err := c.base()
	if err != nil {
		return nil, err
	}
	target := u.Scheme + "://" + u.Host + strings.TrimSuffix(u.EscapedPath(), "/") + r.path
	if len(r.query) > 0 {
		target += "?" + r.query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, r.method, target, r.body)
	if err != nil {
		return nil, err
	}
	if r.contentType != "" {
		req.Header.Set("Content-Type", r.contentType)
	}
	req.Header.Set("Accept", "application/json")
	if r.accept != "" {
		req.Header.Set("Accept", r.accept)
	}
	req.Header.Set(auth.InterfaceHeader, "cli")
	if path := req.URL.EscapedPath(); slashes(path) > 0 {
		req.Header.Set(auth.PathHeader, path)
	}
	switch {
	case c.Token != "":
		req.Header.Set("Authorization", "Bearer "+c.Token)
	case c.User != "":
		req.SetBasicAuth(c.User, c.Password)
	case c.Session != "":
		req.Header.Set("Cookie", c.Session)
	}
	h := http.Client{}
	if c.HTTP != nil {
		h = *c.HTTP
	}
	h.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	resp, err := h.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		var problem *Problem
		if errors.As(err, &problem) { // of the body that was read for it
			return nil, problem
		}
		remedy := cmp.Or(hint.Of(err), "is `redrive serve` running there, and is --address its `listen`?")
		var asked *url.Error
		if errors.As(err, &asked) {
			err = asked.Err // the address is said
		}
		return nil, hint.Errorf(remedy, "%w at %s: %s", ErrUnreachable, c.Addr, hint.Text(err))
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	defer resp.Body.Close()
	return nil, c.errorOf(resp)
}

// errorOf returns the error of an answer that is no success.
func (c Client) errorOf(resp *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	p := &Problem{}
	if json.Unmarshal(text, p) != nil || p.Detail == "" { // not the service, or a proxy before it
		p = &Problem{Detail: string(bytes.TrimSpace(text[:min(len(text), 500)]))}
	}
	said := p.Type != ""
	if p.Status = resp.StatusCode; p.Code == "" {
		p.Code = codeOf(p.Status)
	}
	if p.Hint == "" && errors.Is(p, auth.ErrSignIn) {
		p.Hint = "set REDRIVE_TOKEN, or REDRIVE_USER and REDRIVE_PASSWORD; with OpenID Connect: redrive login"
	}
	switch {
	case p.Status == http.StatusUnauthorized, p.Status == http.StatusForbidden: // say by which service
	case said && p.Status/100 == 4:
		return p
	}
	return fmt.Errorf("the service at %s says %s: %w", c.Addr, resp.Status, p)
}

// call sends in (nil: nothing) as JSON and reads the answer into out (nil: none).
func (c Client) call(ctx context.Context, method, path string, query url.Values, in, out any) error {
	r := request{method: method, path: path, query: query}
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return err
		}
		r.body, r.contentType = bytes.NewReader(data), "application/json"
	}
	resp, err := c.do(ctx, r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if out == nil {
		return nil
	}
	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		return fmt.Errorf("what answers at %s does not speak like Redrive: %w", c.Addr, err)
	}
	return nil
}

// escaped is a path made of parts, each escaped.
func escaped(parts ...string) string {
	var path strings.Builder
	for _, p := range parts {
		path.WriteString("/" + connect.PathPart(p))
	}
	return path.String()
}

// values are parameters of a URL; empty ones are left out.
func values(pairs ...string) url.Values {
	v := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			v.Set(pairs[i], pairs[i+1])
		}
	}
	return v
}

const v1 = "/api/v1"

// maxPaged is the page size when the client reads a whole list.
const maxPaged = 1000

// page are the parameters of a page of a list.
func page(after string, limit int, pairs ...string) url.Values {
	if limit > 0 {
		pairs = append(pairs, "limit", strconv.Itoa(limit))
	}
	return values(append(pairs, "after", after)...)
}

// Alive is nil when a service answers at all. It sends no credentials, and on this machine
// does not check the certificate: health checks ask 127.0.0.1, which no certificate is for.
func (c Client) Alive(ctx context.Context) error {
	c.Token, c.User, c.Password = "", "", ""
	u, err := c.base()
	if err != nil {
		return err
	}
	if auth.Loopback(u.Host) {
		transport := http.DefaultTransport.(*http.Transport).Clone()
		transport.TLSClientConfig = &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}
		defer transport.CloseIdleConnections()
		c.HTTP = &http.Client{Transport: transport}
	}
	resp, err := c.do(ctx, request{method: http.MethodGet, path: "/healthz"})
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// Overview of the service.
func (c Client) Overview(ctx context.Context) (o inspect.Overview, err error) {
	return o, c.call(ctx, http.MethodGet, v1+"/overview", nil, nil, &o)
}

// Messages is one page of what a query finds, latest first, of waiting ones alone the soonest due first: by
// when each is due, or was parked or retried; limit 0: 100. Columns are names of fields.
func (c Client) Messages(
	ctx context.Context, query, after string, limit int, columns ...string,
) (p inspect.Page, err error) {
	return p, c.call(ctx, http.MethodGet, v1+"/messages",
		page(after, limit, "q", query, "columns", strings.Join(columns, ",")), nil, &p)
}

// Count is how many messages a query finds.
func (c Client) Count(ctx context.Context, query string) (n Count, err error) {
	return n, c.call(ctx, http.MethodGet, v1+"/count", values("q", query), nil, &n)
}

// Message is all that is known of one, by id or key.
func (c Client) Message(ctx context.Context, id string) (d inspect.Detail, err error) {
	return d, c.call(ctx, http.MethodGet, v1+"/messages"+escaped(id), nil, nil, &d)
}

// Show is Message whole, for those with that right; the audit log has the reason.
func (c Client) Show(ctx context.Context, id, reason string) (d inspect.Detail, err error) {
	return d, c.call(ctx, http.MethodPost, v1+"/messages"+escaped(id)+"/show", nil, ShowReason{reason}, &d)
}

// Groups of failures among what a query finds, by state: all of them, page by page.
func (c Client) Groups(ctx context.Context, query, state string) (all inspect.GroupPage, err error) {
	return c.FirstGroups(ctx, query, state, "queue", math.MaxInt)
}

// FirstGroups returns up to limit of Groups. By error, not by queue, one error in several queues is one group.
func (c Client) FirstGroups(
	ctx context.Context, query, state, by string, limit int,
) (all inspect.GroupPage, err error) {
	for after := ""; ; {
		var next inspect.GroupPage
		if err := c.call(ctx, http.MethodGet, v1+"/groups", page(after, min(limit-len(all.Groups), maxPaged),
			"q", query, "state", state, "by", by), nil, &next); err != nil {
			return all, err
		}
		all.Groups, all.Total = append(all.Groups, next.Groups...), next.Total
		if after = next.After; after == "" || len(all.Groups) >= limit {
			return all, nil
		}
	}
}

// Group is one of them, with what a person needs to decide about it.
func (c Client) Group(ctx context.Context, id string) (d inspect.GroupDetail, err error) {
	return d, c.call(ctx, http.MethodGet, v1+"/groups"+escaped(id), nil, nil, &d)
}

// NoteGroup sets a group's note; "" removes it.
func (c Client) NoteGroup(ctx context.Context, group, note string) error {
	return c.call(ctx, http.MethodPut, v1+"/groups"+escaped(group)+"/note", nil, Note{note}, nil)
}

// Queues that the service knows: all of them, page by page.
func (c Client) Queues(ctx context.Context) (all Queues, err error) {
	for after := ""; ; {
		var next Queues
		if err := c.call(ctx, http.MethodGet, v1+"/queues", page(after, maxPaged), nil, &next); err != nil {
			return all, err
		}
		all.Queues, all.Forgotten = append(all.Queues, next.Queues...), append(all.Forgotten, next.Forgotten...)
		if after = next.After; after == "" {
			return all, nil
		}
	}
}

// Queue is one of them, with what a person needs to decide about it.
func (c Client) Queue(ctx context.Context, queue string) (d inspect.QueueDetail, err error) {
	return d, c.call(ctx, http.MethodGet, v1+"/queues"+escaped(queue), nil, nil, &d)
}

// Ledger is how many messages came for each queue, and what became of them: all lines,
// page by page.
func (c Client) Ledger(ctx context.Context, recount bool) (all inspect.Ledger, err error) {
	first := []string{"recount", strconv.FormatBool(recount)}
	for after := ""; ; first = nil {
		var next inspect.Ledger
		if err := c.call(ctx, http.MethodGet, v1+"/ledger", page(after, maxPaged, first...), nil, &next); err != nil {
			return all, err
		}
		next.Queues = append(all.Queues, next.Queues...)
		all = next
		if after, all.After = next.After, ""; after == "" {
			return all, nil
		}
	}
}

// AllowReplays allows replays to a queue that is not enrolled.
func (c Client) AllowReplays(ctx context.Context, queue, reason string) error {
	return c.call(ctx, http.MethodPut, v1+"/queues"+escaped(queue)+"/replays", nil, Reason{reason}, nil)
}

// SetGroupState sets a group's state.
func (c Client) SetGroupState(ctx context.Context, group, state, note string) error {
	return c.call(ctx, http.MethodPost, v1+"/groups"+escaped(group)+"/state", nil, GroupState{state, note}, nil)
}

// PauseQueue pauses the retries of a queue.
func (c Client) PauseQueue(ctx context.Context, queue, reason string) error {
	return c.call(ctx, http.MethodPut, v1+"/queues"+escaped(queue)+"/pause", nil, Reason{reason}, nil)
}

// ResumeQueue resumes the retries of a queue.
func (c Client) ResumeQueue(ctx context.Context, queue, reason string) error {
	return c.call(ctx, http.MethodDelete, v1+"/queues"+escaped(queue)+"/pause", values("reason", reason), nil, nil)
}

// Breaker sets a queue's circuit breaker: open, closed or auto.
func (c Client) Breaker(ctx context.Context, queue, force, reason string) error {
	return c.call(ctx, http.MethodPut, v1+"/queues"+escaped(queue)+"/breaker", nil, Breaker{force, reason}, nil)
}

// Policies in force.
func (c Client) Policies(ctx context.Context) (p Policies, err error) {
	return p, c.call(ctx, http.MethodGet, v1+"/policies", nil, nil, &p)
}

// Snapshot has the service write a copy of its store to a folder of its machine.
func (c Client) Snapshot(ctx context.Context, folder string) (made actions.SnapshotMade, err error) {
	return made, c.call(ctx, http.MethodPost, v1+"/snapshot", nil, Snapshot{folder}, &made)
}

// Act does something to messages that are named.
func (c Client) Act(ctx context.Context, a actions.Act) (done actions.Acted, err error) {
	return done, c.call(ctx, http.MethodPost, v1+"/act", nil, a, &done)
}

// Edit replaces a message by an edited one, or shows the difference.
func (c Client) Edit(ctx context.Context, e actions.EditRequest) (done actions.Edited, err error) {
	return done, c.call(ctx, http.MethodPost, v1+"/edit", nil, e, &done)
}

// Decode reads a body as the service does one of a message's.
func (c Client) Decode(ctx context.Context, b DecodeRequest) (r decode.Result, err error) {
	return r, c.call(ctx, http.MethodPost, v1+"/decode", nil, b, &r)
}

// Plan freezes what a query finds, and tells what an action on it would do.
func (c Client) Plan(ctx context.Context, r operations.PlanRequest) (p operations.Plan, err error) {
	return p, c.call(ctx, http.MethodPost, v1+"/plans", nil, r, &p)
}

// GetPlan is a plan that was made.
func (c Client) GetPlan(ctx context.Context, id string) (p operations.Plan, err error) {
	return p, c.call(ctx, http.MethodGet, v1+"/plans"+escaped(id), nil, nil, &p)
}

// Start makes an operation of a plan.
func (c Client) Start(ctx context.Context, plan string, s operations.Start) (o operations.Operation, err error) {
	return o, c.call(ctx, http.MethodPost, v1+"/plans"+escaped(plan)+"/start", nil, s, &o)
}

// DeadLetterQueues are those that could be adopted.
func (c Client) DeadLetterQueues(ctx context.Context) (q DeadLetterQueues, err error) {
	return q, c.call(ctx, http.MethodGet, v1+"/dead-letter-queues", nil, nil, &q)
}

// Follow has the service follow a dead-letter queue.
func (c Client) Follow(ctx context.Context, queue string, q operations.FollowRequest) error {
	return c.call(ctx, http.MethodPut, v1+"/dead-letter-queues"+escaped(queue)+"/follow", nil, q, nil)
}

// Unfollow has the service no longer follow one that a person has followed.
func (c Client) Unfollow(ctx context.Context, queue, reason string) error {
	path := v1 + "/dead-letter-queues" + escaped(queue) + "/follow"
	return c.call(ctx, http.MethodDelete, path, values("reason", reason), nil, nil)
}

// Operations that run or have ended, newest first.
func (c Client) Operations(ctx context.Context) (o Operations, err error) {
	return o, c.call(ctx, http.MethodGet, v1+"/operations", nil, nil, &o)
}

// Operation is one of them.
func (c Client) Operation(ctx context.Context, id string) (o operations.Operation, err error) {
	return o, c.call(ctx, http.MethodGet, v1+"/operations"+escaped(id), nil, nil, &o)
}

// Order pauses, resumes or cancels an operation.
func (c Client) Order(ctx context.Context, id string, order operations.Order) (o operations.Operation, err error) {
	return o, c.call(ctx, http.MethodPost, v1+"/operations"+escaped(id, string(order)), nil, nil, &o)
}

// Outcomes is one page of what came of an operation's messages.
func (c Client) Outcomes(ctx context.Context, id, after string, limit int) (o operations.Outcomes, err error) {
	return o, c.call(ctx, http.MethodGet, v1+"/operations"+escaped(id)+"/outcomes", page(after, limit), nil, &o)
}

// Audit is one page of the audit log, newest first. It may be short, even empty, and not be the last.
func (c Client) Audit(ctx context.Context, f inspect.AuditFilter, after string, limit int) (a AuditPage, err error) {
	q := page(after, limit, "who", f.Who, "on", f.On, "did", f.Did, "since", f.Since, "until", f.Until)
	return a, c.call(ctx, http.MethodGet, v1+"/audit", q, nil, &a)
}

// Report tells the audit log what was done at RabbitMQ without the service.
func (c Client) Report(ctx context.Context, r actions.Report) error {
	return c.call(ctx, http.MethodPost, v1+"/audit", nil, r, nil)
}

// Me is who the service takes the caller for.
func (c Client) Me(ctx context.Context) (m Me, err error) {
	return m, c.call(ctx, http.MethodGet, v1+"/me", nil, nil, &m)
}

// BeginDevice begins a sign-in that a person confirms in a browser.
func (c Client) BeginDevice(ctx context.Context) (d oauth2.DeviceAuthResponse, err error) {
	u, err := c.base()
	if err == nil {
		err = c.private(u)
	}
	if err != nil {
		return d, err
	}
	return d, c.call(ctx, http.MethodPost, auth.OIDCDevicePath, nil, struct{}{}, &d)
}

// FinishDevice returns the session once a person has confirmed the sign-in, and "" until then. After ErrTooMany, ask
// less often.
func (c Client) FinishDevice(ctx context.Context, code string) (session string, err error) {
	in, err := json.Marshal(map[string]string{"device_code": code})
	if err != nil {
		return "", err
	}
	resp, err := c.do(ctx, request{method: http.MethodPost, path: auth.OIDCDevicePath, body: bytes.NewReader(in),
		contentType: "application/json"})
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	for _, cookie := range resp.Cookies() {
		if cookie.Value != "" && cookie.MaxAge > 0 {
			return cookie.Name + "=" + cookie.Value, nil
		}
	}
	if resp.StatusCode != http.StatusAccepted {
		return "", fmt.Errorf("what answers at %s does not speak like Redrive: there is no session", c.Addr)
	}
	return "", nil
}

// SignOut ends the session.
func (c Client) SignOut(ctx context.Context) error {
	var p *Problem
	err := c.call(ctx, http.MethodPost, auth.SignOutPath, nil, nil, nil)
	if errors.As(err, &p) && p.Status == http.StatusSeeOther { // as the page needs it
		return nil
	}
	return err
}

// Tokens that were made, without their secrets.
func (c Client) Tokens(ctx context.Context) (t TokenList, err error) {
	return t, c.call(ctx, http.MethodGet, v1+"/tokens", nil, nil, &t)
}

// CreateToken makes one; its secret is shown this once.
func (c Client) CreateToken(ctx context.Context, n NewToken) (t MadeToken, err error) {
	return t, c.call(ctx, http.MethodPost, v1+"/tokens", nil, n, &t)
}

// RevokeToken ends one at once.
func (c Client) RevokeToken(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodDelete, v1+"/tokens"+escaped(name), nil, nil, nil)
}

// countTrailer says, after a whole export, how many messages it has.
const countTrailer = "Redrive-Count"

// Body is a message's raw body, by id or key. The caller closes it.
func (c Client) Body(ctx context.Context, id string) (io.ReadCloser, error) {
	resp, err := c.do(ctx, request{method: http.MethodGet, path: v1 + "/messages" + escaped(id) + "/body",
		accept: "application/octet-stream"})
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// Export writes what a query finds: as jsonl, which Import takes, byte for byte the
// same, or as csv, for people. An error after n messages means that some are missing.
func (c Client) Export(ctx context.Context, query, format string, w io.Writer) (n int64, err error) {
	resp, err := c.do(ctx, request{method: http.MethodGet, path: v1 + "/export",
		query: values("q", query, "format", format), accept: "*/*"})
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(w, resp.Body); err != nil {
		return 0, fmt.Errorf("the export is not whole: %w", err)
	}
	if n, err = strconv.ParseInt(resp.Trailer.Get(countTrailer), 10, 64); err != nil {
		return 0, errors.New("the export is not whole: the service did not say how many messages it has")
	}
	return n, nil
}

// Import sends an export back to be kept.
func (c Client) Import(ctx context.Context, r io.Reader, o actions.ImportOptions) (done actions.Imported, err error) {
	q := values()
	for name, set := range map[string]bool{"dry_run": o.DryRun, "as_is": o.AsIs, "even_if_kept": o.EvenIfKept} {
		if set {
			q.Set(name, "true")
		}
	}
	resp, err := c.do(ctx, request{method: http.MethodPost, path: v1 + "/import", query: q, body: r,
		contentType: typeJSONLines})
	if err != nil {
		return done, err
	}
	defer resp.Body.Close()
	return done, json.NewDecoder(resp.Body).Decode(&done)
}

// Live calls tick about once a second when something has changed, until ctx or the
// connection ends or tick fails. Its error is never nil.
func (c Client) Live(ctx context.Context, tick func(operations.Tick) error) error {
	for {
		again, err := c.live(ctx, tick)
		if err != nil || !again {
			return errors.Join(err, ctx.Err())
		}
	}
}

// live reads one stream. again reports that the service asked the client to open another.
func (c Client) live(ctx context.Context, tick func(operations.Tick) error) (again bool, err error) {
	resp, err := c.do(ctx, request{method: http.MethodGet, path: v1 + "/live", accept: typeEvents})
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 4<<20)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		switch {
		case lines.Text() == "event: again":
			return ctx.Err() == nil, nil
		case !ok:
			continue
		}
		var t operations.Tick
		if err := json.Unmarshal([]byte(data), &t); err != nil {
			return false, fmt.Errorf("what answers at %s does not speak like Redrive: %w", c.Addr, err)
		}
		if err := tick(t); err != nil {
			return false, err
		}
	}
	if ctx.Err() != nil {
		return false, nil
	}
	return false, fmt.Errorf("%w at %s any more: %v", ErrUnreachable, c.Addr, lines.Err())
}
