package world

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/throttle"
)

// drawBreakers gives some queues circuit breakers, which their consumers' failures open.
func (s *scenario) drawBreakers(r *rand.Rand) {
	for _, q := range s.queues {
		b := throttle.Breaker{FailureRatio: pick(r, 0.2, 0.5), MinRetries: pick(r, 2, 5), Window: pick(r, 10*time.Second, 5*time.Minute),
			Wait: pick(r, time.Second, 10*time.Second), MaxWait: time.Minute, Probes: pick(r, 1, 3), Ramp: pick(r, 0, 10*time.Second, time.Minute)}
		settle := pick(r, time.Second, 30*time.Second)
		if r.IntN(4) == 0 && q.way == nil && q.library == nil {
			q.limits.Breaker, q.limits.Settle = &b, settle
		}
	}
}

// brokenCircuit is a breaker that is open or half-open.
type brokenCircuit struct {
	since  time.Time // when it opened
	probes int       // that may still go; 0: it is open
}

// breakers returns what enters the changes of a process's breakers, which all are closed. Those of the
// process before it are of no account any more.
func (l *ledger) breakers() func(throttle.Transition) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.process++
	process := l.process
	clear(l.circuits)
	return func(t throttle.Transition) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if process == l.process || l.scenario.replicas > 1 {
			l.breakerChanged(t, time.Now())
		}
	}
}

func (l *ledger) breakerChanged(t throttle.Transition, now time.Time) {
	l.events["breaker is "+string(t.To)]++
	switch t.To {
	case throttle.Open:
		l.circuits[t.Queue] = brokenCircuit{since: now}
	case throttle.HalfOpen:
		c := l.circuits[t.Queue]
		c.probes = l.queueNamed(t.Queue).limits.Breaker.Probes
		l.circuits[t.Queue] = c
	default:
		delete(l.circuits, t.Queue)
	}
}

// retriedAgainst checks that an open breaker lets no message pass, and a half-open one no more than its
// probes. With several replicas others follow the leader's within a second or when they reach it.
// l.mu is held.
func (l *ledger) retriedAgainst(e retry.Event, now time.Time) {
	c, is := l.circuits[e.Queue]
	if e.Kind != retry.Retried || !is || l.scenario.replicas > 1 || now.Sub(l.publishedUntil(c.since, now)) <= time.Second {
		return
	}
	if c.probes == 0 {
		l.broken = append(l.broken, fmt.Sprintf("%s was retried to %s at %s: its breaker opened at %s, or no more probes may go", e.ID, e.Queue, now.Sub(l.start), c.since.Sub(l.start)))
		return
	}
	c.probes--
	l.circuits[e.Queue] = c
}

func (l *ledger) queueNamed(name string) *workQueue {
	for _, q := range l.scenario.queues {
		if q.name == name {
			return q
		}
	}
	return nil
}
