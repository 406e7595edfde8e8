package inspect

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/redrive-mq/redrive/internal/store"
)

// settings is the side table of a store, where what people set for queues is.
type settings interface {
	Entries(ctx context.Context, prefix, after string, visit func(store.Entry) (more bool, err error)) error
}

// Pauses are the queues whose retries a person has paused.
func Pauses(ctx context.Context, s settings) (map[string]QueuePause, error) {
	return readSettings[QueuePause](ctx, s, store.PausePrefix, "pause")
}

// ForcedBreakers are the breakers that people have set, by queue.
func ForcedBreakers(ctx context.Context, s settings) (map[string]Forced, error) {
	return readSettings[Forced](ctx, s, store.BreakerPrefix, "breaker")
}

func readSettings[T any](ctx context.Context, s settings, prefix, what string) (map[string]T, error) {
	all := map[string]T{}
	err := s.Entries(ctx, prefix, "", func(e store.Entry) (bool, error) {
		var v T
		if err := json.Unmarshal(e.Value, &v); err != nil {
			return false, fmt.Errorf("the %s of %q: %w", what, e.Name, err)
		}
		all[strings.TrimPrefix(e.Name, prefix)] = v
		return true, nil
	})
	return all, err
}
