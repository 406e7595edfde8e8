package inspect

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/errorgroup"
	"github.com/redrive-mq/redrive/internal/store"
)

// ErrorLine is an error in all queues: the groups that differ in nothing but the queue.
type ErrorLine struct {
	ID        string    `json:"id" doc:"As a group's in queries: group:ID finds its messages in all queues."`
	Error     string    `json:"error,omitempty" doc:"With numbers, ids and times replaced."`
	Example   string    `json:"example,omitempty" doc:"The error of one of its messages, as its consumer said it; absent where none is known just now."`
	Reason    string    `json:"reason,omitempty" doc:"Where no error is known."`
	Type      string    `json:"type,omitempty" doc:"Of the messages, where no error is known."`
	QueueN    int       `json:"queue_count" doc:"In how many queues."`
	Queues    []Group   `json:"queues" doc:"Its groups, those with the most kept messages first; at most 20."`
	Waiting   int64     `json:"waiting"`
	Parked    int64     `json:"parked"`
	Discarded int64     `json:"discarded"`
	First     time.Time `json:"first"`
	Last      time.Time `json:"last"`
	Hours     []int64   `json:"hours" doc:"Failures in each of the last 24 hours, the current one last."`
	Note      string    `json:"note,omitempty"`
}

// ErrorPage is a page of errors.
type ErrorPage struct {
	Errors []ErrorLine `json:"errors"`
	Total  int         `json:"total" doc:"How many errors the query finds, on all pages."`
	After  string      `json:"after,omitempty" doc:"Ask with it for the next page; absent on the last."`
}

// ErrorOrder is what comes first in a list of errors.
type ErrorOrder string

// Orders of a list of errors.
const (
	ByCount ErrorOrder = "count" // those with the most parked and waiting messages
	ByLast  ErrorOrder = "last"  // those that failed last
	ByFirst ErrorOrder = "first" // those that are new
)

// mostErrorQueues is how many queues of an error are shown.
const mostErrorQueues = 20

// Errors returns a page of the errors that a query finds; the query is as of Groups. A page has
// limit of them; 0: 100. One that changes meanwhile may be on two pages.
func (in *Inspector) Errors(ctx context.Context, by auth.Caller, text string, order ErrorOrder, after string, limit int) (page ErrorPage, err error) {
	page.Errors = []ErrorLine{}
	if order = cmp.Or(order, ByCount); order != ByCount && order != ByLast && order != ByFirst {
		return page, fmt.Errorf("%w: the order %.40q: expected count, last or first", ErrInvalid, order)
	}
	last, err := readErrorPlace(order, after)
	if err != nil {
		return page, err
	}
	if limit, err = PageSize(limit); err != nil {
		return page, err
	}
	found, err := in.groupsFound(ctx, by, text)
	if err != nil {
		return page, err
	}
	lines := linesOf(found)
	for _, l := range lines {
		l.place = l.placeIn(order)
	}
	some := firstInOrder(limit+1, func(yield func(*errorLine) bool) {
		for _, l := range lines {
			if (last == nil || l.place.compare(*last) > 0) && !yield(l) {
				return
			}
		}
	}, func(a, b *errorLine) int { return a.place.compare(b.place) })
	if len(some) > limit {
		some = some[:limit]
		page.After = some[limit-1].place.String()
	}
	page.Total = len(lines)
	in.addExamples(ctx, some)
	for _, l := range some {
		page.Errors = append(page.Errors, l.shown())
	}
	return page, nil
}

// errorLine is a line in the making.
type errorLine struct {
	groups                     []*store.GroupCount
	waiting, parked, discarded int64
	first, last                time.Time
	hours                      [24]int64
	note, example              string
	other                      bool // the other errors of queues, which have nothing in common
	place                      errorPlace
}

// errorKey is what the groups of a line share.
type errorKey struct {
	pattern, reason, kind string
	other                 bool
}

