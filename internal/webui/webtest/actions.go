package webtest

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/console"
)

// act is enter for what needs a role.
func (s *Shop) act(ctx context.Context, c auth.Caller, role auth.Role, asked any) (func(), error) {
	if err := c.May(role, ""); err != nil {
		return nil, err
	}
	leave, err := s.enter(ctx)
	if err == nil {
		s.Asked = append(s.Asked, asked)
	}
	return leave, err
}

func (s *Shop) Act(ctx context.Context, c auth.Caller, a console.Act) (console.Acted, error) {
	leave, err := s.act(ctx, c, auth.Operator, a)
	if err != nil {
		return console.Acted{}, err
	}
	defer leave()
	var acted console.Acted
	for _, id := range a.IDs {
		o := console.Outcome{ID: id, Outcome: "skipped", Why: "it is not kept any more", At: s.Now}
		if i := s.at(id); i >= 0 {
			m := &s.Messages[i]
			o.Queue = m.Queue
			switch {
			case a.Verb == console.Replay && m.State == console.Discarded, a.Verb == console.Restore && m.State != console.Discarded, a.Verb == console.Discard && m.State == console.Discarded:
				o.Why = "it is " + m.State
			default:
				o.Outcome, o.Why = "done", ""
				acted.Done++
				if !a.DryRun {
					s.change(m, a)
				}
			}
		}
		acted.Outcomes = append(acted.Outcomes, o)
	}
	return acted, nil
}

func (s *Shop) change(m *console.Detail, a console.Act) {
	until := s.Now.Add(7 * 24 * time.Hour)
	due := s.Now
	if a.At != nil {
		due = *a.At
	}
	switch a.Verb {
	case console.Replay:
		m.State, m.Due, m.ParkedAt, m.ParkedFor = console.Waiting, &due, nil, ""
	case console.Discard:
		m.State, m.Restorable, m.Due = console.Discarded, &until, nil
	case console.Restore:
		m.State, m.ParkedAt, m.Restorable = console.Parked, &due, nil
	}
}

func (s *Shop) Edit(ctx context.Context, c auth.Caller, e console.EditRequest) (console.Edited, error) {
	leave, err := s.act(ctx, c, auth.Editor, e)
	if err != nil {
		return console.Edited{}, err
	}
	defer leave()
	i := s.at(e.ID)
	if i < 0 {
		return console.Edited{}, console.ErrNotFound
	}
	d := console.Edited{}
	if e.Document != nil {
		if *e.Document == "" {
			return d, fmt.Errorf("%w: the document is not JSON: line 1, column 1: it is empty", console.ErrInvalid)
		}
		d.Fields = append(d.Fields, console.Change{Path: "order.total", Before: "129900", After: "12990"}, console.Change{Path: "order.currency", Before: "", After: "EUR"})
		d.Bytes = "-00000010  0a 05 41 43 4d 45 20 10  ec f6 07\n+00000010  0a 05 41 43 4d 45 20 10  be 65"
		d.Checks = []string{"shop.v1.Order: every field is known to the schema"}
	}
	for name, v := range e.SetHeaders {
		d.Fields = append(d.Fields, console.Change{Path: "header." + name, Before: "acme", After: v})
	}
	for _, name := range e.RemoveHeaders {
		d.Fields = append(d.Fields, console.Change{Path: "header." + name, Before: "acme"})
	}
	if e.DryRun {
		return d, nil
	}
	m := s.Messages[i]
	m.ID, m.Key = uuid.NewSHA1(uuid.Nil, []byte(m.ID+fmt.Sprint(len(s.Messages)))).String(), ""
	m.MadeFrom, m.Due, m.State = e.ID, &s.Now, console.Waiting
	s.Messages[i].MadeInto, s.Messages[i].State = m.ID, console.Discarded
	s.Messages = append(s.Messages, m)
	s.Raw[m.ID] = s.Raw[e.ID]
	d.New = m.ID
	return d, nil
}

