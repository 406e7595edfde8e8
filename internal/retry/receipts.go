package retry

import (
	"container/list"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/headers"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/wire"
)

// receipts recognizes a dead letter that RabbitMQ delivers a second time, and finds the id that it got the first time.
// It is stored again, with that id, so that the consumer can tell: equal content does not prove that it is the same
// dead letter, and a duplicate is better than a loss.
//
// A receipt is the id of a dead letter with its fingerprint: a hash of its content, and the time when RabbitMQ
// dead-lettered it. Each series has the newest receipts of one process, read from the store, or of one queue, of this
// connection. There are three reasons for a second delivery, and a rule for each:
//
//   - Redelivered: the acknowledgement was lost. All is equal, x-death included, and RabbitMQ marks it as redelivered.
//     RabbitMQ 4.3 marks each message that a consumer rejected, so nothing stored over this connection is matched.
//   - Dead-lettered again (a copy): at-least-once dead-lettering had no confirm of it when its node stopped, so it
//     publishes it again, with another time in x-death, and on RabbitMQ 3.10 not marked as redelivered. It looks like
//     another message with equal content, so it is matched only around an outage (the first was dead-lettered shortly
//     before, the copy shortly after), and only where one message alone is known to have that content.
//   - Dead-lettered again without an outage: the same happens when the leader of a work queue moves, which our
//     connection does not notice. Of dead letters with a message-id, an equal one from the same queue within
//     maxLeaderMove is a copy. If a publisher uses a message-id and content twice, its second message has the id of
//     the first, and a consumer that drops duplicates drops it; from the third on the content proves nothing.
//
// Equal dead letters have a receipt each. The first rule uses a receipt once, and so do the other two together.
type receipts struct {
	receiptIndex
	outage outage
	// issued are the newest ids that were issued over this connection, and newest the same in
	// order; nil where the store is read only once for each connection.
	issued  map[uuid.UUID]bool
	newest  []uuid.UUID
	scratch []byte // of fingerprint
	// origin reads the origin of a message from the followed queue from; nil: originOf does.
	origin func(d *wire.Delivery, now time.Time) origin
	from   string
}

// receipt is the id and fingerprint of a dead letter, and which rules have used it.
type receipt struct {
	identity
	usedByRedelivered, usedByAgain bool
}

// outage is when there was no connection. Before the first one, began is estimated (unseenOutage), or zero.
type outage struct{ began, ended time.Time }

// marginBefore and marginAfter bound, by x-death's time, what RabbitMQ may publish again after an outage, and what may
// be such a copy.
const marginBefore, marginAfter = 30 * time.Second, 30 * time.Second

// maxUnseenOutage bounds how long ago an unseen outage may have begun: that the service was stopped overnight makes no
// equal message a copy.
const maxUnseenOutage = 10 * time.Minute

// middle estimates when the node stopped, between a first message and its copy.
func (o outage) middle() time.Time {
	return o.began.Add(min(o.ended.Sub(o.began)/2, 5*time.Second))
}

// precedes reports whether RabbitMQ may publish again, after the outage, what was dead-lettered then.
func (o outage) precedes(deadLettered time.Time) bool {
	return !o.began.IsZero() && !deadLettered.Before(o.began.Add(-marginBefore)) && !deadLettered.After(o.middle())
}

// follows reports whether what was dead-lettered then may be such a copy. x-death has whole seconds.
func (o outage) follows(deadLettered time.Time) bool {
	return !o.began.IsZero() && deadLettered.Add(time.Second).After(o.middle()) &&
		!deadLettered.After(o.ended.Add(marginAfter))
}

// maxLeaderMove bounds how far apart, by x-death's time, two copies are dead-lettered when a queue's leader moves:
// RabbitMQ notices after up to 75 s that a node hangs (net_ticktime and a quarter), and clocks may differ.
const maxLeaderMove = 2 * time.Minute

