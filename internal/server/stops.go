package server

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
)

// stops notes why the retries of queues stopped, so that a message that was retried late says it. Pauses are noted by
// who resumes them.
type stops struct {
	mu     sync.Mutex
	errors map[string]string                  // the latest, by queue
	open   map[string]map[string]inspect.Stop // by queue and kind
	over   map[string][]inspect.Stop          // not written yet
}

func newStops() *stops {
	return &stops{errors: map[string]string{}, open: map[string]map[string]inspect.Stop{},
		over: map[string][]inspect.Stop{}}
}

func (s *stops) event(e retry.Event) {
	switch e.Kind {
	case retry.Failed:
		s.mu.Lock()
		if _, known := s.errors[e.Queue]; known || len(s.errors) < maxActiveQueues {
			s.errors[e.Queue] = e.Error
		}
		s.mu.Unlock()
	case retry.Opened:
		is := inspect.Stop{Why: strings.TrimSuffix("breaker open: "+e.Why, ": "), Since: e.At}
		if e.By != "" {
			is.Why = strings.TrimSuffix("breaker opened by "+e.By+": "+e.Why, ": ")
		}
		s.begin(e.Queue, "breaker", is)
	case retry.Ramping, retry.Closed:
		s.end(e.Queue, "breaker", e.At)
	case retry.NoConsumer:
		s.begin(e.Queue, "consumers", inspect.Stop{Why: e.Why, Since: e.At})
	case retry.ConsumerBack:
		s.end(e.Queue, "consumers", e.At)
	}
}

// publish notes that retries to a queue fail or, if err is nil, work again.
func (s *stops) publish(queue string, err error, now time.Time) {
	if err == nil {
		s.end(queue, "publish", now)
		return
	}
	s.begin(queue, "publish", inspect.Stop{Why: "retries failed: " + err.Error(), Since: now})
}

// begin notes a stop, unless it is one already.
func (s *stops) begin(queue, kind string, is inspect.Stop) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, stopped := s.open[queue][kind]; stopped || s.open[queue] == nil && len(s.open) == maxActiveQueues {
		return
	}
	if kind == "breaker" {
		is.Error = s.errors[queue]
	}
	if s.open[queue] == nil {
		s.open[queue] = map[string]inspect.Stop{}
	}
	s.open[queue][kind] = is
}

func (s *stops) end(queue, kind string, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	is, stopped := s.open[queue][kind]
	if !stopped {
		return
	}
	if delete(s.open[queue], kind); len(s.open[queue]) == 0 {
		delete(s.open, queue)
	}
	is.Until = now
	of := append(s.over[queue], is)
	s.over[queue] = of[max(0, len(of)-inspect.StopsKept):]
}

// of returns the stops of a queue that are not written yet.
func (s *stops) of(queue string) (all []inspect.Stop) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all = slices.Clone(s.over[queue])
	for _, is := range s.open[queue] {
		all = append(all, is)
	}
	return all
}

// keep writes the stops that are over once a minute and when ctx ends, and then those that are not over, too.
func (s *stops) keep(ctx context.Context, to store.SideTable) {
	for ctx.Err() == nil {
		sleep(ctx, time.Minute)
		out, cancel := context.WithTimeout(context.WithoutCancel(ctx), keepWait)
		s.write(out, to, ctx.Err() != nil)
		cancel()
	}
}

// write writes stops. Without them, only the reasons of late retries are missing.
func (s *stops) write(ctx context.Context, to store.SideTable, all bool) {
	s.mu.Lock()
	over := s.over
	s.over = map[string][]inspect.Stop{}
	if all {
		for queue, of := range s.open {
			for _, is := range of {
				is.Until = time.Now()
				over[queue] = append(over[queue], is)
			}
		}
	}
	s.mu.Unlock()
	for queue, of := range over {
		var entries []store.Entry
		for _, is := range of {
			entries = append(entries, is.Entry(queue))
		}
		if to.PutEntries(ctx, entries) == nil {
			_ = inspect.TrimStops(ctx, to, queue)
		}
	}
}
