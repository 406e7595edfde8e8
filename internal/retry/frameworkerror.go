package retry

import (
	"maps"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/frameworks"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/wire"
)

// errorOf returns the error of a message that failed: what its consumer says in our words, or else
// what its framework wrote.
func errorOf(d *wire.Delivery, o origin, says consumerSays) string {
	if text := headerText(&d.Message, says.error); text != "" || o.retried {
		// A framework's headers on a message that we retried are of the attempt before: RabbitMQ
		// dead-lettered it as we published it.
		return text
	}
	return frameworkError(&d.Message)
}

// frameworkError returns the error that another framework has written on a message, or "". How
// often it says that it has tried is shown to people, and counts for no policy: its retries within
// a consumer are no attempts, and a publisher can write what it likes.
func frameworkError(m *wire.Message) string {
	f, found := frameworks.Read(m)
	if !found {
		return ""
	}
	return printable(f.Text())
}

// firstPublishedBy fills in where a reported message was first published, as its framework tells
// and we do not know. Both are shown and passed on, and never decide where a message goes.
func (o *origin) firstPublishedBy(m *wire.Message) {
	if o.exchange != "" || o.routingKey != "" {
		return
	}
	if f, found := frameworks.Read(m); found {
		o.exchange, o.routingKey = f.Exchange, f.RoutingKey
	}
}

// ownError returns the error for our header on a message that is published again. One that a
// framework's headers on it tell already is left out: a report by that framework of the next failure would
// have two errors, and the older one in our words.
func ownError(r *store.Record) string {
	if r.Error != "" && r.Error == frameworkError(&r.Message) {
		return ""
	}
	return r.Error
}

// asFirstPublished returns a record whose message is as its consumers expect it: of what was adopted
// from another framework's error queue, without what that wrote, its envelope included. The error is
// left out then, for the reason that ownError has.
func asFirstPublished(r *store.Record) (*store.Record, error) {
	if r.Adopted == nil {
		return r, nil
	}
	restored := *r
	restored.Error = ""
	if r.Adopted.Preset == "" {
		return &restored, nil
	}
	m, _, err := frameworks.Restore(r.Adopted.Queue, &r.Message)
	if err != nil {
		return nil, err
	}
	restored.Message = *m
	return &restored, nil
}

// givenBack returns the message that goes to the dead-letter queue it was adopted from: as it was there,
// but for what copies it to other queues, what RabbitMQ alone may say, and a user-id that it refuses.
// nil: the record goes elsewhere.
func givenBack(r *store.Record) *wire.Message {
	to := r.Forward
	if r.Adopted == nil || r.Adopted.Queue == "" || to == nil || to.Exchange != "" || to.RoutingKey != r.Adopted.Queue {
		return nil
	}
	m := r.Message
	m.Headers = maps.Clone(m.Headers)
	for _, header := range []string{"CC", "BCC", "x-delivery-count", "x-acquired-count"} {
		delete(m.Headers, header)
	}
	if m.UserID != "" {
		if m.Headers == nil {
			m.Headers = amqp.Table{}
		}
		m.Headers[wire.HeaderUserID], m.UserID = m.UserID, ""
	}
	return &m
}
