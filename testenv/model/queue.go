package model

import (
	"cmp"
	"reflect"
	"slices"
	"strconv"
	"time"
)

// queue is a classic or a quorum queue.
type queue struct {
	b         *Broker
	name      string
	arguments table
	quorum    bool
	settings

	backlog
	active         []*consumer // in the order in which they receive
	blocked        []*consumer // wait for an ack
	alarm          *alarm      // of the head's expiry
	declared, used time.Time
	unused         *alarm // of x-expires
	deleted        bool

	worker *worker // of a quorum queue that dead-letters at least once
}

func (ch *channel) queueMethod(m method, r *reader) *fault {
	r.short()
	name := r.shortstr()
	if m == queueDeclare {
		f := r.flags()
		return ch.declareQueue(name, f, r.table())
	}
	q, f := ch.find(name)
	if f != nil && (m != queueDelete || f.code != 404) { // to delete what is not there succeeds
		return f
	}
	switch m {
	case queueBind:
		source, key := r.shortstr(), r.shortstr()
		noWait := r.flags().bit(0)
		if f := ch.bindTo(source, &binding{queue: q, key: key}, "queue", name, r.table()); f != nil {
			return f
		}
		ch.answer(noWait, queueBind.ok(), nil)
	case queueDelete:
		f, n := r.flags(), 0
		if f.bit(0) || f.bit(1) || q != nil && q.consumers() > 0 {
			return unknown("deletion only of what is unused or empty, or of a queue with consumers")
		}
		if q != nil {
			n = q.count()
			ch.c.b.deleteQueue(q)
		}
		ch.answer(f.bit(2), queueDelete.ok(), func(w *writer) { w.long(uint32(n)) })
	default:
		return unknown("method %s", m)
	}
	return nil
}

func (ch *channel) find(name string) (*queue, *fault) {
	if q := ch.c.b.queues[name]; q != nil {
		return q, nil
	}
	return nil, faultf(404, "no %s", in("queue", name))
}

func (ch *channel) declareQueue(name string, f flags, arguments table) *fault {
	passive, durable, exclusive, autoDelete, noWait := f.bit(0), f.bit(1), f.bit(2), f.bit(3), f.bit(4)
	q, notFound := ch.find(name)
	switch {
	case passive && notFound != nil:
		return notFound
	case passive:
	case exclusive || autoDelete || !durable || name == "":
		return unknown("queue that is exclusive, auto-delete, not durable or without a name")
	case q == nil:
		q = &queue{b: ch.c.b, name: name, arguments: arguments, declared: time.Now()}
		if f := q.configure(); f != nil {
			return f
		}
		q.b.queues[name] = q
		q.use()
	case !q.isSame(arguments):
		return faultf(406, "inequivalent arg for %s", in("queue", name))
	}
	if !q.quorum && !passive {
		q.use()
	}
	ch.answer(noWait, queueDeclare.ok(), func(w *writer) {
		w.shortstr(q.name)
		w.long(uint32(q.count()))
		w.long(uint32(q.consumers()))
	})
	return nil
}

// isSame reports whether a queue would be declared as it is.
func (q *queue) isSame(arguments table) bool {
	if _, is := arguments.get("x-queue-type"); !is && q.b.since4() {
		arguments = arguments.with("x-queue-type", "classic")
	}
	return !slices.ContainsFunc(q.argumentNames(), func(key string) bool {
		n, isNew := arguments.get(key)
		o, isOld := q.arguments.get(key)
		newInteger, isInteger := whole(n)
		oldInteger, wasInteger := whole(o)
		return isNew != isOld || !reflect.DeepEqual(n, o) && !(isInteger && wasInteger && newInteger == oldInteger)
	})
}

// DeleteQuietly deletes a queue, and does not tell its consumers.
func (b *Broker) DeleteQuietly(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	q := b.queues[name]
	for _, co := range slices.Clone(q.active) {
		co.ch.cancel(co.tag)
	}
	b.deleteQueue(q)
}

// deleteQueue drops its messages.
func (b *Broker) deleteQueue(q *queue) {
	delete(b.queues, q.name)
	q.deleted = true
	q.clear()
	q.watch()
	q.watchUse()
	if q.worker != nil {
		q.worker.waiting = nil
	}
	b.unbind(func(bound *binding) bool { return bound.queue == q })
}

