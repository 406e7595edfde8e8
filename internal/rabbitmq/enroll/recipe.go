package enroll

import (
	"context"
	"fmt"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/delay/ttlqueue"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/policy"
)

// Recipe is an arrangement of exchanges and queues that others have published for retries, as they
// published it: with its names, and with what it lacks (Warnings).
//
// All of its exchanges are direct and its keys are names of queues, so several work queues can
// share an exchange. All dead-lettering is at-most-once: what RabbitMQ takes for a cycle would
// stop an at-least-once queue.
type Recipe struct {
	kind     RecipeKind
	queue    string
	delays   []time.Duration
	queues   ttlqueue.Type
	plugin   bool
	name     map[string]string // of each part but retry-queue
	retries  []string          // the retry queues of RetryQueue, one for each delay
	topology delay.Topology
}

// RecipeOptions are what a person chooses of a recipe.
type RecipeOptions struct {
	Queue  string            // the work queue
	Names  map[string]string // templates by part; the others keep their own
	Delays []time.Duration   // of RetryQueue alone
	Type   ttlqueue.Type     // of the queues that are made
	Plugin bool              // of WaitExchange alone: its wait exchange delays, by the plugin
}

// RecipeKind is which of them.
type RecipeKind string

// The recipes.
const (
	RetryQueue    RecipeKind = "retry-queue"    // rejected messages go to a queue with a TTL, and back
	RetryExchange RecipeKind = "retry-exchange" // consumers publish to a retry exchange, each message with its TTL
	WaitExchange  RecipeKind = "wait-exchange"  // rejected messages go to an error queue, whose program publishes to a wait exchange
)

