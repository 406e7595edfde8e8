package auth

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
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

// A stored session is two entries: the session, written once, and until when it lasts unused. So a
// request at another replica, while the person signs out, cannot write the session again.
const (
	sessionPrefix = "session/"
	sessionIs     = "is"
	sessionUsed   = "used"
	// usedEvery is how often the use of a session is written.
	usedEvery = 10 * time.Minute
	// forgetEvery is how often those that are over are deleted.
	forgetEvery = time.Hour
)

func sessionName(id string) string {
	sum := sha256.Sum256([]byte(id))
	return sessionPrefix + hex.EncodeToString(sum[:]) + "/"
}

func (s *sessions) keep(ctx context.Context, id string, v session) error {
	value, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return s.kept.PutEntries(ctx, []store.Entry{{Name: sessionName(id) + sessionIs, Value: value}})
}

// find reads a session, and writes that it is used.
func (s *sessions) find(ctx context.Context, id string, now time.Time) (session, bool, error) {
	name := sessionName(id)
	v, ok, err := s.read(ctx, name)
	if err != nil || !ok || v.over(now) {
		return session{}, false, err
	}
	if idle := now.Add(sessionIdle); idle.Sub(v.Idle) >= usedEvery {
		if err := s.use(ctx, id, idle); err != nil {
			return session{}, false, err
		}
		v.Idle = idle
	}
	return v, true, nil
}

// use writes until when a session lasts unused.
func (s *sessions) use(ctx context.Context, id string, idle time.Time) error {
	used, err := idle.MarshalText()
	if err != nil {
		return err
	}
	return s.kept.PutEntries(ctx, []store.Entry{{Name: sessionName(id) + sessionUsed, Value: used}})
}

func (s *sessions) read(ctx context.Context, name string) (v session, ok bool, err error) {
	var used time.Time
	err = s.kept.Entries(ctx, name, "", func(e store.Entry) (bool, error) {
		switch strings.TrimPrefix(e.Name, name) {
		case sessionIs:
			if err := json.Unmarshal(e.Value, &v); err != nil {
				return false, fmt.Errorf("the store's entry %s: %w", e.Name, err)
			}
			ok = true
		case sessionUsed:
			if err := used.UnmarshalText(e.Value); err != nil {
				return false, fmt.Errorf("the store's entry %s: %w", e.Name, err)
			}
		}
		return true, nil
	})
	if used.After(v.Idle) {
		v.Idle = used
	}
	return v, ok, err
}

// Forget deletes stored sessions that are over, every hour until ctx ends. Only the leader calls it.
func (g *Guard) Forget(ctx context.Context) {
	tick := time.NewTicker(forgetEvery)
	defer tick.Stop()
	for {
		if err := g.sessions.forget(ctx, time.Now()); err != nil && ctx.Err() == nil {
			g.Log.Warn("sessions that are over are not deleted; trying again", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (s *sessions) forget(ctx context.Context, now time.Time) error {
	names := map[string]bool{}
	err := s.kept.Entries(ctx, sessionPrefix, "", func(e store.Entry) (bool, error) {
		names[e.Name[:strings.LastIndex(e.Name, "/")+1]] = true
		return true, nil
	})
	for name := range names {
		v, ok, readErr := s.read(ctx, name)
		if readErr != nil {
			return readErr
		}
		if !ok || v.over(now) {
			if err := s.kept.DeleteEntries(ctx, name); err != nil {
				return err
			}
		}
	}
	return err
}

const (
	// signedInPrefix begins an entry for each pair of user and address that has signed in: when.
	signedInPrefix = "signed-in/"
	// signedInFor is how long it is kept after the last start of the service at which they signed in.
	signedInFor = 90 * 24 * time.Hour
)

// RememberIn keeps who signed in, and from where, in s, so that failures of others at the same
// address do not limit them after a restart either. Call it before SignIn.
func (u *Users) RememberIn(s store.SideTable) { u.kept = s }

func signedInName(pair string) string {
	sum := sha256.Sum256([]byte(pair))
	return signedInPrefix + hex.EncodeToString(sum[:])
}

// signedInBefore tells whether a name has signed in from an address, in earlier processes too; no
// where the store cannot tell.
func (u *Users) signedInBefore(ctx context.Context, pair string) (yes bool) {
	if u.kept == nil {
		return false
	}
	name := signedInName(pair)
	_ = u.kept.Entries(ctx, name, "", func(e store.Entry) (bool, error) {
		yes = e.Name == name
		return false, nil
	})
	return yes
}

// keepSignedIn stores that a name signed in, once in each process, and the first time deletes
// what is too old.
func (u *Users) keepSignedIn(ctx context.Context, pair string) {
	if u.kept == nil {
		return
	}
	now := time.Now()
	u.sweep.Do(func() {
		var old []string
		_ = u.kept.Entries(ctx, signedInPrefix, "", func(e store.Entry) (bool, error) {
			var at time.Time
			if at.UnmarshalText(e.Value) != nil || now.Sub(at) > signedInFor {
				old = append(old, e.Name)
			}
			return true, nil
		})
		for _, name := range old {
			_ = u.kept.DeleteEntries(ctx, name)
		}
	})
	if at, err := now.MarshalText(); err == nil {
		_ = u.kept.PutEntries(ctx, []store.Entry{{Name: signedInName(pair), Value: at}}) // else they are limited as others are
	}
}
