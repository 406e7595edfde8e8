package redrive

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/headers"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// acknowledger does with a message what its attempt asks for: publish it elsewhere, wait for
// RabbitMQ's confirm, and only then acknowledge it.
type acknowledger struct {
	consumer Consumer // validated, with its defaults
	way      delay.Way
	limits   delay.Limits
	verify   bool
	log      *slog.Logger
	publish  *broker.Publisher
	closed   <-chan struct{} // of the client
	parked   func(ParkedMessage)

	declared        sync.Map    // by exchange: when a ticket's DeclareFirst was declared
	publishFails    atomic.Bool // publishing fails, and that was logged
	early           nativeEarly // Native: messages that the queue delivers again too soon
	shortenedLogged atomic.Bool // a handler asked for too long a wait, and that was logged
}

// acknowledge ends an attempt that failed. A nil error means that the message is acknowledged,
// after RabbitMQ has confirmed its copy where there is one, or with Native rejected, so that its
// queue delays it. Otherwise RabbitMQ delivers it again.
func (a *acknowledger) acknowledge(
	ctx context.Context, d *amqp.Delivery, m *Message, cannotRepublish string, f failure,
) (Outcome, error) {
	// What the handler did to the message stays with the handler, except for headers.
	headers := m.Headers
	*m = *message(d, a.consumer.Queue, a.limits.QueueCounts)
	delivered := m.Headers
	if headers != nil {
		m.Headers = headers
	}
	if m.ID == "" {
		m.ID = newID(a.consumer.Queue, &m.Message)
	}
	outcome, err := a.dispose(ctx, d, m, cannotRepublish, &f)
	if errors.Is(err, wire.ErrUnacceptable) && !reflect.DeepEqual(m.Headers, delivered) {
		a.log.Warn("the headers that a handler has set cannot be published; the message keeps those it was "+
			"delivered with", "queue", a.consumer.Queue, "id", m.ID, "error", err)
		m.Headers = delivered
		outcome, err = a.dispose(ctx, d, m, cannotRepublish, &f)
	}
	return outcome, err
}

// dispose carries out the verdict.
func (a *acknowledger) dispose(
	ctx context.Context, d *amqp.Delivery, m *Message, cannotRepublish string, f *failure,
) (Outcome, error) {
	v, t := a.verdict(m, f, cannotRepublish)
	if v.Asked > 0 && a.shortenedLogged.CompareAndSwap(false, true) { // once, not for each message
		a.log.Warn("a handler asked by RetryAfter for a longer delay than the policy allows; Policy.MaxRetryAfter "+
			"raises that", "queue", a.consumer.Queue, "id", m.ID, "asked", v.Asked, "waits", v.Delay)
	}
	switch v.Action {
	case policy.Discard:
		return outcomeOf(Discarded, Unsettled, d.Ack(false))
	case policy.Retry:
		if t.Requeue {
			a.early.watch(m, t.Delay)
			return outcomeOf(Retried, Unsettled, d.Reject(true))
		}
		if err := a.publishUntilConfirmed(ctx, a.outgoing(m, f, "", t), t, false); err != nil {
			return Unsettled, err
		}
		return outcomeOf(Retried, Unacknowledged, d.Ack(false))
	case policy.Forward:
		to := delay.Ticket{Exchange: v.Forward.Exchange, RoutingKey: v.Forward.RoutingKey}
		err := a.publishUntilConfirmed(ctx, a.outgoing(m, f, "", to), to, true)
		if err == nil {
			return outcomeOf(Forwarded, Unacknowledged, d.Ack(false))
		}
		if ctx.Err() != nil {
			return Unsettled, err
		}
		v.Why = fmt.Sprintf("%s, and cannot be forwarded to %s: %v", v.Why, v.Forward, err)
	}
	to := delay.Ticket{Exchange: wire.ExchangeParked, RoutingKey: a.consumer.Queue}
	if err := a.publishUntilConfirmed(ctx, a.outgoing(m, f, v.Why, to), to, false); err != nil {
		return Unsettled, err
	}
	a.parked(ParkedMessage{Queue: a.consumer.Queue, ID: m.ID, MessageID: m.MessageID, Attempt: m.Attempt, Reason: v.Why,
		Err: f.err})
	return outcomeOf(Parked, Unacknowledged, d.Ack(false))
}

