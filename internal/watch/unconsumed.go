package watch

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/redrive-mq/redrive/internal/digits"
	"github.com/redrive-mq/redrive/internal/notify"
	"github.com/redrive-mq/redrive/policy"
)

// unconsumed is a queue that has messages and no consumers. Its names in JSON are stored.
type unconsumed struct {
	Since    time.Time `json:"since"`
	Messages history   `json:"messages"`

	now              int64 // messages
	enrolled, passes bool
}

// addQueues adds what RabbitMQ has answered. A queue that has consumers, or is empty, is forgotten.
func (w *Watcher) addQueues(all []Queue, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	found := make(map[string]*unconsumed, len(w.unconsumed))
	for i := range all {
		q := &all[i]
		if q.Consumers > 0 || q.Messages == 0 || len(found) >= mostQueues {
			continue
		}
		u := w.unconsumed[q.Name]
		if u == nil || u.Messages.isOld(now) {
			u = &unconsumed{Since: now}
		}
		u.now, u.enrolled, u.passes = q.Messages, q.Enrolled, q.Passes
		u.Messages.add(q.Messages, now)
		found[q.Name] = u
	}
	w.unconsumed = found
}

// isWatched tells whether the queue should have consumers.
func (u *unconsumed) isWatched(name string, s *notify.Settings) bool {
	return u.enrolled || slices.ContainsFunc(s.Watch, func(p string) bool { return policy.MatchQueue(p, name) })
}

// fillsUp tells whether the queue has grown in both halves of the time that it must grow: one burst
// is not filling up. It is not known before that time has passed.
func (u *unconsumed) fillsUp(s *notify.Settings) (fills, known bool) {
	hours := max(1, int(s.Filling/time.Hour))
	began, known := u.Messages.before(hours)
	if !known || u.passes {
		return false, known
	}
	middle, _ := u.Messages.before(hours / 2)
	return u.now > middle && middle > began, true
}

// unconsumedConditions are those of queues without consumers. While RabbitMQ does not answer they are
// unknown, and have Since if they were on before. The caller holds mu.
func (w *Watcher) unconsumedConditions(s *notify.Settings) (all []notify.Condition) {
	for name, u := range w.unconsumed {
		if u.isWatched(name, s) {
			all = append(all, notify.Condition{Kind: notify.NoConsumer, Queue: name, Since: u.Since, After: s.NoConsumer,
				Text: "messages in it: " + digits.Group(fmt.Sprint(u.Messages.latest())), Unknown: w.unanswered})
		}
		switch fills, known := u.fillsUp(s); {
		case !known || w.unanswered && !fills:
			all = append(all, notify.Condition{Kind: notify.QueueFilling, Queue: name, Unknown: true})
		case fills:
			began, _ := u.Messages.before(max(1, int(s.Filling/time.Hour)))
			n := u.Messages.latest()
			all = append(all, notify.Condition{Kind: notify.QueueFilling, Queue: name, Since: u.Since, Unknown: w.unanswered,
				Text: fmt.Sprintf("%s messages, %s more than %s ago", digits.Group(fmt.Sprint(n)), digits.Group(fmt.Sprint(max(0, n-began))), policy.FormatDuration(s.Filling))})
		}
	}
	return all
}

// Unconsumed is a queue without consumers, and its messages.
type Unconsumed struct {
	Queue    string
	Messages int64
	since    time.Time
}

// Unconsumed returns the queues without consumers that should have some, and those that fill up,
// longest without first.
func (w *Watcher) Unconsumed() (all []Unconsumed) {
	s := w.Settings()
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, u := range w.unconsumed {
		if fills, _ := u.fillsUp(s); fills || u.isWatched(name, s) {
			all = append(all, Unconsumed{name, u.now, u.Since})
		}
	}
	slices.SortFunc(all, func(a, b Unconsumed) int { return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.Queue, b.Queue)) })
	return all
}
