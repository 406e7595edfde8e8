package world

import (
	"context"
	"maps"
	"math/rand/v2"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/store"
)

// drawDeletions has a person delete a work queue and declare it again later, with the messages that it had.
func (s *scenario) drawDeletions(r *rand.Rand) {
	if q := s.queues[r.IntN(len(s.queues))]; r.IntN(4) == 0 && q.way == nil && q.library == nil {
		s.faults = append(s.faults, fault{at: between(r, 0, faultsEnd), kind: queueDeleted, away: pick(r, time.Second, time.Minute, 5*time.Minute), queue: q})
	}
}

// deleteQueue takes the messages out of a queue, deletes it, and after a while declares it again and
// publishes them there.
func (w *World) deleteQueue(ctx context.Context, f fault) {
	q := f.queue
	w.ledger.deleted(q)
	w.absences.begin(q, 24*time.Hour)
	w.publisher.hold(q, true)
	defer w.publisher.hold(q, false)
	defer w.absences.over(q)
	taken := w.takeOut(ctx, q)
	if at, _ := w.broker.Queue(q.name); at.Messages > 0 { // its consumer waits for RabbitMQ with one
		w.say("%s is not deleted: it has %d messages", q.name, at.Messages)
	} else if w.repeatWith(ctx, func(ch *amqp.Channel) error {
		n, err := ch.QueueDelete(q.name, false, false, false)
		w.ledger.lostWith(q, n)
		w.say("%s is deleted, with %d messages", q.name, n)
		return err
	}) {
		_ = pauseFor(ctx, f.away) // the queue is declared all the same
		w.repeatWith(ctx, func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclare(q.name, true, false, false, false, q.arguments())
			return err
		})
		w.say("%s is there again", q.name)
	}
	w.publisher.hold(q, false)
	for _, d := range taken {
		headers := maps.Clone(d.Headers)
		delete(headers, "x-delivery-count") // what the queue said of it
		delete(headers, "x-acquired-count")
		p := amqp.Publishing{Headers: headers, Body: d.Body, DeliveryMode: d.DeliveryMode, MessageId: d.MessageId, Type: d.Type}
		if w.publisher.publish(ctx, idIn(d.Headers), "", q.name, p) != nil {
			return // the run ends
		}
	}
}

// takeOut takes all messages out of a queue, those too that its consumer still has for a while.
func (w *World) takeOut(ctx context.Context, q *workQueue) (all []amqp.Delivery) {
	for range 60 {
		w.repeatWith(ctx, func(ch *amqp.Channel) error {
			for {
				d, ok, err := ch.Get(q.name, false)
				if err != nil || !ok {
					return err
				}
				if all = append(all, d); d.Ack(false) != nil {
					w.ledger.unanswered(idIn(d.Headers)) // it may be there twice
				}
			}
		})
		if pauseFor(ctx, time.Second) != nil {
			break
		}
		if at, _ := w.broker.Queue(q.name); at.Messages == 0 {
			break
		}
	}
	return all
}

// repeatWith does something on a channel until it is done.
func (w *World) repeatWith(ctx context.Context, do func(*amqp.Channel) error) (done bool) {
	for ctx.Err() == nil {
		ch, err := w.publisher.channel(ctx)
		if err == nil && do(ch) == nil {
			return true
		}
		_ = pauseFor(ctx, time.Second) // ctx is checked again
	}
	return false
}

// replayGone is a person who replays what was parked since its queue did not exist.
func (w *World) replayGone(ctx context.Context) error {
	var keys []string
	err := w.stored().Scan(ctx, store.Range{State: store.Parked}, func(l store.Listed) (bool, error) {
		if strings.HasSuffix(l.Record.ParkedFor, "does not exist any more") && w.ledger.wasDeleted(l.Record.Queue) {
			keys = append(keys, string(l.Key))
		}
		return true, nil
	})
	if err != nil || len(keys) == 0 {
		return err
	}
	w.say("%d messages are replayed, whose queue is there again", len(keys))
	w.ledger.heals.Store(false)
	_, err = w.replicas.running()[0].actions.Act(ctx, ann, actions.Act{Verb: actions.Replay, IDs: keys})
	return w.refused(err)
}

// deleted enters that a queue is deleted: what is retried meanwhile is parked.
func (l *ledger) deleted(q *workQueue) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gone[q] = 0
}

// lostWith enters how many messages a queue had when it was deleted.
func (l *ledger) lostWith(q *workQueue, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gone[q] += n
}

func (l *ledger) wasDeleted(queue string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for q := range l.gone {
		if q.name == queue {
			return true
		}
	}
	return false
}

// anyDeleted tells whether a queue was deleted: the service may not find it.
func (l *ledger) anyDeleted() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.gone) > 0
}

// isGone tells whether a message may have been in a queue that was deleted, which has so many left
// that it may have lost.
func isGone(of *workQueue, left map[*workQueue]int) bool {
	left[of]--
	return left[of] >= 0
}
