// Package inspecttest has messages, callers, queues and an audit log for tests of what people
// see and do.
package inspecttest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/audit"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/memstore"
	"github.com/redrive-mq/redrive/wire"
)

var must = expect.NoError

// Caller is Ann with a role, limited to queues where some are given.
func Caller(role auth.Role, queues ...string) auth.Caller {
	return auth.Caller{Name: "ann", How: "token", From: "127.0.0.1", Interface: "api", Role: role, Queues: queues}
}

// AuditLog is an audit log in memory that can refuse.
type AuditLog struct {
	mu      sync.Mutex
	entries []audit.Entry
	Full    error // what it refuses with
}

// Begin is for package actions.
func (l *AuditLog) Begin(e audit.Entry) (func(string, int64), error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.Full != nil {
		return nil, l.Full
	}
	at := len(l.entries)
	e.At = time.Now()
	if e.N = e.At.UnixMicro(); at > 0 {
		e.N = max(e.N, l.entries[at-1].N+1)
	}
	l.entries = append(l.entries, e)
	return func(outcome string, n int64) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.entries[at].Outcome = fmt.Sprintf("%s %d", outcome, n)
	}, nil
}

// Forget is for package actions.
func (l *AuditLog) Forget(context.Context, time.Time) error { return nil }

// Before is for package inspect.
func (l *AuditLog) Before(_ context.Context, n int64, visit func(audit.Entry) (bool, error)) error {
	all := l.Entries()
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].N >= n {
			continue
		}
		if more, err := visit(all[i]); !more || err != nil {
			return err
		}
	}
	return nil
}

// Entries are all that it has.
func (l *AuditLog) Entries() []audit.Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.entries)
}

// All are its entries as lines.
func (l *AuditLog) All() (lines []string) {
	for _, e := range l.Entries() {
		line := strings.TrimSpace(fmt.Sprintf("%s %s %s %d %s", e.Who, e.Did, e.On, e.Count, e.Why))
		if e.Outcome != "" {
			line += ": " + e.Outcome
		}
		lines = append(lines, line)
	}
	return lines
}

// Queues are those that exist.
type Queues struct {
	mu  sync.Mutex
	all map[string]inspect.AtBroker
}

// NewQueues has the queues orders, mail and other, with a consumer each.
func NewQueues() *Queues {
	there := inspect.AtBroker{Exists: true, Consumers: 1}
	return &Queues{all: map[string]inspect.AtBroker{"orders": there, "mail": there, "other": there}}
}

// Queue is for package inspect.
func (q *Queues) Queue(_ context.Context, name string) (inspect.AtBroker, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.all[name], nil
}

// Set makes a queue what at says.
func (q *Queues) Set(name string, at inspect.AtBroker) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.all[name] = at
}

// Everything is a policy for every queue.
func Everything() policy.Set { return policy.Set{{Name: "p", Queues: []string{"*"}}} }

// Long is long ago.
var Long = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// Record is a message that failed three times.
func Record(queue string, state store.State, body string) *store.Record {
	r := &store.Record{ID: uuid.Must(uuid.NewV7()), Queue: queue, State: state, Due: Long, Failures: 3, Reason: "rejected", Error: "no stock",
		FirstFailed: Long, FailedAt: Long, Fingerprint: [16]byte{1}, Message: wire.Message{RoutingKey: "k", Body: []byte(body)}}
	switch state {
	case store.Parked:
		r.ParkedFor, r.Forward = "out of attempts", &store.Destination{Exchange: "dlx"}
	case store.Waiting:
		r.Due = time.Now().Add(time.Hour).Truncate(time.Microsecond)
	case store.Discarded:
		r.Due = time.Now().Add(time.Hour).Truncate(time.Microsecond)
	}
	return r
}

// OpenDisk opens a store on disk.
func OpenDisk(t testing.TB, path string) *diskstore.Store {
	t.Helper()
	s, err := diskstore.Open(path, diskstore.Options{Reserve: 1})
	must(t, err)
	return s
}

// Stores runs a test over both engines.
func Stores(t *testing.T, test func(t *testing.T, s store.Store)) {
	t.Run("memory", func(t *testing.T) { test(t, memstore.New()) })
	t.Run("disk", func(t *testing.T) {
		s := OpenDisk(t, t.TempDir())
		defer s.Close()
		test(t, s)
	})
}

// Add has a store keep records.
func Add(t testing.TB, s store.Store, records ...*store.Record) {
	t.Helper()
	must(t, s.Add(context.Background(), records))
}

// Kept is the one record with an id.
func Kept(t testing.TB, s store.Store, id string) *store.Record {
	t.Helper()
	all, err := s.Find(context.Background(), uuid.MustParse(id))
	if err != nil || len(all) != 1 {
		t.Fatalf("%d records have the id %s, %v", len(all), id, err)
	}
	return all[0].Record
}

// Parked are n parked messages of a queue, each failed a second after the one before.
func Parked(queue string, n int) (all []*store.Record) {
	for i := range n {
		r := Record(queue, store.Parked, fmt.Sprint(i))
		r.FailedAt = Long.Add(time.Duration(i) * time.Second)
		all = append(all, r)
	}
	return all
}

// RetryDue claims the messages of a queue that are due by upTo, and finishes them as retried.
func RetryDue(t testing.TB, s store.Store, queue string, upTo time.Time) []store.Claim {
	t.Helper()
	claims, err := s.Claim(context.Background(), store.Lane{Queue: queue}, upTo, 1000, 1<<20)
	must(t, err)
	var ends []store.Outcome
	for _, c := range claims {
		ends = append(ends, store.Outcome{Claim: c, At: time.Now()})
	}
	if n, err := s.Finish(context.Background(), ends); err != nil || n != len(claims) {
		t.Fatal(n, err)
	}
	return claims
}

// WaitingQueue is a queue whose due message waits for a reason.
func WaitingQueue(why throttle.WaitReason, now time.Time) inspect.Queue {
	q := inspect.Queue{Name: "orders", Policy: "all", Waiting: 1, NextDue: &now}
	switch why {
	case throttle.WhyPerson:
		q.Pause = &inspect.QueuePause{By: "dana", Since: now}
	case throttle.WhyUnreachable:
		q.Unreachable = "the queue is full"
	case throttle.WhyBreaker:
		q.Throttle = &inspect.ThrottleView{State: string(throttle.Open), Why: "9 of 10 failed"}
	case throttle.WhyNoConsumer:
		q.Throttle = &inspect.ThrottleView{State: string(throttle.Closed), NoConsumer: &now}
	default: // a limit
		q.Throttle = &inspect.ThrottleView{State: string(throttle.Closed), LimitedBy: why}
	}
	return q
}
