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
		if !has {
			n = int64(0)
		}
		more, isNumber := oneMore(n)
		if !isNumber {
			return nil, false
		}
		first = t.with("count", more)
	}
	return h.with("x-death", append(array{first}, others...)), true
}

// unwritable is a count that RabbitMQ 3 made of a client's float. It is in memory as a long
// integer, and what writes it to a client crashes.
type unwritable float64

// oneMore adds one to a count of whatever type it is a number in; false where RabbitMQ 3 cannot.
func oneMore(count any) (any, bool) {
	switch n := count.(type) {
	case float32:
		return unwritable(n) + 1, true
	case float64:
		return unwritable(n) + 1, true
	case unwritable:
		return n + 1, true
	case unsignedLong:
		return int64(n) + 1, true
	case timestamp:
		return int64(n) + 1, true
	}
	n, is := whole(count)
	return n + 1, is
}

// hasUnwritable tells whether an x-death that was rewritten cannot be written to a client.
func hasUnwritable(h table) bool {
	value, _ := h.get("x-death")
	entries, _ := value.(array)
	return slices.ContainsFunc(entries, func(e any) bool {
		t, _ := e.(table)
		n, _ := t.get("count")
		_, is := n.(unwritable)
		return is
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
