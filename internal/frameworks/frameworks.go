// Package frameworks reads what other frameworks write on a message that they have given up on:
// the error, and where the message came from. It also makes the message what their consumers
// expect when it is sent to its queue again.
//
// All that is read was written by a client. It is shown and grouped by, and proves nothing: it
// never chooses a queue, and never adds attempts.
//
// presets.go lists the frameworks; each has a file of its own.
package frameworks

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/wire"
)

const (
	// maxText is how many bytes of an error and of a stack are kept, and maxName how many those
	// of a name may have: RabbitMQ's names have no more, and what is longer is none.
	maxText = 2048
	maxName = 255
	// maxAttempts is the largest number of attempts that is believed.
	maxAttempts = wire.MaxAttempt
)

// Fault is a failure as a framework recorded it on the message. A field that the framework does
// not tell is empty; texts are valid UTF-8.
type Fault struct {
	Framework string // as its documentation spells it

	Error string // what went wrong, without the type and the stack
	Type  string // the type of the error or exception
	Stack string // may begin with type and error, as some frameworks write it

	Exchange, RoutingKey string // as first published
	Queue                string // where it failed
	MessageType          string // the framework's own name of what the message is

	// Attempts is how often the framework says that it has tried the message, with retries in the
	// memory of a consumer; 0: it does not say.
	Attempts    int
	FirstFailed time.Time
	Failed      time.Time // the latest failure
	MessageID   string
}

// Text is the error as Redrive keeps one: type, text and stack, as a runtime would print them.
// It is not bounded to what is kept of an error.
func (f *Fault) Text() string {
	head := f.Error
	switch {
	case f.Type == "" || strings.HasPrefix(f.Error, f.Type):
	case f.Error == "":
		head = f.Type
	default:
		head = f.Type + ": " + f.Error
	}
	stack := strings.TrimRight(f.Stack, " \t\r\n")
	switch {
	case stack == "":
		return head
	case head == "" || strings.HasPrefix(stack, head):
		return stack
	}
	return head + "\n" + stack
}

// Unknown lists in words what the framework does not tell.
func (f *Fault) Unknown() []string {
	var unknown []string
	for _, part := range []struct {
		name    string
		missing bool
	}{
		{"error", f.Error == "" && f.Stack == ""}, {"error type", f.Type == ""}, {"stack", f.Stack == ""},
		{"exchange", f.Exchange == ""}, {"routing key", f.RoutingKey == ""}, {"queue", f.Queue == ""},
		{"attempts", f.Attempts == 0}, {"time of the first failure", f.FirstFailed.IsZero()}, {"message id", f.MessageID == ""},
	} {
		if part.missing {
			unknown = append(unknown, part.name)
		}
	}
	return unknown
}

// Read returns what a framework wrote in a message's headers and properties; false: nothing. It
// costs one lookup for each framework where there is nothing, and never reads the body.
func Read(m *wire.Message) (f Fault, found bool) {
	if p := presetOf(m.Headers); p != nil {
		return p.fault("", m), true
	}
	return f, false
}

// ReadFrom is Read for a message that was found in queue, which may be "". It also reads the body,
// where a framework writes there.
func ReadFrom(queue string, m *wire.Message) (f Fault, found bool) {
	if f, _, ok, _ := opened(queue, m); ok {
		return f, true
	}
	if p := presetOf(m.Headers); p != nil {
		return p.fault(queue, m), true
	}
	return f, false
}

// Restore returns a message as the framework's consumers expect it when it is sent to its queue
// again, and what the framework wrote about its failure: an envelope is taken off, the headers
// about the failure are removed, and the framework's counters of retries begin again. Exchange
// and routing key are those of its first publication where the framework tells them, and m's
// otherwise. A message of no known framework is returned unchanged, with the zero Fault. m is
// not changed; the result may share what is in it.
//
// queue is where the message was found, and may be "". An error says that the message that failed
// cannot be taken out of its envelope; the message is then returned unchanged too.
func Restore(queue string, m *wire.Message) (restored *wire.Message, f Fault, err error) {
	if f, inner, ok, err := opened(queue, m); ok {
		if err != nil {
			return m, f, err
		}
		return inner, f, nil
	}
	p := presetOf(m.Headers)
	if p == nil {
		return m, f, nil
	}
	f = p.fault(queue, m)
	r := *m
	r.Exchange, r.RoutingKey = cmp.Or(f.Exchange, m.Exchange), cmp.Or(f.RoutingKey, m.RoutingKey)
	r.Headers = maps.Clone(m.Headers)
	p.clean(&r)
	return &r, f, nil
}

// Names are all frameworks that are known, in order.
func Names() []string {
	var names []string
	for i := range presets {
		names = append(names, presets[i].name)
	}
	for i := range envelopes {
		names = append(names, envelopes[i].name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}