const (
	longestTTL           = 315_360_000_000 // ms
	defaultDeliveryLimit = 20              // of quorum queues since RabbitMQ 4.0
)

// settings are what a queue's arguments say.
type settings struct {
	ttl, expires  int64 // ms; -1 without
	limited       bool  // by deliveryLimit
	deliveryLimit int64
	deadExchange  string
	deadKey       string
	hasDead       bool
	hasDK         bool
}

// The arguments that each type of queue has, in the order in which they are compared.
var (
	classicArguments = []string{"x-expires", "x-message-ttl", "x-dead-letter-exchange", "x-dead-letter-routing-key",
		"x-overflow", "x-queue-type"}
	quorumArguments = []string{"x-dead-letter-exchange", "x-dead-letter-routing-key", "x-dead-letter-strategy", "x-expires",
		"x-overflow", "x-queue-type", "x-delivery-limit", "x-message-ttl"}
)

func (q *queue) argumentNames() []string {
	if q.quorum {
		return quorumArguments
	}
	return classicArguments
}

// configure reads the arguments of a new queue.
func (q *queue) configure() *fault {
	kind, isText := "classic", true
	if value, is := q.arguments.get("x-queue-type"); is {
		kind, isText = value.(string)
	} else if q.b.since4() {
		q.arguments = q.arguments.with("x-queue-type", kind)
	}
	if kind != "classic" && kind != "quorum" || !isText {
		return unknown("queue type %s", kind)
	}
	q.quorum = kind == "quorum"
	for _, a := range q.arguments {
		if f := q.check(a.key, a.value); f != nil {
			return f
		}
	}
	q.readSettings()
	return nil
}

func (q *queue) check(key string, value any) *fault {
	text, isText := value.(string)
	n, isNumber := whole(value)
	is := isText
	switch key {
	case "x-message-ttl", "x-expires":
		is = isNumber && n >= 0 && n <= longestTTL && (n > 0 || key == "x-message-ttl")
	case "x-delivery-limit":
		is = isNumber
	case "x-dead-letter-strategy", "x-overflow":
		is = slices.Contains([]string{"at-most-once", "at-least-once", "drop-head", "reject-publish"}, text)
	}
	if !is || !slices.Contains(q.argumentNames(), key) {
		return unknown("argument %s = %v for this type of queue", key, value)
	}
	return nil
}

// readSettings reads what holds.
func (q *queue) readSettings() {
	number := func(name string) int64 {
		value, _ := q.arguments.get(name)
		if n, is := whole(value); is {
			return n
		}
		return -1
	}
	text := q.arguments.text
	s := settings{ttl: number("x-message-ttl"), expires: number("x-expires"), deliveryLimit: number("x-delivery-limit")}
	_, has := q.arguments.get("x-delivery-limit")
	if !has && q.b.since4() {
		s.deliveryLimit = defaultDeliveryLimit
	}
	s.limited = q.quorum && (s.deliveryLimit >= 0 || has && !q.b.since4())
	s.deadExchange, s.deadKey = text("x-dead-letter-exchange"), text("x-dead-letter-routing-key")
	_, s.hasDead = q.arguments.get("x-dead-letter-exchange")
	_, s.hasDK = q.arguments.get("x-dead-letter-routing-key")
	if q.quorum && s.hasDead &&
		text("x-overflow") == "reject-publish" && text("x-dead-letter-strategy") == "at-least-once" {
		q.worker = &worker{q: q}
	}
	q.settings = s
}

// entry is a message in a queue.
type entry struct {
	*message
	position    uint64
	expires     time.Time // zero: never
	redelivered bool

	// Of a quorum queue: how often it was returned, and how often of that as failed. Until
	// RabbitMQ 4.3 the two are one.
	acquired, failed int64
}

// backlog is what a queue has ready. A quorum queue delivers what was returned first, in the
// order in which it was returned.
type backlog struct {
	returned []*entry
	ready    []*entry // by position
	last     uint64   // position
}

