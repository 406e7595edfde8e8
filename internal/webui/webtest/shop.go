// Package webtest is a made-up shop behind the page: a console that keeps all in
// memory, so that each page can be looked at in each of its states. It knows
// nothing of brokers and stores, and stands in only where the page is the subject.
package webtest

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/audit"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/query"
)

// Shop is an operations.Console. Its fields are what it shows; tests change them before they
// serve it.
type Shop struct {
	operations.Console // nil: of what the page does not call

	mu sync.Mutex

	Now        time.Time
	Messages   []inspect.Detail
	Raw        map[string][]byte
	GroupList  []inspect.Group
	Elsewhere  map[string]int // in how many other queues is an error, by the group's id
	QueueList  []inspect.Queue
	PolicyList []inspect.PolicyInForce
	Log        []audit.Entry
	Ops        []operations.Operation
	Plans      map[string]operations.Plan
	Problems   []string
	Notices    []string
	Reasons    []inspect.HealthReason // besides problems and notices
	Examined   inspect.Examination
	Hour       []inspect.Flow
	Calendar   []inspect.Slot
	Bounded    string
	// Replicas beat as long before each look as they have before Now.
	Replicas []inspect.Replica
	// Fails, when set, is what every method answers.
	Fails error
	// Slow makes reading wait until its context ends, as a search over very many
	// bodies does.
	Slow bool
	// Asked are the actions that were asked for.
	Asked []any
}

func (s *Shop) enter(ctx context.Context) (func(), error) {
	if _, limited := ctx.Deadline(); s.Slow && limited {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if s.Fails != nil {
		return nil, s.Fails
	}
	s.mu.Lock()
	return s.mu.Unlock, nil
}

func (s *Shop) counts() (waiting, parked, discarded int64) {
	for _, q := range s.QueueList {
		waiting, parked, discarded = waiting+q.Waiting, parked+q.Parked, discarded+q.Discarded
	}
	return
}

// Overview is as in package inspect; the others are as there, in actions or in operations.
func (s *Shop) Overview(ctx context.Context, c auth.Caller) (inspect.Overview, error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return inspect.Overview{}, err
	}
	defer leave()
	o := inspect.Overview{Version: "1.4.0", Since: s.Now.Add(-51 * time.Hour), Now: s.Now, Broker: "amqp://redrive@rabbit-1.shop.internal:5672/shop", ReadOnly: c.ReadOnly,
		Ready: true, Health: s.health(), Problems: s.Problems, Notices: s.Notices, Hour: s.Hour, Calendar: s.Calendar, Queues: s.QueueList}
	for _, r := range s.Replicas {
		r.Beat = time.Now().Add(r.Beat.Sub(s.Now)) // they go on beating, or are silent for as long
		o.Replicas = append(o.Replicas, r)
	}
	o.Waiting, o.Parked, o.Discarded = s.counts()
	for _, q := range s.QueueList {
		o.PerMinute.Failed += q.Failed
		o.PerMinute.Retried += q.Retried
		o.PerMinute.Parked += q.ParkedIn
		if q.Oldest != nil && (o.Oldest == nil || q.Oldest.Before(*o.Oldest)) {
			o.Oldest = q.Oldest
		}
		if q.NextDue != nil && (o.NextDue == nil || q.NextDue.Before(*o.NextDue)) {
			o.NextDue = q.NextDue
		}
	}
	return o, nil
}

// VHost is the shop's line on the page about all virtual hosts.
func (s *Shop) VHost(ctx context.Context, c auth.Caller) (inspect.VHost, error) {
	o, err := s.Overview(ctx, c)
	v := inspect.VHost{Identity: inspect.Identity{Name: "shop/eu", VHost: "shop", Cluster: "rabbit@rabbit-1", RabbitMQ: "4.3.6"},
		Broker: o.Broker, Ready: o.Ready, Waiting: o.Waiting, Parked: o.Parked, PerMinute: o.PerMinute, NextDue: o.NextDue, Problems: len(o.Problems)}
	for _, p := range o.Problems[:min(1, len(o.Problems))] {
		v.Problem = p
	}
	return v, err
}

