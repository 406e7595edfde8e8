package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/condition"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/wire"
)

// quarantine knows what is in redrive.quarantine and cannot be parked.
type quarantine struct {
	messages atomic.Int64
	stuck    atomic.Bool // RabbitMQ ends each connection that the first message is delivered to
}

// quarantined receives how many messages are in quarantine.
func (s *vhost) quarantined(n int) {
	s.quarantine.messages.Store(int64(n))
	s.metrics.Quarantined(n)
}

// quarantineConnection receives the state of the connection that consumes redrive.quarantine. A message that ends it
// stops nothing else, so neither readiness nor redrive_connected includes it.
func (s *vhost) quarantineConnection(st broker.State) {
	stuck := errors.Is(st.Err, broker.ErrCrashed)
	if was := s.quarantine.stuck.Swap(stuck); stuck && !was {
		s.Log.Error("RabbitMQ cannot deliver a message in quarantine, so those behind it are not parked",
			"queue", wire.QueueQuarantine, "remove", broker.RemoveQuarantined(s.config.VHost()))
	}
}

// redeclared logs which exchanges and queues somebody had deleted.
func (s *vhost) redeclared(missing []string) {
	s.metrics.DeclaredAgain(1, missing...)
	s.Log.Error("somebody deleted exchanges or queues of Redrive's; they are declared again. Dead letters published "+
		"in between are lost, except those of queues that dead-letter at-least-once",
		"deleted", strings.Join(missing, ", "))
}

// limitEvery is how often to read the delivery limit in force of the intake.
const limitEvery = 5 * time.Second

// watchLimit reports when a RabbitMQ policy makes the intake's delivery limit so small that RabbitMQ would quarantine
// good messages. It needs the management API.
func (s *vhost) watchLimit(ctx context.Context) {
	for s.manage != nil && ctx.Err() == nil {
		if q, err := s.manage.QueueState(ctx, wire.QueueIntake); err == nil {
			what := ""
			if limit, limited := q.LimitInForce(""); limited && limit < broker.DeliveryLimit {
				what = fmt.Sprintf("of %s is %d, by the policies %s: after that many lost connections RabbitMQ moves "+
					"good messages to %s (redrive doctor prints the command that excludes Redrive's queues; %d or "+
					"more is safe)",
					wire.QueueIntake, limit, strings.Trim(q.Policy+", "+q.OperatorPolicy, ", "), wire.QueueQuarantine,
					broker.DeliveryLimit)
			}
			s.warn(condition.DeliveryLimit, what, "the delivery limit "+what)
		}
		sleep(ctx, limitEvery)
	}
}

// foreignEvery is how often to ask for others' policies, which lists all exchanges.
const foreignEvery = 30 * time.Second

// maxForeign is how many of the policies to name.
const maxForeign = 5

// watchForeign reports how others' policies change Redrive's exchanges and queues. It needs the management API.
func (s *vhost) watchForeign(ctx context.Context) {
	for s.manage != nil && ctx.Err() == nil {
		if all, err := s.manage.Foreign(ctx); err == nil {
			var said []string
			for _, f := range all[:min(len(all), maxForeign)] {
				said = append(said, f.String())
			}
			what := strings.Join(said, "; ")
			if what != "" {
				what += " (redrive doctor prints the remedy)"
			}
			s.warn(condition.ForeignPolicies, what, what)
		}
		sleep(ctx, foreignEvery)
	}
}

// foreignConsumersFor is how long foreign consumers must be there before they are reported:
// RabbitMQ counts a consumer that has vanished until its heartbeats time out.
const foreignConsumersFor = 25 * time.Second

// foreignConsumers tracks consumers of redrive.intake that belong to another service.
type foreignConsumers struct {
	mu    sync.Mutex
	since time.Time // zero: none
}

// persist reports whether there have been foreign consumers for long enough.
func (s *foreignConsumers) persist(n, ours int, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case n <= ours:
		s.since = time.Time{}
	case s.since.IsZero():
		s.since = now
	}
	return !s.since.IsZero() && now.Sub(s.since) >= foreignConsumersFor
}

// watchIntakeConsumers reports another service that consumes a part of the failed messages.
func (s *vhost) watchIntakeConsumers(n int) {
	ours := 1
	if s.replica != nil {
		ours = max(1, len(s.replica.All()))
	}
	what := ""
	if s.foreignConsumers.persist(n, ours, time.Now()) {
		what = fmt.Sprintf("%s has %d consumers, and %d of them belong to this service: the others consume a part of "+
			"the failed messages, which this service neither shows nor counts (give all services of the virtual host "+
			"one store, store.redis, or stop the others)", wire.QueueIntake, n, ours)
	}
	s.warn(condition.ForeignConsumers, what, what)
}

// warn puts a condition, or removes it if it has no text. It logs a new text.
func (s *vhost) warn(kind condition.Kind, text, log string) {
	if s.conditions.Put(condition.Condition{Kind: kind, Text: text}) && text != "" {
		s.Log.Warn(log)
	}
}

const (
	// removeEvery is how often to look for retry exchanges of deleted queues, and maxRemoveChecks how many queues to
	// check each time.
	removeEvery     = 10 * time.Minute
	maxRemoveChecks = 2000
)

// removeRetryExchanges deletes, until ctx ends, the retry exchanges of queues that were deleted and for which nothing
// waits. It knows the queues from the ledger, and from the management API if configured. If a queue is declared again
// meanwhile, its next dead letter binds it again; RabbitMQ refuses to delete the exchange of a bound queue.
func (s *vhost) removeRetryExchanges(ctx context.Context) {
	for after := ""; ctx.Err() == nil; {
		s.publisher.AwaitUsable(ctx)
		names := s.emptyQueues(ctx)
		at, found := slices.BinarySearch(names, after)
		if found {
			at++
		}
		names = names[at:min(at+maxRemoveChecks, len(names))]
		if after = ""; len(names) == maxRemoveChecks {
			after = names[len(names)-1]
		}
		var gone []string
		_ = s.publisher.Consumers(ctx, names, func(queue string, consumers, _ int) {
			if consumers < 0 {
				gone = append(gone, queue)
			}
		})
		for _, queue := range gone {
			_ = s.sender.RemoveRetryExchange(ctx, queue) // the next round tries again
		}
		sleep(ctx, removeEvery)
	}
}

// emptyQueues returns the queues that may have a retry exchange and that nothing waits for, in order.
func (s *vhost) emptyQueues(ctx context.Context) (names []string) {
	lines, err := s.store.Ledger(ctx)
	if err != nil {
		return nil
	}
	queueOf := map[string]string{} // by retry exchange; "": something waits for it
	for _, l := range lines {
		queueOf[wire.RetryExchange(l.Queue)] = l.Queue
		if l.Sums[store.Waiting] > 0 {
			queueOf[wire.RetryExchange(l.Queue)] = ""
		} else {
			names = append(names, l.Queue)
		}
	}
	if s.manage == nil {
		return names
	}
	exchanges, err := s.manage.Exchanges(ctx)
	if err != nil {
		return names
	}
	names = nil
	for _, x := range exchanges {
		queue, ours := strings.CutPrefix(x.Name, wire.RetryExchange(""))
		if known, ok := queueOf[x.Name]; ok {
			queue = known
		}
		if ours && queue != "" && wire.RetryExchange(queue) == x.Name {
			names = append(names, queue)
		}
	}
	slices.Sort(names)
	return names
}