func (l *backlog) count() int { return len(l.returned) + len(l.ready) }

// head is the next message; nil without one.
func (l *backlog) head() *entry {
	switch {
	case len(l.returned) > 0:
		return l.returned[0]
	case len(l.ready) > 0:
		return l.ready[0]
	}
	return nil
}

// takeHead removes the next message.
func (l *backlog) takeHead() *entry {
	e := l.head()
	if len(l.returned) > 0 {
		l.returned = l.returned[1:]
	} else {
		l.ready = l.ready[1:]
	}
	return e
}

// add gives a message the last position.
func (l *backlog) add(e *entry) {
	l.last++
	e.position = l.last
	l.insert(e)
}

// insert puts a message where its position is.
func (l *backlog) insert(e *entry) {
	at, _ := slices.BinarySearchFunc(l.ready, e, func(a, b *entry) int {
		return cmp.Compare(a.position, b.position)
	})
	l.ready = slices.Insert(l.ready, at, e)
}

func (l *backlog) clear() { l.returned, l.ready = nil, nil }

// use renews x-expires.
func (q *queue) use() {
	q.used = time.Now()
	q.watchUse()
}

// watchUse sets the time at which an unused queue is deleted, or looked at. A classic queue
// is deleted when its time is over, a quorum queue when it looks next.
func (q *queue) watchUse() {
	q.b.clock.cancel(q.unused)
	q.unused = nil
	if q.expires < 0 || q.deleted || !q.quorum && q.consumers() > 0 {
		return
	}
	at := q.used.Add(time.Duration(q.expires) * time.Millisecond)
	if q.quorum {
		at = time.Now().Add(tick - time.Since(q.declared)%tick)
	}
	q.unused = q.b.clock.set(at, func() {
		q.unused = nil
		over := time.Since(q.used) >= time.Duration(q.expires)*time.Millisecond
		if over && q.consumers() == 0 && q.b.unacknowledged(q) == 0 {
			q.b.deleteQueue(q)
		} else {
			q.watchUse()
		}
	})
}

// consumer receives the messages of a queue.
type consumer struct {
	ch       *channel
	q        *queue
	tag      string
	noAck    bool
	prefetch int // 0: unlimited
	unacked  int
}

// delivery is a message that a channel has not acknowledged.
type delivery struct {
	tag uint64
	*entry
	q  *queue
	to *consumer // nil after basic.get
}

func (q *queue) consumers() int { return len(q.active) + len(q.blocked) }

// publish adds a message to the queue.
func (q *queue) publish(m *message) {
	e := &entry{message: m, failed: m.failed}
	if ttl := q.lifetime(m); ttl >= 0 {
		if q.quorum {
			ttl = max(ttl, 1)
		}
		e.expires = time.Now().Add(time.Duration(ttl) * time.Millisecond)
	}
	q.add(e)
	q.run()
}

// lifetime is the message's or the queue's, whichever is shorter, in ms; -1 without.
func (q *queue) lifetime(m *message) int64 {
	if !m.content.is(expiration) {
		return q.ttl
	}
	own, _ := strconv.ParseInt(m.content.texts[expiration], 10, 64) // checked when it was published
	if q.ttl >= 0 {
		return min(own, q.ttl)
	}
	return own
}

// run drops what has expired at the head, then delivers while a consumer can receive.
func (q *queue) run() {
	for head := q.head(); head != nil && !q.deleted; head = q.head() {
		if !head.expires.IsZero() && !time.Now().Before(head.expires) {
			q.deadLetter(q.takeHead(), "expired")
			continue
		}
		co := q.receiver()
		if co == nil {
			break
		}
		q.deliver(co, q.takeHead())
	}
	q.watch()
}

// watch sets the alarm for the head: a message behind it expires no earlier.
func (q *queue) watch() {
	q.b.clock.cancel(q.alarm)
	q.alarm = nil
	if head := q.head(); head != nil && !head.expires.IsZero() {
		q.alarm = q.b.clock.set(head.expires, q.run)
	}
}

// receiver is the next consumer in turn that is not at its prefetch.
func (q *queue) receiver() *consumer {
	for len(q.active) > 0 {
		co := q.active[0]
		q.active = q.active[1:]
		if co.full() {
			q.blocked = append(q.blocked, co)
			continue
		}
		q.active = append(q.active, co)
		return co
	}
	return nil
}

