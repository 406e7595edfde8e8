package webtest

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/operations"
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

func (s *Shop) Act(ctx context.Context, c auth.Caller, a actions.Act) (actions.Acted, error) {
	leave, err := s.act(ctx, c, auth.Operator, a)
	if err != nil {
		return actions.Acted{}, err
	}
	defer leave()
	var acted actions.Acted
	for _, id := range a.IDs {
		o := actions.Outcome{ID: id, Outcome: "skipped", Why: "it is not kept any more", At: s.Now}
		if i := s.at(id); i >= 0 {
			m := &s.Messages[i]
			o.Queue = m.Queue
			switch {
			case a.Verb == actions.Replay && m.State == inspect.Discarded, a.Verb == actions.Restore && m.State != inspect.Discarded, a.Verb == actions.Discard && m.State == inspect.Discarded:
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

func (s *Shop) change(m *inspect.Detail, a actions.Act) {
	until := s.Now.Add(7 * 24 * time.Hour)
	due := s.Now
	if a.At != nil {
		due = *a.At
	}
	switch a.Verb {
	case actions.Replay:
		m.State, m.Due, m.ParkedAt, m.ParkedFor = inspect.Waiting, &due, nil, ""
	case actions.Discard:
		m.State, m.Restorable, m.Due = inspect.Discarded, &until, nil
	case actions.Restore:
		m.State, m.ParkedAt, m.Restorable = inspect.Parked, &due, nil
	}
}

func (s *Shop) Edit(ctx context.Context, c auth.Caller, e actions.EditRequest) (actions.Edited, error) {
	leave, err := s.act(ctx, c, auth.Editor, e)
	if err != nil {
		return actions.Edited{}, err
	}
	defer leave()
	i := s.at(e.ID)
	if i < 0 {
		return actions.Edited{}, inspect.ErrNotFound
	}
	d := actions.Edited{}
	if e.Document != nil {
		if *e.Document == "" {
			return d, fmt.Errorf("%w: the document is not JSON: line 1, column 1: it is empty", inspect.ErrInvalid)
		}
		d.Fields = append(d.Fields, actions.Change{Path: "order.total", Before: "129900", After: "12990"}, actions.Change{Path: "order.currency", Before: "", After: "EUR"})
		d.Bytes = "-00000010  0a 05 41 43 4d 45 20 10  ec f6 07\n+00000010  0a 05 41 43 4d 45 20 10  be 65"
		d.Checks = []string{"shop.v1.Order: every field is known to the schema"}
	}
	for name, v := range e.SetHeaders {
		d.Fields = append(d.Fields, actions.Change{Path: "header." + name, Before: "acme", After: v})
	}
	for _, name := range e.RemoveHeaders {
		d.Fields = append(d.Fields, actions.Change{Path: "header." + name, Before: "acme"})
	}
	if e.DryRun {
		return d, nil
	}
	m := s.Messages[i]
	m.ID, m.Key = uuid.NewSHA1(uuid.Nil, []byte(m.ID+fmt.Sprint(len(s.Messages)))).String(), ""
	m.MadeFrom, m.Due, m.State = e.ID, &s.Now, inspect.Waiting
	s.Messages[i].MadeInto, s.Messages[i].State = m.ID, inspect.Discarded
	s.Messages = append(s.Messages, m)
	s.Raw[m.ID] = s.Raw[e.ID]
	d.New = m.ID
	return d, nil
}

func (s *Shop) PauseQueue(ctx context.Context, c auth.Caller, queue, reason string) error {
	return s.setPause(ctx, c, queue, &inspect.QueuePause{By: c.Name, Since: s.Now, Reason: reason})
}

func (s *Shop) ResumeQueue(ctx context.Context, c auth.Caller, queue, _ string) error {
	return s.setPause(ctx, c, queue, nil)
}

func (s *Shop) Breaker(ctx context.Context, c auth.Caller, queue, to, reason string) error {
	g := &inspect.ThrottleView{State: to}
	if to == "auto" {
		g.State = "closed"
	} else {
		g.Forced = &inspect.Forced{To: to, By: c.Name, Since: s.Now, Reason: reason}
	}
	return s.setQueue(ctx, c, queue, g, func(q *inspect.Queue) { q.Throttle = g })
}

func (s *Shop) setPause(ctx context.Context, c auth.Caller, queue string, h *inspect.QueuePause) error {
	return s.setQueue(ctx, c, queue, h, func(q *inspect.Queue) { q.Pause = h })
}

func (s *Shop) setQueue(ctx context.Context, c auth.Caller, queue string, to any, set func(*inspect.Queue)) error {
	leave, err := s.act(ctx, c, auth.Operator, to)
	if err != nil {
		return err
	}
	defer leave()
	i := slices.IndexFunc(s.QueueList, func(q inspect.Queue) bool { return q.Name == queue })
	if i < 0 {
		return inspect.ErrNotFound
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
	i := slices.IndexFunc(s.GroupList, func(g inspect.Group) bool { return g.ID == id })
	if i < 0 {
		return inspect.ErrNotFound
	}
	s.GroupList[i].Note = note
	return nil
}

func (s *Shop) Plan(ctx context.Context, c auth.Caller, r operations.PlanRequest) (operations.Plan, error) {
	leave, err := s.act(ctx, c, auth.Operator, r)
	if err != nil {
		return operations.Plan{}, err
	}
	defer leave()
	if i := s.operation(r.RestOf); i >= 0 {
		r.Query = s.Ops[i].Query
	}
	if r.Query == "" {
		return operations.Plan{}, fmt.Errorf("%w: the query is empty, which would be all messages: say which", inspect.ErrInvalid)
	}
	all, err := s.find(r.Query)
	if err != nil {
		return operations.Plan{}, err
	}
	p := operations.Plan{ID: fmt.Sprintf("p%d", len(s.Plans)+1), Verb: r.Verb, Query: r.Query, RestOf: r.RestOf, At: r.At, To: r.To, Reason: r.Reason, By: c.Name, Made: s.Now, Expires: s.Now.Add(time.Hour)}
	n := map[string]int64{}
	for _, m := range all {
		if m.State == inspect.Retried {
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
		p.Skipped = append(p.Skipped, operations.Skipped{Why: "were retried", Count: left})
	}
	for _, q := range s.QueueList {
		if n[q.Name] == 0 {
			continue
		}
		pq := operations.PlanQueue{Known: true, Queue: q.Name, Count: n[q.Name], Paused: q.Pause != nil}
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
	if p.Count >= 100 && r.Verb.Publishes() {
		p.SuggestedCanary = 10
	}
	s.Plans[p.ID] = p
	return p, nil
}

func (s *Shop) GetPlan(ctx context.Context, _ auth.Caller, id string) (operations.Plan, error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return operations.Plan{}, err
	}
	defer leave()
	p, ok := s.Plans[id]
	if !ok {
		return p, inspect.ErrNotFound
	}
	return p, nil
}

func (s *Shop) Start(ctx context.Context, c auth.Caller, plan string, st operations.Start) (operations.Operation, error) {
	leave, err := s.act(ctx, c, auth.Operator, st)
	if err != nil {
		return operations.Operation{}, err
	}
	defer leave()
	p, ok := s.Plans[plan]
	switch {
	case !ok:
		return operations.Operation{}, inspect.ErrNotFound
	case len(p.Blocked) > 0:
		return operations.Operation{}, fmt.Errorf("%w: %s", inspect.ErrPrecondition, p.Blocked[0])
	case st.ExpectCount != nil && *st.ExpectCount != p.Count:
		return operations.Operation{}, fmt.Errorf("%w: the plan is about %d messages, not %d", inspect.ErrPrecondition, p.Count, *st.ExpectCount)
	}
	o := operations.Operation{Plan: p, State: operations.Running, Rate: st.Rate, CanarySize: st.CanarySize, Started: s.Now, StartedBy: c.Name, Left: "40s"}
	o.ID = fmt.Sprintf("op%d", len(s.Ops)+1)
	s.Ops = append([]operations.Operation{o}, s.Ops...)
	return o, nil
}

func (s *Shop) Operations(ctx context.Context, _ auth.Caller) ([]operations.Operation, error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	return slices.Clone(s.Ops), nil
}

func (s *Shop) operation(id string) int {
	return slices.IndexFunc(s.Ops, func(o operations.Operation) bool { return o.ID == id })
}

func (s *Shop) Operation(ctx context.Context, _ auth.Caller, id string) (operations.Operation, error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return operations.Operation{}, err
	}
	defer leave()
	if i := s.operation(id); i >= 0 {
		return s.Ops[i], nil
	}
	return operations.Operation{}, inspect.ErrNotFound
}

func (s *Shop) Order(ctx context.Context, c auth.Caller, id string, o operations.Order) (operations.Operation, error) {
	leave, err := s.act(ctx, c, auth.Operator, o)
	if err != nil {
		return operations.Operation{}, err
	}
	defer leave()
	i := s.operation(id)
	if i < 0 {
		return operations.Operation{}, inspect.ErrNotFound
	}
	op := &s.Ops[i]
	switch o {
	case operations.Pause:
		op.State, op.Why = operations.Paused, "paused by "+c.Name
	case operations.Resume:
		op.State, op.Why = operations.Running, ""
	case operations.Cancel:
		op.State, op.Ended = operations.Canceled, &s.Now
	}
	return *op, nil
}

func (s *Shop) Outcomes(ctx context.Context, _ auth.Caller, id, only, _ string, _ int) (operations.Outcomes, error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return operations.Outcomes{}, err
	}
	defer leave()
	i := s.operation(id)
	if i < 0 {
		return operations.Outcomes{}, inspect.ErrNotFound
	}
	var out operations.Outcomes
	for j, m := range s.Messages {
		if int64(j) >= min(s.Ops[i].Done+s.Ops[i].SkippedN, 40) {
			break
		}
		o := actions.Outcome{ID: m.ID, Queue: m.Queue, Outcome: "done", At: s.Now.Add(-time.Duration(j) * time.Second)}
		if j%9 == 4 {
			o.Outcome, o.Why = "skipped", "it was discarded meanwhile"
		} else if int64(j%7) < min(s.Ops[i].Again, 1) {
			o.Again = &actions.FailedAgain{At: o.At.Add(20 * time.Second), Error: m.Error}
		}
		if only == operations.OnlyAgain && o.Again == nil || only == operations.OnlyRest && o.Again == nil && o.Outcome == "done" {
			continue
		}
		out.Outcomes = append(out.Outcomes, o)
	}
	return out, nil
}
