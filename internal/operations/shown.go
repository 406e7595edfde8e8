package operations

import (
	"cmp"
	"math"
	"time"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/policy"
)

// PlanRequest asks what an action on all that a query finds would do.
type PlanRequest struct {
	Verb   actions.Verb `json:"verb"`
	Query  string       `json:"query,omitempty" doc:"In the query language. Not with those below, or adopt, unadopt."`
	At     *time.Time   `json:"at,omitempty" doc:"Replay: when; left out: now."`
	To     string       `json:"to,omitempty" doc:"Copy: the queue. Unadopt: the dead-letter queue."`
	Reason string       `json:"reason,omitempty" maxLength:"500"`
	RestOf string       `json:"rest_of,omitempty" doc:"Replay, instead of a query: a replay whose rest it is."`
	// DiscardedBy is an operation.
	DiscardedBy string `json:"discarded_by,omitempty" doc:"Restore, instead of a query: the operation that did."`
	// Of an adoption; the last also of an unadoption.
	From              string   `json:"from,omitempty" doc:"Adopt: the dead-letter queue."`
	WorkQueues        []string `json:"work_queues,omitempty" doc:"Adopt: where they failed; absent: as each says."`
	Format            string   `json:"format,omitempty" doc:"Adopt: of the messages; absent: each shows its own."`
	Sample            int      `json:"sample,omitempty" minimum:"0" maximum:"1000" doc:"Adopt: look at so many first."`
	Limit             int64    `json:"limit,omitempty" minimum:"0" doc:"Adopt: so many at most (0 = all there now)."`
	EvenWithConsumers bool     `json:"even_with_consumers,omitempty" doc:"Adopt, unadopt: also a queue in use."`
}

// Plan is an action on many messages before it begins. The messages are those that
// were found when it was made: what fails later is not among them.
type Plan struct {
	ID    string       `json:"id"`
	Verb  actions.Verb `json:"verb"`
	Query string       `json:"query"`
	About string       `json:"about,omitempty" csv:"-" doc:"Of error groups alone: the errors, how many."`
	From  string       `json:"from,omitempty" doc:"Adopt: the dead-letter queue."`
	// WorkQueues are those that the caller named, Leads those that dead-letter to From.
	WorkQueues []string   `json:"work_queues,omitempty"`
	Leads      []string   `json:"leads,omitempty" doc:"Adopt: queues that dead-letter to it."`
	Format     string     `json:"format,omitempty" doc:"Adopt: the format that the caller named."`
	Sampled    *Sampled   `json:"sampled,omitempty" doc:"Adopt: what a sample showed."`
	At         *time.Time `json:"at,omitempty"`
	To         string     `json:"to,omitempty"`
	Reason     string     `json:"reason,omitempty"`
	RestOf     string     `json:"rest_of,omitempty" doc:"The replay whose rest it is."`
	// DiscardedBy is as in PlanRequest.
	DiscardedBy string            `json:"discarded_by,omitempty" doc:"Restore: the operation that discarded them."`
	By          string            `json:"by"`
	Made        time.Time         `json:"made"`
	Expires     time.Time         `json:"expires" doc:"It must be started before."`
	Count       int64             `json:"count" doc:"The exact number of messages."`
	Oldest      *time.Time        `json:"oldest,omitempty" doc:"When the first of them failed."`
	Newest      *time.Time        `json:"newest,omitempty"`
	Queues      []PlanQueue       `json:"queues" doc:"Split by work queue."`
	Skipped     []Skipped         `json:"skipped,omitempty" doc:"Found by the query, but left out."`
	Samples     []inspect.Message `json:"samples"`
	Blocked     []string          `json:"blocked,omitempty" doc:"Why it cannot start; empty when it can."`
	Warnings    []string          `json:"warnings,omitempty"`

	// ReplayedBefore is how many were, MostReplays how often one of them.
	ReplayedBefore int64 `json:"-" csv:"-"`
	MostReplays    int   `json:"-" csv:"-"`
}

// Subject is what the plan is about, for people.
func (p Plan) Subject() string { return cmp.Or(p.About, p.Query) }

// Takes says about how long its messages take at a rate, in messages per second.
func (p Plan) Takes(rate float64) string {
	d := time.Duration(min(float64(p.Count)/rate*float64(time.Second), math.MaxInt64/2))
	to := time.Second
	if d >= 10*time.Minute {
		to = time.Minute
	}
	return policy.FormatDuration(max(d, time.Second).Round(to))
}

// Sampled summarises the first messages of a dead-letter queue. Each list has the 20 most frequent at most.
type Sampled struct {
	Messages int     `json:"messages" doc:"Fewer than asked for if they are large, or there are no more."`
	Queues   []Tally `json:"queues" doc:"Work queues; an empty name: not known."`
	Errors   []Tally `json:"errors" doc:"An example of each error group; an empty text: no error."`
	Formats  []Tally `json:"formats" doc:"x-death: no known framework."`
	Notes    []Tally `json:"notes" doc:"What is odd, or cannot be read."`
}

// Tally counts messages that say the same.
type Tally struct {
	What  string `json:"what"`
	Count int    `json:"count"`
}

// PlanQueue is a plan's part for one queue.
type PlanQueue struct {
	Queue     string `json:"queue"`
	Count     int64  `json:"count"`
	Known     bool   `json:"known" doc:"RabbitMQ answered. When false, the next three say nothing."`
	Exists    bool   `json:"exists"`
	Consumers int    `json:"consumers"`
	Ready     int    `json:"ready" doc:"Messages in the queue now."`
	Paused    bool   `json:"paused"`

	// FailedHere: Redrive has seen messages of it fail. DeadLetters is as in inspect.AtBroker.
	FailedHere  bool   `json:"-"`
	DeadLetters string `json:"-"`
}

