package model

import (
	"slices"
	"time"
)

// death is what x-death has about a queue and a reason.
type death struct {
	queue, reason, exchange, key string
	time                         timestamp
	count                        int64
	expiration                   string // of the message, which loses it
	expires                      bool
}

// deadLetter publishes a copy to the queue's dead-letter exchange. At most once, no route, a
// full queue or a cycle loses it.
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
			to.publish(dead, nil)
		}
	}
}

// dying is a message as it is dead-lettered.
func (q *queue) dying(m *entry, reason string) *message {
	d := death{queue: q.name, reason: reason, exchange: m.exchange, key: m.key, time: seconds(time.Now()), count: 1,
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
		former, _ := deathsOf(m.content.headers)
		dead.deaths = count(former, d)
		dead.content.setHeaders(rewritten(m.content.headers, dead.deaths, d, len(former) == 0))
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

// rewritten is how RabbitMQ 3 does it: in the headers, those of a client too.
func rewritten(h table, deaths []death, d death, fresh bool) table {
	if fresh {
		h = h.with("x-first-death-exchange", d.exchange).with("x-first-death-queue", d.queue).with("x-first-death-reason", d.reason)
	}
	return h.with("x-death", written(deaths))
}

func written(deaths []death) (all array) {
	for _, d := range deaths {
		t := table{{"count", d.count}, {"exchange", d.exchange}}
		if d.expires {
			t = append(t, field{"original-expiration", d.expiration})
		}
		all = append(all, append(t, field{"queue", d.queue}, field{"reason", d.reason},
			field{"routing-keys", array{d.key}}, field{"time", d.time}))
	}
	return all
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

// trusted tells whether an x-death is as RabbitMQ 3 writes it, or absent.
func trusted(h table) bool {
	_, ok := deathsOf(h)
	return ok
}

// deathsOf reads the x-death that RabbitMQ 3 counts on.
func deathsOf(h table) (deaths []death, ok bool) {
	value, is := h.get("x-death")
	if !is {
		return nil, true
	}
	entries, isArray := value.(array)
	for _, e := range entries {
		d, ok := deathOf(e)
		if !ok {
			return nil, false
		}
		deaths = append(deaths, d)
	}
	return deaths, isArray && len(deaths) > 0
}

func deathOf(entry any) (d death, ok bool) {
	t, _ := entry.(table)
	known := 0
	text := func(key string) string {
		value, _ := t.get(key)
		s, is := value.(string)
		if is {
			known++
		}
		return s
	}
	d.queue, d.reason, d.exchange = text("queue"), text("reason"), text("exchange")
	if _, d.expires = t.get("original-expiration"); d.expires {
		d.expiration = text("original-expiration")
	}
	value, _ := t.get("count")
	n, isCount := value.(int64)
	value, _ = t.get("time")
	at, isTime := value.(timestamp)
	value, _ = t.get("routing-keys")
	keys, _ := value.(array)
	if len(keys) == 1 {
		d.key, ok = keys[0].(string)
	}
	d.count, d.time = n, at
	all := 6
	if d.expires {
		all++
	}
	if !ok || !isCount || !isTime {
		return d, false
	}
	return d, known+3 == all && len(t) == all
}
