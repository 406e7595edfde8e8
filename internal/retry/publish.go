package retry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// Publisher publishes messages to RabbitMQ.
type Publisher interface {
	// Send publishes persistent and mandatory, in order, and returns a function
	// that waits for RabbitMQ's answer to each: nil when confirmed and routed,
	// or an error of package wire. It is called from one goroutine at a time
	// and blocks while there is no connection.
	Send(ctx context.Context, out []wire.Outgoing) (wait func(context.Context) []error)
	Enroller
}

// Result tells what became of one claim that was published.
type Result struct {
	Done bool   // confirmed by RabbitMQ, and routed: delete it
	Park string // not empty: park it, for this reason
	Err  error  // neither: it goes on waiting, and is tried again

	// Where asOf is not zero, Park is for messages due until then, and Err of others is later.
	asOf  time.Time
	later error
}

// Sender publishes due messages, and is the only place that does: retries, replays and what
// was found after a crash. It tries once: the store keeps the message until it is confirmed,
// and the scheduler tries again, lane by lane.
type Sender struct {
	publisher Publisher
	events    Listener
	enrolled  *enrolled
}

// NewSender publishes through p what policies (asked at each batch) allow.
func NewSender(p Publisher, policies func() policy.Set, events Listener) *Sender {
	return &Sender{publisher: p, events: events, enrolled: newEnrolled(p, policies)}
}

// WhenAsked sets a function that is called each time RabbitMQ has answered whether a queue is
// enrolled. Call it before the first Send.
func (g *Sender) WhenAsked(answered func()) { g.enrolled.asker.answered = answered }

// Enrolled tells from memory whether messages can be retried to a queue. Where that is not
// known, RabbitMQ is asked. It is safe for concurrent use.
func (g *Sender) Enrolled(queue string) (yes, known bool) { return g.enrolled.is(queue) }

// Close cancels the questions to RabbitMQ that are under way. Call it after the last Send.
func (g *Sender) Close() { g.enrolled.asker.close() }

// route makes sure that claims can be published to their queue. A queue that was not known
// to be enrolled has its retry exchange made; whether it has consumers is looked at first
// then, so the claims are tried again.
func (g *Sender) route(ctx context.Context, queue string, claims []store.Claim) Result {
	known, _ := g.enrolled.is(queue)
	f := g.enrolled.route(ctx, queue, proven(claims), newest(claims))
	if f.Park == "" && f.Err == nil && !known {
		f.Err = Again
	}
	return f
}

// proven tells whether RabbitMQ dead-lettered one of the messages: then the queue is
// enrolled, for all of them.
func proven(claims []store.Claim) bool {
	return slices.ContainsFunc(claims, func(c store.Claim) bool { return c.Record.Proven })
}

func newest(claims []store.Claim) (due time.Time) {
	for _, c := range claims {
		if c.Record.Due.After(due) {
			due = c.Record.Due
		}
	}
	return due
}

// Send publishes claims of one lane, in their order, and returns a function that waits for
// the result of each. It must not be called by two goroutines at a time.
func (g *Sender) Send(ctx context.Context, queue string, claims []store.Claim) (wait func(context.Context) []Result) {
	results := make([]Result, len(claims))
	out := make([]wire.Outgoing, 0, len(claims))
	sent := make([]int, 0, len(claims)) // index in claims of each of out
	var route *Result                   // why nothing can be published to queue, once asked
	for i, c := range claims {
		if to := c.Record.Forward; to != nil {
			out, sent = append(out, outgoing(c.Record, to.Exchange, to.RoutingKey)), append(sent, i)
			continue
		}
		if route == nil {
			r := g.route(ctx, queue, claims)
			route = &r
		}
		if results[i] = route.at(c.Record.Due); route.Err != nil || route.Park != "" {
			continue
		}
		out, sent = append(out, outgoing(c.Record, wire.RetryExchange(queue), c.Record.Message.RoutingKey)), append(sent, i)
	}
	if len(out) == 0 {
		return func(context.Context) []Result { return results }
	}
	answers := g.publisher.Send(ctx, out)
	return func(ctx context.Context) []Result {
		var again *Result // what became of the queue's route, asked once a batch
		errs := answers(ctx)
		now := time.Now()
		for n, err := range errs {
			i := sent[n]
			r := claims[i].Record
			switch {
			case err == nil:
				results[i] = Result{Done: true}
				g.tell(r, now)
			case errors.Is(err, wire.ErrUnacceptable):
				results[i] = Result{Park: fmt.Sprintf("it cannot be returned: %v", err)}
			case errors.Is(err, wire.ErrUnroutable) && r.Forward != nil:
				results[i] = Result{Park: fmt.Sprintf("it cannot be forwarded to exchange %q with routing key %q: %v", r.Forward.Exchange, r.Forward.RoutingKey, err)}
			case errors.Is(err, wire.ErrUnroutable):
				// The queue was deleted. If it was declared again, only its binding is
				// missing. Or a person deleted its retry exchange: only a proven dead
				// letter makes that again.
				if again == nil {
					g.enrolled.forget(queue)
					f := g.enrolled.route(ctx, queue, proven(claims), now)
					if f.Err == nil && f.Park == "" {
						f.Err = Again
					}
					again = &f
				}
				results[i] = *again
			default:
				results[i] = Result{Err: err}
			}
		}
		return results
	}
}

// Again is the error of a Result whose obstacle is gone: try at once.
var Again = errors.New("the queue was bound again")

func (g *Sender) tell(r *store.Record, now time.Time) {
	kind := Retried
	if r.Forward != nil {
		kind = Forwarded
	}
	g.events(Event{Kind: kind, At: now, Queue: r.Queue, ID: r.ID, Attempt: r.Attempt, Reason: r.Reason, Late: now.Sub(r.Due)})
}

func outgoing(r *store.Record, exchange, key string) wire.Outgoing {
	id, m := marked(r)
	return wire.Outgoing{Exchange: exchange, RoutingKey: key, ID: id, Message: m}
}
