package retry

import (
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/headers"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/wire"
)

// receipts finds the id that a dead letter was given when it was stored, should
// RabbitMQ deliver it a second time. It is then stored again, never dropped: equal
// content does not prove that it is the same dead letter, and a duplicate is a lesser
// evil than a loss. But it carries the same id, so the consumer can tell.
//
// There are three reasons for a second delivery, and three rules.
//
// Redelivered: the acknowledgement was lost. All is equal, x-death included, and
// RabbitMQ says that it delivered it before. On RabbitMQ 4.3 it says so of each message
// that a consumer rejected, so nothing that was stored over this connection is matched.
//
// Dead-lettered again: at-least-once dead-lettering had not yet noted that the intake
// has it when its node stopped, so it publishes it again, with another time in x-death,
// and on RabbitMQ 3.10 not marked as redelivered. Nothing tells such a copy from
// another message with equal content, so it is matched only around an outage (the first
// was dead-lettered shortly before, the copy shortly after), and only where one message
// alone is known to have that content.
//
// Dead-lettered again without an outage: the same happens when the leader of a work queue
// moves, which our connection does not notice. So each dead letter is looked up that has a
// message-id, for by that its publisher tells it from any other: an equal one, with the
// same message-id, from the same queue, within maxLeaderMove, is a copy. Should a publisher repeat
// message-id and content nevertheless, a consumer that drops what has the same id would
// drop its second message: but that one alone, since from the third on the content is known
// to be repeated and proves nothing. Without a message-id such a copy cannot be distinguished from
// an honest equal message, and has an id of its own.
//
// Equal dead letters have a receipt each. The first rule uses a receipt once, and so do
// the other two together.
type receipts struct {
	receiptIndex
	outage outage
	// given are the newest ids given over this connection, in order in newest; nil where
	// the store is read only once a connection.
	given   map[uuid.UUID]bool
	newest  []uuid.UUID
	scratch []byte // of fingerprint
}

// receipt is one of the store's, as far as it was used over this connection.
type receipt struct {
	identity
	redelivered, deadLetteredAgain bool // used up
}

// outage is when there was no connection. That before the first began with the newest
// receipt, of another process; where there is none, began is zero.
type outage struct{ began, ended time.Time }

// marginBefore and marginAfter bound, by x-death's time, which dead letters RabbitMQ may
// publish again after an outage, and which may be such copies.
const marginBefore, marginAfter = 30 * time.Second, 30 * time.Second

// maxUnseenOutage bounds how long ago an unseen outage may have begun: a service that was
// stopped overnight must not take an equal message for a copy.
const maxUnseenOutage = 10 * time.Minute

// middle estimates when the node stopped, between a first message and its copy.
func (o outage) middle() time.Time {
	return o.began.Add(min(o.ended.Sub(o.began)/2, 5*time.Second))
}

// precedes tells whether a message dead-lettered then may be published again after the outage.
func (o outage) precedes(died time.Time) bool {
	return !o.began.IsZero() && !died.Before(o.began.Add(-marginBefore)) && !died.After(o.middle())
}

// follows tells whether a message dead-lettered then may be a copy. x-death has whole seconds.
func (o outage) follows(died time.Time) bool {
	return !o.began.IsZero() && died.Add(time.Second).After(o.middle()) && !died.After(o.ended.Add(marginAfter))
}

// maxLeaderMove bounds how far apart, by x-death's time, two copies are dead-lettered when a
// queue's leader moves: until RabbitMQ notices that a node hangs (net_ticktime, 60 s by
// default, and a quarter more), another leads, and their clocks may differ.
const maxLeaderMove = 2 * time.Minute

// hasMessageID tells whether a message was dead-lettered by RabbitMQ and has a message-id.
func hasMessageID(d *wire.Delivery) bool {
	return d.Message.Exchange == wire.ExchangeDeadLetters && d.Doubled == "" && d.Message.MessageID != ""
}

// reset forgets all receipts, at the end of an outage.
func (r *receipts) reset(o outage, shared bool) {
	*r = receipts{receiptIndex: newReceiptIndex(), outage: o, scratch: r.scratch}
	if shared {
		r.given = map[uuid.UUID]bool{}
	}
}