func (s *Shop) PauseQueue(ctx context.Context, c auth.Caller, queue, reason string) error {
	return s.setPause(ctx, c, queue, &console.QueuePause{By: c.Name, Since: s.Now, Reason: reason})
}

func (s *Shop) ResumeQueue(ctx context.Context, c auth.Caller, queue, _ string) error {
	return s.setPause(ctx, c, queue, nil)
}

func (s *Shop) Breaker(ctx context.Context, c auth.Caller, queue, to, reason string) error {
	g := &console.Throttle{State: to}
	if to == "auto" {
		g.State = "closed"
	} else {
		g.Forced = &console.Forced{To: to, By: c.Name, Since: s.Now, Reason: reason}
	}
	return s.setQueue(ctx, c, queue, g, func(q *console.Queue) { q.Throttle = g })
}

func (s *Shop) setPause(ctx context.Context, c auth.Caller, queue string, h *console.QueuePause) error {
	return s.setQueue(ctx, c, queue, h, func(q *console.Queue) { q.Pause = h })
}

func (s *Shop) setQueue(ctx context.Context, c auth.Caller, queue string, to any, set func(*console.Queue)) error {
	leave, err := s.act(ctx, c, auth.Operator, to)
	if err != nil {
		return err
	}
	defer leave()
	i := slices.IndexFunc(s.QueueList, func(q console.Queue) bool { return q.Name == queue })
	if i < 0 {
		return console.ErrNotFound
	}
	set(&s.QueueList[i])
	return nil
}

func (s *Shop) NoteGroup(ctx context.Context, c auth.Caller, id, note string) error {
	leave, err := s.act(ctx, c, auth.Operator, note)
	if err != nil {
		return err
	}
	defer leave()
	i := slices.IndexFunc(s.GroupList, func(g console.Group) bool { return g.ID == id })
	if i < 0 {
		return console.ErrNotFound
	}
	s.GroupList[i].Note = note
	return nil
}

func (s *Shop) Plan(ctx context.Context, c auth.Caller, r console.PlanRequest) (console.Plan, error) {
	leave, err := s.act(ctx, c, auth.Operator, r)
	if err != nil {
		return console.Plan{}, err
	}
	defer leave()
	if r.Query == "" {
		return console.Plan{}, fmt.Errorf("%w: the query is empty, which would be all messages: say which", console.ErrInvalid)
	}
	all, err := s.find(r.Query)
	if err != nil {
		return console.Plan{}, err
	}
	p := console.Plan{ID: fmt.Sprintf("p%d", len(s.Plans)+1), Verb: r.Verb, Query: r.Query, At: r.At, To: r.To, Reason: r.Reason, By: c.Name, Made: s.Now, Expires: s.Now.Add(time.Hour)}
	n := map[string]int64{}
	for _, m := range all {
		if m.State == console.Retried {
			continue
		}
		p.Count++
		n[m.Queue]++
		if p.Oldest == nil || m.Failed.Before(*p.Oldest) {
			p.Oldest = &m.Failed
		}
		if p.Newest == nil || m.Failed.After(*p.Newest) {
			p.Newest = &m.Failed
		}
		if len(p.Samples) < 5 {
			p.Samples = append(p.Samples, m)
		}
	}
	if left := int64(len(all)) - p.Count; left > 0 {
		p.Skipped = append(p.Skipped, console.Skipped{Why: "were retried", Count: left})
	}
	for _, q := range s.QueueList {
		if n[q.Name] == 0 {
			continue
		}
		pq := console.PlanQueue{Known: true, Queue: q.Name, Count: n[q.Name], Paused: q.Pause != nil}
		if q.Broker != nil {
			pq.Exists, pq.Consumers, pq.Ready = q.Broker.Exists, q.Broker.Consumers, q.Broker.Ready
		}
		switch {
		case !pq.Exists:
			p.Blocked = append(p.Blocked, fmt.Sprintf("RabbitMQ has no queue %q: %d messages have nowhere to go", q.Name, pq.Count))
		case pq.Consumers == 0:
			p.Warnings = append(p.Warnings, fmt.Sprintf("the queue %q has no consumers: retried messages stay there", q.Name))
		}
		p.Queues = append(p.Queues, pq)
	}
	s.Plans[p.ID] = p
	return p, nil
}

