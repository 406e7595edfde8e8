package model

import "slices"

// rewritten is how RabbitMQ 3 writes a death: into the headers, where it counts on in what a
// client wrote, too. false: it would crash.
func rewritten(h table, d death) (table, bool) {
	value, is := h.get("x-death")
	entries, isArray := value.(array)
	switch {
	case !is:
		h = h.with("x-first-death-exchange", d.exchange).with("x-first-death-queue", d.queue).with("x-first-death-reason", d.reason)
		return h.with("x-death", array{d.written()}), true
	case !isArray:
		return h.with("x-death", array{d.written()}), true
	}
	first, others := any(d.written()), array{}
	for _, e := range grouped(entries) {
		t, isTable := e.(table)
		switch {
		case !isTable:
			return nil, false
		case !t.says("queue", d.queue) || !t.says("reason", d.reason):
			others = append(others, e)
			continue
		}
		n, has := t.get("count")
		count, isWhole := whole(n)
		if has && !isWhole {
			return nil, false
		}
		first = t.with("count", count+1)
	}
	return h.with("x-death", append(array{first}, others...)), true
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

func (t table) says(key, text string) bool {
	value, _ := t.get(key)
	return value == any(text)
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

// giveUp ends all connections where the model does not know how RabbitMQ goes on.
func (b *Broker) giveUp(f *fault) {
	for _, c := range slices.Clone(b.connections) {
		c.fail(f, 0)
	}
}
