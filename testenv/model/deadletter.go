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

const (
	inFlight = 32 // dead letters of a worker without a confirm
	patience = 180 * time.Second
)

// worker dead-letters at least once: what no queue is there for it keeps and tries again. It is
// one for each queue.
type worker struct {
	q        *queue
	waiting  []*deadLetter
	pending  []*deadLetter
	tryAgain *alarm
	pass     *alarm
}

type deadLetter struct {
	*entry
	reason string
	dead   *message
}

func (w *worker) count() int { return len(w.waiting) + len(w.pending) }

func (w *worker) add(e *entry, reason string) {
	w.waiting = append(w.waiting, &deadLetter{entry: e, reason: reason})
	w.wake()
}

// wake lets it look for what to do, a little later.
func (w *worker) wake() {
	if w.pass == nil && len(w.waiting) > 0 && len(w.pending) < inFlight {
		w.pass = w.q.b.clock.set(time.Now().Add(replication), w.run)
	}
}

func (w *worker) run() {
	w.pass = nil
	for len(w.waiting) > 0 && len(w.pending) < inFlight {
		d := w.waiting[0]
		w.waiting = w.waiting[1:]
		d.dead = w.q.dying(d.entry, d.reason)
		w.pending = append(w.pending, d)
		w.publish(d)
	}
	w.watch()
}

// publish leaves a message pending unless there is a queue for it.
func (w *worker) publish(d *deadLetter) {
	x := w.q.b.exchanges[w.q.deadExchange]
	if x == nil {
		return
	}
	routed := false
	for _, to := range w.q.b.route(x, d.dead) {
		if d.reason == "rejected" || !d.dead.cycles(to.name) {
			routed = true
			to.publish(d.dead)
		}
	}
	if routed {
		w.pending = slices.DeleteFunc(w.pending, func(other *deadLetter) bool { return other == d })
	}
}

// watch sets the time at which it tries again.
func (w *worker) watch() {
	switch {
	case len(w.pending) == 0 && w.tryAgain != nil:
		w.q.b.clock.cancel(w.tryAgain)
		w.tryAgain = nil
	case len(w.pending) > 0 && w.tryAgain == nil:
		w.tryAgain = w.q.b.clock.set(time.Now().Add(patience), func() {
			w.tryAgain = nil
			for _, d := range slices.Clone(w.pending) {
				w.publish(d)
			}
			w.watch()
			w.wake()
		})
	}
}

// stop drops what it has.
func (w *worker) stop() {
	w.waiting, w.pending = nil, nil
	for _, a := range []**alarm{&w.tryAgain, &w.pass} {
		if *a != nil {
			w.q.b.clock.cancel(*a)
			*a = nil
		}
	}
}

// rewritten is how RabbitMQ 3 writes a death: into the headers, where it counts on in what a
// client wrote, too.
func rewritten(h table, d death) table {
	value, is := h.get("x-death")
	entries, _ := value.(array)
	if !is {
		h = h.with("x-first-death-exchange", d.exchange).with("x-first-death-queue", d.queue).with("x-first-death-reason", d.reason)
	}
	first, others := d.written(), array{}
	for _, e := range grouped(entries) {
		if t := e.(table); t.text("queue") == d.queue && t.text("reason") == d.reason {
			n, _ := t.get("count")
			counted, _ := whole(n)
			first = t.with("count", integer(counted+1))
		} else {
			others = append(others, e)
		}
	}
	return h.with("x-death", append(array{first}, others...))
}

// wellFormed reports whether an x-death, if there is one, is as RabbitMQ writes it. Over others its
// processes crash.
func wellFormed(h table) bool {
	value, is := h.get("x-death")
	entries, isArray := value.(array)
	return !is || isArray && !slices.ContainsFunc(entries, func(e any) bool {
		t, isTable := e.(table)
		n, counts := t.get("count")
		_, isNumber := whole(n)
		return !isTable || counts && !isNumber
	})
}

// grouped leaves one entry for each queue and reason, and turns the order of several around.
func grouped(entries array) (all array) {
	for i, e := range entries {
		t, isTable := e.(table)
		if isTable && slices.ContainsFunc(entries[:i], func(other any) bool { return sameDeath(t, other) }) {
			continue
		}
		all = append(array{e}, all...)
	}
	return all
}

func sameDeath(t table, other any) bool {
	o, _ := other.(table)
	return t.text("queue") == o.text("queue") && t.text("reason") == o.text("reason")
}

func (t table) text(key string) string {
	value, _ := t.get(key)
	text, _ := value.(string)
	return text
}

// deathsIn is what an x-death that was rewritten says of queues and reasons.
func deathsIn(h table) (all []death) {
	value, _ := h.get("x-death")
	entries, _ := value.(array)
	for _, e := range entries {
		t, _ := e.(table)
		all = append(all, death{queue: t.text("queue"), reason: t.text("reason")})
	}
	return all
}