func (s *Shop) GetPlan(ctx context.Context, _ auth.Caller, id string) (console.Plan, error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return console.Plan{}, err
	}
	defer leave()
	p, ok := s.Plans[id]
	if !ok {
		return p, console.ErrNotFound
	}
	return p, nil
}

func (s *Shop) Start(ctx context.Context, c auth.Caller, plan string, st console.Start) (console.Operation, error) {
	leave, err := s.act(ctx, c, auth.Operator, st)
	if err != nil {
		return console.Operation{}, err
	}
	defer leave()
	p, ok := s.Plans[plan]
	switch {
	case !ok:
		return console.Operation{}, console.ErrNotFound
	case len(p.Blocked) > 0:
		return console.Operation{}, fmt.Errorf("%w: %s", console.ErrPrecondition, p.Blocked[0])
	case st.ExpectCount != nil && *st.ExpectCount != p.Count:
		return console.Operation{}, fmt.Errorf("%w: the plan is about %d messages, not %d", console.ErrPrecondition, p.Count, *st.ExpectCount)
	}
	o := console.Operation{Plan: p, State: console.Running, Rate: st.Rate, Canary: st.Canary, Started: s.Now, StartedBy: c.Name, Left: "40s"}
	o.ID = fmt.Sprintf("op%d", len(s.Ops)+1)
	s.Ops = append([]console.Operation{o}, s.Ops...)
	return o, nil
}

func (s *Shop) Operations(ctx context.Context, _ auth.Caller) ([]console.Operation, error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	return slices.Clone(s.Ops), nil
}

func (s *Shop) operation(id string) int {
	return slices.IndexFunc(s.Ops, func(o console.Operation) bool { return o.ID == id })
}

func (s *Shop) Operation(ctx context.Context, _ auth.Caller, id string) (console.Operation, error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return console.Operation{}, err
	}
	defer leave()
	if i := s.operation(id); i >= 0 {
		return s.Ops[i], nil
	}
	return console.Operation{}, console.ErrNotFound
}

func (s *Shop) Order(ctx context.Context, c auth.Caller, id string, o console.Order) (console.Operation, error) {
	leave, err := s.act(ctx, c, auth.Operator, o)
	if err != nil {
		return console.Operation{}, err
	}
	defer leave()
	i := s.operation(id)
	if i < 0 {
		return console.Operation{}, console.ErrNotFound
	}
	op := &s.Ops[i]
	switch o {
	case console.Pause:
		op.State, op.Why = console.Paused, "paused by "+c.Name
	case console.Resume:
		op.State, op.Why = console.Running, ""
	case console.Cancel:
		op.State, op.Ended = console.Canceled, &s.Now
	}
	return *op, nil
}

func (s *Shop) Outcomes(ctx context.Context, _ auth.Caller, id, _ string, _ int) (console.Outcomes, error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return console.Outcomes{}, err
	}
	defer leave()
	i := s.operation(id)
	if i < 0 {
		return console.Outcomes{}, console.ErrNotFound
	}
	var out console.Outcomes
	for j, m := range s.Messages {
		if int64(j) >= min(s.Ops[i].Done+s.Ops[i].SkippedN, 40) {
			break
		}
		o := console.Outcome{ID: m.ID, Queue: m.Queue, Outcome: "done", At: s.Now.Add(-time.Duration(j) * time.Second)}
		if j%9 == 4 {
			o.Outcome, o.Why = "skipped", "it was discarded meanwhile"
		}
		out.Outcomes = append(out.Outcomes, o)
	}
	return out, nil
}
