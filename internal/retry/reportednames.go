package retry

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/redrive-mq/redrive/internal/store"
)

const (
	// maxNames is how many names may be known from reports alone, and maxNamesEach how many of
	// them one user of RabbitMQ may have reported (reports without the property user-id count
	// as one user's). Each costs memory in store, metrics and throttle for as long as a message
	// is kept for it.
	maxNames, maxNamesEach = 4000, 1000
	// moreNames and moreNamesEach are added for names of which it is not known yet whether they
	// are targets: invented names that use up the limits must not park a report for a real one.
	moreNames, moreNamesEach = 1000, 250
	// recountEvery is how often names are counted again from the store; not before firstRecount,
	// when RabbitMQ has answered which of them are targets.
	recountEvery, firstRecount = 10 * time.Second, time.Minute
)

// ReportedNames bounds how many names of queues are known from reports alone. Queues that
// messages may be retried to (retryTargets) are never counted. A nil one has no bound.
type ReportedNames struct {
	store store.Store
	// Whether messages may be retried to a queue: lookUpIfUnknown begins a lookup in RabbitMQ
	// where that is not known, cached does not.
	lookUpIfUnknown, cached func(queue string) (yes, known bool)
	markProven              func(queue string) // RabbitMQ has dead-lettered from the queue

	// turn is held while the store is asked, so it is a lock that a caller can stop waiting for.
	turn       *semaphore.Weighted
	reporterOf map[string]string // of each counted name, the user who reported it first
	perUser    map[string]int    // counted names, by reporter
	recounted  time.Time
	loaded     bool // the names of before the start are counted
}

// NewReportedNames makes the bound of an Intake and a ParkedIntake that store in s; sender knows
// which queues messages may be retried to.
func NewReportedNames(s store.Store, sender *Sender) *ReportedNames {
	return &ReportedNames{store: s, turn: semaphore.NewWeighted(1), lookUpIfUnknown: sender.MayRetryTo, cached: sender.targets.cached, markProven: sender.targets.proven.add,
		reporterOf: map[string]string{}, perUser: map[string]int{}, recounted: time.Now().Add(firstRecount - recountEvery)}
}

// admits tells whether a message may be kept for a queue that reporter named, and counts the
// name. A lookup in RabbitMQ begins only for a name that is counted.
func (n *ReportedNames) admits(ctx context.Context, queue, reporter string) bool {
	if n == nil || queue == "" {
		return true
	}
	yes, known := n.cached(queue)
	if n.turn.Acquire(ctx, 1) != nil {
		return true // the service ends, and the message is not stored
	}
	defer n.turn.Release(1)
	if _, counted := n.reporterOf[queue]; yes || counted {
		if yes {
			n.drop(queue)
		}
		return true
	}
	if (n.isFull(reporter) || !n.loaded) && time.Since(n.recounted) > recountEvery {
		n.recount(ctx)
	}
	if n.isFull(reporter) && (known || n.isOverfull(reporter)) {
		return false
	}
	n.count(queue, reporter)
	n.lookUpIfUnknown(queue)
	return true
}

func (n *ReportedNames) isFull(reporter string) bool {
	return len(n.reporterOf) >= maxNames || n.perUser[reporter] >= maxNamesEach
}

// isOverfull tells that there is no place even for a name that may turn out to be a target. One
// that turns out not to be keeps its place while a message is kept for it, or further names would
// grow the store at each recount.
func (n *ReportedNames) isOverfull(reporter string) bool {
	return len(n.reporterOf) >= maxNames+moreNames || n.perUser[reporter] >= maxNamesEach+moreNamesEach
}

func (n *ReportedNames) count(queue, reporter string) {
	n.reporterOf[queue] = reporter
	n.perUser[reporter]++
}

func (n *ReportedNames) drop(queue string) {
	reporter, counted := n.reporterOf[queue]
	if !counted {
		return
	}
	delete(n.reporterOf, queue)
	if n.perUser[reporter]--; n.perUser[reporter] == 0 {
		delete(n.perUser, reporter)
	}
}

// recount counts the names for which messages are kept and that are not targets, also those of
// before the start, and no others. Those of which that is not known are looked up in RabbitMQ.
func (n *ReportedNames) recount(ctx context.Context) {
	n.recounted = time.Now()
	counts, err := n.store.Counts(ctx)
	if err != nil {
		return // the store's errors are reported elsewhere
	}
	n.loaded = true
	was := n.reporterOf
	n.reporterOf, n.perUser = map[string]string{}, map[string]int{}
	for _, c := range counts {
		if c.Queue == "" {
			continue
		}
		reporter, counted := was[c.Queue]
		if yes, known := n.lookUpIfUnknown(c.Queue); !yes && (known || counted) {
			n.count(c.Queue, reporter)
		}
	}
}

// tooMany returns why a report is parked without its queue's name.
func tooMany(queue string) string {
	return fmt.Sprintf("it names the queue %q, which is not known to be enrolled, and messages for too many such names are kept (%d in all, %d reported by one user): enroll the queue, or discard what is parked for queues that do not exist; `redrive copy --to QUEUE ID` publishes this one there", queue, maxNames, maxNamesEach)
}