// full reports whether a consumer gets nothing now.
func (co *consumer) full() bool {
	return !co.noAck && co.prefetch > 0 && co.unacked >= co.prefetch
}

func (q *queue) deliver(co *consumer, e *entry) {
	d := &delivery{entry: e, q: q, to: co}
	if !co.noAck {
		co.unacked++
	}
	if !q.quorum {
		co.ch.hand(d, e.content, e.redelivered)
		return
	}
	if co.full() { // it takes its turn again when it acknowledges
		q.forget(co)
		q.blocked = append(q.blocked, co)
	}
	co.ch.fly(d)
}

// hand sends a delivery to the client.
func (ch *channel) hand(d *delivery, c *content, redelivered bool) {
	ch.tag++
	d.tag = ch.tag
	if !d.to.noAck {
		ch.unacked = append(ch.unacked, d)
	}
	ch.c.sendContent(ch.number, basicDeliver, func(w *writer) {
		w.shortstr(d.to.tag)
		w.longlong(d.tag)
		w.bool(redelivered)
		w.shortstr(d.exchange)
		w.shortstr(d.key)
	}, c)
}

// get is basic.get.
func (ch *channel) get(q *queue, noAck bool) {
	q.use()
	q.run()
	if q.count() == 0 {
		ch.send(basicGetEmpty, func(w *writer) { w.shortstr("") })
		return
	}
	e := q.takeHead()
	d := &delivery{tag: ch.tag + 1, entry: e, q: q}
	q.watch()
	c, redelivered := e.content, e.redelivered
	if q.quorum {
		c, redelivered = q.counted(e, true)
	}
	ch.tag++
	if !noAck {
		ch.unacked = append(ch.unacked, d)
	}
	ch.c.sendContent(ch.number, basicGet.ok(), func(w *writer) {
		w.longlong(ch.tag)
		w.bool(redelivered)
		w.shortstr(e.exchange)
		w.shortstr(e.key)
		w.long(uint32(q.count()))
	}, c)
}

// take removes the deliveries that an answer of the client is about.
func (ch *channel) take(tag uint64, multiple bool) ([]*delivery, *fault) {
	if multiple && tag == 0 {
		taken := ch.unacked
		ch.unacked = nil
		return taken, nil
	}
	i := slices.IndexFunc(ch.unacked, func(d *delivery) bool { return d.tag == tag })
	switch {
	case i < 0:
		return nil, faultf(406, "unknown delivery tag %d", tag)
	case multiple:
		taken := ch.unacked[: i+1 : i+1]
		ch.unacked = ch.unacked[i+1:]
		return taken, nil
	}
	taken := ch.unacked[i]
	ch.unacked = slices.Delete(ch.unacked, i, i+1)
	return []*delivery{taken}, nil
}

// settle frees the consumers' prefetch, does something about each message, then delivers.
func settle(taken []*delivery, do func(*delivery)) {
	var queues []*queue
	for _, d := range taken {
		if !slices.Contains(queues, d.q) {
			queues = append(queues, d.q)
		}
		if co := d.to; co != nil {
			co.unacked--
			if i := slices.Index(d.q.blocked, co); i >= 0 && !co.full() {
				d.q.blocked = slices.Delete(d.q.blocked, i, i+1)
				d.q.active = append(d.q.active, co)
			}
		}
	}
	for _, d := range taken {
		if !d.q.deleted {
			do(d)
		}
	}
	for _, q := range queues {
		q.run()
	}
}

func acknowledge(*delivery) {}

func reject(d *delivery) { d.q.deadLetter(d.entry, "rejected") }

// giver is how a message comes back to its queue.
type giver int

const (
	rejected giver = iota
	nacked
	ended // its channel has
)

// requeue puts a message where it was; a quorum queue has its own rules.
func requeue(by giver) func(*delivery) {
	return func(d *delivery) {
		if d.q.quorum {
			d.q.returnToQuorum(d.entry, by)
			return
		}
		d.redelivered = true
		if by != nacked && d.q.b.since4() { // a quorum queue that it is dead-lettered to shows it
			d.failed++
		}
		d.q.insert(d.entry)
	}
}

