// Package whatif says what a configuration would have done with the failures that a running service
// remembers, before it is in force: `redrive check --against`.
package whatif

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/query"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/policy"
)

// Service is a running service, as its API shows it.
type Service interface {
	Messages(ctx context.Context, query, after string, limit int) (inspect.Page, error)
	Message(ctx context.Context, id string, as inspect.ReadAs) (inspect.Detail, error)
}

const (
	pageSize = 1000
	// mostMessages is how many messages are read, and mostDetails how many of them with headers
	// and body, one by one.
	mostMessages = 200_000
	mostDetails  = 2000
)

// Counts are numbers of messages by what happens to them.
type Counts struct {
	Park, Retry, Discard, Forward int64
	Unknown                       int64 // only of Would
}

// Row is what happens to messages that one rule decides about, or the policy itself.
type Row struct {
	Policy, Rule string // "": no policy, no rule
	Would, Did   Counts
}

// Result is what would have happened, against what did.
type Result struct {
	Since    time.Time
	Messages int64
	Rows     []Row
	Bounded  bool // there are more messages than were read
}

// run is one comparison.
type run struct {
	config  *config.Config
	service Service
	decoder *decode.Decoder
	details int
	rows    map[[2]string]*Row
	result  Result
}

// Run compares, for the latest failure since then of each message that the service remembers.
func Run(ctx context.Context, c *config.Config, s Service, since time.Time) (*Result, error) {
	decoder, err := decode.New(c.Decode)
	if err != nil {
		return nil, err
	}
	r := &run{config: c, service: s, decoder: decoder, rows: map[[2]string]*Row{}, result: Result{Since: since}}
	for _, which := range []string{"", " state:retried"} {
		if err := r.each(ctx, "failed:>="+since.UTC().Format("2006-01-02T15:04:05Z07:00")+which); err != nil {
			return nil, err
		}
	}
	for _, row := range r.rows {
		r.result.Rows = append(r.result.Rows, *row)
	}
	slices.SortFunc(r.result.Rows, func(a, b Row) int {
		return cmp.Or(cmp.Compare(r.place(a), r.place(b)), cmp.Compare(a.Policy, b.Policy), cmp.Compare(a.Rule, b.Rule))
	})
	return &r.result, nil
}

// place orders rows as the configuration has policies and rules; what no rule decides comes after
// the rules.
func (r *run) place(row Row) int {
	const mostRules = 1 << 20
	for i := range r.config.Policies {
		p := &r.config.Policies[i]
		if p.Name != row.Policy {
			continue
		}
		if at := slices.IndexFunc(p.Rules, func(rule policy.Rule) bool { return rule.Name == row.Rule }); at >= 0 {
			return i*mostRules + at
		}
		return i*mostRules + len(p.Rules)
	}
	return len(r.config.Policies) * mostRules
}

// each reads the messages that a query finds.
func (r *run) each(ctx context.Context, q string) error {
	for after := ""; ; {
		page, err := r.service.Messages(ctx, q, after, pageSize)
		if err != nil {
			return err
		}
		for i := range page.Messages {
			if r.result.Messages == mostMessages {
				r.result.Bounded = true
				return nil
			}
			if err := r.count(ctx, &page.Messages[i]); err != nil {
				return err
			}
		}
		r.result.Bounded = r.result.Bounded || page.Bounded != ""
		if after = page.After; after == "" {
			return nil
		}
	}
}

func (r *run) count(ctx context.Context, m *inspect.Message) error {
	v, known, err := r.verdict(ctx, m)
	if err != nil {
		return err
	}
	at := [2]string{v.Policy, v.Rule}
	row := r.rows[at]
	if row == nil {
		row = &Row{Policy: v.Policy, Rule: v.Rule}
		r.rows[at] = row
	}
	r.result.Messages++
	if known {
		*row.Would.of(v.Action)++
	} else {
		row.Would.Unknown++
	}
	*row.Did.of(did(m))++
	return nil
}

func (c *Counts) of(a policy.Action) *int64 {
	switch a {
	case policy.Retry:
		return &c.Retry
	case policy.Discard:
		return &c.Discard
	case policy.Forward:
		return &c.Forward
	}
	return &c.Park
}

