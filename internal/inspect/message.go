package inspect

import (
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/query"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/policy"
)

// States of a message, in the words of page, API and command line.
const (
	Waiting   = "waiting"
	Retried   = "retried" // and not seen again; RabbitMQ never reports that a consumer succeeded
	Parked    = "parked"
	Discarded = "discarded" // restorable until a date
)

var stateNames = map[store.State]string{store.Waiting: Waiting, store.Parked: Parked, store.Discarded: Discarded}

// StateName is that word for a state that records have.
func StateName(s store.State) string { return stateNames[s] }

// Message is a message without headers and body.
type Message struct {
	ID          string     `json:"id" doc:"Its x-redrive-id."`
	Key         string     `json:"key,omitempty" csv:"-" doc:"Names this very copy: after a crash two can share an id. Absent when it was retried."`
	Queue       string     `json:"queue"`
	State       string     `json:"state" enum:"waiting,retried,parked,discarded"`
	Attempt     int        `json:"attempt" doc:"Failures so far."`
	Due         *time.Time `json:"due,omitempty" doc:"Of a waiting one: when it is retried at the earliest."`
	Paused      bool       `json:"paused,omitempty" csv:"-" doc:"The retries of its queue are paused."`
	ParkedAt    *time.Time `json:"parked_at,omitempty"`
	ParkedFor   string     `json:"parked_for,omitempty" doc:"Why it is parked."`
	RetriedAt   *time.Time `json:"retried_at,omitempty" csv:"-" doc:"When RabbitMQ had it in its queue; it has not been seen since."`
	Restorable  *time.Time `json:"restorable_until,omitempty" csv:"-" doc:"Of a discarded one."`
	Reason      string     `json:"reason" doc:"Why it failed: RabbitMQ's reason for dead-lettering it, or reported when a consumer reported it."`
	Error       string     `json:"error,omitempty" doc:"What its consumer said."`
	Group       string     `json:"group,omitempty" csv:"-" doc:"The group of failures it belongs to."`
	Policy      string     `json:"policy,omitempty"`
	FirstFailed time.Time  `json:"first_failed"`
	Failed      time.Time  `json:"failed"`
	Exchange    string     `json:"exchange" doc:"As first published."`
	RoutingKey  string     `json:"routing_key" doc:"As first published."`
	Type        string     `json:"type,omitempty" doc:"The type property."`
	ContentType string     `json:"content_type,omitempty"`
	Size        int        `json:"size" doc:"Of the body, in bytes."`
	Notes       []string   `json:"notes,omitempty" doc:"What was odd about it."`
	SendsTo     string     `json:"sends_to,omitempty" csv:"-" doc:"Where it is forwarded to, instead of being retried."`
	MadeFrom    string     `json:"made_from,omitempty" csv:"-" doc:"The message a person edited or copied to make this one."`
	MadeInto    string     `json:"made_into,omitempty" csv:"-" doc:"What a person made of this one."`
}

// Detail is a message with all that is known of it but the raw body.
type Detail struct {
	Message
	Timeline   []Step         `json:"timeline" doc:"Each failure and what came of it, oldest first."`
	Properties []Property     `json:"properties" doc:"AMQP's own, as first published."`
	Headers    []Header       `json:"headers"`
	Body       *decode.Result `json:"body,omitempty" doc:"Absent when it was retried."`
	SameID     []Message      `json:"same_id,omitempty" doc:"Other messages that carry its id."`
}

// Step is one failure.
type Step struct {
	Attempt int        `json:"attempt"`
	Failed  time.Time  `json:"failed"`
	Reason  string     `json:"reason"`
	Error   string     `json:"error,omitempty"`
	Policy  string     `json:"policy,omitempty"`
	Delay   string     `json:"delay,omitempty" doc:"How long it waits, or waited."`
	Why     string     `json:"why,omitempty" doc:"Why so long, or why it is parked."`
	Ended   *time.Time `json:"ended,omitempty" doc:"When its wait was over."`
	Ending  string     `json:"ending,omitempty" enum:"retried,forwarded,discarded"`
}

// Property is one of AMQP's basic properties.
type Property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Header is one header, its value as text for people.
type Header struct {
	Name  string `json:"name"`
	Type  string `json:"type" doc:"Of AMQP: string, bytes, int8 … int64, float32, float64, decimal, bool, timestamp, table, array, void."`
	Value string `json:"value" doc:"Tables and arrays as JSON."`
	From  string `json:"from" enum:"publisher,broker,redrive" doc:"Who sets headers of this name. Only of broker it is proven: a publisher can send the others as it likes."`
}

// Page is a piece of an answer.
type Page struct {
	Messages []Message `json:"messages"`
	After    string    `json:"after,omitempty" doc:"Ask with it for the next page; absent on the last."`
	// Bounded says in words, when it is not empty, which messages were not looked at.
	Bounded string `json:"bounded,omitempty" doc:"Which messages were not looked at, when not all were."`
	Looked  int64  `json:"looked" doc:"How many messages were looked at for this page."`
}

// Shown is a record as a message.
func (in *Inspector) Shown(l store.Listed) Message {
	r := l.Record
	m := Message{ID: r.ID.String(), Key: string(l.Key), Queue: r.Queue, State: StateName(r.State), Attempt: r.Failures, Reason: r.Reason, Error: r.Error,
		Group: in.Store.GroupOf(r).String(), Policy: r.Policy, FirstFailed: r.FirstFailed, Failed: r.FailedAt,
		Exchange: r.Message.Exchange, RoutingKey: r.Message.RoutingKey, Type: r.Message.Type, ContentType: r.Message.ContentType,
		Size: l.BodySize, Notes: r.Notes}
	due := r.Due
	switch r.State {
	case store.Parked:
		m.ParkedAt, m.ParkedFor = &due, r.ParkedFor
	case store.Discarded:
		m.Restorable, m.ParkedFor = &due, r.ParkedFor
	case query.Retried:
		m.State, m.RetriedAt, m.FirstFailed = Retried, &due, r.FailedAt
	default:
		m.Due = &due
	}
	if r.Forward != nil {
		m.SendsTo = sendsTo(r.Forward)
	}
	if r.MadeFrom != uuid.Nil {
		m.MadeFrom = r.MadeFrom.String()
	}
	if r.MadeInto != uuid.Nil {
		m.MadeInto = r.MadeInto.String()
	}
	return m
}

func sendsTo(d *store.Destination) string { return policy.Destination(*d).String() }
