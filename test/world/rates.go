package world

import (
	"fmt"
	"slices"
	"time"

	"github.com/redrive-mq/redrive/internal/retry"
)

// retriedTo enters that a message was retried to a queue with a rate. l.mu is held.
func (l *ledger) retriedTo(e retry.Event, now time.Time) {
	if e.Kind != retry.Retried {
		return
	}
	for _, q := range l.scenario.queues {
		if q.name == e.Queue && q.limits.Rate > 0 {
			l.retried[q] = append(l.retried[q], now)
		}
	}
}

// tooFast are the queues to which more was retried than their rates allow, by all replicas together:
// in ten seconds 5 % more than that, what a rate allows in 0.55 s, and two messages for each replica,
// as docs/how-to/replicas.md says. l.mu is held.
func (l *ledger) tooFast() (all []string) {
	const window = 10 * time.Second
	for q, retried := range l.retried {
		most := int(q.limits.Rate*(1.05*window.Seconds()+0.55)) + 2*l.scenario.replicas
		for i := most; i < len(retried); i++ {
			from, to := retried[i-most], retried[i]
			// What was published before an alarm or a cut is confirmed when that is over, at once.
			if to.Sub(from) < window && !l.confirmsDelayed(from.Add(-window), to) {
				all = append(all, fmt.Sprintf("%d messages were retried to %s from %s to %s, and its rate is %v a second", most+1, q.name, from.Sub(l.start), to.Sub(l.start), q.limits.Rate))
				break
			}
		}
	}
	return all
}

// confirmsDelayed tells whether RabbitMQ's confirms may have come late in a time.
func (l *ledger) confirmsDelayed(from, to time.Time) bool {
	during := func(a alarm) bool { return !a.from.After(to) && !a.to.Before(from) }
	return slices.ContainsFunc(l.alarms, during) || slices.ContainsFunc(l.stalls, during)
}
