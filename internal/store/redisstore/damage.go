package redisstore

import (
	"fmt"
	"maps"

	"github.com/redrive-mq/redrive/internal/store"
)

// damaged takes note of a record that cannot be read, which stops no other, and returns an
// error for those who asked for it.
func (s *Store) damaged(number uint64, err error) error {
	key := s.key("m:" + member(number))
	s.mu.Lock()
	_, known := s.damage[key]
	s.damage[key] = err.Error()
	s.mu.Unlock()
	if !known {
		s.Log.Error("store: a message is damaged: it is set apart, and all else goes on", "key", key, "error", err)
	}
	return fmt.Errorf("%w: redis: key %s: %w", store.ErrUnreadable, key, err)
}

// Damage implements store.Damageable: the keys of records that could not be read.
func (s *Store) Damage() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.damage)
}
