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
)

// ErrReplaced: the server is another one than at the start, or was emptied.
var ErrReplaced = errors.New("what was kept in it is gone")

// identity tells whether a shard is still what it was. Each has an id, made when there is
// none, and a generation that grows each second in which something was written. Whoever
// has seen a generation confirmed, and then a smaller one, knows that writes are gone
// which were promised: a server came back with an older disk, or a replica that was
// behind took its place.
type identity struct {
	id         string
	generation uint64      // the largest that was confirmed; of upkeep and watching, under mu
	wrote      atomic.Bool // since it grew
}

// identities are those of all shards.
type identities struct {
	all      []identity
	replaced atomic.Pointer[error] // nil: they are what they were
	mu       sync.Mutex
	back     string // what is to be said of a generation that was smaller
}

const (
	// watchEvery is how often it is looked whether the servers answer and are the same,
	// and watchFor how long that may take: together less than 5 s.
	watchEvery = time.Second
	watchFor   = 2 * time.Second
)

// identify reads the identities of all shards at the start, and makes those that are
// missing.
func (s *Store) identify(ctx context.Context) error {
	var made atomic.Int64
	s.identities.all = make([]identity, s.Shards)
	err := s.each(func(shard int) error {
		var random [8]byte
		_, _ = rand.Read(random[:]) // it never fails
		id, _, got, err := s.asked(ctx, shard, nil, hex.EncodeToString(random[:]), "", "")
		if err == nil && got {
			made.Add(1)
		}
		s.identities.all[shard].id = id
		return err
	})
	if n := made.Load(); err == nil && n > 0 && int(n) < s.Shards {
		s.Log.Error("store: some shards are new and others are not: a server of Redis has lost what it kept", "new", n, "shards", s.Shards)
	}
	return err
}

// asked runs lua/identity.lua.
func (s *Store) asked(ctx context.Context, shard int, by confirm, args ...string) (id string, generation uint64, got bool, err error) {
	list, err := texts(s.run(ctx, shard, scriptIdentity, by, false, args))
	if err == nil && len(list) != 3 {
		err = fmt.Errorf("redis: key %s is not to be read", s.key(shard, "identity"))
	}
	if err != nil {
		return "", 0, false, err
	}
	return list[0], number(list[1]), list[2] == "1", nil
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
			s.tell("looking whether Redis answers", err)
			s.OnState(err)
		}
	}
}

// watch looks once. What is wrong is an error; what is not what it was, ErrReplaced.
func (s *Store) watch(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, watchFor)
	defer cancel()
	err := s.each(func(shard int) error {
		was := s.generation(shard)
		id, n, _, err := s.asked(ctx, shard, nil, "", "", "")
		for err != nil && ctx.Err() == nil { // a connection that was cut is no dead server
			select {
			case <-ctx.Done():
			case <-time.After(again):
				id, n, _, err = s.asked(ctx, shard, nil, "", "", "")
			}
		}
		if err == nil {
			err = s.same(shard, id)
		}
		if err == nil {
			s.older(shard, n, was)
		}
		return err
	})
	if err == nil && s.identities.replaced.Swap(nil) != nil {
		s.Log.Info("store: Redis is what it was again")
	}
	return err
}

// same tells whether a shard has the id that it had. If it has not, nothing is done in
// the store any more until it has.
func (s *Store) same(shard int, id string) error {
	was := s.identities.all[shard].id
	if id == was {
		return nil
	}
	now := "there is nothing in it"
	if id != "" {
		now = "another store is there now"
	}
	err := fmt.Errorf("redis: %w: in shard %d there was %s, and %s; put the data back, or restart all services to go on with what is there", ErrReplaced, shard, was, now)
	if s.identities.replaced.Swap(&err) == nil {
		s.Log.Error("store: Redis was emptied or replaced while it was in use; nothing is taken in and nothing returns until that is mended", "error", err)
	}
	return err
}

func (s *Store) generation(shard int) uint64 {
	s.identities.mu.Lock()
	defer s.identities.mu.Unlock()
	return s.identities.all[shard].generation
}

// older notes that a shard's generation is n, and was confirmed to be larger before that
// was asked.
func (s *Store) older(shard int, n, was uint64) {
	is := &s.identities
	is.mu.Lock()
	defer is.mu.Unlock()
	if n >= was || s.Durability == Cached { // which promises no more
		return
	}
	is.all[shard].generation = n
	is.back = fmt.Sprintf("Redis has gone back to an earlier state, and lost writes of about %s that it had confirmed, at %s (shard %d): messages that failed then are gone, and some return twice; this is said until the service is started again",
		time.Duration(was-n)*watchEvery, time.Now().UTC().Format(time.RFC3339), shard)
	s.Log.Error("store: " + is.back)
}

// grow lets the generation of shards grow that were written to.
func (s *Store) grow(ctx context.Context) {
	_ = s.each(func(shard int) error {
		i := &s.identities.all[shard]
		if !i.wrote.Swap(false) {
			return nil
		}
		was := s.generation(shard)
		id, n, _, err := s.asked(ctx, shard, s.confirm, "", i.id, strconv.FormatUint(was, 10))
		if err != nil || id != i.id {
			i.wrote.Store(true) // what is wrong, watch says
			return nil
		}
		s.identities.mu.Lock()
		defer s.identities.mu.Unlock()
		if i.generation == was { // else watch has found that it went back
			i.generation = max(was, n)
		}
		return nil
	})
}

// ID is what tells this store from any other, to people.
func (s *Store) ID() string { return s.identities.all[0].id }

// Notices are what a person should look at though it stops nothing.
func (s *Store) Notices() []string {
	s.identities.mu.Lock()
	defer s.identities.mu.Unlock()
	if s.identities.back == "" {
		return nil
	}
	return []string{s.identities.back}
}
