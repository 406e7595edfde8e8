package retry

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/wire"
)

// format describes what a framework adds to a message that it moves to an error queue. Of several headers the first
// that exists counts; a dot leads into a table.
type format struct {
	name      string   // stored as store.Record.Format; "": no header is removed
	typ       string   // the framework moved the message if its type property begins so; "": see marks
	marks     []string // and otherwise if one of these exists; nil: any message
	queue     []string
	exchange  []string
	key       []string
	errorType []string
	errorText []string
	stack     []string
	at        []string
	layout    string   // of at, or of its beginning; in UTC
	retries   []string // how often it was retried before it failed
	// off lists the headers that are not published: those of the failure, and the framework's counters. A trailing *
	// matches any rest. keep lists exceptions.
	off, keep []string
	// unwrap returns the message in the framework's envelope; nil: there is no envelope.
	unwrap func(came *wire.Message) (*unwrapped, error)
}

// unwrapped is the message that was in a framework's envelope, as it is replayed.
type unwrapped struct {
	message wire.Message
	says    amqp.Table // about the failure, under the names of a format
	note    string     // for a person
}

// formats are the known formats; the first that matches counts. Their tests name the sources.
var formats = []format{
	{
		name:      "masstransit",
		marks:     []string{"MT-Fault-ExceptionType", "MT-Reason"},
		errorType: []string{"MT-Fault-ExceptionType"},
		errorText: []string{"MT-Fault-Message", "MT-Reason"},
		stack:     []string{"MT-Fault-StackTrace"},
		at:        []string{"MT-Fault-Timestamp"},
		layout:    time.RFC3339Nano,
		retries:   []string{"MT-Fault-RetryCount"},
		off:       []string{"MT-Reason", "MT-Fault-*", "MT-Redelivery-Count"},
		keep:      []string{"MT-Fault-Address"}, // where the sender wants faults to be sent
		unwrap:    unwrapMassTransit,
	},
	{
		name:      "nservicebus",
		marks:     []string{"NServiceBus.FailedQ"},
		queue:     []string{"NServiceBus.FailedQ"},
		errorType: []string{"NServiceBus.ExceptionInfo.ExceptionType"},
		errorText: []string{"NServiceBus.ExceptionInfo.Message"},
		stack:     []string{"NServiceBus.ExceptionInfo.StackTrace"},
		at:        []string{"NServiceBus.TimeOfFailure"},
		layout:    time.DateTime,
		off: []string{"NServiceBus.FailedQ", "NServiceBus.TimeOfFailure", "NServiceBus.ExceptionInfo.*",
			"NServiceBus.Retries*", "NServiceBus.FLRetries"},
	},
	{ // Spring AMQP, Spring Cloud Stream
		name:      "spring",
		marks:     []string{"x-exception-stacktrace", "x-exception-message"},
		exchange:  []string{"x-original-exchange"},
		key:       []string{"x-original-routingKey"},
		errorText: []string{"x-exception-message"},
		stack:     []string{"x-exception-stacktrace"},
		off: []string{"x-exception-stacktrace", "x-exception-message", "x-original-exchange", "x-original-routingKey",
			"retry-count"},
	},
	{
		name:      "rascal",
		marks:     []string{"rascal.originalQueue"},
		queue:     []string{"rascal.originalQueue"},
		exchange:  []string{"rascal.originalExchange"},
		key:       []string{"rascal.originalRoutingKey"},
		errorType: []string{"rascal.error.code"},
		errorText: []string{"rascal.error.message"},
		off:       []string{"rascal.*"},
		keep:      []string{"rascal.encryption"}, // how to decrypt the body
	},
	{
		name:      "easynetq",
		typ:       "EasyNetQ.SystemMessages.Error",
		unwrap:    unwrapEasyNetQ,
		queue:     []string{"Queue"},
		exchange:  []string{"Exchange"},
		key:       []string{"RoutingKey"},
		errorText: []string{"Exception"}, // type, message and stack
		at:        []string{"DateTime"},
		layout:    time.RFC3339Nano,
	},
	{ // names that people use
		errorText: []string{wire.HeaderRejectReason, "x-exception", "x-error-message", "x-error", "error", "exception",
			wire.HeaderError},
		stack: []string{"x-exception-stack", "x-stacktrace"},
	},
}

// wrote reports whether the framework moved the message.
func (f *format) wrote(m *wire.Message) bool {
	if f.typ != "" {
		return strings.HasPrefix(m.Type, f.typ)
	}
	return f.marks == nil || headerOf(m.Headers, f.marks) != ""
}

// formatOf returns the format of a message; the last row takes any.
func formatOf(m *wire.Message) *format {
	last := len(formats) - 1
	for i := range last {
		if formats[i].wrote(m) {
			return &formats[i]
		}
	}
	return &formats[last]
}

// XDeath names the format that reads only x-death.
const XDeath = "x-death"

// FormatNames returns the formats that a person can name.
func FormatNames() []string {
	names := []string{XDeath}
	for i := range formats[:len(formats)-1] {
		names = append(names, formats[i].name)
	}
	return names
}

