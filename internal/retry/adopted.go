package retry

import (
	"cmp"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/frameworks"
	"github.com/redrive-mq/redrive/internal/headers"
	"github.com/redrive-mq/redrive/wire"
)

// Adoption says which queue is adopted, and how its messages are read.
type Adoption struct {
	Queue string
	// Framework limits the framework whose headers are believed: AnyFramework, NoFramework or one of
	// frameworks.Names.
	Framework string
	// Since is when it began: its progress is counted from then on.
	Since time.Time
}

// AnyFramework reads the headers of whichever framework wrote them, and NoFramework x-death alone.
const AnyFramework, NoFramework = "", "none"

// Failure is what a message in a dead-letter queue says of its failure. A publisher may have
// forged all of it: it is shown, and proves nothing.
type Failure struct {
	Queue, Reason, Error string
	Exchange, RoutingKey string // as first published
	Attempts             int    // 0: it does not say
	First, Last          time.Time
	Framework            string // whose headers it has; "": none that is known
	// Unknown is what it does not say, and why.
	Unknown []string
}

// Read reads a message's failure. Nothing in a message can make it fail.
func (a Adoption) Read(d *wire.Delivery, now time.Time) (f Failure) {
	defer func() {
		if p := recover(); p != nil {
			f = Failure{Unknown: []string{fmt.Sprintf("its headers could not be read: %v", p)}}
		}
	}()
	why := f.readDeaths(a.Queue, d)
	if a.Framework != NoFramework {
		f.readFramework(a, d)
	}
	switch {
	case f.Queue == "":
		f.Unknown = append(f.Unknown, "the queue it failed in: "+why)
	case len(f.Queue) > 255 || !utf8.ValidString(f.Queue):
		f.Unknown = append(f.Unknown, fmt.Sprintf("the queue it failed in: it names %.60q, which no queue can be called", f.Queue))
		f.Queue = ""
	case wire.OwnQueue(f.Queue):
		f.Unknown = append(f.Unknown, fmt.Sprintf("the queue it failed in: it names %q, which is one of Redrive's own", f.Queue))
		f.Queue = ""
	}
	if f.Error == "" {
		f.Unknown = append(f.Unknown, "the error: "+noError)
	}
	f.First, f.Last = believed(f.First, now), believed(f.Last, now)
	if f.First.IsZero() || f.First.After(f.Last) && !f.Last.IsZero() {
		f.First = f.Last
	}
	return f
}

const noError = "RabbitMQ keeps none when it dead-letters, and the message has no header of a framework that is known"

// readDeaths reads x-death, and says why no queue is found there.
func (f *Failure) readDeaths(adopted string, d *wire.Delivery) (why string) {
	deaths, _ := d.Message.Headers["x-death"].([]any)
	switch {
	case d.DuplicateHeader != "":
		return d.DuplicateHeader + ", so it proves none"
	case d.Message.Headers["x-death"] == nil:
		return "it has no x-death header, so it was published to the queue, not dead-lettered"
	case len(deaths) == 0:
		return "its x-death header is malformed"
	}
	var best death
	for _, entry := range deaths {
		e := deathOf(entry)
		if e.at.After(f.Last) {
			f.Last = e.at
		}
		if !e.at.IsZero() && (f.First.IsZero() || e.at.Before(f.First)) {
			f.First = e.at
		}
		if e.queue != "" && e.queue != adopted && (best.queue == "" || e.before(&best)) {
			best = e
		}
	}
	if best.queue == "" {
		return "its x-death header names none but this one"
	}
	f.Queue, f.Exchange, f.RoutingKey, f.Attempts = best.queue, best.exchange, best.key, best.count
	if slices.Contains([]string{wire.ReasonRejected, wire.ReasonExpired, wire.ReasonMaxLen, wire.ReasonDeliveryLimit}, best.reason) {
		f.Reason = best.reason
	}
	return ""
}

// death is an entry of x-death.
type death struct {
	queue, reason, exchange, key string
	count                        int
	at                           time.Time
}

func deathOf(entry any) (e death) {
	t, _ := entry.(amqp.Table)
	e.queue, _ = t["queue"].(string)
	e.reason, _ = t["reason"].(string)
	e.exchange, _ = t["exchange"].(string)
	if keys, _ := t["routing-keys"].([]any); len(keys) > 0 {
		e.key, _ = keys[0].(string)
	}
	if len(e.exchange) > 255 || len(e.key) > 255 { // RabbitMQ's have no more
		e.exchange, e.key = "", ""
	}
	if n, ok := headers.Integer(t["count"]); ok && n > 0 && n <= wire.MaxAttempt {
		e.count = int(n)
	}
	e.at, _ = t["time"].(time.Time)
	return e
}

// before tells whether e is rather where the message failed than other: where a consumer gave up on
// it, before where it waited or was dropped; of those the first.
func (e *death) before(other *death) bool {
	failed := func(d *death) bool { return d.reason == wire.ReasonRejected || d.reason == wire.ReasonDeliveryLimit }
	if failed(e) != failed(other) {
		return failed(e)
	}
	return !e.at.After(other.at) // of the same second the older one, which comes later in x-death
}

// readFramework adds what a framework says, which knows more than RabbitMQ.
func (f *Failure) readFramework(a Adoption, d *wire.Delivery) {
	fault, found := frameworks.ReadFrom(a.Queue, &d.Message)
	if !found {
		return
	}
	if a.Framework != AnyFramework && fault.Framework != a.Framework {
		f.Unknown = append(f.Unknown, fmt.Sprintf("what the headers of %s say: it is adopted as one of %s", fault.Framework, a.Framework))
		return
	}
	f.Framework = fault.Framework
	f.Error = printable(fault.Text())
	if fault.Queue != a.Queue {
		f.Queue = cmp.Or(fault.Queue, f.Queue)
	}
	if fault.Exchange != "" || fault.RoutingKey != "" {
		f.Exchange, f.RoutingKey = fault.Exchange, fault.RoutingKey
	}
	f.Reason = cmp.Or(f.Reason, wire.ReasonReported)
	f.Attempts = cmp.Or(fault.Attempts, f.Attempts)
	if !fault.FirstFailed.IsZero() {
		f.First = fault.FirstFailed
	}
	if !fault.Failed.IsZero() {
		f.Last = fault.Failed
	}
}

// believed returns a time that a clock can have shown by now; the zero time is none.
func believed(t, now time.Time) time.Time {
	if t.Year() < 2000 || t.After(now) {
		return time.Time{}
	}
	return t
}
