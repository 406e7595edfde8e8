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

func (s *Store) Beat(ctx context.Context, replica string, about []byte, ttl time.Duration) ([]store.Replica, error) {
	list, err := texts(s.call(ctx, scriptBeat, replica, rueidis.BinaryString(about), itoa(ttl.Milliseconds())))
	var alive []store.Replica
	for ; len(list) >= 2; list = list[2:] {
		alive = append(alive, store.Replica{ID: list[0], About: []byte(list[1])})
	}
	slices.SortFunc(alive, func(a, b store.Replica) int { return cmp.Compare(a.ID, b.ID) })
	return alive, err
}

func (s *Store) Leave(ctx context.Context, replica string) error {
	_, err := s.call(ctx, scriptLeave, replica)
	return err
}

// Lead implements store.Shared. A new term is asked for again until it is confirmed, as
// durable as any write: if it were lost with its server, the next server would give its
// number to another replica. Renewals are not confirmed: a leader that others cannot
// succeed continues while nothing can be confirmed.
func (s *Store) Lead(
	ctx context.Context, what, replica string, ttl time.Duration,
) (term uint64, leads bool, err error) {
	done, err := s.use(ctx)
	if err != nil {
		return 0, false, err
	}
	defer done()
	term, leads, err = s.lead(ctx, s.do, what, replica, ttl)
	if confirmed, _ := s.confirmedTerms.Load(what); err == nil && leads && confirmed != term {
		// Write again: Redis confirms only writes of the connection that asks.
		if term, leads, err = s.lead(ctx, s.write, what, replica, ttl); err == nil && leads {
			if err = s.unlock(ctx, what); err == nil {
				s.confirmedTerms.Store(what, term)
			}
		}
	}
	return term, leads && err == nil, err
}

// lead asks to lead by do or write.
func (s *Store) lead(
	ctx context.Context, by func(context.Context, *script, ...string) (rueidis.RedisMessage, error),
	what, replica string, ttl time.Duration,
) (term uint64, leads bool, err error) {
	list, err := texts(by(ctx, scriptLead, what, replica, itoa(ttl.Milliseconds())))
	if err != nil {
		return 0, false, err
	}
	if len(list) != 2 {
		return 0, false, errors.New("redis: the leader's entry cannot be read")
	}
	term, err = strconv.ParseUint(list[0], 10, 64)
	return term, list[1] == "1", s.wrapError(err)
}

func (s *Store) Resign(ctx context.Context, what, replica string) error {
	_, err := s.call(ctx, scriptResign, what, replica)
	return err
}

// topic returns the name of a sharded channel, which a cluster does not send to all nodes.
func (s *Store) topic(name string) string { return s.key("topic:" + name) }

func (s *Store) Send(ctx context.Context, topic string, message []byte) error {
	done, err := s.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	return s.wrapError(s.client().Do(ctx,
		s.client().B().Spublish().Channel(s.topic(topic)).Message(rueidis.BinaryString(message)).Build()).Error())
}

// Listen implements store.Shared. It has a connection of its own: on a shared one, rueidis
// would silently subscribe again after a cut.
func (s *Store) Listen(ctx context.Context, topic string, receive func(message []byte)) error {
	done, err := s.use(ctx)
	if err != nil {
		return err
	}
	done() // Close does not wait for it, but ends it
	c, free := s.client().Dedicate()
	defer free()
	gone := make(chan struct{}, 1)
	ended := c.SetPubSubHooks(rueidis.PubSubHooks{
		OnMessage: func(m rueidis.PubSubMessage) { receive([]byte(m.Message)) },
		OnSubscription: func(m rueidis.PubSubSubscription) {
			if m.Kind != "ssubscribe" { // the slot has moved
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
		return s.wrapError(err)
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-s.stop:
		return store.ErrClosed
	case <-gone:
		return errors.New("redis: a topic's slot has moved")
	case err := <-ended:
		return s.wrapError(errors.Join(errors.New("messages of other replicas may have been missed"), err))
	}
}
