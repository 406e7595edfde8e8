package retry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/headers"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

type Publisher interface {
	// Send is as broker.Publisher's: persistent, mandatory, and nearly in order. It is called by one goroutine at a
	// time, and blocks while there is no connection.
	Send(ctx context.Context, out []wire.Outgoing) (wait func(context.Context) []error)
	RetryExchanges
}

type Result struct {
	Done bool   // confirmed by RabbitMQ, and routed: delete it
	Park string // if not empty, park it for this reason
	Err  error  // neither: it continues to wait, and is tried again

	// If asOf is set, Park is for messages due by then, and errAfter for those due after it.
	asOf     time.Time
	errAfter error
}

// Sender publishes due messages, and is the only place that does: retries, forwards and replays. It tries once; the
// scheduler tries again.
type Sender struct {
	publisher Publisher
	events    Listener
	targets   *retryTargets
}

// NewSender returns a Sender that publishes through p, to queues that the policies allow. consent may be nil. noQueue
// returns how long messages wait for a queue that does not exist. answered, which may be nil, is called when RabbitMQ
// has answered whether a queue has a retry exchange, and when a binding has ended.
func NewSender(
	p Publisher, policies func() policy.Set, consent Consent, noQueue func(queue string) time.Duration,
	answered func(), events Listener,
) *Sender {
	return &Sender{publisher: p, events: events, targets: newRetryTargets(p, policies, consent, noQueue, answered)}
}

// RemoveRetryExchange deletes the retry exchange of a queue that is gone. RabbitMQ refuses while a
// queue is bound to it, also one that was declared again just now.
func (s *Sender) RemoveRetryExchange(ctx context.Context, queue string) error {
	s.targets.forget(queue)
	return s.publisher.RemoveRetryExchange(ctx, queue)
}

// Bind declares a queue's retry exchange and binds the queue to it: messages can be retried to it from then on, whoever
// says that they failed there. It is safe for concurrent use.
func (s *Sender) Bind(ctx context.Context, queue string) error { return s.targets.bind(ctx, queue) }

// MayRetryTo reports, from memory, whether messages can be retried to a queue. Where that is not known, a lookup in
// RabbitMQ begins. It is safe for concurrent use.
func (s *Sender) MayRetryTo(queue string) (yes, known bool) { return s.targets.lookUpIfUnknown(queue) }

// IsBinding reports whether a queue is being bound to its retry exchange. It is safe for
// concurrent use.
func (s *Sender) IsBinding(queue string) bool { return s.targets.binding.isUnderWay(queue) }

// Close cancels the lookups and bindings under way. Call it after the last Send.
func (s *Sender) Close() {
	s.targets.lookup.close()
	s.targets.binding.close()
}

// route makes sure that claims can be published to their queue. If that was not known to be a target, it declares the
// retry exchange and has the claims tried again at once: by then the throttle (server/throttle.go) knows the target,
// and checks for consumers.
func (s *Sender) route(ctx context.Context, queue string, claims []store.Claim) Result {
	wasTarget, _ := s.targets.lookUpIfUnknown(queue)
	byDue := func(a, b store.Claim) int { return a.Record.Due.Compare(b.Record.Due) }
	result := s.targets.routeSoon(ctx, queue, anyProven(claims), slices.MaxFunc(claims, byDue).Record.Due)
	if result.Park == "" && result.Err == nil && !wasTarget {
		result.Err = ErrTryAtOnce
	}
	return result
}

// anyProven reports whether RabbitMQ itself dead-lettered one of the messages: then the queue is a target for all.
func anyProven(claims []store.Claim) bool {
	return slices.ContainsFunc(claims, func(c store.Claim) bool { return c.Record.Proven })
}

// Send publishes claims of one lane, nearly in their order, and returns a function that waits for
// the result of each. It must not be called by two goroutines at a time.
func (s *Sender) Send(ctx context.Context, queue string, claims []store.Claim) (wait func(context.Context) []Result) {
	results := make([]Result, len(claims))
	out := make([]wire.Outgoing, 0, len(claims))
	sent := make([]int, 0, len(claims)) // index in claims of each of out
	route := sync.OnceValue(func() Result { return s.route(ctx, queue, claims) })
	for i, c := range claims {
		if to := c.Record.Forward; to != nil {
			out, sent = append(out, outgoing(c.Record, to.Exchange, to.RoutingKey)), append(sent, i)
			continue
		}
		r := route()
		if results[i] = r.forDue(c.Record.Due); r.Err != nil || r.Park != "" {
			continue
		}
		out, sent = append(out, outgoing(c.Record, wire.RetryExchange(queue), c.Record.Message.RoutingKey)),
			append(sent, i)
	}
	if len(out) == 0 {
		return func(context.Context) []Result { return results }
	}
	answers := s.publisher.Send(ctx, out)
	return func(ctx context.Context) []Result {
		errs := answers(ctx)
		now := time.Now()
		// Either the queue was deleted: when it was declared again, only its binding is missing, and is declared here.
		// Or a person deleted its retry exchange: only a proven dead letter declares that again.
		routeAgain := sync.OnceValue(func() Result {
			s.targets.forget(queue)
			result := s.targets.route(ctx, queue, anyProven(claims), now)
			if result.Err == nil && result.Park == "" {
				result.Err = ErrTryAtOnce
			}
			return result
		})
		for n, err := range errs {
			i := sent[n]
			r := claims[i].Record
			switch {
			case err == nil:
				results[i] = Result{Done: true}
				s.reportDone(r, now)
			case errors.Is(err, wire.ErrUnacceptable):
				results[i] = Result{Park: fmt.Sprintf("it cannot be retried: %v", err)}
			case errors.Is(err, wire.ErrUnroutable) && r.Forward != nil:
				results[i] = Result{Park: fmt.Sprintf(noTarget+" exchange %q with routing key %q: %v",
					r.Forward.Exchange, r.Forward.RoutingKey, err)}
			case errors.Is(err, wire.ErrUnroutable):
				results[i] = routeAgain()
			default:
				results[i] = Result{Err: err}
			}
		}
		return results
	}
}

// ErrTryAtOnce is the error of a Result whose obstacle is gone: the scheduler does not back off.
var ErrTryAtOnce = errors.New("the queue was bound just now")

func (s *Sender) reportDone(r *store.Record, now time.Time) {
	kind := Retried
	if r.Forward != nil {
		kind = Forwarded
	}
	s.events(Event{Kind: kind, At: now, Queue: r.Queue, ID: r.ID, Failures: r.Failures, Reason: r.Reason,
		Late: now.Sub(r.Due)})
}

func outgoing(r *store.Record, exchange, key string) wire.Outgoing {
	id, m := withHistory(r)
	return wire.Outgoing{Exchange: exchange, RoutingKey: key, ID: id, Message: m}
}

// withHistory returns a record's message as it is published: with the headers of its history and without those of a
// framework's error queue. id is the one in them.
func withHistory(r *store.Record) (id string, m *wire.Message) {
	h := headers.History{ID: r.ID.String(), Failures: r.Failures, Queue: r.Queue, FirstFailed: r.FirstFailed,
		Reason: r.Reason, Error: r.Error, Replays: r.Replays}
	return h.ID, h.ApplyTo(toPublish(r))
}
