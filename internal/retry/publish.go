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

// Outgoing is one message to publish. ID is its x-redrive-id.
type Outgoing struct {
	Exchange, RoutingKey string
	ID                   string
	Message              *wire.Message
	Unchecked            bool // without mandatory, so never unroutable
}

// Publisher is the broker's side of giving back.
type Publisher interface {
	// Send publishes persistent and mandatory, in order, and returns a function
	// that waits for RabbitMQ's answer to each: nil when confirmed and routed,
	// or an error of package redrive. It is called from one goroutine at a time
	// and blocks while there is no connection.
	Send(ctx context.Context, out []Outgoing) (wait func(context.Context) []error)
	Enroller
}

// Result tells what became of one claim that was published.
type Result struct {
	Done bool   // confirmed where it belongs: delete it
	Park string // not empty: park it, for this reason
	Err  error  // neither: keep it waiting and try again

	// Where asOf is not zero, Park is for messages due until then, and Err of others is later.
	asOf  time.Time
	later error
}

// Sender is the one place that publishes messages: due ones, replayed ones and
// those found after a crash all pass here.
type Sender struct {
	publisher Publisher
	events    Listener
	enrolled  *enrolled
}

// NewSender publishes through p what policies (asked at each batch) allow.
func NewSender(p Publisher, policies func() policy.Set, events Listener) *Sender {
	return &Sender{publisher: p, events: events, enrolled: newEnrolled(p, policies)}
}

// WhenAsked has a function called each time RabbitMQ has said whether a queue is
// enrolled. It is to be called before the first Send.
func (g *Sender) WhenAsked(answered func()) { g.enrolled.asker.answered = answered }

// Enrolled tells from memory whether messages can return to a queue. Where that is not
// known RabbitMQ is asked. Safe for concurrent use.
func (g *Sender) Enrolled(queue string) (yes, known bool) { return g.enrolled.is(queue) }

// Close ends the questions to RabbitMQ that are under way, after the last Send.
func (g *Sender) Close() { g.enrolled.asker.close() }

// route makes sure that claims can return to their queue. One that was not known to be
// enrolled is now; then it is first to be seen whether the queue has consumers.
func (g *Sender) route(ctx context.Context, queue string, claims []store.Claim) Result {
	known, _ := g.enrolled.is(queue)
	f := g.enrolled.route(ctx, queue, proven(claims), newest(claims))
	if f.Park == "" && f.Err == nil && !known {
		f.Err = Again
	}
	return f
}

// proven tells whether RabbitMQ has dead-lettered one of the messages: then the queue is
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

// Send publishes claims of one queue, in their order, and returns a function
// that waits for the fate of each. It is called from one goroutine at a time.
func (g *Sender) Send(ctx context.Context, queue string, claims []store.Claim) (wait func(context.Context) []Result) {
	fates := make([]Result, len(claims))
	out := make([]Outgoing, 0, len(claims))
	sent := make([]int, 0, len(claims)) // index in claims of each of out
	var route *Result                   // why nothing can return to queue, once asked
	for i, c := range claims {
		if to := c.Record.Forward; to != nil {
			out, sent = append(out, outgoing(c.Record, to.Exchange, to.RoutingKey)), append(sent, i)
			continue
		}
		if route == nil {
			r := g.route(ctx, queue, claims)
			route = &r
		}
		if fates[i] = route.at(c.Record.Due); route.Err != nil || route.Park != "" {
			continue
		}
		out, sent = append(out, outgoing(c.Record, wire.RetryExchange(queue), c.Record.Message.RoutingKey)), append(sent, i)
	}
	if len(out) == 0 {
		return func(context.Context) []Result { return fates }
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
				fates[i] = Result{Done: true}
				g.tell(r, now)
			case errors.Is(err, wire.ErrUnacceptable):
				fates[i] = Result{Park: fmt.Sprintf("it cannot be returned: %v", err)}
			case errors.Is(err, wire.ErrUnroutable) && r.Forward != nil:
				fates[i] = Result{Park: fmt.Sprintf("it cannot be forwarded to exchange %q with routing key %q: %v", r.Forward.Exchange, r.Forward.RoutingKey, err)}
			case errors.Is(err, wire.ErrUnroutable):
				// The queue was deleted. If it was declared anew it only needs
				// its binding back. Or somebody deleted its retry exchange, which no
				// report makes anew.
				if again == nil {
					g.enrolled.forget(queue)
					f := g.enrolled.route(ctx, queue, proven(claims), now)
					if f.Err == nil && f.Park == "" {
						f.Err = Again
					}
					again = &f
				}
				fates[i] = *again
			default:
				fates[i] = Result{Err: err}
			}
		}
		return fates
	}
}

// Again is the error of a fate whose obstacle is gone: try at once.
var Again = errors.New("the queue was bound again")

func (g *Sender) tell(r *store.Record, now time.Time) {
	kind := Returned
	if r.Forward != nil {
		kind = Forwarded
	}
	g.events(Event{Kind: kind, At: now, Queue: r.Queue, ID: r.ID, Attempt: r.Attempt, Reason: r.Reason, Late: now.Sub(r.Due)})
}
