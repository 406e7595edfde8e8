package auth

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
)

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
