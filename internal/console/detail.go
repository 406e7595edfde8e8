package console

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/query"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// Message tells all of one message, by its id or its key. Of one that has returned
// it tells what is remembered.
func (c *Console) Message(ctx context.Context, by auth.Caller, id string) (Detail, error) {
	l, others, err := c.one(ctx, by, id)
	if err != nil {
		return Detail{}, err
	}
	r := l.Record
	d := Detail{Message: c.shown(l), Properties: []Property{}, Headers: []Header{}}
	holds, err := c.holds(ctx)
	if err != nil {
		return Detail{}, err
	}
	_, held := holds[r.Queue]
	d.Held = held && r.State == store.Waiting
	for _, o := range others {
		d.SameID = append(d.SameID, c.shown(o))
	}
	past, err := c.Store.Past(ctx, r.ID)
	if err != nil {
		return Detail{}, err
	}
	d.Timeline = c.timeline(r, past)
	if r.State != query.Returned {
		d.Properties, d.Headers = properties(&r.Message), headersOf(r)
		d.Body = c.decoded(ctx, &l)()
	}
	return d, nil
}

// Body is a message's body as it is.
func (c *Console) Body(ctx context.Context, by auth.Caller, id string) ([]byte, error) {
	l, _, err := c.one(ctx, by, id)
	if err != nil {
		return nil, err
	}
	if l.Record.State == query.Returned {
		return nil, fmt.Errorf("%w: the message %s has returned, and its body is not kept any more", ErrNotFound, id)
	}
	return l.Record.Message.Body, nil
}

// one finds a message by id or key: kept, or else as it ended. others carry the same
// id.
func (c *Console) one(ctx context.Context, by auth.Caller, name string) (l store.Listed, others []store.Listed, err error) {
	if err := by.May(auth.Viewer, ""); err != nil {
		return l, nil, err
	}
	unknown := fmt.Errorf("%w: there is no message %.60q, or nothing is remembered of it", ErrNotFound, name)
	id, err := uuid.Parse(name)
	byID := err == nil && len(name) == 36
	if !byID {
		if l, err = c.Store.Get(ctx, store.Key(name)); errors.Is(err, store.ErrNotFound) || err == nil && !by.Sees(l.Record.Queue) {
			return l, nil, unknown
		}
		if err != nil {
			return l, nil, err
		}
		id = l.Record.ID
	}
	all, err := c.Store.Find(ctx, id)
	if err != nil {
		return l, nil, err
	}
	for _, o := range all {
		switch {
		case !by.Sees(o.Record.Queue) || o.Key == l.Key:
		case byID && l.Record == nil:
			l = o
		default:
			others = append(others, o)
		}
	}
	if l.Record != nil {
		return l, others, nil
	}
	past, err := c.Store.Past(ctx, id)
	for _, p := range slices.Backward(past) {
		if by.Sees(p.Queue) {
			return passed(p), nil, nil
		}
	}
	if err == nil {
		err = unknown
	}
	return l, nil, err
}

// timeline is each failure that is remembered, and what came of it.
func (c *Console) timeline(r *store.Record, past []store.Passage) []Step {
	steps := []Step{}
	for _, p := range past {
		if p.Queue != r.Queue {
			continue // another message with its id
		}
		ended := p.Ended
		s := Step{Attempt: p.Attempt, Failed: p.FailedAt, Reason: p.Reason, Error: p.Error, Policy: p.Policy, Ended: &ended, Ending: endings[p.Ending]}
		s.Delay, s.Why = c.whyWait(p.Queue, p.Policy, p.Attempt, p.Due.Sub(p.FailedAt))
		if p.Ending == store.EndedDiscarded {
			s.Delay, s.Why = "", "it was discarded, and the time to restore it is over"
		}
		steps = append(steps, s)
	}
	if r.State == query.Returned {
		return steps
	}
	s := Step{Attempt: r.Attempt, Failed: r.FailedAt, Reason: r.Reason, Error: r.Error, Policy: r.Policy}
	switch {
	case r.State == store.Parked:
		s.Why = r.ParkedFor
	case r.State == store.Discarded:
		s.Why = "a person discarded it"
	case r.Forward != nil:
		s.Why = "it goes to " + sendsTo(r.Forward)
	default:
		s.Delay, s.Why = c.whyWait(r.Queue, r.Policy, r.Attempt, r.Due.Sub(r.FailedAt))
	}
	steps = append(steps, s)
	if first := steps[0]; first.Attempt > 1 && !r.FirstFailed.IsZero() && r.FirstFailed.Before(first.Failed) {
		steps = slices.Insert(steps, 0, Step{Attempt: 1, Failed: r.FirstFailed, Why: "it failed for the first time; nothing more is remembered of what was before the next one"})
	}
	return steps
}

