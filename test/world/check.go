package world

import (
	"fmt"
	"slices"
	"time"

	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/policy"
)

// early checks that a message is retried as often as its policy allows, and not before it is due.
// A copy of a life before, which a cut explains, may still come.
func (l *ledger) early(a *account, failures int, now time.Time) (err error) {
	for i := len(a.lives) - 1; i >= 0; i-- {
		switch e := l.earlyIn(a, a.lives[i], failures, now); {
		case e == nil:
			return nil
		case err == nil:
			err = e
		}
		if !l.explained(a) {
			break
		}
	}
	return err
}

func (l *ledger) earlyIn(a *account, life *life, failures int, now time.Time) error {
	if failures == 0 {
		due := life.due
		for _, at := range life.hastened {
			if at.Before(due) {
				due = at
			}
		}
		if now.Before(due) {
			return fmt.Errorf("%s was retried before %s, when a person had it replayed", a.id, due.Sub(l.start))
		}
		return nil
	}
	failed, did := life.failedAt[failures-1]
	if !did {
		return fmt.Errorf("%s was retried as failed %d times, which it has not", a.id, failures)
	}
	if _, most := l.allowed(a.queue, failed, now); failures >= most {
		return fmt.Errorf("%s was delivered although it has failed %d times, and %d attempts are allowed", a.id, failures, most)
	}
	p := a.queue.policy
	least := failed.Add(p.Jitter.Shortest(p.Backoff.Delay(failures)).Truncate(time.Millisecond))
	for _, at := range life.hastened {
		if at.Before(least) && !at.Before(failed) {
			least = at
		}
	}
	if now.Before(least) {
		return fmt.Errorf("%s was retried %s after failure %d: that is before %s, when it was due at the earliest", a.id, now.Sub(failed), failures, least.Sub(l.start))
	}
	return nil
}

// lateBy is how much later than it is due a message may come to a consumer that is never busy, while nothing happens to the service.
const lateBy = 5 * time.Second

// late checks that a message is not retried long after it is due, where nothing may delay it.
func (l *ledger) late(a *account, failures int, now time.Time) error {
	q := a.queue
	failed, did := a.life().failedAt[failures-1]
	punctual := q.way == nil && q.handles == 0 && q.limits == (throttle.Rules{})
	if !did || len(a.life().hastened) > 0 || !punctual || !l.calm(q, failed, now) {
		return nil
	}
	if latest := failed.Add(q.policy.Jitter.Longest(q.policy.Backoff.Delay(failures)) + lateBy); now.After(latest) {
		return fmt.Errorf("%s was retried %s after failure %d: that is after %s, when it was due at the latest", a.id, now.Sub(failed), failures, latest.Sub(l.start))
	}
	return nil
}

// calm reports whether nothing happened to the service, nor shortly before, and its retries to the
// queue were never paused.
func (l *ledger) calm(q *workQueue, from, to time.Time) bool {
	const after = 5 * time.Minute
	for _, a := range l.scenario.actions {
		if a.verb == pause && a.queue == q {
			return false
		}
	}
	for _, f := range l.scenario.faults {
		if at := l.start.Add(settling + f.at); !at.After(to) && at.Add(f.away+after).After(from) {
			return false
		}
	}
	return !slices.ContainsFunc(l.cuts, func(at time.Time) bool { return !at.After(to) && at.Add(after).After(from) })
}

// allowed is how many attempts a queue's policy allows at least and at most in a time.
func (l *ledger) allowed(q *workQueue, from, to time.Time) (least, most int) {
	all := l.attempts[q]
	for i, a := range all {
		if i+1 < len(all) && all[i+1].from.Before(from) || a.from.After(to) {
			continue
		}
		if least == 0 || a.attempts < least {
			least = a.attempts
		}
		most = max(most, a.attempts)
	}
	return least, most
}

// ends is where messages are at the end: how many copies of each.
type ends struct{ waiting, parked, discarded, forwarded map[string]int }

