package auth

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"maps"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
)

// sessions are those of people who signed in with the page, under the hash of what the browser
// has. They are in memory and end with the process, or in a store that replicas share.
type sessions struct {
	kept store.SideTable // nil: in memory

	mu  sync.Mutex
	all map[[32]byte]session
}

// session is stored as JSON: its fields' names never change.
type session struct {
	Caller Caller
	Token  string    `json:",omitempty"` // the name that the token is kept under, if it was begun with one
	Idle   time.Time // when it ends, unless it is used before
	End    time.Time
}

const (
	// sessionIdle is how long a session lasts without a request, sessionLasts how
	// long at most: what changes for a user in RabbitMQ is seen at the next sign-in.
	sessionIdle  = 12 * time.Hour
	sessionLasts = 24 * time.Hour
	mostSessions = 10_000
)

func (s *sessions) begin(ctx context.Context, c Caller, token string) (id string, err error) {
	var random [32]byte
	_, _ = rand.Read(random[:]) // it never fails
	id = base64.RawURLEncoding.EncodeToString(random[:])
	now := time.Now()
	if s.kept != nil {
		return id, s.keep(ctx, id, session{c, token, now.Add(sessionIdle), now.Add(sessionLasts)})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[[32]byte]session{}
	}
	if len(s.all) >= mostSessions {
		maps.DeleteFunc(s.all, func(_ [32]byte, v session) bool { return v.over(now) })
	}
	for key := range s.all { // any one, so that memory stays bounded
		if len(s.all) < mostSessions {
			break
		}
		delete(s.all, key)
	}
	s.all[sha256.Sum256([]byte(id))] = session{c, token, now.Add(sessionIdle), now.Add(sessionLasts)}
	return id, nil
}

func (v session) over(now time.Time) bool { return !now.Before(v.Idle) || !now.Before(v.End) }

func (s *sessions) get(ctx context.Context, id string) (session, bool, error) {
	key, now := sha256.Sum256([]byte(id)), time.Now()
	if s.kept != nil {
		return s.find(ctx, id, now)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.all[key]
	if !ok || v.over(now) {
		delete(s.all, key)
		return session{}, false, nil
	}
	v.Idle = now.Add(sessionIdle)
	s.all[key] = v
	return v, true, nil
}

func (s *sessions) stop(ctx context.Context, id string) error {
	if s.kept != nil {
		return s.kept.DeleteEntries(ctx, sessionName(id))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, sha256.Sum256([]byte(id)))
	return nil
}
