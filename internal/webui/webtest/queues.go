package webtest

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
)

// Queues filters and sorts as package inspect does, but by names and by what waits alone.
func (s *Shop) Queues(ctx context.Context, _ auth.Caller, q inspect.QueueQuery) (page inspect.QueuePage, err error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return page, err
	}
	defer leave()
	for _, of := range s.QueueList {
		if strings.Contains(of.Name, strings.Trim(q.Name, "*")) && (q.Policy == "" || q.Policy == of.Policy) {
			page.Queues = append(page.Queues, of)
		}
	}
	slices.SortStableFunc(page.Queues, func(a, b inspect.Queue) int {
		order := cmp.Compare(a.Name, b.Name)
		if q.Sort == "waiting" {
			order = cmp.Compare(a.Waiting, b.Waiting)
		}
		if q.Descending {
			return -order
		}
		return order
	})
	if page.Total = len(page.Queues); q.Limit > 0 && page.Total > q.Limit {
		page.Queues, page.After = page.Queues[:q.Limit], "x"
	}
	return page, nil
}

func (s *Shop) Queue(ctx context.Context, c auth.Caller, name string) (d inspect.QueueDetail, err error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return d, err
	}
	defer leave()
	i := slices.IndexFunc(s.QueueList, func(q inspect.Queue) bool { return q.Name == name })
	if i < 0 {
		return d, inspect.ErrNotFound
	}
	d.Queue, d.Now, d.Hour, d.Calendar = s.QueueList[i], s.Now, s.Hour, s.Calendar
	var reasons []inspect.HealthReason
	for _, r := range s.Reasons {
		if r.Queue == name {
			reasons = append(reasons, r)
		}
	}
	d.Health = inspect.HealthOf(reasons)
	for _, g := range s.GroupList {
		if g.Queue == name {
			d.Groups = append(d.Groups, g)
		}
	}
	for i := range s.PolicyList {
		if d.Policy != "" && (i == 0 || s.PolicyList[i].Name == d.Policy) {
			d.InForce = &s.PolicyList[i]
		}
	}
	kept := d.Waiting + d.Parked + d.Discarded
	d.Ledger = &inspect.LedgerLine{Queue: name, In: 4 * kept, Retried: 3 * kept, Waiting: d.Waiting, Parked: d.Parked, Discarded: d.Discarded}
	if c.MaySee(auth.Operator) == nil {
		e := s.Examined
		e.Findings = slices.DeleteFunc(slices.Clone(e.Findings), func(f inspect.Finding) bool { return f.Queue != name })
		d.Doctor = &e
	}
	return d, nil
}

func (s *Shop) health() inspect.Health {
	var all []inspect.HealthReason
	for _, p := range s.Problems {
		all = append(all, inspect.HealthReason{State: inspect.Wrong, Kind: "problem", Text: p})
	}
	for _, n := range s.Notices {
		all = append(all, inspect.HealthReason{State: inspect.Attention, Kind: "notice", Text: n})
	}
	return inspect.HealthOf(append(all, s.Reasons...))
}

func (s *Shop) Health(ctx context.Context, _ auth.Caller) (inspect.Health, error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return inspect.Health{}, err
	}
	defer leave()
	return s.health(), nil
}

func (s *Shop) Doctor(ctx context.Context, c auth.Caller) (inspect.Examination, error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return inspect.Examination{}, err
	}
	defer leave()
	return s.Examined, c.MaySee(auth.Operator)
}

func (s *Shop) StartDoctor(ctx context.Context, c auth.Caller) error {
	if err := c.MaySee(auth.Operator); err != nil {
		return err
	}
	leave, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	s.Asked = append(s.Asked, "doctor")
	s.Examined.Running, s.Examined.By = &s.Now, c.Name
	return nil
}
