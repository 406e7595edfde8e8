package memstore

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
)

// Replicas is one store in memory that several services use at once, for tests of what
// replicas do together. Its time is that of package time, which testing/synctest
// turns.
type Replicas struct{ *state }

type beat struct {
	about []byte
	until time.Time
}

type lead struct {
	replica string
	until   time.Time
	term    uint64
}

type listener struct {
	member   *Member
	topic    string
	messages [][]byte
	news     chan struct{}
}

// NewReplicas makes an empty store.
func NewReplicas() *Replicas { return &Replicas{newState()} }

// Join opens the store for one more service.
func (f *Replicas) Join() *Member { return &Member{f.open()} }

// Member implements store.Shared.
type Member struct{ *Store }

// Kill ends a member as if its process was killed: what it still calls does nothing,
// it neither leaves nor resigns, and what it has claimed is there for the others.
func (m *Member) Kill() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	for _, e := range m.kept {
		if e.claimed == m.Store {
			e.claimed = nil
		}
	}
	m.signal()
}

// Beat implements store.Shared.
func (m *Member) Beat(_ context.Context, replica string, about []byte, ttl time.Duration) ([]store.Replica, error) {
	return get(m.Store, func() (all []store.Replica) {
		now := time.Now()
		maps.DeleteFunc(m.beats, func(_ string, b beat) bool { return !now.Before(b.until) })
		m.beats[replica] = beat{slices.Clone(about), now.Add(ttl)}
		for _, id := range slices.Sorted(maps.Keys(m.beats)) {
			all = append(all, store.Replica{ID: id, About: m.beats[id].about})
		}
		return all
	})
}

// Leave implements store.Shared.
func (m *Member) Leave(_ context.Context, replica string) error {
	return m.do(func() error {
		delete(m.beats, replica)
		return nil
	})
}

// Lead implements store.Shared.
func (m *Member) Lead(_ context.Context, what, replica string, ttl time.Duration) (term uint64, leads bool,
	err error) {
	err = m.do(func() error {
		now, is := time.Now(), m.terms[what]
		if !now.Before(is.until) {
			is.replica, is.term = replica, is.term+1
		}
		if term, leads = is.term, is.replica == replica; leads {
			is.until = now.Add(ttl)
			m.terms[what] = is
		}
		return nil
	})
	return term, leads, err
}

// Resign implements store.Shared.
func (m *Member) Resign(_ context.Context, what, replica string) error {
	return m.do(func() error {
		if is := m.terms[what]; is.replica == replica {
			is.until = time.Time{}
			m.terms[what] = is
		}
		return nil
	})
}

// Send implements store.Shared.
func (m *Member) Send(_ context.Context, topic string, message []byte) error {
	return m.do(func() error {
		for _, l := range m.listeners {
			if l.topic == topic && !l.member.closed {
				l.messages = append(l.messages, slices.Clone(message))
				signal(l.news)
			}
		}
		return nil
	})
}

// Listen implements store.Shared.
func (m *Member) Listen(ctx context.Context, topic string, receive func([]byte)) error {
	l := &listener{member: m, topic: topic, news: make(chan struct{}, 1)}
	if err := m.do(func() error {
		m.listeners = append(m.listeners, l)
		return nil
	}); err != nil {
		return err
	}
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.listeners = slices.DeleteFunc(m.listeners, func(o *listener) bool { return o == l })
	}()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-l.news:
		}
		m.mu.Lock()
		messages := l.messages
		l.messages = nil
		m.mu.Unlock()
		for _, b := range messages {
			receive(b)
		}
	}
}