// forget removes a consumer from its queue.
func (q *queue) forget(co *consumer) {
	same := func(other *consumer) bool { return other == co }
	q.active = slices.DeleteFunc(q.active, same)
	q.blocked = slices.DeleteFunc(q.blocked, same)
}

const (
	// replication is how long a quorum queue takes: what it delivers and confirms arrives so
	// much later. In the meantime the connection may end.
	replication = time.Millisecond

	tick = 5 * time.Second // a quorum queue looks so often at its x-expires
)

// returnToQuorum puts a message back into a quorum queue: in front, behind what was returned
// before. On RabbitMQ 3, without a delivery limit, what the client returned goes to the end.
func (q *queue) returnToQuorum(e *entry, by giver) {
	e.acquired++
	if by != nacked || !q.b.since4() {
		e.failed++
	}
	switch {
	case q.limited && e.failed > q.deliveryLimit:
		q.deadLetter(e, "delivery_limit")
	case !q.limited && by != ended && !q.b.since4():
		q.add(e)
	default:
		q.returned = append(q.returned, e)
	}
}

// counted is a message as a quorum queue delivers it: with the counts of its returns.
func (q *queue) counted(e *entry, get bool) (c *content, redelivered bool) {
	acquired, c := e.acquired, e.content
	if acquired == 0 {
		acquired = e.failed // of the queue where it was rejected
	}
	with := func(key string, n int64) {
		c = c.copy()
		c.setHeaders(c.headers.with(key, integer(n)))
	}
	switch {
	case !q.b.since4():
		if e.failed > 0 || get {
			with("x-delivery-count", e.failed)
		}
		return c, e.failed > 0
	case acquired > 0:
		with("x-acquired-count", acquired)
		if e.failed > 0 {
			with("x-delivery-count", e.failed)
		}
	}
	return c, acquired > 0
}

// fly is a delivery of a quorum queue on its way to the channel.
func (ch *channel) fly(d *delivery) {
	ch.flying = append(ch.flying, d)
	d.q.b.clock.set(time.Now().Add(replication), func() { ch.land(d) })
}

// land delivers a message that has arrived.
func (ch *channel) land(d *delivery) {
	i := slices.Index(ch.flying, d)
	if i < 0 {
		return // it has arrived before; or the channel has ended, and the message is in the queue again
	}
	ch.flying = slices.Delete(ch.flying, i, i+1)
	if d.q.deleted {
		return
	}
	c, redelivered := d.q.counted(d.entry, false)
	ch.hand(d, c, redelivered)
}

// landCancelled delivers what is on its way to consumers that were cancelled: it comes behind the
// answer to that, and before what the client sends next.
func (ch *channel) landCancelled() {
	for _, d := range slices.Clone(ch.flying) {
		if !slices.Contains(ch.consumers, d.to) {
			ch.land(d)
		}
	}
}

// death is what x-death has about a queue and a reason.
type death struct {
	queue, reason, exchange string
	keys                    array
	time                    raw
	count                   int64
	expiration              string // of the message, which loses it
	expires                 bool
}

// deadLetter publishes a copy to the queue's dead-letter exchange. At most once, no route or a cycle
// loses it.
func (q *queue) deadLetter(m *entry, reason string) {
	if q.worker != nil {
		q.worker.add(m, reason)
	} else if q.hasDead {
		q.publishDead(m, reason)
	}
}

// publishDead reports whether there is a queue for the message.
func (q *queue) publishDead(m *entry, reason string) (routed bool) {
	x := q.b.exchanges[q.deadExchange]
	if x == nil {
		return false
	}
	dead := q.dying(m, reason)
	for _, to := range q.b.route(x, dead) {
		if reason == "rejected" || !dead.cycles(to.name) {
			to.publish(dead)
			routed = true
		}
	}
	return routed
}

