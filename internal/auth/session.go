package auth

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
)

// sessions are those of people who signed in with the page, in the store's side table under the hash
// of what the browser has: they outlast the service, and replicas share them.
//
// A session is two entries: the session, written once, and until when it lasts unused. So a request
// at another replica, while the person signs out, cannot write the session again.
type sessions struct {
	kept  store.SideTable
	begun atomic.Int64 // since the service started
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
	// maxSessions bounds those that are stored. A service deletes the oldest of too many when it has
	// begun as many as sessionsBetween.
	maxSessions, sessionsBetween = 10_000, 500

	sessionPrefix = "session/"
	sessionIs     = "is"
	sessionUsed   = "used"
	// usedEvery is how often the use of a session is written.
	usedEvery = 10 * time.Minute
	// forgetEvery is how often what is over is deleted.
	forgetEvery = time.Hour
)

func sessionName(id string) string {
	sum := sha256.Sum256([]byte(id))
	return sessionPrefix + hex.EncodeToString(sum[:]) + "/"
}

func (s *sessions) begin(ctx context.Context, c Caller, token string) (id string, err error) {
	var random [32]byte
	_, _ = rand.Read(random[:]) // it never fails
	id = base64.RawURLEncoding.EncodeToString(random[:])
	now := time.Now()
	if s.begun.Add(1)%sessionsBetween == 0 {
		_ = s.forget(ctx, now) // Forget says why it cannot
	}
	value, err := json.Marshal(session{c, token, now.Add(sessionIdle), now.Add(sessionLasts)})
	if err != nil {
		return "", err
	}
	return id, s.kept.PutEntries(ctx, []store.Entry{{Name: sessionName(id) + sessionIs, Value: value}})
}

func (v session) over(now time.Time) bool { return !now.Before(v.Idle) || !now.Before(v.End) }

// get reads a session, and writes that it is used.
func (s *sessions) get(ctx context.Context, id string) (v session, ok bool, err error) {
	err = s.kept.Entries(ctx, sessionName(id), "", func(e store.Entry) (bool, error) { return true, v.read(e) })
	now := time.Now()
	if err != nil || v.over(now) {
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

// read reads one of the entries of a session, in their order. Without the first the session is over.
func (v *session) read(e store.Entry) (err error) {
	if strings.HasSuffix(e.Name, "/"+sessionIs) {
		err = json.Unmarshal(e.Value, v)
	} else {
		err = v.Idle.UnmarshalText(e.Value)
	}
	if err != nil {
		return fmt.Errorf("the store's entry %s: %w", e.Name, err)
	}
	return nil
}

// use writes until when a session lasts unused.
func (s *sessions) use(ctx context.Context, id string, idle time.Time) error {
	used, err := idle.MarshalText()
	if err != nil {
		return err
	}
	return s.kept.PutEntries(ctx, []store.Entry{{Name: sessionName(id) + sessionUsed, Value: used}})
}

func (s *sessions) stop(ctx context.Context, id string) error {
	return s.kept.DeleteEntries(ctx, sessionName(id))
}

// Forget deletes what is over of sessions, and of who signed in, every hour until ctx ends. Of several
// replicas only the leader calls it.
func (g *Guard) Forget(ctx context.Context) {
	tick := time.NewTicker(forgetEvery)
	defer tick.Stop()
	for {
		now := time.Now()
		err := g.sessions.forget(ctx, now)
		if g.Users != nil {
			err = errors.Join(err, g.Users.forget(ctx, now))
		}
		if err != nil && ctx.Err() == nil {
			g.Log.Warn("sessions that are over are not deleted; trying again", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// forget deletes the sessions that are over, and the oldest where there are too many.
func (s *sessions) forget(ctx context.Context, now time.Time) error {
	all := map[string]session{}
	err := s.kept.Entries(ctx, sessionPrefix, "", func(e store.Entry) (bool, error) {
		name := e.Name[:strings.LastIndex(e.Name, "/")+1]
		v := all[name]
		err := v.read(e)
		all[name] = v
		return true, err
	})
	if err != nil {
		return err
	}
	oldest := slices.SortedFunc(maps.Keys(all), func(a, b string) int { return all[a].End.Compare(all[b].End) })
	for i, name := range oldest {
		if all[name].over(now) || len(oldest)-i > maxSessions-sessionsBetween {
			if err := s.kept.DeleteEntries(ctx, name); err != nil {
				return err
			}
		}
	}
	return nil
}