// missing are the messages that have not come to where they belong.
func (l *ledger) missing(at ends) (all []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, a := range l.accounts {
		if !l.arrived(a, at) {
			all = append(all, fmt.Sprintf("%s of %s (failed %d of %d times)", id, a.queue.name, len(a.life().failedAt), a.life().fails))
		}
	}
	for id, copies := range at.waiting {
		all = append(all, fmt.Sprintf("%s still waits, %d times", id, copies))
	}
	slices.Sort(all)
	return all
}

// arrived reports whether a message is where it belongs.
func (l *ledger) arrived(a *account, at ends) bool {
	least, most := l.allowedIn(a)
	switch {
	case a.mayBeLost:
		return true
	case l.unsure[a.id]:
		return a.processed+at.parked[a.id]+at.forwarded[a.id]+at.discarded[a.id] > 0 || a.queue.policy.Exhausted.Action == policy.Discard
	case a.discarded:
		return at.discarded[a.id] > 0
	case a.restored:
		return at.parked[a.id] > 0
	case a.life().fails < least:
		return a.processed > 0
	case a.life().fails >= most:
		return l.ended(a, at)
	}
	return a.processed > 0 || l.ended(a, at)
}

// allowedIn is how many attempts are allowed in a message's life, at least and at most.
func (l *ledger) allowedIn(a *account) (least, most int) {
	now := time.Now()
	from := now
	if first, did := a.life().failedAt[0]; did {
		from = first
	}
	return l.allowed(a.queue, from, now)
}

// ended reports whether its failures ended as its policy says. That a message was discarded
// no one sees but in its last failure.
func (l *ledger) ended(a *account, at ends) bool {
	switch a.queue.policy.Exhausted.Action {
	case policy.Park:
		return at.parked[a.id] > 0
	case policy.Forward:
		return at.forwarded[a.id] > 0
	}
	for failures, failed := range a.life().failedAt {
		if least, _ := l.allowed(a.queue, failed, time.Now()); failures+1 >= least {
			return true
		}
	}
	return false
}

// wrong is what must not be at the end: messages where they do not belong, and copies that
// no cut explains.
func (l *ledger) wrong(at ends) (all []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, a := range l.accounts {
		exhausted := at.parked[id] + at.forwarded[id]
		if least, _ := l.allowedIn(a); a.life().fails < least && exhausted > 0 && !a.restored && !l.explained(a) {
			all = append(all, fmt.Sprintf("%s is parked %d and forwarded %d times, and %d attempts were enough", id, at.parked[id], at.forwarded[id], a.life().fails+1))
		}
		if copies := a.processed + exhausted + at.discarded[id]; copies > 1 && !l.explained(a) {
			all = append(all, fmt.Sprintf("%s has %d copies at the end, and nothing happened to it when a connection was cut: it was seen at %s, the service had it at %s, and cuts were at %s",
				id, copies, l.times(a.seen), l.times(l.said[a.redriveID]), l.times(l.cuts)))
		}
	}
	slices.Sort(all)
	return append(all, l.broken...)
}

// explained reports whether something happened to the message within a second of a cut, or during an
// alarm while it was on its way to wait in RabbitMQ, or in which the service was stopped or cut
// off, or while it was in doubt: what has no answer then is published or delivered again, and that is allowed.
func (l *ledger) explained(a *account) bool {
	if a.leaseEnded || l.inDoubt(a) || l.unsure[a.id] {
		return true
	}
	seen := slices.Concat(a.seen, l.said[a.redriveID])
	for _, alarm := range l.alarms {
		during := func(at time.Time) bool { return !at.Before(alarm.from) && at.Sub(alarm.to) <= time.Second }
		if (a.queue.way != nil || alarm.troubled) && (slices.ContainsFunc(seen, during) || a.doubtedIn(alarm.from, alarm.to)) {
			return true
		}
	}
	for _, cut := range l.cuts {
		near := func(at time.Time) bool { return at.Sub(cut).Abs() <= time.Second+2*a.queue.handles }
		if slices.ContainsFunc(seen, near) {
			return true
		}
	}
	return false
}

// times are moments as the log has them.
func (l *ledger) times(all []time.Time) (since []time.Duration) {
	for _, at := range all {
		since = append(since, at.Sub(l.start))
	}
	return since
}
