package redisstore

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redrive-mq/redrive/internal/hint"
)

// ErrReplaced: the server is another one than at the start, or was emptied.
var ErrReplaced = errors.New("what was kept in it is gone")

// identity tells whether the store is still what it was. It has an id, made when there is
// none, and a generation that grows each second in which something was written. Whoever
// has seen a generation confirmed, and then a smaller one, knows that writes are gone
// which were promised: a server came back with an older disk, or a replica that was
// behind took its place.
type identity struct {
	id       string
	wrote    atomic.Bool           // since the generation grew
	replaced atomic.Pointer[error] // nil: it is what it was

	mu         sync.Mutex
	generation uint64 // the largest that was confirmed
	back       string // what is to be said of one that was smaller
}

const (
	// watchEvery is how often it is looked whether the servers answer and are the same,
	// and watchFor how long that may take: together less than 5 s.
	watchEvery = time.Second
	watchFor   = 2 * time.Second
)

// identify reads the identity at the start, and makes one where there is none.
func (s *Store) identify(ctx context.Context) (err error) {
	var random [8]byte
	_, _ = rand.Read(random[:]) // it never fails
	s.identity.id, _, err = s.runIdentity(ctx, nil, hex.EncodeToString(random[:]), "", "")
	return err
}

// runIdentity runs lua/identity.lua.
func (s *Store) runIdentity(ctx context.Context, by confirm, args ...string) (id string, generation uint64, err error) {
	list, err := texts(s.run(ctx, scriptIdentity, by, false, args))
	if err == nil && len(list) != 2 {
		err = fmt.Errorf("redis: key %s is not to be read", s.key("identity"))
	}
	if err != nil {
		return "", 0, err
	}
	return list[0], number(list[1]), nil
}

// watching looks each second whether Redis answers, and is what it was, until Close.
func (s *Store) watching() {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-tick.C:
			err := s.watch(s.ctx)
			if err == nil || s.logins.refused.Load() { // it answers
				s.renewLogin(time.Now())
			}
			s.logTrouble("looking whether Redis answers", err)
			s.OnState(err)
		}
	}
}

// watch looks once. What is wrong is an error; what is not what it was, ErrReplaced.
func (s *Store) watch(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, watchFor)
	defer cancel()
	was := s.generation()
	id, n, err := s.runIdentity(ctx, nil, "", "", "")
	for err != nil && ctx.Err() == nil { // a connection that was cut is no dead server
		select {
		case <-ctx.Done():
		case <-time.After(tryAgainAfter):
			id, n, err = s.runIdentity(ctx, nil, "", "", "")
		}
	}
	if err == nil {
		err = s.checkIdentity(id)
	}
	if err != nil {
		return err
	}
	s.checkGeneration(n, was)
	if s.identity.replaced.Swap(nil) != nil {
		s.Log.Info("store: Redis is what it was again")
	}
	return nil
}

// checkIdentity returns ErrReplaced when the store has not the id that it had. Then nothing is
// done in it until it has.
func (s *Store) checkIdentity(id string) error {
	was := s.identity.id
	if id == was {
		return nil
	}
	now := "there is nothing in it"
	if id != "" {
		now = "another store is there now"
	}
	err := hint.Errorf("put the data back, or restart all services to go on with what is there", "redis: %w: there was %s, and %s", ErrReplaced, was, now)
	if s.identity.replaced.Swap(&err) == nil {
		s.Log.Error("store: Redis was emptied or replaced while it was in use; failed messages stay in RabbitMQ and nothing is retried until that is repaired", "error", err)
	}
	return err
}

func (s *Store) generation() uint64 {
	s.identity.mu.Lock()
	defer s.identity.mu.Unlock()
	return s.identity.generation
}

// checkGeneration notes a loss when the generation is n, and smaller than was, which had been
// confirmed before n was read.
func (s *Store) checkGeneration(n, was uint64) {
	is := &s.identity
	is.mu.Lock()
	defer is.mu.Unlock()
	if n >= was || s.Durability == Cached { // which promises no more
		return
	}
	is.generation = n
	is.back = fmt.Sprintf("Redis has gone back to an earlier state, and lost writes of about %s that it had confirmed, at %s: messages that failed then are gone, and some are retried twice; this is said until the service is started again",
		time.Duration(was-n)*watchEvery, time.Now().UTC().Format(time.RFC3339))
	s.Log.Error("store: " + is.back)
}

// grow lets the generation grow when something was written.
func (s *Store) grow(ctx context.Context) {
	i := &s.identity
	if !i.wrote.Swap(false) {
		return
	}
	was := s.generation()
	id, n, err := s.runIdentity(ctx, s.confirm, "", i.id, strconv.FormatUint(was, 10))
	if err != nil || id != i.id {
		i.wrote.Store(true) // what is wrong, watch says
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.generation == was { // else watch has found that it went back
		i.generation = max(was, n)
	}
}

// ID is what tells this store from any other, to people.
func (s *Store) ID() string { return s.identity.id }

// Notices are what a person should look at though it stops nothing.
func (s *Store) Notices() []string {
	s.identity.mu.Lock()
	defer s.identity.mu.Unlock()
	if s.identity.back == "" {
		return nil
	}
	return []string{s.identity.back}
}