// hasMessageID reports whether a message was dead-lettered by RabbitMQ and has a message-id.
func hasMessageID(d *wire.Delivery) bool {
	return d.Message.Exchange == wire.ExchangeDeadLetters && d.DuplicateHeader == "" && d.Message.MessageID != ""
}

// reset forgets all receipts, at the end of an outage.
func (r *receipts) reset(o outage, shared bool) {
	*r = receipts{receiptIndex: newReceiptIndex(), outage: o, scratch: r.scratch, origin: r.origin, from: r.from}
	if shared {
		r.issued = map[uuid.UUID]bool{}
	}
}

// load adds the store's receipts, except those that are known and those whose id was issued over this connection:
// RabbitMQ has not delivered these twice. The store may have a receipt twice, of a batch that was passed again.
func (r *receipts) load(kept []store.Receipt) {
	for _, k := range kept {
		if k.Fingerprint != ([16]byte{}) && !r.issued[k.ID] {
			r.add(&r.processes, k.Process,
				&receipt{identity: identity{id: k.ID, fingerprint: k.Fingerprint, firstFailed: k.FirstFailed}})
		}
	}
}

// areMissing reports whether a message of the batch may have been delivered before and has no receipt.
func (r *receipts) areMissing(batch []wire.Delivery) bool {
	needed := map[[16]byte]int{}
	for i := range batch {
		d := &batch[i]
		if t, _, _, _ := r.historyOf(d, time.Now()); t.ID != "" {
			continue
		}
		if !d.Redelivered && !hasMessageID(d) && !r.outage.follows(deadLetteredAt(&d.Message)) {
			continue
		}
		f, matching := r.fingerprint(d), 0
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

// identify returns a message's id: the one in its headers, the one it got when it was stored, or a new one.
func (r *receipts) identify(d *wire.Delivery, now time.Time) identity {
	t, m, own, note := r.historyOf(d, now)
	if t.ID != "" {
		return identity{id: uuid.MustParse(t.ID), firstFailed: t.FirstFailed, failures: t.Failures, replays: t.Replays,
			own: own, note: note}
	}
	f := r.fingerprint(d)
	is, repeated := r.use(f, d)
	if !repeated {
		is = identity{id: headers.NewID(m), fingerprint: f, firstFailed: now}
	}
	if is.failures, is.replays, is.own, is.note = t.Failures, t.Replays, own, note; own {
		is.firstFailed = t.FirstFailed
	}
	// RabbitMQ delivers none twice on one connection, but may dead-letter it again.
	if r.outage.precedes(timeOf(f)) || hasMessageID(d) && !repeated {
		r.add(&r.queues, deadLetteredFrom(&d.Message), &receipt{identity: is, usedByRedelivered: true})
	}
	r.noteIssued(is.id)
	return is
}

// fingerprint includes the followed queue: copies of a dead letter in two queues are two messages.
func (r *receipts) fingerprint(d *wire.Delivery) [16]byte {
	f := fingerprint(&d.Message, &r.scratch)
	if r.from != "" {
		h := sha256.Sum256(append(f[:12:12], r.from...))
		copy(f[:12], h[:])
	}
	return f
}

func (r *receipts) originOf(d *wire.Delivery, now time.Time) origin {
	if r.origin != nil {
		return r.origin(d, now)
	}
	return originOf(d)
}

// historyOf returns the history in our headers of a message, and the message without an envelope.
func (r *receipts) historyOf(
	d *wire.Delivery, now time.Time,
) (t headers.History, m *wire.Message, own bool, note string) {
	if r.origin == nil {
		t, own, note = historyOf(d, now)
		return t, &d.Message, own, note
	}
	o := r.origin(d, now)
	m = o.message(d)
	t, own, note = headers.Read(m, o.queue, o.retried, now)
	return t, m, own, note
}

func (r *receipt) matchesRedelivered(f [16]byte) bool {
	return r.fingerprint == f && !r.usedByRedelivered
}

// matchesAgain reports whether f may be the fingerprint of a copy of k.
func (r *receipts) matchesAgain(k *receipt, f [16]byte, hasMessageID bool) bool {
	first, again := timeOf(k.fingerprint), timeOf(f)
	if k.usedByAgain || first.IsZero() || again.IsZero() {
		return false
	}
	return hasMessageID && again.Sub(first).Abs() <= maxLeaderMove ||
		first.Before(again) && r.outage.precedes(first) && r.outage.follows(again)
}

// use finds a receipt that matches, and marks it as used.
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

// content is the hash in a fingerprint; the rest is when the message was dead-lettered.
type content [12]byte

func contentOf(f [16]byte) content { return content(f[:12]) }

// timeOf returns the dead-lettering time in a fingerprint.
func timeOf(f [16]byte) time.Time {
	s := binary.BigEndian.Uint32(f[12:])
	if s == 0 {
		return time.Time{}
	}
	return time.Unix(int64(s), 0)
}

// fingerprint returns a hash of all that a message holds, and when it was dead-lettered. The hash leaves out what
// differs between two deliveries of one dead letter: x-delivery-count and x-acquired-count, and x-death[0].time, which
// is new when at-least-once dead-lettering publishes it again. It reuses scratch.
func fingerprint(m *wire.Message, scratch *[]byte) (f [16]byte) {
	b := (*scratch)[:0]
	for _, s := range [...]string{m.Exchange, m.RoutingKey, m.ContentType, m.ContentEncoding, m.CorrelationID,
		m.ReplyTo, m.Expiration, m.MessageID, m.Type, m.UserID, m.AppID} {
		b = appendString(b, s)
	}
	b = appendInt(b, m.Timestamp.UnixNano())
	b = appendInt(b, int64(m.DeliveryMode)<<8|int64(m.Priority))
	b = appendTable(b, m.Headers, "x-death", "x-delivery-count", "x-acquired-count")
	deaths, head := deathsOf(m)
	if head != nil {
		b = appendTable(b, head, "time")
		deaths = deaths[1:]
	}
	b = appendValue(b, deaths)
	*scratch = b
	h := sha256.New()
	h.Write(b)
	h.Write(m.Body)
	copy(f[:12], h.Sum(b[:0]))
	binary.BigEndian.PutUint32(f[12:], uint32(max(deadLetteredAt(m).Unix(), 0)))
	return f
}

// deathsOf returns x-death, and its newest entry if it is a table, as RabbitMQ writes it.
func deathsOf(m *wire.Message) (all []any, head amqp.Table) {
	if all, _ = m.Headers["x-death"].([]any); len(all) > 0 {
		head, _ = all[0].(amqp.Table)
	}
	return all, head
}

// deadLetteredAt returns when the message was dead-lettered, by RabbitMQ's clock in whole seconds.
func deadLetteredAt(m *wire.Message) time.Time {
	_, head := deathsOf(m)
	t, _ := head["time"].(time.Time)
	return t
}

func deadLetteredFrom(m *wire.Message) string {
	_, head := deathsOf(m)
	q, _ := head["queue"].(string)
	return q
}

func appendTable(b []byte, t amqp.Table, without ...string) []byte {
	keys := make([]string, 0, 16)
	for k := range t {
		if !slices.Contains(without, k) {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	for _, k := range keys {
		b = appendValue(appendString(b, k), t[k])
	}
	return appendInt(b, int64(len(keys)))
}

func appendValue(b []byte, v any) []byte {
	switch v := v.(type) {
	case string:
		return appendString(b, v)
	case []byte:
		return append(appendInt(b, int64(len(v))), v...)
	case int64:
		return appendInt(append(b, 'l'), v)
	case time.Time:
		return appendInt(b, v.Unix())
	case amqp.Table:
		return appendTable(b, v)
	case []any:
		for _, e := range v {
			b = appendValue(b, e)
		}
		return appendInt(b, int64(len(v)))
	}
	return fmt.Appendf(b, "%T%v;", v, v)
}

func appendString(b []byte, s string) []byte { return append(appendInt(b, int64(len(s))), s...) }

func appendInt(b []byte, n int64) []byte { return binary.LittleEndian.AppendUint64(b, uint64(n)) }

// receiptIndex holds the receipts that a dead letter may match, in bounded memory: the newest of each process, as the
// store keeps them, and those of the newest ids issued over this connection.
type receiptIndex struct {
	byContent         map[content][]*receipt
	processes, queues recentReceipts
}

// recentReceipts holds the newest receipts, by name of a process or queue. Of more than maxNames names it forgets the
// one that got none for longest. Either each name has a limit, perName, or all together have one, total: then the name
// with the most receipts loses its oldest.
type recentReceipts struct {
	byName         map[string]*list.Element // of recent, each a *series
	recent         *list.List               // the name that got a receipt last is first
	maxNames       int
	perName, total int // limits; one of them is 0
	count          int // of all names
}

// series are the newest receipts of one name, oldest first: up to twice perName, to remove many at a time.
type series struct {
	name string
	all  []*receipt
}

func newRecentReceipts(maxNames, perName, total int) recentReceipts {
	return recentReceipts{byName: map[string]*list.Element{}, recent: list.New(), maxNames: maxNames, perName: perName,
		total: total}
}

// maxIssued bounds the receipts of ids issued over this connection. RabbitMQ's at-least-once worker may be late to
// publish again what was not confirmed: meanwhile it continues with its other 31 slots, thousands of messages in 12 s.
// [measured on 4.3.6, a node of the cluster killed]
const maxIssued = 32_768

func newReceiptIndex() receiptIndex {
	return receiptIndex{
		byContent: map[content][]*receipt{},
		processes: newRecentReceipts(4*store.ReceiptsOwners, store.ReceiptsKept, 0),
		queues:    newRecentReceipts(512, 0, maxIssued),
	}
}

// add adds a receipt, unless it is known, and forgets those that then exceed a limit.
func (x *receiptIndex) add(to *recentReceipts, name string, k *receipt) {
	if x.byContent == nil {
		*x = newReceiptIndex()
	}
	c := contentOf(k.fingerprint)
	if slices.ContainsFunc(x.byContent[c],
		func(o *receipt) bool { return o.id == k.id && o.fingerprint == k.fingerprint }) {
		return
	}
	x.byContent[c] = append(x.byContent[c], k)
	for _, old := range to.push(name, k) {
		x.forget(old)
	}
}

func (x *receiptIndex) forget(k *receipt) {
	c := contentOf(k.fingerprint)
	left := slices.DeleteFunc(x.byContent[c], func(o *receipt) bool { return o == k })
	if x.byContent[c] = left; len(left) == 0 {
		delete(x.byContent, c)
	}
}

// push adds a receipt, and returns those that it removes because they exceed a limit.
func (r *recentReceipts) push(name string, k *receipt) (excess []*receipt) {
	element := r.byName[name]
	if element == nil {
		if r.recent.Len() == r.maxNames {
			oldest := r.recent.Remove(r.recent.Back()).(*series)
			delete(r.byName, oldest.name)
			excess = oldest.all
		}
		element = r.recent.PushFront(&series{name: name})
		r.byName[name] = element
	}
	r.recent.MoveToFront(element)
	s := element.Value.(*series)
	s.all = append(s.all, k)
	r.count += 1 - len(excess)
	switch {
	case r.perName > 0 && len(s.all) > 2*r.perName:
		excess = append(excess, r.cut(s, r.perName)...)
	case r.total > 0 && r.count > r.total:
		for e := r.recent.Front(); e != nil; e = e.Next() {
			if other := e.Value.(*series); len(other.all) > len(s.all) {
				s = other
			}
		}
		excess = append(excess, r.cut(s, (len(s.all)+1)/2)...)
	}
	return excess
}

func (r *recentReceipts) cut(s *series, oldest int) (excess []*receipt) {
	excess, s.all = s.all[:oldest], slices.Clone(s.all[oldest:])
	r.count -= oldest
	return excess
}