// find is a rough reading of queries: state, queue and group, and words.
func (s *Shop) find(q string) ([]inspect.Message, error) {
	if _, err := query.Parse(q); err != nil {
		return nil, err
	}
	var all []inspect.Message
	for _, m := range s.Messages {
		ok := true
		for _, term := range strings.Fields(q) {
			field, value, _ := strings.Cut(term, ":")
			value = strings.Trim(value, `"`)
			switch field {
			case "state":
				ok = ok && m.State == value
			case "queue":
				ok = ok && (m.Queue == value || strings.HasSuffix(value, "*") && strings.HasPrefix(m.Queue, strings.TrimSuffix(value, "*")))
			case "group":
				ok = ok && m.Group == value
			case "error":
				ok = ok && strings.Contains(m.Error, value)
			}
		}
		if ok {
			all = append(all, m.Message)
		}
	}
	return all, nil
}

func (s *Shop) Search(ctx context.Context, _ auth.Caller, q, after string, limit int) (inspect.Page, error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return inspect.Page{}, err
	}
	defer leave()
	all, err := s.find(q)
	if err != nil {
		return inspect.Page{}, err
	}
	p := inspect.Page{Looked: int64(len(all)), Bounded: s.Bounded, Messages: []inspect.Message{}}
	if after != "" {
		if i := slices.IndexFunc(all, func(m inspect.Message) bool { return m.ID == after }); i >= 0 {
			all = all[i+1:]
		}
	}
	if len(all) > limit {
		all, p.After = all[:limit], all[limit-1].ID
	}
	p.Messages = append(p.Messages, all...)
	return p, nil
}

func (s *Shop) Count(ctx context.Context, _ auth.Caller, q string, _ int64) (int64, bool, error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return 0, false, err
	}
	defer leave()
	all, err := s.find(q)
	return int64(len(all)), true, err
}

func (s *Shop) at(id string) int {
	return slices.IndexFunc(s.Messages, func(m inspect.Detail) bool { return m.ID == id || m.Key == id && id != "" })
}

func (s *Shop) Message(ctx context.Context, _ auth.Caller, id string, _ inspect.ReadAs) (inspect.Detail, error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return inspect.Detail{}, err
	}
	defer leave()
	if i := s.at(id); i >= 0 {
		return s.Messages[i], nil
	}
	return inspect.Detail{}, inspect.ErrNotFound
}

func (s *Shop) Body(ctx context.Context, _ auth.Caller, id string) ([]byte, error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	if i := s.at(id); i >= 0 {
		return s.Raw[s.Messages[i].ID], nil
	}
	return nil, inspect.ErrNotFound
}

func (s *Shop) Groups(ctx context.Context, _ auth.Caller, q, _ string, limit int) (page inspect.GroupPage, err error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return page, err
	}
	defer leave()
	_, err = s.find(q)
	return inspect.GroupPage{Groups: s.GroupList[:min(limit, len(s.GroupList))], Total: len(s.GroupList)}, err
}

// Ledger makes what it says of the queues' states, and thrice as many came and went.
func (s *Shop) Ledger(ctx context.Context, _ auth.Caller, _ bool, _ string, _ int) (l inspect.Ledger, err error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return l, err
	}
	defer leave()
	l.Recounted = &s.Now
	for _, q := range s.QueueList {
		kept := q.Waiting + q.Parked + q.Discarded
		l.Queues = append(l.Queues, inspect.LedgerLine{Queue: q.Name, In: 4 * kept, Retried: 3 * kept, Waiting: q.Waiting, Parked: q.Parked, Discarded: q.Discarded})
	}
	return l, nil
}

func (s *Shop) Policies(ctx context.Context, _ auth.Caller) ([]inspect.PolicyInForce, error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	return s.PolicyList, nil
}

func (s *Shop) AuditLog(ctx context.Context, c auth.Caller, _ string, _ int) ([]audit.Entry, string, error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return nil, "", err
	}
	defer leave()
	return s.Log, "", c.MaySee(auth.Admin)
}

func (s *Shop) Export(ctx context.Context, _ auth.Caller, q string, w io.Writer) (int64, error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return 0, err
	}
	defer leave()
	all, err := s.find(q)
	for _, m := range all {
		fmt.Fprintf(w, "{\"id\":%q}\n", m.ID)
	}
	return int64(len(all)), err
}

// Read is a body as the decoders would show it, for what is put into a shop.
func Read(format, text string, raw []byte, steps ...decode.Step) *decode.Result {
	return &decode.Result{Size: len(raw), Format: format, Text: text, Hex: hex.Dump(raw[:min(len(raw), 4096)]), Steps: steps}
}
