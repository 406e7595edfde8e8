package world

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/rabbitmq/permissions"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/testenv/model"
)

// The service signs in as a user that has the least rights that it needs.
const (
	serviceUser = "redrive"
	serviceURL  = "amqp://" + serviceUser + ":secret@model/%2F"
)

// right is what the service's user may not for a while.
type right int

const (
	declaring right = iota
	publishing
	consuming
	retrying // to one queue
	everything
	rightCount
)

func (r right) String() string {
	return [...]string{"declare", "publish", "consume", "retry", "do anything"}[r]
}

// drawRights has rights taken from the service's user, for a while.
func (s *scenario) drawRights(r *rand.Rand) {
	for range max(0, r.IntN(6)-3) {
		f := fault{at: between(r, 0, faultsEnd), kind: rightTaken, away: pick(r, 5*time.Second, time.Minute, 5*time.Minute), right: right(r.IntN(int(rightCount)))}
		if q := s.queues[r.IntN(len(s.queues))]; f.right == retrying {
			f.queue = q
		}
		s.faults = append(s.faults, f)
	}
}

// rights are those of the service's user.
type rights struct {
	broker *model.Broker
	queues []*workQueue
	all    policy.Set

	mu    sync.Mutex
	taken []fault
}

func newRights(b *model.Broker, queues []*workQueue, all policy.Set) (*rights, error) {
	r := &rights{broker: b, queues: queues, all: all}
	b.SetUser(serviceUser, "secret")
	return r, r.grant()
}

// take takes one, until it is granted again.
func (r *rights) take(f fault) (grantAgain func() error, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.taken = append(r.taken, f)
	return func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		for i := range r.taken {
			if r.taken[i] == f {
				r.taken = append(r.taken[:i:i], r.taken[i+1:]...)
				break
			}
		}
		return r.grant()
	}, r.grant()
}

// grant gives the user what was not taken. r.mu is held.
func (r *rights) grant() error {
	least := permissions.Service(r.all)
	has := model.Rights{Configure: least.Configure, Write: least.Write, Read: least.Read}
	var cannot []string
	for _, f := range r.taken {
		switch f.right {
		case declaring:
			has.Configure = ""
		case publishing:
			has.Write = ""
		case consuming:
			has.Read = ""
		case retrying:
			cannot = append(cannot, f.queue.name)
		case everything:
			has = model.Rights{}
		}
	}
	if len(cannot) > 0 && has.Write != "" {
		has.Write = r.writeWithout(cannot)
	}
	return r.broker.Grant(serviceUser, has)
}

// writeWithout is the right to write to all that Redrive has but the retry exchanges of some queues.
func (r *rights) writeWithout(queues []string) string {
	can := []string{`redrive\.[^r].*`, `amq\.default`}
	for _, q := range r.queues {
		if !strings.Contains(strings.Join(queues, " "), q.name) {
			can = append(can, regexp.QuoteMeta("redrive.retry."+q.name))
		}
		can = append(can, regexp.QuoteMeta(q.name))
	}
	return "^(" + strings.Join(can, "|") + ")$"
}

// refused enters that RabbitMQ refuses something to the service for a while: it may lose a connection
// at any time then, as it does when it looks whether all is declared.
func (l *ledger) refused(lasts time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refusals = append(l.refusals, alarm{from: time.Now(), to: time.Now().Add(lasts)})
}

// takeRight takes a right of the service, for a while.
func (w *World) takeRight(f fault) error {
	grantAgain, err := w.rights.take(f)
	if err != nil {
		return fmt.Errorf("taking a right: %w", err)
	}
	w.ledger.refused(f.away)
	w.old.Go(func() {
		time.Sleep(f.away)
		if err := grantAgain(); err != nil {
			w.broken(fmt.Errorf("granting a right again: %w", err))
		}
	})
	return nil
}
