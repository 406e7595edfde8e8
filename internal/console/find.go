package console

import (
	"context"
	"slices"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/query"
	"github.com/redrive-mq/redrive/internal/store"
)

// narrow asks the store what it has, as far as the caller may see it.
func (c *Console) narrow(ctx context.Context, by auth.Caller, q *query.Query) (*query.Narrowed, error) {
	counts, err := c.Store.Counts(ctx)
	if err != nil {
		return nil, err
	}
	names := []string{}
	for _, n := range counts {
		if by.Sees(n.Queue) {
			names = append(names, n.Queue)
		}
	}
	var groups []store.GroupCount
	if q.ByGroup() {
		if groups, err = c.groupsSeen(ctx, by); err != nil {
			return nil, err
		}
	}
	n := q.Narrow(c.Now(), names, groups)
	n.GroupOf = c.Store.GroupOf
	return n, nil
}

func (c *Console) groupsSeen(ctx context.Context, by auth.Caller) ([]store.GroupCount, error) {
	all, err := c.Store.Groups(ctx)
	return slices.DeleteFunc(all, func(g store.GroupCount) bool { return !by.Sees(g.Queue) }), err
}

// decoded reads the body, when it is asked.
func (c *Console) decoded(ctx context.Context, l *store.Listed) func() *decode.Result {
	return func() *decode.Result {
		return c.Decoder.Decode(ctx, encoded(l.Record, l.Record.Message.Body, l.Record.Message.Headers))
	}
}

// scan visits what a query may mean: by the ids that it names, else by the range.
func (c *Console) scan(ctx context.Context, by auth.Caller, q *query.Query, r store.Range, visit func(store.Listed) (bool, error)) error {
	ids, only := q.IDs()
	if !only {
		return c.Store.Scan(ctx, r, visit)
	}
	for _, id := range ids {
		all, err := c.Store.Find(ctx, id)
		if err != nil {
			return err
		}
		for _, l := range all {
			if _, seq, _ := l.Key.Parts(); !by.Sees(l.Record.Queue) || !r.Has(seq) {
				continue
			}
			if more, err := visit(l); err != nil || !more {
				return err
			}
		}
	}
	return nil
}

// find visits every message that a query means, by when it was parked or is due;
// with upto, only what had been added then (see store.Changer.NewestKey).
func (c *Console) find(ctx context.Context, by auth.Caller, text string, upto *uint64, body bool, visit func(store.Listed) (bool, error)) error {
	q, err := c.parse(by, text)
	if err != nil {
		return err
	}
	n, err := c.narrow(ctx, by, q)
	if err != nil || n.None {
		return err
	}
	r := n.Range
	r.Upto, r.Body = upto, body || q.NeedsBody()
	return c.scan(ctx, by, q, r, func(l store.Listed) (bool, error) {
		if !n.Match(&l, c.decoded(ctx, &l)) {
			return true, nil
		}
		return visit(l)
	})
}

// Count is how many messages a query means; exact is false when there may be more
// than were looked at.
func (c *Console) Count(ctx context.Context, by auth.Caller, text string) (n int64, exact bool, err error) {
	q, err := c.parse(by, text)
	if err != nil {
		return 0, false, err
	}
	if q.OnlyRetried() {
		began := time.Now()
		exact = true
		err = c.eachRetried(ctx, by, q, "", func(store.Listed, string) bool {
			if exact = time.Since(began) <= longestCount; exact {
				n++
			}
			return exact
		})
		return n, exact && err == nil, err
	}
	counts, err := c.Store.Counts(ctx)
	if err != nil {
		return 0, false, err
	}
	sure := true
	add := func(state store.State, queue string, g *store.GroupCount, of int64) {
		if of == 0 || !by.Sees(queue) {
			return
		}
		says := q.Says(state, queue, g)
		if sure = sure && says != 0; says > 0 {
			n += of
		}
	}
	for _, of := range counts {
		add(store.Waiting, of.Queue, nil, of.Waiting)
		add(store.Parked, of.Queue, nil, of.Parked)
		add(store.Discarded, of.Queue, nil, of.Discarded)
	}
	if sure {
		return n, true, nil
	}
	if q.ByGroup() {
		groups, err := c.groupsSeen(ctx, by)
		if err != nil {
			return 0, false, err
		}
		n, sure = 0, true
		for i := range groups {
			g := &groups[i]
			add(store.Waiting, g.Queue, g, g.Waiting)
			add(store.Parked, g.Queue, g, g.Parked)
			add(store.Discarded, g.Queue, g, g.Discarded)
		}
		if sure {
			return n, true, nil
		}
	}
	return c.countOne(ctx, by, q)
}

// longestCount is how long it counts one by one.
const longestCount = 5 * time.Second

// countOne counts one by one, as far as a search looks.
func (c *Console) countOne(ctx context.Context, by auth.Caller, q *query.Query) (n int64, exact bool, err error) {
	in, err := c.narrow(ctx, by, q)
	if err != nil || in.None {
		return 0, err == nil, err
	}
	r := in.Range
	r.NewestFirst, r.Body = true, q.NeedsBody()
	looked, began := 0, time.Now()
	exact = true
	err = c.scan(ctx, by, q, r, func(l store.Listed) (bool, error) {
		if exact = in.Sure || looked < mostLooked && time.Since(began) <= longestCount; !exact {
			return false, nil
		}
		looked++
		if in.Match(&l, c.decoded(ctx, &l)) {
			n++
		}
		return true, nil
	})
	return n, exact, err
}
