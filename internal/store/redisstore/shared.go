package redisstore

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/redrive-mq/redrive/internal/store"
)

var _ store.Shared = (*Store)(nil)

// Beat implements store.Shared.
func (s *Store) Beat(ctx context.Context, replica string, about []byte, ttl time.Duration) ([]store.Replica, error) {
	done, err := s.use(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	list, err := texts(s.do(ctx, 0, scriptBeat, replica, rueidis.BinaryString(about), itoa(ttl.Milliseconds())))
	var alive []store.Replica
	for ; len(list) >= 2; list = list[2:] {
		alive = append(alive, store.Replica{ID: list[0], About: []byte(list[1])})
	}
	slices.SortFunc(alive, func(a, b store.Replica) int { return cmp.Compare(a.ID, b.ID) })
	return alive, err
}

// Leave implements store.Shared.
func (s *Store) Leave(ctx context.Context, replica string) error {
	done, err := s.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	_, err = s.do(ctx, 0, scriptLeave, replica)
	return err
}

// Lead implements store.Shared.
func (s *Store) Lead(ctx context.Context, what, replica string, ttl time.Duration) (term uint64, leads bool, err error) {
	done, err := s.use(ctx)
	if err != nil {
		return 0, false, err
	}
	defer done()
	list, err := texts(s.do(ctx, 0, scriptLead, what, replica, itoa(ttl.Milliseconds()), s.name))
	if err != nil {
		return 0, false, err
	}
	if len(list) != 3 {
		return 0, false, errors.New("redis: who leads is not to be read")
	}
	if term, err = strconv.ParseUint(list[0], 10, 64); err != nil {
		return 0, false, s.failed(err)
	}
	if list[1] != "1" {
		return term, false, nil
	}
	s.mu.Lock()
	if before := list[2]; before != "" && before != s.name {
		s.after[what] = before
	}
	before := s.after[what]
	s.mu.Unlock()
	if before != "" { // also when that failed the last time
		if err := s.succeed(ctx, before); err != nil {
			return 0, false, err
		}
		s.mu.Lock()
		delete(s.after, what)
		s.mu.Unlock()
	}
	return term, true, nil
}

// Resign implements store.Shared.
func (s *Store) Resign(ctx context.Context, what, replica string) error {
	done, err := s.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	_, err = s.do(ctx, 0, scriptResign, what, replica)
	return err
}

// topic is a channel. It is a sharded one, which a cluster does not send to all its
// nodes.
func (s *Store) topic(name string) string { return s.key(0, "topic:"+name) }

// Tell implements store.Shared.
func (s *Store) Tell(ctx context.Context, topic string, said []byte) error {
	done, err := s.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	return s.failed(s.client.Do(ctx, s.client.B().Spublish().Channel(s.topic(topic)).Message(rueidis.BinaryString(said)).Build()).Error())
}

// Listen implements store.Shared. It has a connection of its own, since rueidis would
// subscribe anew after a cut and say nothing of it.
func (s *Store) Listen(ctx context.Context, topic string, hear func(said []byte)) error {
	done, err := s.use(ctx)
	if err != nil {
		return err
	}
	done() // Close does not wait for it, but ends it
	c, free := s.client.Dedicate()
	defer free()
	gone := make(chan struct{}, 1)
	ended := c.SetPubSubHooks(rueidis.PubSubHooks{
		OnMessage: func(m rueidis.PubSubMessage) { hear([]byte(m.Message)) },
		OnSubscription: func(m rueidis.PubSubSubscription) {
			if m.Kind != "ssubscribe" { // the slot has gone elsewhere
				select {
				case gone <- struct{}{}:
				default:
				}
			}
		},
	})
	asking, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	if err := c.Do(asking, c.B().Ssubscribe().Channel(s.topic(topic)).Build()).Error(); err != nil {
		return s.failed(err)
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-s.stop:
		return store.ErrClosed
	case <-gone:
		return errors.New("redis: a topic's slot has moved")
	case err := <-ended:
		return s.failed(errors.Join(errors.New("what was told may have been missed"), err))
	}
}