// dying is a message as it is dead-lettered. RabbitMQ 3 counts on in what a client wrote, RabbitMQ 4 replaces it.
func (q *queue) dying(m *entry, reason string) *message {
	d := death{queue: q.name, reason: reason, exchange: m.exchange, keys: array{m.key}, time: seconds(time.Now()), count: 1,
		expiration: m.content.texts[expiration], expires: m.content.is(expiration)}
	dead := &message{exchange: q.deadExchange, key: m.key, content: m.content.copy(), first: m.first}
	if q.hasDK {
		dead.key = q.deadKey
	}
	dead.content.remove(expiration)
	former := m.deaths
	if !q.b.since4() {
		former, _ = deathsIn(m.content.headers) // checked when it was published
	} else if dead.failed = m.failed; reason == "rejected" {
		dead.failed++
	}
	dead.record(former, d, q.b.since4())
	return dead
}

// count adds a death to those of the same queue and reason, and puts it first.
func count(former []death, d death) []death {
	same := func(other death) bool { return other.queue == d.queue && other.reason == d.reason }
	if i := slices.IndexFunc(former, same); i >= 0 {
		d = former[i]
		d.count++
	}
	return append([]death{d}, slices.DeleteFunc(slices.Clone(former), same)...)
}

// record writes the deaths into the headers.
func (m *message) record(former []death, d death, since4 bool) {
	m.deaths = count(former, d)
	var all array
	for _, d := range m.deaths {
		all = append(all, d.written())
	}
	h := m.content.headers.with("x-death", all)
	say := func(which string, d death) {
		h = h.with("x-"+which+"-death-exchange", d.exchange).with("x-"+which+"-death-queue", d.queue).with("x-"+which+"-death-reason", d.reason)
	}
	if m.first == nil {
		m.first = &d
	}
	if since4 {
		say("first", *m.first)
		say("last", m.deaths[0])
	} else if len(former) == 0 {
		say("first", d)
	}
	m.content.setHeaders(h)
}

func (d death) written() table {
	t := table{{"count", integer(d.count)}, {"exchange", d.exchange}}
	if d.expires {
		t = append(t, field{"original-expiration", d.expiration})
	}
	return append(t, field{"queue", d.queue}, field{"reason", d.reason}, field{"routing-keys", d.keys}, field{"time", d.time})
}

// cycles reports whether the queue had the message before, with no rejection since.
func (m *message) cycles(queue string) bool {
	for _, d := range m.deaths {
		if d.reason == "rejected" {
			return false
		}
		if d.queue == queue {
			return true
		}
	}
	return false
}

const inFlight = 32 // dead letters of a worker without a target

// worker dead-letters at least once: what no queue is there for it keeps. It is one for each queue. The model does not
// try again.
type worker struct {
	q       *queue
	waiting []deadLetter
	pending int
	pass    *alarm
}

type deadLetter struct {
	*entry
	reason string
}

func (w *worker) count() int { return len(w.waiting) + w.pending }

func (w *worker) add(e *entry, reason string) {
	w.waiting = append(w.waiting, deadLetter{e, reason})
	if w.pass == nil { // it looks for what to do a little later
		w.pass = w.q.b.clock.set(time.Now().Add(replication), w.run)
	}
}

func (w *worker) run() {
	for w.pass = nil; len(w.waiting) > 0 && w.pending < inFlight; w.waiting = w.waiting[1:] {
		if d := w.waiting[0]; !w.q.publishDead(d.entry, d.reason) {
			w.pending++
		}
	}
}

// deathsIn reads an x-death, if there is one; false unless it is as RabbitMQ writes it.
func deathsIn(h table) (all []death, is bool) {
	value, has := h.get("x-death")
	entries, is := value.(array)
	for _, e := range entries {
		t, isTable := e.(table)
		d := death{queue: t.text("queue"), reason: t.text("reason"), exchange: t.text("exchange"), expiration: t.text("original-expiration")}
		_, d.expires = t.get("original-expiration")
		n, _ := t.get("count")
		keys, _ := t.get("routing-keys")
		at, _ := t.get("time")
		var isNumber bool
		d.count, isNumber = whole(n)
		d.keys, _ = keys.(array)
		d.time, _ = at.(raw)
		if !isTable || !isNumber || d.time.kind == 0 {
			return nil, false
		}
		all = append(all, d)
	}
	return all, is || !has
}