// Skipped is how many a plan leaves out, and why.
type Skipped struct {
	Why   string `json:"why"`
	Count int64  `json:"count"`
}

// Start is how a plan is started.
type Start struct {
	ExpectCount *int64  `json:"expect_count,omitempty" doc:"Refuse when the plan has another count."`
	Rate        float64 `json:"rate,omitempty" minimum:"0" doc:"Messages per second (0 = unlimited)."`
	CanarySize  int     `json:"canary,omitempty" minimum:"0" maximum:"10000" doc:"So many first; then the rest."`
	CanaryWait  string  `json:"canary_wait,omitempty" doc:"How long they are watched, such as 30s; left out: 1m."`
	Reason      string  `json:"reason,omitempty" maxLength:"500"`
}

// States of an operation.
const (
	Running  = "running"
	Watching = "canary" // whether its first messages, its canaries, fail again
	Paused   = "paused"
	Finished = "finished"
	Canceled = "canceled"
	Stopped  = "stopped" // by itself: see Why
)

// Operation is a plan that was started.
type Operation struct {
	Plan
	State string  `json:"state" enum:"running,canary,paused,finished,canceled,stopped"`
	Why   string  `json:"why,omitempty" doc:"Why it is paused, stopped or canceled, or what it is waiting for."`
	Rate  float64 `json:"rate"`
	// CanarySize is how many messages are processed first.
	CanarySize  int        `json:"canary"`
	CanarySent  int64      `json:"canary_sent,omitempty" doc:"How many of the canary's are sent; of a canary alone."`
	CanaryUntil *time.Time `json:"canary_until,omitempty" doc:"When the rest follows; absent: not all are sent."`

	Started   time.Time  `json:"started"`
	StartedBy string     `json:"started_by"`
	Ended     *time.Time `json:"ended,omitempty"`
	Done      int64      `json:"done"`
	SkippedN  int64      `json:"skipped_now" doc:"Messages that were gone or had changed."`
	Failed    int64      `json:"failed"`
	PerSecond float64    `json:"per_second" doc:"Lately."`
	Left      string     `json:"left,omitempty" doc:"About how long the rest, or the watch of a canary, will take."`
	Replayed  *Replayed  `json:"replayed,omitempty" doc:"Replay: what became of the messages that are done."`
}

// HasRest reports whether it is a replay that ended before it reached all its messages.
func (o Operation) HasRest() bool {
	return o.Verb == actions.Replay && o.Ended != nil && o.Done+o.SkippedN+o.Failed < o.Count
}

// Discards reports whether it is a discard that has ended, so that its messages may be restored.
func (o Operation) Discards() bool { return o.Verb == actions.Discard && o.Ended != nil && o.Done > 0 }

// Replayed counts the outcomes of replayed messages, as far as they are known: RabbitMQ never reports that a consumer
// succeeded.
type Replayed struct {
	Sent         int64        `json:"sent" doc:"Sent to their queues; the next two add up to it."`
	FailedAgain  int64        `json:"failed_again" doc:"Seen to fail since. Each counts once."`
	NotSeenSince int64        `json:"not_seen_since" doc:"Sent, and came through, or have not failed yet."`
	StillHere    int64        `json:"still_here" doc:"Not sent: due later, delayed, paused, or discarded."`
	Errors       []AgainError `json:"errors,omitempty" doc:"The ten with the most messages that failed again."`
	OtherErrors  int64        `json:"other_errors,omitempty" doc:"How many failed again with other errors."`
	Until        *time.Time   `json:"until,omitempty" doc:"When counting ended; missing: it continues."`
}

// AgainError is an error with which messages failed again.
type AgainError struct {
	Group  string `json:"group,omitempty" doc:"The error group; missing: it could not be sent."`
	Queue  string `json:"queue"`
	Error  string `json:"error,omitempty" doc:"With numbers, ids and times replaced."`
	Reason string `json:"reason,omitempty" doc:"Where no error is known."`
	Count  int64  `json:"count"`
}

// Columns show operations on the command line.
var Columns = []inspect.Column[Operation]{
	{Field: "ID"}, {Head: "What", Field: "Verb"}, {Field: "State"}, {Field: "Done"}, {Head: "Of", Field: "Count"},
	{Head: "Failed again", Narrow: 2, Value: func(o Operation) any {
		if o.Replayed == nil {
			return ""
		}
		return o.Replayed.FailedAgain
	}},
	{Head: "Skipped", Field: "SkippedN", Narrow: 4}, {Head: "Not done", Field: "Failed", Narrow: 5},
	{Field: "Started", Narrow: 1}, {Head: "By", Field: "StartedBy", Narrow: 3}, {Field: "From", Narrow: inspect.Below},
	{Head: "On", Field: "Query", Narrow: inspect.Below, Value: func(o Operation) any { return o.Subject() }},
	{Field: "Why", Narrow: inspect.Below},
}

// Order is a person's request to a running operation.
type Order string

// Orders.
const (
	Pause  Order = "pause"
	Resume Order = "resume"
	Cancel Order = "cancel"
)

// Outcomes is one page of the results of an operation's messages.
type Outcomes struct {
	Outcomes []actions.Outcome `json:"outcomes"`
	After    string            `json:"after,omitempty"`
}
