package inspect

import (
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/policy"
)

// QueueQuery asks for a page of some of the queues, in an order.
type QueueQuery struct {
	Name       string // a pattern with * and ?, or a part of the name in any case; "": all
	Policy     string // only those of this policy; "": of all and of none
	Sort       string // one of QueueSorts; "": by name
	Descending bool
	After      string // the After of the page before
	Limit      int    // 0: MostQueues
}

// QueueSorts are what queues can be sorted by.
var QueueSorts = []string{"name", "waiting", "parked", "failed", "retried", "consumers", "ready", "unacked"}

// QueuePage is a page of queues.
type QueuePage struct {
	Queues []Queue `json:"queues"`
	Total  int     `json:"total" doc:"How many queues there are, on all pages."`
	After  string  `json:"after,omitempty" doc:"Ask with it for the next page; absent on the last."`
}

// Queues returns the work queues that are enrolled, have messages, are paused, or had messages
// since the service started. One whose numbers change meanwhile may be on two pages, or on none,
// unless they are sorted by name.
func (in *Inspector) Queues(ctx context.Context, by auth.Caller, q QueueQuery) (page QueuePage, err error) {
	if err := by.May(auth.Viewer, ""); err != nil {
		return page, err
	}
	s, err := in.enrolledToo(ctx, by)
	if err != nil {
		return page, err
	}
	if q.Limit <= 0 || q.Limit > MostQueues {
		q.Limit = MostQueues
	}
	some := s.matching(q)
	page.Total = len(some)
	switch {
	case q.Sort == "" || q.Sort == "name":
		if q.Descending {
			page.Queues, page.After, err = s.numbered(some, q, func(a, b store.QueueCount) int { return cmp.Compare(b.Queue, a.Queue) })
			break
		}
		var shown []store.QueueCount
		shown, page.After, err = pageOf(some, func(n store.QueueCount) string { return n.Queue }, q.After, q.Limit)
		page.Queues = s.shown(shown)
	case atBroker[q.Sort] != nil:
		return s.sortedAtBroker(ctx, some, q)
	case ofStore[q.Sort] != nil:
		page.Queues, page.After, err = s.sortedByNumber(some, q, ofStore[q.Sort])
	default:
		err = fmt.Errorf("%w: queues cannot be sorted by %.40q: expected one of %s", ErrInvalid, q.Sort, strings.Join(QueueSorts, ", "))
	}
	if err != nil {
		return QueuePage{}, err
	}
	in.askBroker(ctx, page.Queues)
	return page, nil
}

// matching are the queues that a query asks for, ordered by name.
func (s *visibleQueues) matching(q QueueQuery) []store.QueueCount {
	if q.Name == "" && q.Policy == "" {
		return s.counts
	}
	part, pattern := strings.ToLower(q.Name), strings.ContainsAny(q.Name, "*?")
	policies, some := s.policies(), []store.QueueCount{}
	for _, n := range s.counts {
		switch {
		case pattern && !policy.MatchQueue(q.Name, n.Queue), !pattern && !strings.Contains(strings.ToLower(n.Queue), part):
			continue
		case q.Policy != "":
			if p, ok := policies.Match(n.Queue); !ok || p.Name != q.Policy {
				continue
			}
		}
		some = append(some, n)
	}
	return some
}

// ofStore are the numbers that are known of all queues, however many.
var ofStore = map[string]func(*visibleQueues, store.QueueCount) int64{
	"waiting": func(_ *visibleQueues, n store.QueueCount) int64 { return n.Waiting },
	"parked":  func(_ *visibleQueues, n store.QueueCount) int64 { return n.Parked },
	"failed":  func(s *visibleQueues, n store.QueueCount) int64 { return s.lately(n.Queue).Failed },
	"retried": func(s *visibleQueues, n store.QueueCount) int64 { return s.lately(n.Queue).Retried },
}

func (s *visibleQueues) lately(queue string) Flow {
	if s.Activity == nil {
		return Flow{}
	}
	return s.Activity.Minute(queue, s.Now())
}

func (s *visibleQueues) sortedByNumber(some []store.QueueCount, q QueueQuery, number func(*visibleQueues, store.QueueCount) int64) ([]Queue, string, error) {
	numbers := make(map[string]int64, len(some))
	for _, n := range some {
		numbers[n.Queue] = number(s, n)
	}
	return s.numbered(some, q, func(a, b store.QueueCount) int {
		return cmp.Or(directed(q, cmp.Compare(numbers[a.Queue], numbers[b.Queue])), cmp.Compare(a.Queue, b.Queue))
	})
}

func directed(q QueueQuery, order int) int {
	if q.Descending {
		return -order
	}
	return order
}

// numbered is the page of an order whose places change: After is how many queues were shown.
func (s *visibleQueues) numbered(some []store.QueueCount, q QueueQuery, order func(a, b store.QueueCount) int) ([]Queue, string, error) {
	from := 0
	if q.After != "" {
		text, err := base64.RawURLEncoding.DecodeString(q.After)
		number, ok := strings.CutPrefix(string(text), "#")
		n, wrong := strconv.Atoi(number)
		if err != nil || !ok || wrong != nil || n < 0 {
			return nil, "", fmt.Errorf("%w: after is %.100q, which no page ends with", ErrInvalid, q.After)
		}
		from = min(n, len(some))
	}
	some = slices.SortedFunc(slices.Values(some), order)[from:]
	if len(some) <= q.Limit {
		return s.shown(some), "", nil
	}
	return s.shown(some[:q.Limit]), base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "#%d", from+q.Limit)), nil
}

// atBroker are the numbers that RabbitMQ has; -1: not known.
var atBroker = map[string]func(*AtBroker) int{
	"consumers": func(b *AtBroker) int { return b.Consumers },
	"ready":     func(b *AtBroker) int { return b.Ready },
	"unacked": func(b *AtBroker) int {
		if b.Unacked == nil {
			return -1
		}
		return *b.Unacked
	},
}

// sortedAtBroker sorts by what RabbitMQ says, which is asked about each queue by itself: there
// must be no more than one page.
func (s *visibleQueues) sortedAtBroker(ctx context.Context, some []store.QueueCount, q QueueQuery) (QueuePage, error) {
	if len(some) > q.Limit {
		return QueuePage{}, fmt.Errorf("%w: %d queues are too many to sort by %s, which RabbitMQ is asked for: filter them by name until one page of %d has them all", ErrInvalid, len(some), q.Sort, q.Limit)
	}
	all := s.shown(some)
	s.askBroker(ctx, all)
	number := func(a Queue) int {
		if a.Broker == nil || !a.Broker.Exists {
			return -1
		}
		return atBroker[q.Sort](a.Broker)
	}
	slices.SortStableFunc(all, func(a, b Queue) int { return directed(q, cmp.Compare(number(a), number(b))) })
	return QueuePage{Queues: all, Total: len(all)}, nil
}
