package memstore

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
)

// Replicas is one store in memory that several services use at once, for tests of what
// replicas do together. Its time is that of package time, which testing/synctest
// turns.
type Replicas struct {
	state *state

	mu        sync.Mutex
	beats     map[string]beat
	listeners []*listener
}

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
func NewReplicas() *Replicas { return &Replicas{state: newState(), beats: map[string]beat{}} }

// Join opens the store for one more service.
func (f *Replicas) Join() *Member { return &Member{Store: open(f.state), replicas: f} }

// Member implements store.Shared.
type Member struct {
	*Store
	replicas *Replicas
}

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
func (m *Member) Beat(_ context.Context, replica string, about []byte, ttl time.Duration) (all []store.Replica, err error) {
	unlock, err := m.lock()
	defer unlock()
	if err != nil {
		return nil, err
	}
	m.replicas.mu.Lock()
	defer m.replicas.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(m.replicas.beats, func(_ string, b beat) bool { return !now.Before(b.until) })
	m.replicas.beats[replica] = beat{slices.Clone(about), now.Add(ttl)}
	for _, id := range slices.Sorted(maps.Keys(m.replicas.beats)) {
		all = append(all, store.Replica{ID: id, About: m.replicas.beats[id].about})
	}
	return all, nil
}

// Leave implements store.Shared.
func (m *Member) Leave(_ context.Context, replica string) error {
	unlock, err := m.lock()
	defer unlock()
	if err == nil {
		m.replicas.mu.Lock()
		defer m.replicas.mu.Unlock()
		delete(m.replicas.beats, replica)
	}
	return err
}

// Lead implements store.Shared.
func (m *Member) Lead(_ context.Context, what, replica string, ttl time.Duration) (term uint64, leads bool, err error) {
	unlock, err := m.lock()
	defer unlock()
	if err != nil {
		return 0, false, err
	}
	now := time.Now()
	is := m.terms[what]
	switch there := now.Before(is.until); {
	case there && is.replica != replica:
		return is.term, false, nil
	case !there:
		is = lead{replica: replica, term: is.term + 1}
	}
	is.until = now.Add(ttl)
	m.terms[what] = is
	return is.term, true, nil
}

// Resign implements store.Shared.
func (m *Member) Resign(_ context.Context, what, replica string) error {
	unlock, err := m.lock()
	defer unlock()
	if is := m.terms[what]; err == nil && is.replica == replica {
		is.until = time.Time{}
		m.terms[what] = is
	}
	return err
}

// lockIn is lock for what a leader may do only as long as it is one.
func (s *Store) lockIn(ctx context.Context) (unlock func(), err error) {
	unlock, err = s.lock()
	if what, term, ok := store.TermOf(ctx); err == nil && ok && s.terms[what].term != term {
		unlock()
		return func() {}, store.ErrDeposed
	}
	return unlock, err
}

// Send implements store.Shared.
func (m *Member) Send(_ context.Context, topic string, message []byte) error {
	unlock, err := m.lock()
	defer unlock()
	if err != nil {
		return err
	}
	m.replicas.mu.Lock()
	defer m.replicas.mu.Unlock()
	for _, l := range m.replicas.listeners {
		if l.topic != topic || l.member.closed {
			continue
		}
		l.messages = append(l.messages, slices.Clone(message))
		select {
		case l.news <- struct{}{}:
		default:
		}
	}
	return nil
}

// Listen implements store.Shared.
func (m *Member) Listen(ctx context.Context, topic string, receive func([]byte)) error {
	unlock, err := m.lock()
	unlock()
	if err != nil {
		return err
	}
	f := m.replicas
	l := &listener{member: m, topic: topic, news: make(chan struct{}, 1)}
	f.mu.Lock()
	f.listeners = append(f.listeners, l)
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.listeners = slices.DeleteFunc(f.listeners, func(o *listener) bool { return o == l })
	}()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-l.news:
		}
		f.mu.Lock()
		messages := l.messages
		l.messages = nil
		f.mu.Unlock()
		for _, b := range messages {
			receive(b)
		}
	}
}
