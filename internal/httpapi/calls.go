package httpapi

import (
	"context"
	"crypto/tls"
	"net/http"
	"net/url"
	"strconv"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/operations"
)

const v1 = "/api/v1"

// VHostsPath is the route of the virtual hosts, which at the root of several is about all.
const VHostsPath = v1 + "/vhosts"

// mostPaged is the page size when the client reads a whole list.
const mostPaged = 1000

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

// VHostList has the virtual hosts of a service, as far as the caller may see them.
func (c Client) VHostList(ctx context.Context) (v VHostList, err error) {
	return v, c.call(ctx, http.MethodGet, VHostsPath, nil, nil, &v)
}

// Messages is one page of what a query finds, latest first: by when each is due, or was parked or
// retried; limit 0: 100.
func (c Client) Messages(ctx context.Context, query, after string, limit int) (p inspect.Page, err error) {
	return p, c.call(ctx, http.MethodGet, v1+"/messages", page(after, limit, "q", query), nil, &p)
}

// Count is how many messages a query finds.
func (c Client) Count(ctx context.Context, query string) (n Count, err error) {
	return n, c.call(ctx, http.MethodGet, v1+"/count", values("q", query), nil, &n)
}

// Message is all that is known of one, by id or key.
func (c Client) Message(ctx context.Context, id string, as inspect.ReadAs) (d inspect.Detail, err error) {
	how := values("type", as.Type)
	if as.Defaults {
		how.Set("defaults", "true")
	}
	return d, c.call(ctx, http.MethodGet, v1+"/messages"+escaped(id), how, nil, &d)
}

// Groups of failures among what a query finds: all of them, page by page.
func (c Client) Groups(ctx context.Context, query string) (all inspect.GroupPage, err error) {
	for after := ""; ; {
		var next inspect.GroupPage
		if err := c.call(ctx, http.MethodGet, v1+"/groups", page(after, mostPaged, "q", query), nil, &next); err != nil {
			return all, err
		}
		all.Groups, all.Total = append(all.Groups, next.Groups...), next.Total
		if after = next.After; after == "" {
			return all, nil
		}
	}
}

// NoteGroup sets a group's note; "" removes it.
func (c Client) NoteGroup(ctx context.Context, group, note string) error {
	return c.call(ctx, http.MethodPut, v1+"/groups"+escaped(group)+"/note", nil, Note{note}, nil)
}

// Queues that the service knows: all of them, page by page.
func (c Client) Queues(ctx context.Context) (all Queues, err error) {
	for after := ""; ; {
		var next Queues
		if err := c.call(ctx, http.MethodGet, v1+"/queues", page(after, mostPaged), nil, &next); err != nil {
			return all, err
		}
		all.Queues, all.Total = append(all.Queues, next.Queues...), next.Total
		if after = next.After; after == "" {
			return all, nil
		}
	}
}

// Ledger is how many messages came for each queue, and what became of them: all lines,
// page by page.
func (c Client) Ledger(ctx context.Context, recount bool) (all inspect.Ledger, err error) {
	first := []string{"recount", strconv.FormatBool(recount)}
	for after := ""; ; first = nil {
		var next inspect.Ledger
		if err := c.call(ctx, http.MethodGet, v1+"/ledger", page(after, mostPaged, first...), nil, &next); err != nil {
			return all, err
		}
		next.Queues = append(all.Queues, next.Queues...)
		all = next
		if after, all.After = next.After, ""; after == "" {
			return all, nil
		}
	}
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
	return c.OutcomesOnly(ctx, id, "", after, limit)
}

// OutcomesOnly is one page of what came of those of an operation's messages that failed again
// (operations.OnlyAgain), or of the rest (operations.OnlyRest).
func (c Client) OutcomesOnly(ctx context.Context, id, only, after string, limit int) (o operations.Outcomes, err error) {
	return o, c.call(ctx, http.MethodGet, v1+"/operations"+escaped(id)+"/outcomes", page(after, limit, "only", only), nil, &o)
}

// Audit is one page of the audit log, newest first.
func (c Client) Audit(ctx context.Context, after string, limit int) (a AuditPage, err error) {
	return a, c.call(ctx, http.MethodGet, v1+"/audit", page(after, limit), nil, &a)
}

// Me is who the service takes the caller for.
func (c Client) Me(ctx context.Context) (m Me, err error) {
	return m, c.call(ctx, http.MethodGet, v1+"/me", nil, nil, &m)
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
