package model

import (
	"slices"
	"strings"
)

func (ch *channel) exchangeMethod(m method, r *reader) *fault {
	switch m {
	case exchangeDeclare:
		return ch.declareExchange(r)
	case exchangeDelete:
		r.short()
		name, f := r.shortstr(), r.flags()
		return ch.deleteExchange(name, f.bit(0), f.bit(1))
	case exchangeBind, exchangeUnbind:
		r.short()
		destination, source, key := r.shortstr(), r.shortstr(), r.shortstr()
		noWait, arguments := r.flags().bit(0), r.table()
		answer := exchangeBindOk
		if m == exchangeUnbind {
			answer = exchangeUnbindOk
		}
		if source == "" || destination == "" {
			return faultf(403, "operation not permitted on the default exchange")
		}
		bound := &binding{exchange: ch.c.b.exchanges[destination], key: key, arguments: arguments}
		if f := ch.bindTo(source, bound, "exchange", destination, m == exchangeUnbind); f != nil {
			return f
		}
		ch.answer(noWait, answer, nil)
		return nil
	}
	return unknown("method %s", m)
}

func (ch *channel) declareExchange(r *reader) *fault {
	b := ch.c.b
	r.short()
	declared := &exchange{name: r.shortstr(), kind: r.shortstr()}
	f := r.flags()
	declared.durable, declared.autoDelete, declared.internal = f.bit(1), f.bit(2), f.bit(3)
	declared.arguments = r.table()
	passive, noWait := f.bit(0), f.bit(4)
	there := b.exchanges[declared.name]
	switch {
	case declared.name == "":
		return faultf(403, "operation not permitted on the default exchange")
	case passive && there == nil:
		return faultf(404, "no %s", b.in("exchange", declared.name))
	case passive:
	case !slices.Contains([]string{"direct", "fanout", "topic"}, declared.kind):
		return unknown("exchange type '%s'", declared.kind)
	case there != nil:
		if f := ch.sameExchange(there, declared); f != nil {
			return f
		}
	case strings.HasPrefix(declared.name, "amq."):
		return faultf(403, "exchange name '%s' contains reserved prefix 'amq.*'", declared.name)
	default:
		for _, a := range declared.arguments {
			if _, text := a.value.(string); a.key != "alternate-exchange" || !text {
				return unknown("argument %s of type %s for an exchange", a.key, typeName(a.value))
			}
		}
		b.exchanges[declared.name] = declared
	}
	ch.answer(noWait, exchangeDeclareOk, nil)
	return nil
}

// sameExchange refuses to declare an exchange again otherwise.
func (ch *channel) sameExchange(there, declared *exchange) *fault {
	subject := ch.c.b.in("exchange", there.name)
	for _, property := range []struct{ name, received, current string }{
		{"type", declared.kind, there.kind},
		{"durable", truth(declared.durable), truth(there.durable)},
		{"auto_delete", truth(declared.autoDelete), truth(there.autoDelete)},
		{"internal", truth(declared.internal), truth(there.internal)},
	} {
		if property.received != property.current {
			return inequivalent(property.name, subject, "'"+property.received+"'", "'"+property.current+"'")
		}
	}
	return sameArguments(subject, declared.arguments, there.arguments, "alternate-exchange")
}

func (ch *channel) deleteExchange(name string, ifUnused, noWait bool) *fault {
	b := ch.c.b
	x := b.exchanges[name]
	switch {
	case name == "":
		return faultf(403, "operation not permitted on the default exchange")
	case strings.HasPrefix(name, "amq."):
		return faultf(403, "deletion of system %s not allowed", b.in("exchange", name))
	case x != nil && ifUnused && len(x.bindings) > 0:
		return faultf(406, "%s in use", b.in("exchange", name))
	case x != nil:
		b.removeExchange(x)
	}
	ch.answer(noWait, exchangeDeleteOk, nil)
	return nil
}

// removeExchange removes it and the bindings to it.
func (b *Broker) removeExchange(x *exchange) {
	delete(b.exchanges, x.name)
	x.bindings = nil
	b.unbind(func(bound *binding) bool { return bound.exchange == x })
}

// unbind removes bindings, and the auto-delete exchanges whose last that was.
func (b *Broker) unbind(which func(*binding) bool) {
	for _, name := range sorted(b.exchanges) {
		x := b.exchanges[name]
		if x == nil {
			continue // removed meanwhile, as auto-delete
		}
		before := len(x.bindings)
		x.bindings = slices.DeleteFunc(x.bindings, which)
		if x.autoDelete && before > 0 && len(x.bindings) == 0 {
			b.removeExchange(x)
		}
	}
}

// bindTo makes or removes a binding to a queue or an exchange, which may not exist.
func (ch *channel) bindTo(source string, bound *binding, kind, destination string, remove bool) *fault {
	b := ch.c.b
	switch bound.source = b.exchanges[source]; {
	case bound.queue == nil && bound.exchange == nil:
		return faultf(404, "no %s", b.in(kind, destination))
	case bound.source == nil:
		return faultf(404, "no %s", b.in("exchange", source))
	}
	if f := checkBinding(bound); f != nil {
		return f
	}
	same := func(other *binding) bool {
		return other.source == bound.source && other.queue == bound.queue && other.exchange == bound.exchange &&
			other.key == bound.key
	}
	if remove {
		b.unbind(same)
	} else if !slices.ContainsFunc(bound.source.bindings, same) {
		bound.source.bindings = append(bound.source.bindings, bound)
	}
	return nil
}

func checkBinding(bound *binding) *fault {
	if len(bound.arguments) > 0 {
		return unknown("arguments of a binding")
	}
	return nil
}

func truth(is bool) string {
	if is {
		return "true"
	}
	return "false"
}

func inequivalent(name, subject, received, current string) *fault {
	return faultf(406, "inequivalent arg '%s' for %s: received %s but current is %s", name, subject, received, current)
}
