package model

import (
	"slices"
	"time"
)

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
	h := m.content.headers.with("x-death", written(m.deaths))
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

func written(deaths []death) (all array) {
	for _, d := range deaths {
		all = append(all, d.written())
	}
	return all
}

func (d death) written() table {
	t := table{{"count", integer(d.count)}, {"exchange", d.exchange}}
	if d.expires {
		t = append(t, field{"original-expiration", d.expiration})
	}
	return append(t, field{"queue", d.queue}, field{"reason", d.reason}, field{"routing-keys", d.keys}, field{"time", d.time})
}

// cycles tells whether the queue had the message before, with no rejection since.
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

func (t table) text(key string) string {
	value, _ := t.get(key)
	text, _ := value.(string)
	return text
}