// outcomeOf returns acknowledged if the message could be acknowledged, and otherwise failed.
func outcomeOf(acknowledged, failed Outcome, ackErr error) (Outcome, error) {
	if ackErr != nil {
		return failed, ackErr
	}
	return acknowledged, nil
}

// verdict decides, and finds where the message waits. It has no effects.
func (a *acknowledger) verdict(m *Message, f *failure, cannotRepublish string) (policy.Verdict, delay.Ticket) {
	v := a.decide(m, f, cannotRepublish)
	if v.Action != policy.Retry {
		return v, delay.Ticket{}
	}
	// Only jitter can pass the longest, since the policy's own waits were checked.
	t, err := a.way.Ticket(a.consumer.Queue, min(v.Delay, a.limits.Longest))
	if err != nil {
		return policy.Verdict{Why: err.Error()}, delay.Ticket{}
	}
	if a.limits.ServiceDecides && v.Delay > 0 {
		// Rounded up, or the message would come back before its delay is over.
		t.Headers = amqp.Table{wire.HeaderDelay: int64((v.Delay-1)/time.Millisecond) + 1}
	}
	return v, t
}

// decide asks the policy, unless the handler has decided.
func (a *acknowledger) decide(m *Message, f *failure, cannotRepublish string) policy.Verdict {
	switch {
	case f.discard:
		return policy.Verdict{Action: policy.Discard}
	case cannotRepublish != "":
		return policy.Verdict{Why: cannotRepublish}
	case f.tooOften:
		return policy.Verdict{Why: "it was delivered too often without an acknowledgement: its handler may have " +
			"ended the process"}
	case f.park:
		return policy.Verdict{Why: "its handler parked it"}
	case f.notRetried:
		return policy.Verdict{Why: "Consumer.Retry does not retry its error"}
	}
	if a.limits.ServiceDecides {
		v := policy.Verdict{Action: policy.Retry}
		if f.retryAfter != nil {
			v.Delay = max(f.retryAfter.Delay, 0)
		}
		return v
	}
	now := time.Now()
	of := policy.Failure{Queue: a.consumer.Queue, Reason: policy.Reported, Attempt: m.Attempt,
		Seed:    seed(m.ID, m.Attempt),
		Replays: m.Replays, Error: f.text, Err: f.err, Message: &m.Message, FirstFailed: m.FirstFailed, At: now}
	if of.FirstFailed.IsZero() {
		of.FirstFailed = now
	}
	if f.retryAfter != nil {
		of.Suggested = max(f.retryAfter.Delay, 1)
	}
	var v policy.Verdict
	if p := catch(func() { v = a.consumer.Policy.Decide(of) }); p != nil {
		return policy.Verdict{Why: fmt.Sprintf("a rule of its policy panicked: %v", p.Value)}
	}
	return v
}

// Decision is the verdict on a failed attempt.
type Decision struct {
	Outcome Outcome
	// Delay until the next attempt of a message that is retried, rounded up to what
	// Consumer.Wait can keep. With Service it is what RetryAfter asked for, or 0, and the
	// service decides; with Native it is the policy's, and the queue waits as its arguments say.
	Delay time.Duration
	// Asked is what RetryAfter asked for, where the policy allows less; else 0.
	Asked time.Duration
	// Why says why the message is parked, or what the policy did with it after the last attempt; "" for a
	// retry and for ErrDiscard.
	Why string
}

// Decide returns what would become of m if its handler returned failure, by the code that decides at run time. It
// connects to nothing, and the same arguments have the same result. Of m it reads Attempt (0 is 1) and ID, which
// decides the jitter. It returns an error if c is invalid or m is nil.
//
// Package redrivetest follows a message through all its attempts.
func (c Consumer) Decide(m *Message, failure error) (Decision, error) {
	if err := c.validateSettings(); err != nil {
		return Decision{}, err
	}
	if m == nil {
		return Decision{}, errors.New("redrive: Decide needs a Message")
	}
	if failure == nil {
		return Decision{Outcome: Succeeded}, nil
	}
	a := &acknowledger{consumer: c, way: c.Wait.way, limits: c.Wait.way.Limits()}
	f := a.classify(failure)
	v, t := a.verdict(m, &f, "")
	o := map[policy.Action]Outcome{policy.Park: Parked, policy.Retry: Retried, policy.Discard: Discarded,
		policy.Forward: Forwarded}[v.Action]
	return Decision{o, t.Delay, v.Asked, v.Why}, nil
}

