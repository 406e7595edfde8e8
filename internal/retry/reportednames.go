package retry

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
)

const (
	// maxNames is how many queue names can be known from reports alone, and maxNamesEach how
	// many of them from one user of RabbitMQ (reports without the property user-id count as one
	// user's). Each costs memory in store, metrics and throttle for as long as a message is
	// stored under it.
	maxNames, maxNamesEach = 4000, 1000
	// moreNames and moreNamesEach are for further names, as long as it is not known whether
	// they are enrolled: a report for an enrolled queue must not be parked because others have
	// used up the budget.
	moreNames, moreNamesEach = 1000, 250
	// sweepEvery is how often the store is asked which names it still has; not before
	// sweepFirst, when RabbitMQ has answered which of them are enrolled.
	sweepEvery, sweepFirst = 10 * time.Second, time.Minute
)

// ReportedNames bounds the queue names that are known from reports alone. Queues that a policy
// names exactly, that are enrolled or dead-letter to redrive, and that had a real dead letter
// are never counted.
type ReportedNames struct {
	store store.Store
	// enrolled has RabbitMQ asked where it is not known; remembers does not.
	enrolled, remembers func(queue string) (yes, known bool)

	mu     sync.Mutex
	by     map[string]string // unproven names, and who reported them first
	each   map[string]int    // how many, by reporter
	swept  time.Time
	loaded bool
}

// NewReportedNames makes the budget that an intake and a collector with the store s share;
// sender knows which queues are enrolled.
func NewReportedNames(s store.Store, sender *Sender) *ReportedNames {
	return &ReportedNames{store: s, enrolled: sender.Enrolled, remembers: sender.enrolled.remembers, by: map[string]string{}, each: map[string]int{},
		swept: time.Now().Add(sweepFirst - sweepEvery)}
}

// admit tells whether a message may be stored under the name that a user reported. RabbitMQ is
// asked only about names within the budget.
func (n *ReportedNames) admit(ctx context.Context, queue, reporter string) bool {
	if n == nil || queue == "" {
		return true
	}
	yes, known := n.remembers(queue)
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, counted := n.by[queue]; yes || counted {
		if yes {
			n.drop(queue)
		}
		return true
	}
	if (n.full(reporter) || !n.loaded) && time.Since(n.swept) > sweepEvery {
		n.sweep(ctx)
	}
	if n.full(reporter) && (known || n.overfull(reporter)) {
		return false
	}
	n.count(queue, reporter)
	n.enrolled(queue)
	return true
}

func (n *ReportedNames) full(reporter string) bool {
	return len(n.by) >= maxNames || n.each[reporter] >= maxNamesEach
}

// overfull tells that there is no room even for a name that is not known yet. Names that turn
// out not to be enrolled are counted while a message is stored under them, or further ones
// would grow the store at each sweep.
func (n *ReportedNames) overfull(reporter string) bool {
	return len(n.by) >= maxNames+moreNames || n.each[reporter] >= maxNamesEach+moreNamesEach
}

func (n *ReportedNames) count(queue, reporter string) {
	n.by[queue] = reporter
	n.each[reporter]++
}

func (n *ReportedNames) drop(queue string) {
	reporter, counted := n.by[queue]
	if !counted {
		return
	}
	delete(n.by, queue)
	if n.each[reporter]--; n.each[reporter] == 0 {
		delete(n.each, reporter)
	}
}

// sweep counts again: names under which something is stored and that are not enrolled, also
// from before the start. Unknown names are looked up; names that turned out to be enrolled are
// no longer counted.
func (n *ReportedNames) sweep(ctx context.Context) {
	n.swept = time.Now()
	counts, err := n.store.Counts(ctx)
	if err != nil {
		return // the store says so itself
	}
	n.loaded = true
	was := n.by
	n.by, n.each = map[string]string{}, map[string]int{}
	for _, c := range counts {
		reporter, counted := was[c.Queue]
		if yes, known := n.enrolled(c.Queue); c.Queue != "" && !yes && (known || counted) {
			n.count(c.Queue, reporter)
		}
	}
}

// tooMany returns why a report is parked without a queue name.
func tooMany(queue string) string {
	return fmt.Sprintf("it names the queue %q, which is not known to be enrolled, and messages for too many such names are kept (%d in all, %d reported by one user): enroll the queue, or discard what is parked for queues that do not exist; `redrive copy --to QUEUE ID` sends this one there", queue, maxNames, maxNamesEach)
}
