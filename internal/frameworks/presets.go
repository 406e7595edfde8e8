package frameworks

import (
	"maps"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/wire"
)

// preset is a framework that writes what failed into the headers of the message itself.
type preset struct {
	name string
	// markers are headers of which each of its messages has one, and needed those that it has as
	// well. Each marker costs a lookup for each message that fails.
	markers, needed []string
	read            func(f *Fault, m *wire.Message)
	// suffixes are what its error queues have after the name of the queue.
	suffixes []string
	// removed are the headers that restore removes, and those that begin with a prefix.
	removed, prefixes []string
	// restore does what removing headers does not; nil: nothing. The headers are a copy, but not
	// what is in them.
	restore func(m *wire.Message)
}

// presets are asked in this order; the first whose marker is there decides.
var presets = []preset{massTransit, nServiceBus, spring, rebus, symfony, rascal, kicks, wolverine, brighter, celery}

// envelope is a framework that writes what failed into the body.
type envelope struct {
	name string
	// open returns the message that failed, or why it cannot be taken out. ok tells that the body
	// is one of the framework's.
	open func(queue string, m *wire.Message) (f Fault, inner *wire.Message, ok bool, err error)
}

var envelopes = []envelope{easyNetQ, sneakers, dramatiq}

// presetOf returns the framework that has written headers; nil: none is known.
func presetOf(h amqp.Table) *preset {
	if len(h) == 0 {
		return nil
	}
	for i := range presets {
		for _, marker := range presets[i].markers {
			if _, there := h[marker]; there && hasAll(h, presets[i].needed) {
				return &presets[i]
			}
		}
	}
	return nil
}

func hasAll(h amqp.Table, needed []string) bool {
	for _, header := range needed {
		if _, there := h[header]; !there {
			return false
		}
	}
	return true
}

func (p *preset) fault(queue string, m *wire.Message) Fault {
	f := Fault{MessageID: name(m.MessageID)}
	p.read(&f, m)
	f.Framework = p.name
	if f.Queue == "" {
		f.Queue = withoutSuffix(queue, p.suffixes...)
	}
	return f
}

// withoutSuffix returns the queue that an error queue is for; "" where its name does not tell.
func withoutSuffix(queue string, suffixes ...string) string {
	for _, suffix := range suffixes {
		if of, ok := strings.CutSuffix(queue, suffix); ok {
			return name(of)
		}
	}
	return ""
}

// clean removes from a copy what the framework wrote.
func (p *preset) clean(m *wire.Message) {
	for _, header := range p.removed {
		delete(m.Headers, header)
	}
	if len(p.prefixes) > 0 {
		maps.DeleteFunc(m.Headers, func(header string, _ any) bool {
			for _, prefix := range p.prefixes {
				if strings.HasPrefix(header, prefix) {
					return true
				}
			}
			return false
		})
	}
	if p.restore != nil {
		p.restore(m)
	}
}

// opened reads a body that a framework has written.
func opened(queue string, m *wire.Message) (f Fault, inner *wire.Message, ok bool, err error) {
	for i := range envelopes {
		if f, inner, ok, err := envelopes[i].open(queue, m); ok {
			f.Framework = envelopes[i].name
			if err != nil {
				err = hint.Errorf("replay it as it is to a consumer that reads such messages, or discard it",
					"take the message that failed out of its envelope by %s: %w", f.Framework, err)
			}
			return f, inner, true, err
		}
	}
	return f, nil, false, nil
}
