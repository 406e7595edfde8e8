package retry

import (
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/headers"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/wire"
)

// receipts recognizes a dead letter that RabbitMQ delivers a second time, and finds the id that
// it got the first time. It is stored again, never dropped: equal content does not prove that it
// is the same dead letter, and a duplicate is better than a loss. But it has the same id, so the
// consumer can tell.
//
// A receipt is the id of a dead letter with its fingerprint. The fingerprint is a hash of the
// dead letter's content, and the time when RabbitMQ dead-lettered it (fingerprint.go). Each
// series in receiptindex.go has the newest receipts of one process, read from the store, or of
// one queue, of this connection.
//
// There are three reasons for a second delivery, and three rules.
//
// Redelivered: the acknowledgement was lost. All is equal, x-death included, and RabbitMQ marks
// it as redelivered. RabbitMQ 4.3 marks each message that a consumer rejected, so nothing that
// was stored over this connection is matched.
//
// Dead-lettered again (a copy): at-least-once dead-lettering had no confirm of it when its node
// stopped, so it publishes it again, with another time in x-death, and on RabbitMQ 3.10 not
// marked as redelivered. Nothing distinguishes such a copy from another message with equal
// content, so it is matched only around an outage (the first was dead-lettered shortly before,
// the copy shortly after), and only where one message alone is known to have that content.
//
// Dead-lettered again without an outage: the same happens when the leader of a work queue
// moves, which our connection does not notice. So each dead letter with a message-id is looked
// up: an equal one, with the same message-id, from the same queue, within maxLeaderMove, is a
// copy. A publisher may use a message-id and content twice all the same. Its second message then
// has the id of the first, and a consumer that drops duplicates drops it; from the third on the
// content is known to be repeated, and proves nothing. Without a message-id such a copy cannot
// be distinguished from another equal message, and gets an id of its own.
//
// Equal dead letters have a receipt each. The first rule uses a receipt once, and so do
// the other two together.
type receipts struct {
	receiptIndex
	outage outage
	// issued are the newest ids that were issued over this connection, and newest the same in
	// order; nil where the store is read only once for each connection.
	issued  map[uuid.UUID]bool
	newest  []uuid.UUID
	scratch []byte // of fingerprint
}

// receipt is the id and fingerprint of a dead letter, and which rules have used it.
type receipt struct {
	identity
	usedByRedelivered, usedByAgain bool
}

// outage is when there was no connection. For the one before the first connection, began is
// only estimated (unseenOutage); it is zero where that is not possible.
type outage struct{ began, ended time.Time }

// marginBefore and marginAfter bound, by x-death's time, which dead letters RabbitMQ may
// publish again after an outage, and which may be such copies.
const marginBefore, marginAfter = 30 * time.Second, 30 * time.Second

// maxUnseenOutage bounds how long ago an outage that this process did not see may have begun: a
// service that was stopped overnight is no reason to take an equal message for a copy.
const maxUnseenOutage = 10 * time.Minute

// middle estimates when the node stopped, between a first message and its copy.
func (o outage) middle() time.Time {
	return o.began.Add(min(o.ended.Sub(o.began)/2, 5*time.Second))
}

// precedes tells whether what was dead-lettered then may be published again after the outage.
func (o outage) precedes(deadLettered time.Time) bool {
	return !o.began.IsZero() && !deadLettered.Before(o.began.Add(-marginBefore)) && !deadLettered.After(o.middle())
}

// follows tells whether what was dead-lettered then may be a copy. x-death has whole seconds.
func (o outage) follows(deadLettered time.Time) bool {
	return !o.began.IsZero() && deadLettered.Add(time.Second).After(o.middle()) && !deadLettered.After(o.ended.Add(marginAfter))
}

// maxLeaderMove bounds how far apart, by x-death's time, two copies are dead-lettered when a
// queue's leader moves: until RabbitMQ notices that a node hangs (net_ticktime, 60 s by
// default, and a quarter more), another leads, and their clocks may differ.
const maxLeaderMove = 2 * time.Minute

// hasMessageID tells whether a message was dead-lettered by RabbitMQ and has a message-id.
func hasMessageID(d *wire.Delivery) bool {
	return d.Message.Exchange == wire.ExchangeDeadLetters && d.DuplicateHeader == "" && d.Message.MessageID != ""
}