// failure is what the error of an attempt asks for. The error's methods and Consumer.Retry
// are the user's code, so they are called once, here, where a panic is caught.
type failure struct {
	err        error  // as the handler returned it; nil for a message that no handler saw
	text       string // the error's own
	panicked   *PanicError
	discard    bool
	park       bool
	tooOften   bool // ErrMaxDeliveries
	retryAfter *RetryAfterError
	notRetried bool // Consumer.Retry does not retry it
}

// classify reads what an error asks for. A panic in the user's code is a failure like a handler's.
func (a *acknowledger) classify(err error) (f failure) {
	p := catch(func() {
		f = failure{err: err, text: textOf(err), discard: errors.Is(err, ErrDiscard),
			park: errors.As(err, new(*ParkError))}
		errors.As(err, &f.retryAfter)
		errors.As(err, &f.panicked)
		f.tooOften = errors.Is(err, ErrMaxDeliveries)
		if a.consumer.Retry != nil && !f.tooOften && !f.discard && !f.park && f.retryAfter == nil {
			f.notRetried = !a.consumer.Retry(err)
		}
	})
	if p != nil {
		return failure{err: p, text: textOf(p), panicked: p}
	}
	return f
}

// catch calls f, and returns the panic that it ended with, or nil.
func catch(f func()) (p *PanicError) {
	defer func() {
		if v := recover(); v != nil {
			p = &PanicError{Value: v, Stack: userFrames(string(debug.Stack()))}
		}
	}()
	f()
	return nil
}

// userFrames cuts the runtime's and Redrive's own frames off both ends of a panic's stack.
func userFrames(stack string) []byte {
	const ours = "github.com/redrive-mq/redrive."
	lines := strings.SplitAfter(stack, "\n") // two a frame: function, file
	first := slices.IndexFunc(lines, func(s string) bool { return strings.HasPrefix(s, "panic(") }) + 2
	end := len(lines)
	for i := first; i < len(lines); i++ {
		if strings.HasPrefix(lines[i], ours+"catch(") {
			end = i
			break
		}
	}
	for end-2 >= first && strings.HasPrefix(lines[end-2], ours) {
		end -= 2
	}
	return []byte(strings.Join(lines[first:end], ""))
}

// textOf returns an error's text, even where the error is a nil pointer or its Error panics.
func textOf(err error) (text string) {
	if p := catch(func() { text = err.Error() }); p != nil {
		return fmt.Sprintf("a %T, whose Error method panics: %v", err, p.Value)
	}
	return text
}

// header returns a failure's text for a header: for people, and for the next attempt.
func (f *failure) header() string {
	s := f.text
	if f.panicked != nil {
		s += "\n" + string(f.panicked.Stack)
	}
	s = strings.ToValidUTF8(s[:min(len(s), maxErrorText)], "\uFFFD") // which is longer than the byte that it replaces
	return strings.ToValidUTF8(s[:min(len(s), maxErrorText)], "")
}

// maxErrorText bounds the error text in a header, in bytes: RabbitMQ closes the connection on
// which properties do not fit one frame.
const maxErrorText = 2048

const (
	// Waits between tries of a publish that fails.
	minPublishWait = 100 * time.Millisecond
	maxPublishWait = 15 * time.Second
)

