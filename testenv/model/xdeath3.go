package model

import "slices"

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
			first = t.with("count", counted+1)
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