var endings = map[store.Ending]string{store.EndedReturned: "returned", store.EndedForwarded: "forwarded", store.EndedDiscarded: "discarded"}

// whyWait explains how long a message waits after a failure.
func (c *Console) whyWait(queue, name string, attempt int, delay time.Duration) (text, why string) {
	text = policy.FormatDuration(delay)
	if attempt == 0 {
		return text, "a person sent it back, with all its attempts before it"
	}
	set := c.policies()
	i := slices.IndexFunc(set, func(p policy.Policy) bool { return p.Name == name })
	switch {
	case name == "":
		return text, ""
	case i < 0:
		return text, fmt.Sprintf("policy %q decided, which is not in force any more", name)
	}
	p := &set[i]
	if attempt >= p.Attempts {
		return text, fmt.Sprintf("failure %d of the %d that policy %q allows now: a person sent it back, or the policy was changed since", attempt, p.Attempts, name)
	}
	least, most := waits(p, c.way(name), attempt)
	between := policy.FormatDuration(least)
	if least != most {
		between += " to " + policy.FormatDuration(most) + " (" + policy.FormatDuration(p.Backoff.Delay(attempt)) + " with jitter " + p.Jitter.String() + ")"
	}
	why = fmt.Sprintf("failure %d of %d: policy %q waits %s", attempt, p.Attempts, name, between)
	if slack := 2 * time.Millisecond; delay < least-slack || delay > most+slack {
		why += "; this differs because its consumer asked for another delay, a person changed it, or the policy was changed since"
	}
	return text, why
}

// properties are those that are there.
func properties(m *wire.Message) []Property {
	all := []Property{}
	add := func(name, value string) {
		if value != "" {
			all = append(all, Property{name, value})
		}
	}
	add("content_type", m.ContentType)
	add("content_encoding", m.ContentEncoding)
	switch m.DeliveryMode {
	case 0:
	case 1:
		add("delivery_mode", "1 (transient)")
	case 2:
		add("delivery_mode", "2 (persistent)")
	default:
		add("delivery_mode", strconv.Itoa(int(m.DeliveryMode)))
	}
	if m.Priority > 0 {
		add("priority", strconv.Itoa(int(m.Priority)))
	}
	add("correlation_id", m.CorrelationID)
	add("reply_to", m.ReplyTo)
	add("expiration", m.Expiration)
	add("message_id", m.MessageID)
	if !m.Timestamp.IsZero() {
		add("timestamp", m.Timestamp.UTC().Format(time.RFC3339))
	}
	add("type", m.Type)
	add("user_id", m.UserID)
	add("app_id", m.AppID)
	return all
}

// headersOf are the headers, sorted, each with whose word it is.
func headersOf(r *store.Record) []Header {
	all := []Header{}
	for _, name := range slices.Sorted(maps.Keys(r.Message.Headers)) {
		v := r.Message.Headers[name]
		all = append(all, Header{Name: name, Type: typeName(v), Value: readable(v), From: whose(name, r)})
	}
	return all
}

// whose word a header is. What the broker writes can be believed only where the
// broker itself dead-lettered the message; x-first-death-… and x-last-death-… not
// even then, since RabbitMQ 3 leaves a publisher's as they are.
func whose(name string, r *store.Record) string {
	switch {
	case strings.HasPrefix(name, "x-redrive-"):
		return "redrive"
	case r.Proven && (name == "x-death" || name == "x-delivery-count" || name == "x-acquired-count"):
		return "broker"
	}
	return "publisher"
}

// readable is a header's value as text: tables and arrays as JSON.
func readable(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case amqp.Table, []any:
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		if err := e.Encode(asJSON(v)); err != nil {
			return err.Error()
		}
		return strings.TrimSuffix(b.String(), "\n")
	case []byte:
		if !utf8.Valid(v) {
			return base64.StdEncoding.EncodeToString(v)
		}
	}
	text, _ := query.Text(v)
	return text
}

func asJSON(v any) any {
	switch v := v.(type) {
	case amqp.Table:
		m := make(map[string]any, len(v))
		for k, e := range v {
			m[k] = asJSON(e)
		}
		return m
	case []any:
		l := make([]any, len(v))
		for i, e := range v {
			l[i] = asJSON(e)
		}
		return l
	case bool, nil, int8, uint8, int16, uint16, int32, uint32, int64:
		return v
	}
	return readable(v)
}
