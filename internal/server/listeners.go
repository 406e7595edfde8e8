package server

import (
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/redrive-mq/redrive/internal/retry"
)

// listeners hear every event, on the goroutine that caused it: the intake's, most often.
// A panic in one of them costs that one that event. It is counted, logged, and readiness
// says so for a while: a dead letter must not end the process that takes it, at each
// start again.
type listeners struct {
	log    *slog.Logger
	health *health
	count  func(listener string)
	all    []listener
}

type listener struct {
	name string
	hear retry.Listener
}

// failureShows is how long readiness speaks of a listener that failed.
const failureShows = 5 * time.Minute

func (l *listeners) add(name string, hear retry.Listener) {
	l.all = append(l.all, listener{name, hear})
}

func (l *listeners) event(e retry.Event) {
	for i := range l.all {
		l.tell(&l.all[i], e)
	}
}

func (l *listeners) tell(to *listener, e retry.Event) {
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		l.count(to.name)
		l.log.Error("a listener panicked at an event, which is missing there", "listener", to.name, "event", e.Kind, "queue", e.Queue, "id", e.ID, "panic", p, "stack", string(debug.Stack()))
		l.health.setFor(failureShows, partListener+to.name, fmt.Sprintf("the event %q of queue %q is missing there after a panic (the log has the stack): please report it", e.Kind, e.Queue))
	}()
	to.hear(e)
}
