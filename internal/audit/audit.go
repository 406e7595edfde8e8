// Package audit is the log of who did what: an entry for each action in the store's side table, so
// that all replicas have one log and a backup has it too, and a line in the service's own log when
// the action has ended. Who can write the store can change the entries: what must be proof against
// that is the service's log, collected elsewhere.
package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/store"
)

// Entry is one action.
type Entry struct {
	// N numbers entries by time: microseconds since 1970, no two alike of one service.
	N         int64      `json:"n" doc:"Grows with time."`
	At        time.Time  `json:"at"`
	Who       string     `json:"who"`
	How       string     `json:"how" doc:"How they signed in: rabbitmq, oidc, proxy, token or local."`
	From      string     `json:"from" doc:"The address the call came from."`
	Interface string     `json:"face" enum:"page,api,cli"`
	Did       string     `json:"did" doc:"Such as replay or operation.start; reported.*: only the caller says so."`
	On        string     `json:"on" doc:"The messages' ids, the query, the queue, or the operation."`
	About     string     `json:"about,omitempty" csv:"-" doc:"Of error groups alone: the errors, how many."`
	Count     int64      `json:"count,omitempty" doc:"How many messages."`
	Why       string     `json:"why,omitempty" doc:"The reason they gave."`
	Outcome   string     `json:"outcome" doc:"done, refused, stopped, an error, reported; begun: not ended."`
	Ended     *time.Time `json:"ended,omitempty" doc:"When the outcome was known."`
}

// Subject is On for people: of error groups, the errors.
func (e Entry) Subject() string {
	id, does, ok := strings.Cut(e.On, ": ")
	if e.About == "" || !ok {
		return e.On
	}
	verb, _, _ := strings.Cut(does, " ")
	return id + ": " + verb + " " + e.About
}

// Result is Outcome for people: the start of an operation is only its beginning.
func (e Entry) Result() string {
	if e.Did == "operation.start" && e.Outcome == "done" {
		return "begun"
	}
	return e.Outcome
}

const (
	prefix = "audit/"
	// kept is how long entries are kept, and keptBytes how much of the newest.
	kept      = 90 * 24 * time.Hour
	keptBytes = 64 << 20
	// forgetEvery is how often old entries are looked for, unless much is written.
	forgetEvery = time.Hour
	// maxOn and maxText limit an entry's texts, in bytes. minOn is the limit of Entry.On when the
	// store is full, so that an action which makes room can still be logged.
	maxOn, maxText, minOn = 512 << 10, 4 << 10, 1 << 10
)

// Log writes and reads the entries. All methods may be called at once.
type Log struct {
	store store.SideTable
	log   *slog.Logger
	tag   string // tells its entries from those that another service makes in the same microsecond
	most  int    // keptBytes

	mu      sync.Mutex
	last    int64 // of its numbers
	written int   // bytes since it forgot
	forgot  time.Time
}

// New makes the log of one service.
func New(s store.SideTable, log *slog.Logger) *Log {
	return &Log{store: s, log: log, tag: uuid.NewString()[:8], most: keptBytes}
}

// Begin writes that something is about to be done; on an error it must not be done. done writes
// the outcome, once; where it cannot, only the service's log has it.
func (l *Log) Begin(e Entry) (done func(outcome string, count int64), err error) {
	e.At, e.Outcome, e.Ended = time.Now().UTC(), "begun", nil
	e.On = cut(e.On, maxOn)
	for _, s := range []*string{&e.Who, &e.How, &e.From, &e.Interface, &e.Did, &e.Why, &e.About} {
		*s = cut(*s, maxText)
	}
	l.mu.Lock()
	e.N = max(e.At.UnixMicro(), l.last+1)
	l.last = e.N
	l.mu.Unlock()
	err = l.put(e)
	if errors.Is(err, store.ErrFull) && len(e.On) > minOn {
		e.On = cut(e.On, minOn)
		err = l.put(e)
	}
	if err != nil {
		return nil, err
	}
	return func(outcome string, count int64) {
		ended := time.Now().UTC()
		e.Outcome, e.Count, e.Ended = cut(outcome, maxText), count, &ended
		l.log.Info("action", "did", e.Did, "by", e.Who, "from", e.From, "on", cut(e.On, minOn),
			"count", count, "why", e.Why, "outcome", e.Outcome, "n", e.N)
		if err := l.put(e); err != nil {
			l.log.Error("what came of an action is not in the audit log: there it is only begun", "did", e.Did, "n",
				e.N, "error", err)
		}
	}, nil
}

func (l *Log) put(e Entry) error {
	value, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	l.mu.Lock()
	l.written += len(value)
	l.mu.Unlock()
	return l.store.PutEntries(context.Background(), []store.Entry{{Name: upto(e.N) + "-" + l.tag, Value: value}})
}

// upto sorts before the entries from number n on, newest first.
func upto(n int64) string { return fmt.Sprintf("%s%016x", prefix, math.MaxInt64-n) }

// numberOf is the number in the name of an entry.
func numberOf(name string) int64 {
	digits, _, _ := strings.Cut(strings.TrimPrefix(name, prefix), "-")
	n, _ := strconv.ParseInt(digits, 16, 64)
	return math.MaxInt64 - n
}

// Before visits entries from the one before number n on, the newest first, until visit says that it
// has enough, visit fails, or ctx ends. What cannot be read is left out.
func (l *Log) Before(ctx context.Context, n int64, visit func(Entry) (more bool, err error)) error {
	return l.store.Entries(ctx, prefix, upto(n-1), func(kept store.Entry) (bool, error) {
		var e Entry
		if json.Unmarshal(kept.Value, &e) != nil {
			return true, nil
		}
		return visit(e)
	})
}

// Forget deletes entries that are older than 90 days, and the oldest of more than 64 MiB.
func (l *Log) Forget(ctx context.Context, now time.Time) error {
	l.mu.Lock()
	if now.Sub(l.forgot) < forgetEvery && l.written < l.most/16 {
		l.mu.Unlock()
		return nil
	}
	l.forgot, l.written = now, 0
	l.mu.Unlock()
	size, oldest := 0, now.Add(-kept).UnixMicro()
	var old []store.Entry
	err := l.store.Entries(ctx, prefix, "", func(e store.Entry) (bool, error) {
		if size += len(e.Value); size > l.most || numberOf(e.Name) < oldest {
			old = append(old, store.Entry{Name: e.Name})
		}
		return true, nil
	})
	for some := range slices.Chunk(old, 1000) {
		if err == nil {
			err = l.store.PutEntries(ctx, some)
		}
	}
	return err
}

func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return fmt.Sprintf("%s… (and %d bytes more)", s[:most], len(s)-most)
}
