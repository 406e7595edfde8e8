package inspect

import (
	"context"
	"errors"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/query"
	"github.com/redrive-mq/redrive/internal/store"
)

// narrow returns what of a query the store's indexes can answer, for the queues that the caller sees.
func (in *Inspector) narrow(ctx context.Context, by auth.Caller, q *query.Query) (*query.Narrowed, error) {
	counts, err := in.Store.Counts(ctx)
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
		if groups, err = in.groupsSeen(ctx, by); err != nil {
			return nil, err
		}
	}
	n := q.Narrow(in.Now(), names, groups)
	n.GroupOf = in.Store.GroupOf
	return n, nil
}

// decoded returns a function that decodes the body.
func (in *Inspector) decoded(ctx context.Context, l *store.Listed) func() *decode.Result {
	return func() *decode.Result {
		return in.Decoder.Decode(ctx, BodyOf(l.Record))
	}
}

// BodyOf is the body of a record, with what tells how to decode it.
func BodyOf(r *store.Record) decode.Body {
	m := &r.Message
	return decode.Body{Bytes: m.Body, Queue: r.Queue, ContentType: m.ContentType, ContentEncoding: m.ContentEncoding, Type: m.Type, Headers: m.Headers}
}

// scan visits the messages that a query may find: by its ids where it names them, otherwise all of
// the range.
func (in *Inspector) scan(ctx context.Context, by auth.Caller, q *query.Query, r store.Range, visit func(store.Listed) (bool, error)) error {
	ids, only := q.IDs()
	if !only {
		return in.Store.Scan(ctx, r, in.yielding(ctx, visit))
	}
	for _, id := range ids {
		all, err := in.Store.Find(ctx, id)
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

const (
	// workFor is how long a search works before it rests for restFor times as long.
	workFor = 5 * time.Millisecond
	restFor = 2
)

// yielding makes visit rest in between while messages are being retried.
func (in *Inspector) yielding(ctx context.Context, visit func(store.Listed) (bool, error)) func(store.Listed) (bool, error) {
	if in.Busy == nil {
		return visit
	}
	began := time.Now()
	return func(l store.Listed) (bool, error) {
		if worked := time.Since(began); worked >= workFor {
			if in.Busy() {
				select {
				case <-ctx.Done():
				case <-time.After(restFor * worked):
				}
			}
			began = time.Now()
		}
		return visit(l)
	}
}

// search waits for its turn where a query is about bodies.
func (in *Inspector) search(ctx context.Context, by auth.Caller, q *query.Query) (leave func(), err error) {
	if !q.NeedsBody() {
		return func() {}, nil
	}
	return in.searching.Enter(ctx, by.ID(), 1)
}

// Find visits every message that a query finds, in the order of when it was parked or is due;
// only those that were added up to a number (see NewestNumber of package store).
func (in *Inspector) Find(ctx context.Context, by auth.Caller, text string, upto uint64, visit func(store.Listed) (bool, error)) error {
	q, err := in.parse(by, text)
	if err != nil {
		return err
	}
	n, err := in.narrow(ctx, by, q)
	if err != nil || n.None {
		return err
	}
	r := n.Range
	r.Upto, r.Body = &upto, q.NeedsBody()
	return in.scan(ctx, by, q, r, func(l store.Listed) (bool, error) {
		if !n.Match(&l, in.decoded(ctx, &l)) {
			return true, nil
		}
		return visit(l)
	})
}

const (
	// LargeBody is what a body has more bytes than that is read only for its own visit.
	LargeBody = 256 << 10
	// visitedAtOnce and bytesAtOnce bound the messages that are read before they are visited, and
	// readAtOnce those that are looked at.
	visitedAtOnce = 500
	bytesAtOnce   = 1 << 20
	readAtOnce    = 20_000
)

// FindWithBodies visits every message that a query finds, with its body, as Find does. It reads a
// few at a time, so that a slow visit keeps the store from nothing; a message that changes
// meanwhile is visited at most once. Each LargeBody is read after hold, and until its release.
func (in *Inspector) FindWithBodies(ctx context.Context, by auth.Caller, text string, hold func() (release func(), err error), visit func(store.Listed) error) error {
	q, err := in.parse(by, text)
	if err != nil {
		return err
	}
	upto, err := in.Store.NewestNumber(ctx)
	if err != nil {
		return err
	}
	n, err := in.narrow(ctx, by, q)
	if err != nil || n.None {
		return err
	}
	r := n.Range
	r.Upto, r.Body = &upto, true
	_, byID := q.IDs()
	visited := map[uint64]uint64{} // a bit for the number of each
	for more := true; more; {
		more = false
		var page []store.Listed
		read, size := 0, 0
		leave, err := in.search(ctx, by, q)
		if err != nil {
			return err
		}
		err = in.scan(ctx, by, q, r, func(l store.Listed) (bool, error) {
			r.After = l.Cursor
			_, seq, _ := l.Key.Parts()
			if bit := uint64(1) << (seq % 64); visited[seq/64]&bit == 0 && n.Match(&l, in.decoded(ctx, &l)) {
				visited[seq/64] |= bit
				if l.BodySize > LargeBody {
					l.Record.Message.Body = nil
				}
				page = append(page, l)
				size += len(l.Record.Message.Body)
			}
			read++
			more = !byID && (read == readAtOnce || len(page) == visitedAtOnce || size >= bytesAtOnce)
			return !more, nil
		})
		leave()
		for i := 0; i < len(page) && err == nil; i++ {
			err = in.visitWithBody(ctx, page[i], hold, visit)
			page[i].Record = nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (in *Inspector) visitWithBody(ctx context.Context, l store.Listed, hold func() (func(), error), visit func(store.Listed) error) error {
	if l.BodySize > LargeBody {
		release, err := hold()
		if err != nil {
			return err
		}
		defer release()
		if l, err = in.Store.Get(ctx, l.Key); errors.Is(err, store.ErrNotFound) {
			return nil
		} else if err != nil {
			return err
		}
	}
	return visit(l)
}

// Count returns how many messages a query finds; exact is false when not all were looked at, so
// that there may be more.
func (in *Inspector) Count(ctx context.Context, by auth.Caller, text string) (n int64, exact bool, err error) {
	q, err := in.parse(by, text)
	if err != nil {
		return 0, false, err
	}
	if q.OnlyRetried() {
		began := time.Now()
		exact = true
		err = in.eachRetried(ctx, by, q, "", func(store.Listed, string) bool {
			if exact = time.Since(began) <= longestCount; exact {
				n++
			}
			return exact
		})
		return n, exact && err == nil, err
	}
	counts, err := in.Store.Counts(ctx)
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
		groups, err := in.groupsSeen(ctx, by)
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
	return in.countEach(ctx, by, q)
}

// longestCount is how long messages are counted one by one.
const longestCount = 5 * time.Second

// countEach counts one by one, at most as many as a search looks at.
func (in *Inspector) countEach(ctx context.Context, by auth.Caller, q *query.Query) (n int64, exact bool, err error) {
	narrowed, err := in.narrow(ctx, by, q)
	if err != nil || narrowed.None {
		return 0, err == nil, err
	}
	r := narrowed.Range
	r.NewestFirst, r.Body = true, q.NeedsBody()
	leave, err := in.search(ctx, by, q)
	if err != nil {
		return 0, false, err
	}
	defer leave()
	looked, began := 0, time.Now()
	exact = true
	err = in.scan(ctx, by, q, r, func(l store.Listed) (bool, error) {
		if exact = narrowed.Sure || looked < mostLooked && time.Since(began) <= longestCount; !exact {
			return false, nil
		}
		looked++
		if narrowed.Match(&l, in.decoded(ctx, &l)) {
			n++
		}
		return true, nil
	})
	return n, exact, err
}