// linesOf merges groups that differ in nothing but the queue.
func linesOf(groups []store.GroupCount) []*errorLine {
	byKey := make(map[errorKey]*errorLine, len(groups))
	lines := make([]*errorLine, 0, len(groups))
	for i := range groups {
		g := &groups[i]
		k := errorKey{pattern: g.Pattern}
		switch {
		case g.Pattern == "":
			k.reason, k.kind = g.Reason, g.Type
		case strings.HasPrefix(g.Pattern, "other errors"): // nearly none, and this costs a hash
			k.other = g.IsOther()
		}
		l := byKey[k]
		if l == nil {
			l = &errorLine{other: k.other}
			byKey[k] = l
			lines = append(lines, l)
		}
		l.add(g)
	}
	return lines
}

func (l *errorLine) add(g *store.GroupCount) {
	l.groups = append(l.groups, g)
	l.waiting, l.parked, l.discarded = l.waiting+g.Waiting, l.parked+g.Parked, l.discarded+g.Discarded
	if !g.First.IsZero() && (l.first.IsZero() || g.First.Before(l.first)) {
		l.first = g.First
	}
	if g.Last.After(l.last) {
		l.last = g.Last
	}
	for i, n := range g.Hours {
		l.hours[i] += n
	}
	l.note = cmp.Or(l.note, g.Note)
}

func (l *errorLine) shown() ErrorLine {
	slices.SortFunc(l.groups, func(a, b *store.GroupCount) int { return placeOf(a).compare(placeOf(b)) })
	g := l.groups[0]
	e := ErrorLine{ID: g.Across().String(), Error: g.Pattern, Example: l.example, Reason: g.Reason, Type: g.Type, QueueN: len(l.groups), Waiting: l.waiting, Parked: l.parked,
		Discarded: l.discarded, First: l.first, Last: l.last, Hours: l.hours[:], Note: l.note}
	for _, g := range l.groups[:min(len(l.groups), mostErrorQueues)] {
		e.Queues = append(e.Queues, shownGroup(g))
	}
	return e
}

// errorPlace is a line's place in the list: the numbers descend, ids decide between equal ones.
type errorPlace struct {
	order   ErrorOrder
	numbers [3]int64
	id      errorgroup.ID
}

func (l *errorLine) placeIn(o ErrorOrder) errorPlace {
	kept, last, first := l.parked+l.waiting, l.last.Unix(), l.first.Unix()
	p := errorPlace{order: o, numbers: [3]int64{kept, last, first}}
	switch o {
	case ByLast:
		p.numbers = [3]int64{last, kept, first}
	case ByFirst:
		p.numbers = [3]int64{first, last, kept}
	}
	// The smallest of its groups' ids: theirs are at hand, and the line's own is a hash.
	p.id = l.groups[0].ID
	for _, g := range l.groups[1:] {
		if slices.Compare(g.ID[:], p.id[:]) < 0 {
			p.id = g.ID
		}
	}
	return p
}

func (p errorPlace) compare(o errorPlace) int {
	return cmp.Or(slices.Compare(o.numbers[:], p.numbers[:]), slices.Compare(p.id[:], o.id[:]))
}

func (p errorPlace) String() string {
	return fmt.Sprintf("%s.%d.%d.%d.%s", p.order, p.numbers[0], p.numbers[1], p.numbers[2], p.id)
}

func readErrorPlace(order ErrorOrder, after string) (*errorPlace, error) {
	if after == "" {
		return nil, nil
	}
	parts := strings.Split(after, ".")
	p := errorPlace{order: order}
	ok := len(parts) == 5 && parts[0] == string(order)
	for i := range p.numbers {
		if ok {
			var err error
			p.numbers[i], err = strconv.ParseInt(parts[i+1], 10, 64)
			ok = err == nil
		}
	}
	if ok {
		var err error
		p.id, err = errorgroup.Parse(parts[4])
		ok = err == nil
	}
	if !ok {
		return nil, fmt.Errorf("%w: after is %.100q, which no page in this order ends with", ErrInvalid, after)
	}
	return &p, nil
}
