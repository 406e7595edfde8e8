package world

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/testenv/model"
	"github.com/redrive-mq/redrive/wire"
)

// brokerPolicy is what a policy of RabbitMQ's does to a work queue for a while.
type brokerPolicy int

const (
	limiting  brokerPolicy = iota // its length: it is full
	expiring                      // its messages
	returning                     // a limit of how often a message may be returned to it
	shadowing                     // the policy that dead-letters it to Redrive
	brokerPolicyCount
)

func (p brokerPolicy) String() string {
	return [...]string{"limits the length", "expires messages", "limits deliveries", "takes away the dead-letter exchange"}[p]
}

// drawBrokerPolicies has some work queues dead-letter by a policy of RabbitMQ's instead of an
// argument, and has people set other policies for a while.
func (s *scenario) drawBrokerPolicies(r *rand.Rand) {
	for _, q := range s.queues {
		q.byPolicy = r.IntN(3) == 0 && q.library == nil
	}
	itself := map[*workQueue]bool{} // whose messages fail unseen, or are lost
	for range max(0, r.IntN(6)-3) {
		f := fault{at: between(r, 0, faultsEnd), kind: policySet, away: pick(r, 5*time.Second, time.Minute, 5*time.Minute),
			queue: s.queues[r.IntN(len(s.queues))], policy: brokerPolicy(r.IntN(int(brokerPolicyCount)))}
		q := f.queue
		was, does := itself[q]
		unseen := f.policy == returning || f.policy == expiring
		switch {
		case q.library != nil, // which has an account of its own
			f.policy == limiting && q.way != nil, // see drawFullQueues
			f.policy == returning && q.kind != "quorum",
			unseen && q.discards(),                                     // no one would see why it is gone
			(unseen || f.policy == shadowing) && does && was != unseen, // or who has lost it
			f.policy == shadowing && !q.byPolicy:
			continue
		}
		if unseen || f.policy == shadowing {
			itself[q] = unseen
		}
		s.faults = append(s.faults, f)
	}
	s.drawDeletions(r)
}

// shadow begins the names of policies that take the dead-letter exchange away.
const shadow = "no dead-letter exchange "

// setBasePolicies makes the policies that dead-letter to Redrive.
func (w *World) setBasePolicies() error {
	for _, q := range w.scenario.queues {
		if q.byPolicy {
			if err := w.setPolicy(q, "dead-letter "+q.name, 0, map[string]any{}); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *World) setPolicy(q *workQueue, name string, priority int, definition map[string]any) error {
	if q.byPolicy && !strings.HasPrefix(name, shadow) {
		definition["dead-letter-exchange"] = wire.ExchangeDeadLetters
	}
	return w.broker.SetPolicy(model.Policy{Name: name, Pattern: "^" + regexp.QuoteMeta(q.name) + "$", ApplyTo: "queues", Priority: priority, Definition: definition})
}

// policyFor sets a policy for a while. Of two, the later one applies.
func (w *World) policyFor(f fault) error {
	w.policies++
	name, definition := fmt.Sprint(w.policies), map[string]any{}
	switch f.policy {
	case limiting:
		definition["max-length"], definition["overflow"] = 2, "reject-publish"
	case expiring:
		definition["message-ttl"] = 2000
		w.ledger.failsByItself(f.queue)
	case returning:
		definition["delivery-limit"] = 1
		w.ledger.failsByItself(f.queue)
	case shadowing:
		name, definition["max-length"] = shadow+name, 1_000_000
		w.ledger.changesAt(f.queue)
	}
	if err := w.setPolicy(f.queue, name, w.policies, definition); err != nil {
		return err
	}
	w.old.Go(func() {
		time.Sleep(f.away)
		w.broker.DeletePolicy(name)
	})
	return nil
}

// rejecting is called before a consumer rejects a message: without a dead-letter exchange RabbitMQ
// drops it.
func (w *World) rejecting(q *workQueue, id string) {
	if at, _ := w.broker.Queue(q.name); strings.HasPrefix(at.Policy, shadow) {
		w.ledger.mayBeLost(id)
	}
}

// mayBeLost enters that RabbitMQ may drop a message, and nothing else.
func (l *ledger) mayBeLost(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.accounts[id]; a != nil {
		a.mayBeLost = true
	}
}

// changesAt enters that a queue has no dead-letter exchange from this instant on: what was rejected
// at it may be lost.
func (l *ledger) changesAt(q *workQueue) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range l.accounts {
		if n := len(a.seen); a.queue == q && n > 0 && a.seen[n-1].Equal(time.Now()) {
			a.mayBeLost = true
		}
	}
}

// failsByItself enters that messages of a queue may be dead-lettered from now on without a consumer.
func (l *ledger) failsByItself(q *workQueue) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.byItself[q] = true
}

// failedUnseen enters the failures that no consumer has made, as of the last moment that they can
// have been: after that they were dead-lettered. l.mu is held.
func (l *ledger) failedUnseen(a *account, failures int) {
	if !l.byItself[a.queue] {
		return
	}
	since := l.start
	if n := len(a.seen); n > 0 {
		since = a.seen[n-1]
	}
	for n := failures - 1; n >= 0; n-- {
		if _, did := a.life().failedAt[n]; did {
			return
		}
		a.life().failedAt[n] = since
	}
}
