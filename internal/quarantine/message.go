package quarantine

import (
	"cmp"
	"fmt"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/headers"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/wire"
)

// Message is a message in quarantine.
type Message struct {
	// Queue is the work queue it failed in; "": its headers do not say.
	Queue string `json:"queue"`
	// Claimed: a publisher may have forged Queue.
	Claimed    bool      `json:"queue_claimed,omitempty"`
	Reason     string    `json:"reason"`
	Attempt    int       `json:"attempt"` // failures so far, this one included
	Error      string    `json:"error,omitempty"`
	Since      time.Time `json:"since,omitzero"` // in quarantine
	Exchange   string    `json:"exchange"`       // as first published
	RoutingKey string    `json:"routing_key"`
	Size       int       `json:"size"`
	// ByAPI: RabbitMQ can deliver it to no AMQP client. Its headers are as JSON shows them.
	ByAPI bool `json:"by_api,omitempty"`

	wire.Message `json:"-"`

	history headers.History // what its headers prove
}

// read finds where a message failed. The first entry of its x-death header is the intake; the
// exchange there says whether the message was reported or dead-lettered.
func read(m *wire.Message) *Message {
	x := &Message{Message: *m, Size: len(m.Body), Attempt: 1}
	x.Error, _ = m.Headers[wire.HeaderError].(string)
	deaths, _ := m.Headers["x-death"].([]any)
	intake := deathAt(deaths, 0)
	if intake.queue != wire.QueueIntake {
		return x
	}
	x.Since = intake.at
	viaOurs := true
	switch intake.exchange {
	case wire.ExchangeFailures:
		x.Queue, x.Reason = intake.key, wire.ReasonReported
		x.Exchange, _ = m.Headers[wire.HeaderExchange].(string)
		x.RoutingKey, _ = m.Headers[wire.HeaderRoutingKey].(string)
	case wire.ExchangeDeadLetters:
		d := deathAt(deaths, 1)
		x.Queue, x.Reason, x.Exchange, x.RoutingKey = d.queue, d.reason, d.exchange, d.key
		if viaOurs = d.exchange == wire.RetryExchange(d.queue) || delay.EndsWait(d.exchange); viaOurs {
			x.Exchange, _ = m.Headers[wire.HeaderExchange].(string)
			x.RoutingKey, _ = m.Headers[wire.HeaderRoutingKey].(string)
		}
	}
	if wire.OwnQueue(x.Queue) || len(x.Queue) > 255 {
		x.Queue = ""
	}
	x.history, _, _ = headers.Read(m, x.Queue, viaOurs, cmp.Or(x.Since, time.Now()))
	x.Attempt = x.history.Failures + 1
	return x
}

// death is an entry of an x-death header.
type death struct {
	queue, reason, exchange, key string
	at                           time.Time
}

func deathAt(all []any, i int) (e death) {
	if i >= len(all) {
		return e
	}
	t, _ := all[i].(amqp.Table)
	e.queue, _ = t["queue"].(string)
	e.reason, _ = t["reason"].(string)
	e.exchange, _ = t["exchange"].(string)
	if keys, _ := t["routing-keys"].([]any); len(keys) > 0 {
		e.key, _ = keys[0].(string)
	}
	switch at := t["time"].(type) {
	case time.Time:
		e.at = at
	case int64:
		e.at = time.Unix(at, 0)
	}
	return e
}

// id is the message's own or, so that a copy after a crash has the same, one made of its
// content. n distinguishes messages with equal content.
func (x *Message) id(n int) uuid.UUID {
	if x.history.ID != "" {
		return uuid.MustParse(x.history.ID)
	}
	return headers.BindID(uuid.NewSHA1(uuid.NameSpaceOID, fmt.Appendf(nil, "%d\x00%s", n, x.content())), &x.Message)
}

func (x *Message) content() string {
	return fmt.Sprint(x.Queue, "\x00", x.Exchange, "\x00", x.RoutingKey, "\x00", x.MessageID, "\x00", x.CorrelationID, "\x00", x.Timestamp.Unix(), "\x00", x.Since.Unix(), "\x00", string(x.Body))
}

// Replayer makes reports of messages: the intake treats them as if they failed now.
type Replayer struct{ same map[string]int }

// Report returns how a message is published again: to the exchange of failures, by the name of
// its queue, with its history in our headers and without RabbitMQ's.
func (r *Replayer) Report(x *Message) wire.Outgoing {
	if r.same == nil {
		r.same = map[string]int{}
	}
	n := r.same[x.content()]
	r.same[x.content()]++
	why := cmp.Or(x.Error, fmt.Sprintf("RabbitMQ failed to deliver it to Redrive when it had failed (%s): replayed from quarantine", x.Reason))
	m := x.Message
	m.Exchange, m.RoutingKey = x.Exchange, x.RoutingKey
	t := headers.History{ID: x.id(n).String(), Failures: x.Attempt - 1, Queue: x.Queue,
		FirstFailed: cmp.Or(x.history.FirstFailed, x.Since, time.Now()), Reason: x.Reason, Error: why}
	return wire.Outgoing{Exchange: wire.ExchangeFailures, RoutingKey: x.Queue, ID: t.ID, Message: t.ApplyTo(m)}
}

// Record is the message as one that is parked, for an export that `redrive import` reads.
func (r *Replayer) Record(x *Message, now time.Time) *store.Record {
	o := r.Report(x)
	rec := &store.Record{ID: uuid.MustParse(o.ID), Queue: x.Queue, State: store.Parked, Due: now, Failures: x.Attempt, Reason: x.Reason, Error: x.Error,
		FirstFailed: cmp.Or(x.history.FirstFailed, x.Since, now), FailedAt: cmp.Or(x.Since, now), ParkedFor: "RabbitMQ failed to deliver it to Redrive: it was in quarantine",
		Message: x.Message}
	if x.Claimed {
		rec.Notes = append(rec.Notes, "its queue is what its headers claim: on RabbitMQ 3 a publisher can forge them")
	}
	rec.Message.Exchange, rec.Message.RoutingKey = x.Exchange, x.RoutingKey
	return rec
}
