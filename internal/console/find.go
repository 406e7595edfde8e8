package console

import (
	"context"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/query"
	"github.com/redrive-mq/redrive/internal/store"
)

func (c *Console) find(ctx context.Context, by auth.Caller, text string, upto uint64, body bool, visit func(store.Listed) (bool, error)) error {
	q, err := query.Parse(text)
	if err != nil {
		return err
	}
	return c.Store.Scan(ctx, store.Range{Upto: upto, Body: body || q.NeedsBody()}, func(l store.Listed) (bool, error) {
		if !by.Sees(l.Record.Queue) || !q.Match(c.Now(), &l, func() *decode.Result {
			return c.Decoder.Decode(ctx, encoded(l.Record, l.Record.Message.Body, l.Record.Message.Headers))
		}) {
			return true, nil
		}
		return visit(l)
	})
}

func (c *Console) shown(l store.Listed) Message {
	return Message{ID: l.Record.ID.String(), Key: string(l.Key), Queue: l.Record.Queue, State: stateNames[l.Record.State]}
}
