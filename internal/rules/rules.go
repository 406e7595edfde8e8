// Package rules makes conditions of policies' rules from the query language, for the service: a
// rule's `when` is a query about the message that failed. Package policy, which the library uses
// as well, knows neither queries nor bodies.
package rules

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/query"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/policy"
)

// Limits of what rules decode. Intake stands still meanwhile, so that what is beyond them is
// passed over: the rule does not apply, and a note of the message says so.
const (
	mostBody  = 1 << 20                // bytes of a body
	mostTime  = 100 * time.Millisecond // for one body
	mostBatch = time.Second            // for all bodies that are decided about together
)

// When is a condition that a query makes.
type When struct {
	text  string
	query *query.Query
}

// Parse reads a condition. Its errors are *query.Error.
func Parse(text string) (*When, error) {
	q, err := query.Parse(text)
	if err != nil {
		return nil, err
	}
	if err := q.OnlyRules(); err != nil {
		return nil, err
	}
	return &When{text, q}, nil
}

// String is the query as it was written.
func (w *When) String() string { return w.text }

// NeedsBody tells whether bodies are decoded for it.
func (w *When) NeedsBody() bool { return w.query.NeedsBody() }

// Applies asks the query about the message in f.Details, as Batch.Details makes it.
func (w *When) Applies(f *policy.Failure) (bool, error) {
	m, ok := f.Details.(*query.Asked)
	if !ok {
		m = query.Ask(recordOf(f), func() (*decode.Result, string) { return nil, "" })
	}
	means, why := m.Means(w.query)
	if why != "" {
		return false, errors.New(why)
	}
	return means, nil
}

// recordOf is what a failure has without its message.
func recordOf(f *policy.Failure) *store.Listed {
	r := &store.Record{Queue: f.Queue, Reason: f.Reason, Error: f.Error, Failures: f.Attempt}
	r.Message.Headers = f.Headers
	return &store.Listed{Record: r}
}

// Batch is what is decided about together. The zero value decodes no bodies.
type Batch struct {
	Decoder *decode.Decoder
	Ctx     context.Context
	spent   time.Duration
}

// Details returns what conditions look at in a message that failed.
func (b *Batch) Details(r *store.Record) any {
	return query.Ask(&store.Listed{Record: r, BodySize: len(r.Message.Body)}, func() (*decode.Result, string) { return b.decode(r) })
}

// decode decodes a body within the limits, or says why not.
func (b *Batch) decode(r *store.Record) (result *decode.Result, why string) {
	m := &r.Message
	switch {
	case b.Decoder == nil || len(m.Body) == 0:
		return nil, ""
	case len(m.Body) > mostBody:
		return nil, fmt.Sprintf("its body has %d bytes, and rules look at up to %d", len(m.Body), mostBody)
	case b.spent >= mostBatch:
		return nil, fmt.Sprintf("the bodies that arrived with it took rules more than %s", mostBatch)
	}
	ctx, cancel := context.WithTimeout(b.Ctx, mostTime)
	defer cancel()
	began := time.Now()
	result = b.Decoder.Decode(ctx, decode.Body{Bytes: m.Body, Queue: r.Queue, ContentType: m.ContentType, ContentEncoding: m.ContentEncoding, Type: m.Type, Headers: m.Headers})
	b.spent += time.Since(began)
	if ctx.Err() != nil && result.Value == nil {
		return nil, fmt.Sprintf("its body takes longer than %s to decode", mostTime)
	}
	return result, ""
}
