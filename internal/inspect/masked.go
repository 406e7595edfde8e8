package inspect

import (
	"context"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/mask"
	"github.com/redrive-mq/redrive/internal/query"
	"github.com/redrive-mq/redrive/internal/store"
)

// Masked returns what is masked in a record for a caller, or nil: they see everything.
func (in *Inspector) Masked(by auth.Caller, r *store.Record) *mask.Of {
	rules := in.Mask()
	if rules.Sees(by.Role) {
		return nil
	}
	of := rules.Of(by.Role, r.Queue, r.Message.Type)
	return &of
}

// Whole returns an error unless a caller sees messages unmasked.
func (in *Inspector) Whole(by auth.Caller) error {
	if in.Mask().Sees(by.Role) {
		return nil
	}
	return hint.Errorf("auth.bodies says who sees bodies as they are",
		"%w: bodies are masked for %s, who is %s", auth.ErrForbidden, by.Name, by.Role)
}

// MayShow returns an error unless a caller may see single messages whole, for a reason.
func (in *Inspector) MayShow(by auth.Caller) error {
	if in.Mask().Shows(by.Role) {
		return nil
	}
	return hint.Errorf("auth.show says who may",
		"%w: masked messages are not shown to %s, who is %s", auth.ErrForbidden, by.Name, by.Role)
}

// Unmasked is Message whole, for callers with that right, once log has recorded it. Others with its id stay masked.
func (in *Inspector) Unmasked(
	ctx context.Context, by auth.Caller, id string, log func(*store.Record) error,
) (Detail, error) {
	l, others, err := in.messageNamed(ctx, by, id)
	if err == nil {
		err = in.MayShow(by)
	}
	if err == nil {
		err = log(l.Record)
	}
	if err != nil {
		return Detail{}, err
	}
	c := in.Config
	c.Mask = nil
	d, err := New(c).detail(ctx, by, l)
	d.SameID = in.allShown(by, others)
	return d, err
}

// ForAll masks a text that every caller sees, such as why an operation stopped.
func (in *Inspector) ForAll(queue, text string) string { return in.Mask().Text(queue, text) }

// masked returns a record as its caller sees it. It has no body where anything is masked: see decodedFor.
func (in *Inspector) masked(by auth.Caller, r *store.Record) *store.Record {
	m, of := in.maskedTexts(by, r)
	if of != nil {
		m.Message.Headers = of.Headers(r.Message.Headers)
	}
	return m
}

// maskedTexts masks all but the headers, which take longest and are in no list.
func (in *Inspector) maskedTexts(by auth.Caller, r *store.Record) (*store.Record, *mask.Of) {
	of := in.Masked(by, r)
	if of == nil {
		return r, nil
	}
	m, text := *r, func(s string) string { return in.Mask().Text(r.Queue, s) }
	m.Error, m.ParkedFor, m.Envelope = text(r.Error), text(r.ParkedFor), nil
	m.Notes = nil
	for _, n := range r.Notes {
		m.Notes = append(m.Notes, text(n))
	}
	b := &m.Message
	b.Body, b.Headers = nil, nil
	for _, s := range []*string{&b.Exchange, &b.RoutingKey, &b.ContentType, &b.ContentEncoding, &b.CorrelationID,
		&b.ReplyTo, &b.Expiration, &b.MessageID, &b.Type, &b.UserID, &b.AppID} {
		*s = text(*s)
	}
	return &m, of
}

// decodedFor returns a function that decodes the body as the caller sees it.
func (in *Inspector) decodedFor(ctx context.Context, by auth.Caller, l *store.Listed) func() *decode.Result {
	decoded, of := in.decoded(ctx, l), in.Masked(by, l.Record)
	if of == nil {
		return decoded
	}
	return func() *decode.Result {
		if n := len(BodyOf(l.Record).Bytes); n > 0 && of.HidesBody() {
			return of.Body(&decode.Result{Size: n})
		}
		return of.Body(decoded())
	}
}

// refuse returns an error if a query uses a field that is masked for its caller.
func (in *Inspector) refuse(by auth.Caller, q *query.Query) (err error) {
	rules := in.Mask()
	if rules.Sees(by.Role) {
		return nil
	}
	q.Paths(func(name, path string, header bool) {
		if err == nil && rules.HidesPath(by.Role, path, header) {
			err = hint.Errorf("search for something else", "%w: %s%.100s is masked for %s, who is %s",
				auth.ErrForbidden, name, path, by.Name, by.Role)
		}
	})
	return err
}

// match reports whether a query matches what the caller sees of a message, so that no one can guess the rest.
func (in *Inspector) match(ctx context.Context, by auth.Caller, n *query.Narrowed, l *store.Listed) bool {
	masked := *l
	if masked.Record = in.masked(by, l.Record); masked.Record == l.Record {
		return n.Match(l, in.decoded(ctx, l))
	}
	m := *n
	m.Grouped = l.Record
	return m.Match(&masked, in.decodedFor(ctx, by, l))
}
