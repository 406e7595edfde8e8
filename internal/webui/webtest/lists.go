package webtest

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/query"
)

// AddColumns knows the body's own fields and the headers.
func (s *Shop) AddColumns(ctx context.Context, _ auth.Caller, p *inspect.Page, columns []string, preview bool) error {
	leave, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	for i := range p.Messages {
		m := &p.Messages[i]
		at := s.at(m.ID)
		if at < 0 || s.Messages[at].Body == nil {
			continue
		}
		d := &s.Messages[at]
		if text := []rune(strings.Join(strings.Fields(d.Body.Text), " ")); preview {
			m.Preview = string(text[:min(len(text), 200)])
		}
		var body map[string]any
		_ = json.Unmarshal([]byte(d.Body.Text), &body)
		m.Columns = map[string]string{}
		for _, name := range columns {
			if path, ok := strings.CutPrefix(name, "body."); ok && body[path] != nil {
				m.Columns[name] = fmt.Sprint(body[path])
			}
			for _, h := range d.Headers {
				if name == "header."+h.Name {
					m.Columns[name] = h.Value
				}
			}
			if name == "key" {
				m.Columns[name] = m.RoutingKey
			}
		}
	}
	return nil
}

func (s *Shop) Complete(ctx context.Context, _ auth.Caller, text string, onlyGroups bool) ([]query.Suggestion, error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	names := func(field string) (all []string) {
		for _, q := range s.QueueList {
			if field == "queue" {
				all = append(all, q.Name)
			}
		}
		return all
	}
	return append([]query.Suggestion{}, query.Complete(text, names, onlyGroups)...), nil
}

// Errors are GroupList, each in a queue; the first is in many.
func (s *Shop) Errors(ctx context.Context, _ auth.Caller, q string, order inspect.ErrorOrder, after string, limit int) (page inspect.ErrorPage, err error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return page, err
	}
	defer leave()
	page.Errors = []inspect.ErrorLine{}
	parsed, err := query.Parse(q)
	if err == nil {
		err = parsed.OnlyGroups()
	}
	if err != nil {
		return page, err
	}
	for _, g := range s.GroupList {
		e := inspect.ErrorLine{ID: g.ID, Error: g.Error, Example: s.example(g.ID), Reason: g.Reason, Type: g.Type, QueueN: 1 + s.Elsewhere[g.ID], Queues: []inspect.Group{g}, Waiting: g.Waiting, Parked: g.Parked, First: g.First, Last: g.Last, Hours: g.Hours, Note: g.Note}
		for i := range min(s.Elsewhere[g.ID], 19) {
			other := g
			other.Queue = fmt.Sprintf("%s.%c", g.Queue, 'a'+i)
			e.Queues = append(e.Queues, other)
		}
		page.Errors = append(page.Errors, e)
	}
	slices.SortStableFunc(page.Errors, func(a, b inspect.ErrorLine) int {
		switch order {
		case inspect.ByLast:
			return b.Last.Compare(a.Last)
		case inspect.ByFirst:
			return b.First.Compare(a.First)
		}
		return cmp.Compare(b.Waiting+b.Parked, a.Waiting+a.Parked)
	})
	page.Total = len(page.Errors)
	if i := slices.IndexFunc(page.Errors, func(e inspect.ErrorLine) bool { return e.ID == after }); i >= 0 {
		page.Errors = page.Errors[i+1:]
	}
	if len(page.Errors) > limit {
		page.Errors = page.Errors[:limit]
		page.After = page.Errors[limit-1].ID
	}
	return page, nil
}

func (s *Shop) example(group string) string {
	i := slices.IndexFunc(s.Messages, func(m inspect.Detail) bool { return m.Group == group })
	if i < 0 {
		return ""
	}
	return s.Messages[i].Error
}

// AuditActions are the lines of Log, each with its outcome.
func (s *Shop) AuditActions(ctx context.Context, c auth.Caller, f inspect.AuditFilter, _ string, _ int) (page inspect.AuditActions, err error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return page, err
	}
	defer leave()
	page.Actions = []inspect.AuditAction{}
	for _, e := range s.Log {
		if f.Who != "" && e.Who != f.Who || f.Did != "" && e.Did != f.Did || !strings.Contains(e.On, f.On) {
			continue
		}
		a := inspect.AuditAction{Entry: e}
		if ended := e.At.Add(300 * time.Millisecond); e.Outcome != "begun" {
			a.Line, a.Ended = e.N+1, &ended
		}
		page.Actions = append(page.Actions, a)
	}
	return page, c.MaySee(auth.Admin)
}
