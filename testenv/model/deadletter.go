package model

import (
	"slices"
	"time"
)

// death is what x-death has about a queue and a reason.
type death struct {
	queue, reason, exchange string
	keys                    array
	time                    timestamp
	count                   int64
	expiration              string // of the message, which loses it
	expires                 bool
}

// deadLetter publishes a copy to the queue's dead-letter exchange. At most once, no route or a cycle
// loses it.
func (q *queue) deadLetter(m *entry, reason string) {
	x := q.b.exchanges[q.deadExchange]
	switch {
	case q.worker != nil:
		q.worker.add(m, reason)
		return
	case !q.hasDead || x == nil:
		return
	}
	dead := q.dying(m, reason)
	for _, to := range q.b.route(x, dead) {
		if reason == "rejected" || !dead.cycles(to.name) {
			to.publish(dead)
		}
	}
}

// dying is a message as it is dead-lettered.
func (q *queue) dying(m *entry, reason string) *message {
	d := death{queue: q.name, reason: reason, exchange: m.exchange, keys: array{m.key}, time: seconds(time.Now()), count: 1,
		expiration: m.content.texts[expiration], expires: m.content.is(expiration)}
	dead := &message{exchange: q.deadExchange, key: m.key, content: m.content.copy(), first: m.first}
	if q.hasDK {
		dead.key = q.deadKey
	}
	dead.content.remove(expiration)
	if q.b.since4() {
		dead.record(m.deaths, d)
		dead.failed = m.failed
		if reason == "rejected" {
			dead.failed++
		}
	} else {
		h := rewritten(m.content.headers, d)
		dead.content.setHeaders(h)
		dead.deaths = deathsIn(h)
	}
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

// record is how RabbitMQ 4 does it: a client's own x-death is replaced.
func (m *message) record(former []death, d death) {
	m.deaths = count(former, d)
	if m.first == nil {
		m.first = &d
	}
	h := m.content.headers.with("x-death", written(m.deaths))
	for _, of := range []struct {
		which string
		death
	}{{"first", *m.first}, {"last", m.deaths[0]}} {
		h = h.with("x-"+of.which+"-death-exchange", of.exchange).
			with("x-"+of.which+"-death-queue", of.queue).
			with("x-"+of.which+"-death-reason", of.reason)
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
	t := table{{"count", d.count}, {"exchange", d.exchange}}
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