// load adds the store's receipts, except those that are known already or were given over this
// connection: RabbitMQ has not delivered those twice. The store may have a receipt twice, since
// a batch that could not be stored is offered again.
func (r *receipts) load(kept []store.Receipt) {
	for _, k := range kept {
		if k.Fingerprint != ([16]byte{}) && !r.given[k.ID] {
			r.add(&r.processes, k.Process, &receipt{identity: identity{id: k.ID, fingerprint: k.Fingerprint, first: k.FirstFailed}})
		}
	}
}

// areMissing tells whether a message of the batch may have been delivered before and has no
// receipt.
func (r *receipts) areMissing(batch []wire.Delivery) bool {
	need := map[[16]byte]int{}
	for i := range batch {
		d := &batch[i]
		if _, has := headers.ID(&d.Message); has {
			continue
		}
		if !d.Redelivered && !hasMessageID(d) && !r.outage.follows(died(&d.Message)) {
			continue
		}
		f, there := fingerprint(&d.Message, &r.scratch), 0
		for _, k := range r.byContent[contentOf(f)] {
			if d.Redelivered && k.matchesRedelivered(f) || r.matchesAgain(k, f, hasMessageID(d)) {
				there++
			}
		}
		if need[f]++; need[f] > there {
			return true
		}
	}
	return false
}

// identify gives a message that was not offered before the id it has, or had when it
// was stored, or a new one. The zero fingerprint is that of one that has an id.
func (r *receipts) identify(d *wire.Delivery, now time.Time) identity {
	if id, ok := headers.ID(&d.Message); ok {
		return identity{id: id, first: now}
	}
	f := fingerprint(&d.Message, &r.scratch)
	who, copied := r.take(f, d)
	if !copied {
		who = identity{id: uuid.Must(uuid.NewV7()), fingerprint: f, first: now}
	}
	// What was given over this connection never matches what looks redelivered, but
	// RabbitMQ may still dead-letter it again.
	if r.outage.precedes(diedAt(f)) || hasMessageID(d) && !copied {
		r.add(&r.queues, deathQueue(&d.Message), &receipt{identity: who, redelivered: true})
	}
	r.note(who.id)
	return who
}

func (r *receipt) matchesRedelivered(f [16]byte) bool { return r.fingerprint == f && !r.redelivered }

// matchesAgain tells whether f may be of what was dead-lettered again.
func (r *receipts) matchesAgain(k *receipt, f [16]byte, named bool) bool {
	first, died := diedAt(k.fingerprint), diedAt(f)
	if k.deadLetteredAgain || first.IsZero() || died.IsZero() {
		return false
	}
	return named && died.Sub(first).Abs() <= maxLeaderMove ||
		first.Before(died) && r.outage.precedes(first) && r.outage.follows(died)
}

// take uses up a receipt that matches.
func (r *receipts) take(f [16]byte, d *wire.Delivery) (identity, bool) {
	same := r.byContent[contentOf(f)]
	for _, k := range same {
		if d.Redelivered && k.matchesRedelivered(f) {
			k.redelivered = true
			return k.identity, true
		}
	}
	for _, k := range same {
		if k.id != same[0].id {
			return identity{}, false // a publisher repeats this content: it proves nothing
		}
	}
	for _, k := range same {
		if r.matchesAgain(k, f, hasMessageID(d)) {
			for _, other := range same { // those of copies of an earlier outage
				other.deadLetteredAgain = true
			}
			return identity{id: k.id, fingerprint: f, first: k.first}, true
		}
	}
	return identity{}, false
}

// note remembers what was given over this connection.
func (r *receipts) note(id uuid.UUID) {
	if r.given == nil || r.given[id] {
		return
	}
	r.given[id] = true
	if r.newest = append(r.newest, id); len(r.newest) > 2*store.ReceiptsKept {
		for _, id := range r.newest[:store.ReceiptsKept] {
			delete(r.given, id)
		}
		r.newest = append(r.newest[:0], r.newest[store.ReceiptsKept:]...)
	}
}
