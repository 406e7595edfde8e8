package server

import (
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/redrive-mq/redrive/internal/condition"
	"github.com/redrive-mq/redrive/internal/retry"
)

// listeners receive every event, on the goroutine that caused it: the intake's, most often. A
// listener that panics misses that event, which is counted, logged, and for a while named by
// readiness: a dead letter must not end the process, and again at each start.
type listeners struct {
	log        *slog.Logger
	conditions *condition.Set
	count      func(listener string)
	all        []listener
}

type listener struct {
	name    string
	receive retry.Listener
}

// failureShows is how long readiness speaks of a listener that failed.
const failureShows = 5 * time.Minute

func (l *listeners) add(name string, receive retry.Listener) {
	l.all = append(l.all, listener{name, receive})
}

func (l *listeners) event(e retry.Event) {
	for i := range l.all {
		l.call(&l.all[i], e)
	}
}

func (l *listeners) call(to *listener, e retry.Event) {
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		l.count(to.name)
		l.log.Error("a listener panicked at an event, which is missing there", "listener", to.name, "event", e.Kind, "queue", e.Queue, "id", e.ID, "panic", p, "stack", string(debug.Stack()))
		l.conditions.PutFor(failureShows, condition.Condition{Kind: condition.Listener, Target: to.name, Text: fmt.Sprintf("the event %q of queue %q is missing there after a panic (the log has the stack): please report it", e.Kind, e.Queue)})
	}()
	to.receive(e)
}