// did is what happened to a message.
func did(m *inspect.Message) policy.Action {
	switch {
	case m.State == inspect.Discarded:
		return policy.Discard
	case m.State == inspect.Parked:
		return policy.Park
	case m.SendsTo != "":
		return policy.Forward
	}
	return policy.Retry
}

// verdict decides by the configuration. known is false where that depends on what the service does
// not remember, or does not show for so many messages.
func (r *run) verdict(ctx context.Context, m *inspect.Message) (v policy.Verdict, known bool, err error) {
	queue := cmp.Or(r.config.Redirects[m.Queue], m.Queue)
	p, ok := r.config.Policies.Match(queue)
	switch {
	case !ok:
		return policy.Verdict{}, true, nil
	case strings.HasPrefix(m.ParkedFor, "its consumer parked it"):
		return policy.Verdict{Policy: p.Name}, true, nil
	}
	rec := recordOf(m, queue)
	v = p.Decide(failureOf(m, rec, listed(m, rec)))
	if v.Note == "" || m.State == inspect.Retried || r.details == mostDetails {
		return v, v.Note == "", nil
	}
	r.details++
	d, err := r.service.Message(ctx, cmp.Or(m.Key, m.ID), inspect.ReadAs{})
	if err != nil {
		return v, false, err
	}
	addDetail(rec, &d)
	v = p.Decide(failureOf(m, rec, r.detailed(ctx, rec, &d)))
	return v, v.Note == "", nil
}

func failureOf(m *inspect.Message, rec *store.Record, details *query.Asked) policy.Failure {
	return policy.Failure{Queue: rec.Queue, Reason: m.Reason, Attempt: max(m.Attempt, 1), Age: m.Failed.Sub(m.FirstFailed), Error: m.Error,
		Headers: rec.Message.Headers, Details: details}
}

// recordOf is a message as far as a list of messages shows it.
func recordOf(m *inspect.Message, queue string) *store.Record {
	rec := &store.Record{Queue: queue, Reason: m.Reason, Error: m.Error, Failures: max(m.Attempt, 1), FirstFailed: m.FirstFailed, FailedAt: m.Failed}
	rec.ID, _ = query.ParseID(m.ID)
	rec.Message.Exchange, rec.Message.RoutingKey, rec.Message.Type, rec.Message.ContentType = m.Exchange, m.RoutingKey, m.Type, m.ContentType
	return rec
}

const notShown = "the service does not show that of this message"

// listed asks about a message of a list: nothing is known there of its headers and its body, and of
// one that was retried little more than its error.
func listed(m *inspect.Message, rec *store.Record) *query.Asked {
	a := query.Ask(&store.Listed{Record: rec, BodySize: m.Size}, func() (*decode.Result, string) { return nil, notShown })
	lacks := []string{"header.", "message_id", "correlation_id", "app_id"}
	if m.State == inspect.Retried {
		lacks = append(lacks, "exchange", "key", "type", "content_type", "size", "first", "group")
	}
	a.Lacks(notShown, lacks...)
	return a
}

// addDetail adds the headers and properties of a message.
func addDetail(rec *store.Record, d *inspect.Detail) {
	rec.Message.Headers = map[string]any{}
	for _, h := range d.Headers {
		rec.Message.Headers[h.Name] = h.Value
	}
	for _, p := range d.Properties {
		switch p.Name {
		case "message_id":
			rec.Message.MessageID = p.Value
		case "correlation_id":
			rec.Message.CorrelationID = p.Value
		case "app_id":
			rec.Message.AppID = p.Value
		}
	}
}

// detailed asks about a message with its headers and its body, as the service has decoded it.
func (r *run) detailed(ctx context.Context, rec *store.Record, d *inspect.Detail) *query.Asked {
	return query.Ask(&store.Listed{Record: rec, BodySize: d.Size}, func() (*decode.Result, string) {
		b := d.Body
		switch {
		case b == nil:
			return nil, notShown
		case b.Truncated:
			return nil, fmt.Sprintf("its body is longer than the %d bytes that the service shows", len(b.Text))
		case b.Format == "json" || b.Format == "messagepack" || b.Format == "cbor" || b.Format == "protobuf":
			return r.decoder.Decode(ctx, decode.Body{Bytes: []byte(b.Text), ContentType: "application/json"}), ""
		}
		shown := *b
		shown.Inner = []byte(b.Text)
		return &shown, ""
	})
}
