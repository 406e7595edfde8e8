package inspect

import (
	"context"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/errorgroup"
	"github.com/redrive-mq/redrive/internal/store"
)

const (
	// exampleAge is how long an example is used again, and mostExamples how many are kept.
	exampleAge   = 10 * time.Minute
	mostExamples = 10_000
	// longestExamples is how long one page looks for them; what it does not find in that time
	// shows its error without, and the next page looks on.
	longestExamples = 40 * time.Millisecond
	// mostWaitingLooked is how many waiting messages of a queue are looked at: no index leads to
	// those of a group.
	mostWaitingLooked = 200
	mostExample       = 300 // characters
)

// examples are errors of messages as their consumers said them, by group.
type examples struct {
	mu      sync.Mutex
	byGroup map[errorgroup.ID]example
}

type example struct {
	text  string
	until time.Time
}

func (x *examples) of(id errorgroup.ID, now time.Time) (text string, known bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	e, ok := x.byGroup[id]
	return e.text, ok && now.Before(e.until)
}

func (x *examples) keep(id errorgroup.ID, text string, until time.Time) {
	if r := []rune(text); len(r) > mostExample {
		text = string(r[:mostExample]) + "…"
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.byGroup == nil || len(x.byGroup) >= mostExamples {
		x.byGroup = map[errorgroup.ID]example{}
	}
	x.byGroup[id] = example{text, until}
}

// addExamples gives each line the error of one of its messages.
func (in *Inspector) addExamples(ctx context.Context, lines []*errorLine) {
	ctx, cancel := context.WithTimeout(ctx, longestExamples)
	defer cancel()
	until := time.Now().Add(exampleAge)
	waiting := map[string]bool{} // queues whose waiting messages are looked at
	for _, l := range lines {
		if l.other || l.groups[0].Pattern == "" || l.findExample(&in.examples) || ctx.Err() != nil {
			continue
		}
		var of *store.GroupCount // of which a parked message is kept: an index leads to it
		for _, g := range l.groups {
			if g.Parked > 0 && (of == nil || g.Last.After(of.Last)) {
				of = g
			}
		}
		if of == nil {
			for _, g := range l.groups {
				if g.Waiting > 0 && len(waiting) < mostErrorQueues {
					waiting[g.Queue] = true
				}
			}
			continue
		}
		r := store.Range{State: store.Parked, Queues: []string{of.Queue}, Groups: []errorgroup.ID{of.ID}, NewestFirst: true}
		_ = in.Store.Scan(ctx, r, func(m store.Listed) (bool, error) { // without an example the error itself is shown
			in.examples.keep(of.ID, m.Record.Error, until)
			return false, nil
		})
		l.findExample(&in.examples)
	}
	for queue := range waiting {
		looked := 0
		_ = in.Store.Scan(ctx, store.Range{State: store.Waiting, Queues: []string{queue}, NewestFirst: true}, func(m store.Listed) (bool, error) {
			in.examples.keep(in.Store.GroupOf(m.Record), m.Record.Error, until)
			looked++
			return looked < mostWaitingLooked, nil
		})
	}
	for _, l := range lines {
		if !l.other {
			l.findExample(&in.examples)
		}
	}
}

func (l *errorLine) findExample(x *examples) bool {
	now := time.Now()
	for _, g := range l.groups {
		if l.example != "" {
			break
		}
		l.example, _ = x.of(g.ID, now)
	}
	return l.example != ""
}