// reset forgets all receipts, at the end of an outage.
func (r *receipts) reset(o outage, shared bool) {
	*r = receipts{receiptIndex: newReceiptIndex(), outage: o, scratch: r.scratch}
	if shared {
		r.issued = map[uuid.UUID]bool{}
	}
}

// load adds the store's receipts, except those that are known already or whose id was issued over
// this connection: RabbitMQ has not delivered those twice. The store may have a receipt twice,
// since a batch that could not be stored is passed again.
func (r *receipts) load(kept []store.Receipt) {
	for _, k := range kept {
		if k.Fingerprint != ([16]byte{}) && !r.issued[k.ID] {
			r.add(&r.processes, k.Process, &receipt{identity: identity{id: k.ID, fingerprint: k.Fingerprint, firstFailed: k.FirstFailed}})
		}
	}
}

// areMissing tells whether a message of the batch may have been delivered before and has no
// receipt.
func (r *receipts) areMissing(batch []wire.Delivery) bool {
	needed := map[[16]byte]int{}
	for i := range batch {
		d := &batch[i]
		if t, _, _ := historyOf(d, time.Now()); t.ID != "" {
			continue
		}
		if !d.Redelivered && !hasMessageID(d) && !r.outage.follows(deadLetteredAt(&d.Message)) {
			continue
		}
		f, matching := fingerprint(&d.Message, &r.scratch), 0
		for _, k := range r.byContent[contentOf(f)] {
			if d.Redelivered && k.matchesRedelivered(f) || r.matchesAgain(k, f, hasMessageID(d)) {
				matching++
			}
		}
		if needed[f]++; needed[f] > matching {
			return true
		}
	}
	return false
}

// identify returns the id that a message has in its headers, or got when it was stored, or a new
// one. The fingerprint is zero where the headers have the id.
func (r *receipts) identify(d *wire.Delivery, now time.Time) identity {
	t, own, note := historyOf(d, now)
	if t.ID != "" {
		return identity{id: uuid.MustParse(t.ID), firstFailed: t.FirstFailed, failures: t.Failures, own: own, note: note}
	}
	f := fingerprint(&d.Message, &r.scratch)
	is, repeated := r.use(f, d)
	if !repeated {
		is = identity{id: headers.NewID(&d.Message), fingerprint: f, firstFailed: now}
	}
	if is.failures, is.own, is.note = t.Failures, own, note; own {
		is.firstFailed = t.FirstFailed
	}
	// A message of this connection never matches one that is marked as redelivered, but
	// RabbitMQ may still dead-letter it again.
	if r.outage.precedes(timeOf(f)) || hasMessageID(d) && !repeated {
		r.add(&r.queues, deadLetteredFrom(&d.Message), &receipt{identity: is, usedByRedelivered: true})
	}
	r.noteIssued(is.id)
	return is
}

func (r *receipt) matchesRedelivered(f [16]byte) bool {
	return r.fingerprint == f && !r.usedByRedelivered
}

// matchesAgain tells whether f may be the fingerprint of a copy of k.
func (r *receipts) matchesAgain(k *receipt, f [16]byte, hasMessageID bool) bool {
	first, again := timeOf(k.fingerprint), timeOf(f)
	if k.usedByAgain || first.IsZero() || again.IsZero() {
		return false
	}
	return hasMessageID && again.Sub(first).Abs() <= maxLeaderMove ||
		first.Before(again) && r.outage.precedes(first) && r.outage.follows(again)
}

// use uses up a receipt that matches.
func (r *receipts) use(f [16]byte, d *wire.Delivery) (identity, bool) {
	same := r.byContent[contentOf(f)]
	for _, k := range same {
		if d.Redelivered && k.matchesRedelivered(f) {
			k.usedByRedelivered = true
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
			for _, other := range same { // also those of copies from an earlier outage
				other.usedByAgain = true
			}
			return identity{id: k.id, fingerprint: f, firstFailed: k.firstFailed}, true
		}
	}
	return identity{}, false
}

// noteIssued remembers an id that was issued over this connection.
func (r *receipts) noteIssued(id uuid.UUID) {
	if r.issued == nil || r.issued[id] {
		return
	}
	r.issued[id] = true
	if r.newest = append(r.newest, id); len(r.newest) > 2*store.ReceiptsKept {
		for _, id := range r.newest[:store.ReceiptsKept] {
			delete(r.issued, id)
		}
		r.newest = append(r.newest[:0], r.newest[store.ReceiptsKept:]...)
	}
}