// NewRecipe refuses names that RabbitMQ or Redrive does not allow, and those that are there twice.
func NewRecipe(kind RecipeKind, o RecipeOptions) (*Recipe, error) {
	r := &Recipe{kind: kind, queue: o.Queue, delays: o.Delays, queues: o.Type, plugin: o.Plugin}
	if err := r.chooseNames(o.Names); err != nil {
		return nil, err
	}
	switch kind {
	case RetryQueue:
		for i, d := range o.Delays {
			if _, err := ttlqueue.NewFixed(o.Type, d); err != nil {
				return nil, err
			}
			args := r.arguments(amqp.Table{"x-message-ttl": d.Milliseconds(), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": o.Queue})
			r.add("dead-letter-exchange", r.retries[i], r.retries[i], args)
		}
	case RetryExchange:
		r.add("retry-exchange", r.queue, r.name["retry-queue"], r.arguments(amqp.Table{"x-dead-letter-exchange": r.name["work-exchange"]}))
		r.add("work-exchange", r.queue, r.queue, nil)
	case WaitExchange:
		r.add("error-exchange", r.queue, r.name["error-queue"], r.arguments(amqp.Table{}))
		r.add("requeue-exchange", r.queue, r.queue, nil)
		if o.Plugin {
			r.topology = r.topology.With(delay.Topology{
				Exchanges: []delay.Exchange{{Name: r.name["wait-exchange"], Kind: "x-delayed-message", Args: amqp.Table{"x-delayed-type": amqp.ExchangeDirect}}},
				Bindings:  []delay.Binding{{From: r.name["wait-exchange"], Key: r.queue, ToExchange: r.name["requeue-exchange"]}}})
			break
		}
		r.add("wait-exchange", r.queue, r.name["wait-queue"], r.arguments(amqp.Table{"x-dead-letter-exchange": r.name["requeue-exchange"]}))
	}
	return r, r.checkNames()
}

// add binds a queue to the exchange of a part; a queue without arguments exists already.
func (r *Recipe) add(part, key, queue string, args amqp.Table) {
	t := delay.Topology{Bindings: []delay.Binding{{From: r.name[part], Key: key, ToQueue: queue}}}
	if !hasExchange(r.topology, r.name[part]) || part != "dead-letter-exchange" { // which has a binding for each delay
		t.Exchanges = []delay.Exchange{{Name: r.name[part], Kind: amqp.ExchangeDirect}}
	}
	if args != nil {
		t.Queues = []delay.Queue{{Name: queue, Args: args}}
	}
	r.topology = r.topology.With(t)
}

func (r *Recipe) arguments(args amqp.Table) amqp.Table {
	args["x-queue-type"] = string(r.queues)
	if r.queues == ttlqueue.Quorum {
		args["x-delivery-limit"] = delay.NoLimit
	}
	return args
}

// Topology is all but the policy. The work queue must exist.
func (r *Recipe) Topology() delay.Topology { return r.topology }

const recipePrefix = "redrive-recipe."

func (r *Recipe) target() Target {
	t := Target{PolicyPrefix: recipePrefix, AtMostOnce: true, topology: r.topology}
	switch r.kind {
	case RetryQueue:
		t.Exchange, t.RoutingKey = r.name["dead-letter-exchange"], r.retries[0]
		t.Expired = "RabbitMQ drops those as a cycle, instead of retrying them"
	case WaitExchange:
		t.Exchange, t.RoutingKey = r.name["error-exchange"], r.queue
		t.AtMostOnce = false
		t.Expired = "those go to the error queue too"
	}
	var made []string
	for _, e := range r.topology.Exchanges {
		made = append(made, fmt.Sprintf("exchange %q", e.Name))
	}
	for _, q := range r.topology.Queues {
		made = append(made, fmt.Sprintf("queue %q", q.Name))
	}
	t.Makes = "makes " + strings.Join(made, ", ")
	return t
}

// Policies are those that dead-letter the work queue, for where no other policy applies; Plan
// merges them.
func (r *Recipe) Policies() []management.Policy {
	if r.kind == RetryExchange {
		return nil
	}
	return []management.Policy{r.target().policy(r.queue)}
}

// Plan returns what it changes. It refuses exchanges and queues that exist and are different.
func (r *Recipe) Plan(ctx context.Context, m *management.Client) (*Plan, error) {
	q, policies, err := ReadQueue(ctx, m, r.queue)
	if err != nil {
		return nil, err
	}
	if err := r.checkExisting(ctx, m); err != nil {
		return nil, err
	}
	if r.kind == RetryExchange {
		return &Plan{Queue: q, Target: r.target()}, canEnroll(q, false)
	}
	return plan(q, policies, r.target(), false)
}

// UndoRecipe removes its policy. Messages that wait are still retried, so all else stays.
func UndoRecipe(ctx context.Context, m *management.Client, queue string) error {
	return undo(ctx, m, Target{PolicyPrefix: recipePrefix}.policy(queue), queue)
}

// Usage says what consumers have to do.
func (r *Recipe) Usage() string {
	switch r.kind {
	case RetryExchange:
		return fmt.Sprintf("a consumer that fails publishes the message to exchange %q with the routing key %q and its delay in milliseconds as expiration, waits for the confirm, and acknowledges it", r.name["retry-exchange"], r.queue)
	case WaitExchange:
		by := "its delay in milliseconds as expiration"
		if r.plugin {
			by = "its delay in milliseconds in the header x-delay"
		}
		return fmt.Sprintf("consumers reject without requeue; a program of yours consumes queue %q, publishes each message to exchange %q with the routing key that it has, and with %s, waits for the confirm, and acknowledges it", r.name["error-queue"], r.name["wait-exchange"], by)
	}
	usage := fmt.Sprintf("consumers reject without requeue; the message is back after %s", policy.FormatDuration(r.delays[0]))
	if len(r.delays) > 1 {
		usage += fmt.Sprintf("; for another delay a consumer publishes it to exchange %q with the name of a retry queue as its routing key, waits for the confirm, and acknowledges it", r.name["dead-letter-exchange"])
	}
	return usage
}
