package flow

import (
	"context"
	"errors"
	"fmt"
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

// Fate is what became of one claim that was given back.
type Fate struct {
	Done bool   // confirmed where it belongs: delete it
	Park string // not empty: park it, for this reason
	Err  error  // neither: keep it waiting and try again
}

// GiveBack is the one place that publishes messages: due ones, replayed ones and
// those found after a crash all pass here.
type GiveBack struct {
	publisher Publisher
	events    Listener
	enrolled  *enrolled
}

// NewGiveBack publishes through p what policies (asked at each batch) allow.
func NewGiveBack(p Publisher, policies func() policy.Set, events Listener) *GiveBack {
	return &GiveBack{publisher: p, events: events, enrolled: newEnrolled(p, policies)}
}

// Send publishes claims of one queue, in their order, and returns a function
// that waits for the fate of each. It is called from one goroutine at a time.
func (g *GiveBack) Send(ctx context.Context, queue string, claims []store.Claim) (wait func(context.Context) []Fate) {
	fates := make([]Fate, len(claims))
	out := make([]Outgoing, 0, len(claims))
	sent := make([]int, 0, len(claims)) // index in claims of each of out
	var route *Fate                     // why nothing can return to queue, once asked
	for i, c := range claims {
		if to := c.Record.Forward; to != nil {
			out, sent = append(out, outgoing(c.Record, to.Exchange, to.RoutingKey)), append(sent, i)
			continue
		}
		if route == nil {
			r := g.enrolled.route(ctx, queue, c.Record.Proven)
			route = &r
		}
		if fates[i] = *route; route.Err != nil || route.Park != "" {
			continue
		}
		out, sent = append(out, outgoing(c.Record, wire.ReturnExchange(queue), c.Record.Message.RoutingKey)), append(sent, i)
	}
	if len(out) == 0 {
		return func(context.Context) []Fate { return fates }
	}
	answers := g.publisher.Send(ctx, out)
	return func(ctx context.Context) []Fate {
		var again *Fate // what became of the queue's route, asked once a batch
		errs := answers(ctx)
		now := time.Now()
		for n, err := range errs {
			i := sent[n]
			r := claims[i].Record
			switch {
			case err == nil:
				fates[i] = Fate{Done: true}
				g.tell(r, now)
			case errors.Is(err, wire.ErrUnacceptable):
				fates[i] = Fate{Park: fmt.Sprintf("it cannot be returned: %v", err)}
			case errors.Is(err, wire.ErrUnroutable) && r.Forward != nil:
				fates[i] = Fate{Park: fmt.Sprintf("it cannot be forwarded to exchange %q with routing key %q: %v", r.Forward.Exchange, r.Forward.RoutingKey, err)}
			case errors.Is(err, wire.ErrUnroutable):
				// The queue was deleted. If it was declared anew it only needs
				// its binding back.
				if again == nil {
					g.enrolled.forget(queue)
					f := g.enrolled.route(ctx, queue, true)
					if f.Err == nil && f.Park == "" {
						f.Err = Again
					}
					again = &f
				}
				fates[i] = *again
			default:
				fates[i] = Fate{Err: err}
			}
		}
		return fates
	}
}

// Again is the error of a fate whose obstacle is gone: try at once.
var Again = errors.New("the queue was bound again")

func (g *GiveBack) tell(r *store.Record, now time.Time) {
	kind := Returned
	if r.Forward != nil {
		kind = Forwarded
	}
	g.events(Event{Kind: kind, At: now, Queue: r.Queue, ID: r.ID, Attempt: r.Attempt, Reason: r.Reason, Late: now.Sub(r.Due)})
}
