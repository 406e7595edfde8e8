package retry

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
)

const (
	// maxNames is how many names of queues reports can make known that nothing else
	// vouches for, and maxNamesEach how many of them one user of RabbitMQ's can (those
	// without the property user-id count as one). Each costs memory in store, metrics and
	// throttle for as long as something is kept under it.
	maxNames, maxNamesEach = 4000, 1000
	// moreNames and moreNamesEach are for names beyond, as long as it is not known whether
	// they are enrolled: an honest report is not parked since others fill the budget.
	moreNames, moreNamesEach = 1000, 250
	// sweepEvery is how often the store is asked which names it still has; not before
	// sweepFirst, when RabbitMQ has said which of them are enrolled.
	sweepEvery, sweepFirst = 10 * time.Second, time.Minute
)

// ReportedNames bounds the names of queues that only reports vouch for. Queues that a policy names
// exactly, that are enrolled or dead-letter to redrive, and that had a real dead letter are
// never counted.
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

// NewReportedNames makes the budget of an intake and a collector that store in s; sender knows
// which queues are enrolled.
func NewReportedNames(s store.Store, sender *Sender) *ReportedNames {
	return &ReportedNames{store: s, enrolled: sender.Enrolled, remembers: sender.enrolled.remembers, by: map[string]string{}, each: map[string]int{},
		swept: time.Now().Add(sweepFirst - sweepEvery)}
}

// admit tells whether something may be kept under the name, as a user reported it. RabbitMQ
// is asked only for a name that gets a place.
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

// overfull tells that there is no place even for a name that is not known yet. Those that
// turn out not to be enrolled keep theirs while something is kept under them, or the next
// ones would grow the store further at each sweep.
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

// sweep counts those names alone that something is kept under and that are not enrolled:
// also those of before the start. Of a name that is not known RabbitMQ is asked. A name that
// turned out to be enrolled gives its place back.
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

// tooMany is why a report is parked under no name.
func tooMany(queue string) string {
	return fmt.Sprintf("it names the queue %q, which is not known to be enrolled, and messages for too many such names are kept (%d in all, %d reported by one user): enroll the queue, or discard what is parked for queues that do not exist; `redrive copy --to QUEUE ID` sends this one there", queue, maxNames, maxNamesEach)
}
