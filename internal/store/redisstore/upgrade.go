package redisstore

import (
	"context"
	"fmt"

	"github.com/redrive-mq/redrive/internal/store"
)

// upgrade moves records that wait for a forward target, which format 1 had among those of
// their work queue, to the lanes of their targets. When it is cut short it begins anew: the
// number is written last. A Change writes a record where it belongs now.
func (s *Store) upgrade(ctx context.Context, from int) error {
	s.Log.Info("store: upgrading what is in Redis; versions of Redrive before this one cannot read it any more", "from", from, "to", formatVersion)
	var keys []store.Key
	err := s.Scan(ctx, store.Range{State: store.Waiting}, func(l store.Listed) (bool, error) {
		if l.Record.Lane().Forwards() {
			keys = append(keys, l.Key)
		}
		return true, nil
	})
	for len(keys) > 0 && err == nil {
		var n int
		n, err = s.Change(ctx, keys, func(_ store.Key, r *store.Record) store.Edit { return store.Edit{Keep: r != nil} }, nil)
		keys = keys[n:]
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	return s.failed(s.client.Do(ctx, s.client.B().Set().Key(s.key(0, "format")).Value(fmt.Sprintf("%d %d", formatVersion, s.Shards)).Build()).Error())
}