// publishUntilConfirmed publishes a message to where it waits, and again until RabbitMQ has confirmed it. Its error is
// wire.ErrUnacceptable when RabbitMQ never accepts it, and another when ctx ended first. elsewhere is for destinations
// that are not ours: one that is missing or forbidden is tried once. The service tries once and waits in its store
// (retry.Sender, retry.DelayQueues); here RabbitMQ has the only copy until the new one is confirmed, so publishing
// again is all that can be done.
func (a *acknowledger) publishUntilConfirmed(
	ctx context.Context, out wire.Outgoing, t delay.Ticket, elsewhere bool,
) error {
	for pause := minPublishWait; ; pause = min(2*pause, maxPublishWait) {
		since, err := a.send(ctx, t, out)
		if err == nil {
			err = t.CheckConfirm(since)
		}
		if err != nil {
			a.declared.Delete(t.Exchange)
		}
		switch {
		case err == nil:
			if a.publishFails.Load() && a.publishFails.CompareAndSwap(true, false) {
				a.log.Info("publishing failed messages works again", "queue", a.consumer.Queue)
			}
			return nil
		case errors.Is(err, wire.ErrUnacceptable):
			if _, there := out.Message.Headers[wire.HeaderError]; !there {
				return fmt.Errorf("publishing to exchange %q: %w", t.Exchange, err)
			}
			delete(out.Message.Headers, wire.HeaderError) // the text may be what is too much
			continue
		case errors.Is(err, errClosed):
			return err
		case elsewhere && (errors.Is(err, wire.ErrUnroutable) || errors.Is(err, wire.ErrForbidden)):
			return err
		case errors.Is(err, wire.ErrUnroutable) && !a.verify:
			// The queue or exchange that it would wait in was deleted: declare it again.
			err = errors.Join(err, a.publish.Declare(ctx, a.way.Topology(a.consumer.Queue)))
		}
		if ctx.Err() == nil && a.publishFails.CompareAndSwap(false, true) { // once, not for each message and try
			a.log.Warn("failed messages cannot be published, to be retried, parked or forwarded; they stay "+
				"unacknowledged, trying again", "queue", a.consumer.Queue, "id", out.ID, "exchange", t.Exchange,
				"error", err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("publishing to exchange %q: %w; %w", t.Exchange, err, context.Cause(ctx))
		case <-time.After(pause):
		}
	}
}

// send publishes once, and returns since when the queue that a ticket needs is known to exist.
func (a *acknowledger) send(ctx context.Context, t delay.Ticket, out wire.Outgoing) (since time.Time, err error) {
	if t.DeclareFirst != nil {
		if since, err = a.declareFirst(ctx, t); err != nil {
			return since, err
		}
	}
	if err = a.publish.Send(ctx, []wire.Outgoing{out})(ctx)[0]; err != nil {
		select {
		case <-a.closed:
			return since, errClosed
		default:
		}
	}
	return since, err
}

// declareFirst declares what a ticket needs, unless it did so less than ConfirmWithin/2 ago: the other half
// is left for the confirm.
func (a *acknowledger) declareFirst(ctx context.Context, t delay.Ticket) (at time.Time, err error) {
	if at, ok := a.declared.Load(t.Exchange); ok && time.Since(at.(time.Time)) < t.ConfirmWithin/2 {
		return at.(time.Time), nil
	}
	at = time.Now()
	if err = a.publish.Declare(ctx, *t.DeclareFirst); err == nil {
		a.declared.Store(t.Exchange, at)
	}
	return at, err
}

// outgoing returns the message as it is published, with its history in headers.
func (a *acknowledger) outgoing(m *Message, f *failure, parkedFor string, t delay.Ticket) wire.Outgoing {
	history := headers.History{ID: m.ID, Failures: m.Attempt, Queue: a.consumer.Queue, FirstFailed: m.FirstFailed,
		Reason: wire.ReasonReported, Error: f.header(), Replays: m.Replays}
	if history.FirstFailed.IsZero() {
		history.FirstFailed = time.Now()
	}
	p := history.ApplyTo(m.Message)
	out := t.Outgoing(m.ID, p)
	if parkedFor != "" {
		p.Headers[wire.HeaderParkReason] = parkedFor
	}
	if a.limits.ServiceDecides && t.Exchange == wire.ExchangeFailures {
		// The service counts this failure itself.
		p.Headers[wire.HeaderAttempt] = int64(m.Attempt - 1)
	}
	return out
}

// newID returns the id of a message that fails for the first time. If the publisher has set a message id, it is made
// from that and the content, so that it is the same when RabbitMQ delivers the message again after a crash.
func newID(queue string, m *wire.Message) string {
	if m.MessageID == "" {
		return headers.NewID(m).String()
	}
	h := sha256.New()
	for _, part := range []string{queue, m.Exchange, m.RoutingKey, m.AppID, m.MessageID} {
		_ = binary.Write(h, binary.BigEndian, uint64(len(part)))
		h.Write([]byte(part))
	}
	_ = binary.Write(h, binary.BigEndian, m.Timestamp.Unix())
	h.Write(m.Body)
	return headers.BindID(uuid.UUID(h.Sum(nil)[:16]), m).String()
}

// seed makes jitter differ between messages and attempts.
func seed(id string, attempt int) uint64 {
	u, _ := uuid.Parse(id) // one that cannot be parsed is no less a seed
	return binary.BigEndian.Uint64(u[8:]) ^ uint64(attempt)*0x9e3779b97f4a7c15
}

// nativeEarly detects that a work queue of Native delays less than the policy: it has no
// delay arguments, or others. RabbitMQ shows its clients no arguments, so one rejected message
// at a time is watched until it should be delivered again.
type nativeEarly struct {
	mu       sync.Mutex
	key      uint64 // of the message that is watched
	rejected time.Time
	wait     time.Duration
	reported bool
}

var nativeSeed = maphash.MakeSeed()

// contentKey distinguishes messages by their content: they carry no id of ours.
func contentKey(m *Message, attempt int) uint64 {
	var h maphash.Hash
	h.SetSeed(nativeSeed)
	for _, s := range []string{m.MessageID, m.CorrelationID, m.Timestamp.String(), string(rune(attempt))} {
		h.WriteString(s)
		h.WriteByte(0)
	}
	h.Write(m.Body)
	return h.Sum64()
}

// watch must be called before a message is rejected that is to be delivered again after wait.
func (e *nativeEarly) watch(m *Message, wait time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if now := time.Now(); !e.reported && now.Sub(e.rejected) >= e.wait {
		e.key, e.rejected, e.wait = contentKey(m, m.Attempt+1), now, wait
	}
}

// check reports, once, that a message was delivered again too soon: after took instead of wait.
func (e *nativeEarly) check(m *Message) (took, wait time.Duration, soon bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	took = time.Since(e.rejected)
	if e.reported || m.Attempt == 1 || took >= e.wait || contentKey(m, m.Attempt) != e.key {
		return 0, 0, false
	}
	e.reported = true
	return took, e.wait, true
}

// checkEarly logs that a queue does not delay its messages as its policy asks.
func (a *acknowledger) checkEarly(m *Message) {
	if !a.limits.QueueCounts {
		return
	}
	if took, wait, soon := a.early.check(m); soon {
		a.log.Error("a rejected message was delivered again too soon: the work queue does not delay it as the policy "+
			"says; declare the queue with redrive.NativeArguments, or set delayed-retry-type, -min and -max by a "+
			"RabbitMQ policy",
			"queue", a.consumer.Queue, "attempt", m.Attempt, "took", took, "wait", wait)
	}
}

// prepare declares the exchanges and queues that failed messages need, and returns nil when they
// exist. Its error is ctx's, or one that a person must correct.
func (a *acknowledger) prepare(ctx context.Context) error {
	version, err := a.publish.Version(ctx)
	if err != nil {
		return context.Cause(ctx) // it waits for a connection until then
	}
	if err := a.limits.CheckVersion(version); err != nil {
		return fmt.Errorf("redrive: %w", err)
	}
	for pause := minPublishWait; ; pause = min(2*pause, maxPublishWait) {
		err := a.declare(ctx)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case broker.NeedsPerson(err) || a.verify && errors.Is(err, wire.ErrUnroutable):
			return a.withRemedy(fmt.Errorf("redrive: %s for queue %q: %w", a.limits.Name, a.consumer.Queue, err), err)
		}
		a.log.Warn("cannot declare the exchanges and queues that failed messages need; trying again", "queue",
			a.consumer.Queue, "error", err)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}

func (a *acknowledger) declare(ctx context.Context) error {
	if a.verify {
		err := a.publish.Verify(ctx, a.way.Topology(a.consumer.Queue))
		if err != nil || !a.limits.ServiceDecides {
			return err
		}
		// The service declares this exchange, and may not have started yet.
		if err = a.publish.MayPublish(ctx, wire.ExchangeFailures, a.consumer.Queue); errors.Is(err,
			wire.ErrUnroutable) {
			return nil
		}
		return err
	}
	return a.publish.Declare(ctx, a.way.Topology(a.consumer.Queue))
}

// withRemedy adds the remedy for cause to err, where one is known.
func (a *acknowledger) withRemedy(err, cause error) error {
	remedy := ""
	switch {
	case errors.Is(cause, wire.ErrForbidden) && a.verify:
		remedy = "`redrive permissions --for library` prints the rights that it needs"
	case errors.Is(cause, wire.ErrForbidden):
		remedy = fmt.Sprintf("`redrive permissions --for library --queue %s` prints the rights that it needs; or let "+
			"another user declare what is needed, and set Config.Verify", a.consumer.Queue)
	case a.verify:
		remedy = "declare it, or run once without Config.Verify as a user with the permission to configure"
	case errors.Is(cause, wire.ErrQueueGone):
		remedy = "declare the work queue first"
	case errors.Is(cause, wire.ErrDiffers):
		remedy = "delete it when it is empty; it is then declared again"
	default:
		return err
	}
	return hint.Errorf(remedy, "%w", err)
}

// Settler settles deliveries for programs that keep an amqp091-go loop of their own. Make
// one with Client.NewSettler. It is safe for concurrent use, one delivery each.
type Settler struct {
	acknowledger *acknowledger
}

var errZeroSettler = hint.Errorf("make one with Client.NewSettler", "redrive: the Settler is nil or its zero value")

// NewSettler makes a Settler for one queue, which lasts until Client.Close. It declares what consumer.Wait needs in
// RabbitMQ, for as long as it takes or until ctx ends. Of consumer, Queue, Policy, Wait and Retry are used. Its errors
// are those with which Consume cannot begin.
func (c *Client) NewSettler(ctx context.Context, consumer Consumer) (*Settler, error) {
	if c == nil || c.publish == nil {
		return nil, errZero
	}
	if err := errors.Join(consumer.validateSettings(), consumer.validateVerify(c.config.Verify)); err != nil {
		return nil, err
	}
	if !c.enter() {
		return nil, errClosed
	}
	defer c.consumers.Done()
	s := c.newAcknowledger(consumer)
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer context.AfterFunc(c.consumeCtx, func() { stop(errClosed) })()
	if err := s.prepare(ctx); err != nil {
		return nil, err
	}
	return &Settler{s}, nil
}

// Message returns a delivery as a Handler would see it. It returns nil for a nil d.
func (s *Settler) Message(d *amqp.Delivery) *Message {
	if s == nil || s.acknowledger == nil || d == nil {
		return nil
	}
	m := message(d, s.acknowledger.consumer.Queue, s.acknowledger.limits.QueueCounts)
	s.acknowledger.checkEarly(m)
	return m
}

// Settle ends an attempt as a Handler's return of failure does: with nil it acknowledges d; otherwise it publishes the
// message to where it waits for its next attempt, or is parked, waits for RabbitMQ's confirm until ctx ends, and then
// acknowledges d. On an error d is not acknowledged, and RabbitMQ will deliver it again; if the Outcome is
// Unacknowledged, the copy exists all the same.
func (s *Settler) Settle(ctx context.Context, d *amqp.Delivery, failure error) (Outcome, error) {
	switch {
	case s == nil || s.acknowledger == nil:
		return Unsettled, errZeroSettler
	case d == nil:
		return Unsettled, errors.New("redrive: Settle needs a delivery")
	case failure == nil:
		return outcomeOf(Succeeded, Unsettled, d.Ack(false))
	}
	return s.acknowledger.acknowledge(ctx, d, s.Message(d), "", s.acknowledger.classify(failure))
}
