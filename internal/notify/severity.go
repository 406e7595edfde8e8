package notify

import (
	"errors"
	"time"

	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/query"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
)

// Rule gives the events that a query finds a severity of their own. A condition has no message, so
// only a rule that asks for nothing but the queue applies to it.
type Rule struct {
	When string
	Is   Severity

	query   *query.Query
	byQueue bool // it asks for nothing else
}

// NewRule reads the query of a rule.
func NewRule(when string, is Severity) (Rule, error) {
	q, err := query.Parse(when)
	if err != nil {
		return Rule{}, err
	}
	if q.All() {
		return Rule{}, errors.New("the query is empty, and would find every message")
	}
	return Rule{When: when, Is: is, query: q, byQueue: q.OnlyQueue()}, nil
}

// appliesToAll tells whether the rule applies to every event of a queue.
func (r *Rule) appliesToAll(queue string) bool {
	return r.byQueue && r.query.Says(0, queue, nil) == 1
}

// severityOf returns the severity that a rule gives a message that was parked; "" where it is that
// of the queue. What the notifications' own rules say comes before what the policy's rule says. It
// is called for each message parked, by the intake.
func (s *Settings) severityOf(ev *retry.Event, decoder func(*store.Record) *decode.Result) string {
	is := s.ruled(ev, decoder)
	if is == "" {
		is = ev.Severity
	}
	if is == s.severity(key{Kind: Parked, Queue: ev.Queue}).String() {
		return ""
	}
	return is
}

// ruled returns the severity of the first rule that applies; "": none does. It decodes a body only
// when a rule's answer depends on it.
func (s *Settings) ruled(ev *retry.Event, decoder func(*store.Record) *decode.Result) string {
	if len(s.Rules) == 0 || ev.Record == nil {
		return ""
	}
	r := *ev.Record // as it is stored: of one that could not be retried, the event is first
	r.State, r.ParkedFor, r.Due = store.Parked, ev.Why, ev.At
	l := &store.Listed{Record: &r, BodySize: len(r.Message.Body)}
	var result *decode.Result
	decoded := func() *decode.Result {
		if result == nil && decoder != nil {
			result = decoder(ev.Record)
		}
		return result
	}
	now := time.Now()
	for i := range s.Rules {
		if s.Rules[i].query.Matches(now, l, decoded) {
			return s.Rules[i].Is.String()
		}
	}
	return ""
}