// formatNamed returns the format of that name; nil: there is none, or a later version has it.
func formatNamed(name string) *format {
	if name == "" {
		return nil
	}
	for i := range formats {
		if formats[i].name == name {
			return &formats[i]
		}
	}
	return nil
}

// fit sets the format of an adopted message's record, and takes the message out of a readable envelope. It returns that
// message, and what the framework says of the failure. named is the format that a person chose; "" detects it.
func fit(r *store.Record, named string) (f *format, m wire.Message, says amqp.Table) {
	switch f = formatNamed(named); {
	case named == XDeath:
		return &formats[len(formats)-1], r.Message, nil
	case f == nil:
		f = formatOf(&r.Message)
	}
	var u *unwrapped
	var err error
	if f.unwrap != nil {
		u, err = f.unwrap(&r.Message)
	}
	switch {
	case err != nil:
		const note = "its envelope (%s) cannot be read, so a replay sends it too: %v"
		addNote(r, printable(fmt.Sprintf(note, f.name, err)))
		return &formats[len(formats)-1], r.Message, r.Message.Headers
	case u == nil:
		r.Format = f.name
		return f, r.Message, r.Message.Headers
	}
	addNote(r, u.note)
	envelope, body := r.Message, r.Message.Body
	envelope.Body = nil
	r.Format, r.Envelope, r.Message = f.name, &envelope, u.message
	r.Message.Body = body
	return f, u.message, u.says
}

// Unwrapped returns the message of a record, without the envelope that it is kept in.
func Unwrapped(r *store.Record) wire.Message {
	m := r.Message
	if r.Envelope == nil || m.Body == nil {
		return m
	}
	f := formatNamed(r.Format)
	if f == nil || f.unwrap == nil {
		return m
	}
	if u, err := f.unwrap(&m); err == nil && u != nil {
		m.Body = u.message.Body
	}
	return m
}

// AsItCame returns the message of a record as it was adopted.
func AsItCame(r *store.Record) wire.Message {
	if r.Envelope == nil {
		return r.Message
	}
	m := *r.Envelope
	m.Body = r.Message.Body
	return m
}

// toPublish returns the message of a record as its consumer expects it: without what a framework added.
func toPublish(r *store.Record) wire.Message {
	m := Unwrapped(r)
	if f := formatNamed(r.Format); f != nil {
		m.Headers = f.strip(m.Headers, "")
	}
	return m
}

// strip returns t, the table at path, without the headers to remove.
func (f *format) strip(t amqp.Table, path string) amqp.Table {
	if t == nil {
		return nil
	}
	left := make(amqp.Table, len(t))
	for name, v := range t {
		full := path + name
		matches := func(off string) bool {
			prefix, open := strings.CutSuffix(off, "*")
			return off == full || open && strings.HasPrefix(full, prefix)
		}
		if slices.ContainsFunc(f.off, matches) && !slices.Contains(f.keep, full) {
			continue
		}
		leads := func(off string) bool { return strings.HasPrefix(off, full+".") }
		if table, is := v.(amqp.Table); is && slices.ContainsFunc(f.off, leads) {
			if table = f.strip(table, full+"."); len(table) == 0 {
				continue
			}
			v = table
		}
		left[name] = v
	}
	return left
}

// headerOf returns the first of these headers that is a text or a number.
func headerOf(headers amqp.Table, names []string) string {
	for _, name := range names {
		v, there := headers[name]
		for table, rest := headers, name; !there; {
			before, after, more := strings.Cut(rest, ".")
			if !more {
				break
			}
			if table, _ = table[before].(amqp.Table); table == nil {
				break
			}
			v, there = table[after]
			rest = after
		}
		switch v := v.(type) {
		case string:
			if v != "" {
				return v
			}
		case int64:
			return strconv.FormatInt(v, 10)
		case int32:
			return strconv.Itoa(int(v))
		}
	}
	return ""
}

// read adds what the framework says to what x-death says.
func (c *claim) read(f *format, says amqp.Table, now time.Time) {
	c.queue = cmp.Or(headerOf(says, f.queue), c.queue)
	if exchange := headerOf(says, f.exchange); exchange != "" && len(exchange) <= 255 {
		c.exchange = exchange
	}
	if key := headerOf(says, f.key); key != "" && len(key) <= 255 {
		c.routingKey = key
	}
	text := headerOf(says, f.at)
	at, err := time.Parse(f.layout, text[:min(len(text), len(f.layout))])
	if text != "" && err == nil && at.Unix() > 0 && at.Before(now) {
		c.last = at
		if c.first.After(at) {
			c.first = at
		}
	}
	if n, err := strconv.Atoi(headerOf(says, f.retries)); err == nil && n >= 0 && n < wire.MaxAttempt {
		c.failures = n + 1
	}
	var lines []string
	if text := strings.TrimPrefix(headerOf(says, f.errorType)+": "+headerOf(says, f.errorText), ": "); text != "" {
		lines = append(lines, strings.TrimSuffix(text, ": "))
	}
	if stack := headerOf(says, f.stack); stack != "" {
		lines = append(lines, stack)
	}
	c.errText = printable(strings.Join(lines, "\n"))
}
