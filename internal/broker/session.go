package broker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/wire"
)

var (
	// errChannelEnded: RabbitMQ ended the channel before it answered, because of
	// this message or of another.
	errChannelEnded = errors.New("the channel ended")
	// errNoExchange: the exchange is missing, for all that is sent to it.
	errNoExchange = fmt.Errorf("the exchange does not exist: %w", wire.ErrUnroutable)
)

// session is one channel in confirm mode, from its opening to its end.
type session struct {
	conn   *amqp.Connection
	ch     *amqp.Channel
	limit  int           // frame size
	closed chan struct{} // closed at its end, when cause is set
	cause  error

	returns chan amqp.Return
	sync    chan struct{} // passes once returns has nothing left, see newSession
	opened  time.Time

	mu       sync.Mutex
	returned map[string]int // exchange and id of unroutable messages whose ack has not been collected
	pending  int            // published, and the answer not collected
	retired  bool           // it accepts no more messages, see nacked

	underWay []*amqp.DeferredConfirmation // of what was published, from the first without an answer on
	sent     int                          // published at all
	credited int                          // see credit
	answered time.Time                    // when underWay became shorter, or was empty
}

// RabbitMQ lets the reader of a connection pass initialCredit messages to a channel, and
// moreCredit each time that the channel has handled that many (credit_flow_default_credit). A
// channel that waits for a queue grants no credit, and without credit the reader reads nothing
// more from the whole connection. With up to noWaitUnderWay messages without an answer no
// channel waits: a quorum queue makes it wait from 32 on (quorum_commands_soft_limit).
// [measured on 3.10.8 and 4.3.6: TestAQueueThatHangsDelaysNoOther]
const initialCredit, moreCredit, noWaitUnderWay = 400, 200, 16

// credit tells whether one more message cannot use up RabbitMQ's credit, whatever the queue
// does. If it could, answered is closed when that is worth asking again.
func (s *session) credit() (yes bool, answered <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropAnswered()
	if len(s.underWay) <= noWaitUnderWay {
		s.credited = (s.sent - len(s.underWay)) / moreCredit * moreCredit
	}
	if s.sent-s.credited < initialCredit-1 {
		return true, nil
	}
	last := s.underWay[len(s.underWay)-1-noWaitUnderWay].Done()
	select {
	case <-last: // before earlier ones
		return false, s.underWay[0].Done()
	default:
		return false, last
	}
}

// dropAnswered forgets messages that have their answer. The caller holds mu.
func (s *session) dropAnswered() {
	for len(s.underWay) > 0 {
		select {
		case <-s.underWay[0].Done():
			s.underWay, s.answered = s.underWay[1:], time.Now()
			continue
		default:
		}
		return
	}
}

// progress returns how many messages are without an answer, and when the last answer arrived.
func (s *session) progress() (underWay int, answered time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropAnswered()
	return len(s.underWay), s.answered
}

// staleAfter is how old a channel must be to be replaced over a nack: a queue that is
// full nacks for good reason, and must not cost a channel for each message.
const staleAfter = 2 * time.Second

// nacked replaces this channel by another, and closes it when all its messages have their
// answers. On RabbitMQ 3.10, a channel that publishes to a quorum queue for the first time
// while the queue's leader dies nacks every message for that queue from then on. [measured on
// 3.10.8; rabbitmq-server #9241 repairs it in 3.11]
func (s *session) nacked() {
	if time.Since(s.opened) >= staleAfter {
		s.retire()
	}
}

// retire closes the channel as soon as every message has its answer; it accepts no more.
func (s *session) retire() {
	s.mu.Lock()
	last := !s.retired && s.pending == 0
	s.retired = true
	s.mu.Unlock()
	if last {
		go s.close() // ends with its connection at the latest: an alarm may delay it
	}
}

func (s *session) open() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.retired && !s.ch.IsClosed()
}

// begin counts a message that is about to be published; false: the channel accepts no more.
func (s *session) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.retired || s.ch.IsClosed() {
		return false
	}
	s.pending++
	return true
}

// end counts a message that has its answer, or was not published after all.
func (s *session) end() {
	s.mu.Lock()
	s.pending--
	last := s.retired && s.pending == 0
	s.mu.Unlock()
	if last {
		go s.close() // as in retire
	}
}

func newSession(conn *amqp.Connection) (*session, error) {
	ch, err := conn.Channel()
	if err != nil {
		return nil, explain(err)
	}
	if err := ch.Confirm(false); err != nil {
		return nil, explain(err)
	}
	s := &session{conn: conn, ch: ch, limit: conn.Config.FrameSize, closed: make(chan struct{}), opened: time.Now(), answered: time.Now(),
		// Not buffered: when amqp091-go continues with the ack, the return before it has been
		// received here, and a receive from sync makes that visible.
		returns: ch.NotifyReturn(make(chan amqp.Return)), sync: make(chan struct{}), returned: map[string]int{}}
	end := ch.NotifyClose(make(chan *amqp.Error, 1))
	go s.listen(end)
	return s, nil
}

// newSessionUntil is newSession, abandoned when ctx ends.
func newSessionUntil(ctx context.Context, conn *amqp.Connection) (*session, error) {
	return untilEnd(ctx, func() (*session, error) { return newSession(conn) }, (*session).close)
}

// listen ends when the channel does: amqp091-go then closes both its channels.
func (s *session) listen(end <-chan *amqp.Error) {
	defer close(s.closed)
	for returns := s.returns; returns != nil; {
		select {
		case r, ok := <-returns:
			if !ok {
				returns = nil
				continue
			}
			id, _ := r.Headers[wire.HeaderID].(string)
			s.mu.Lock()
			s.returned[r.Exchange+"\x00"+id]++
			s.mu.Unlock()
		case s.sync <- struct{}{}:
		}
	}
	s.cause = wire.ErrNoAnswer
	if e := <-end; e != nil {
		s.cause = explain(e)
		if e.Code == amqp.NotFound {
			s.cause = errNoExchange
		}
		if e.Code == amqp.PreconditionFailed && !errors.Is(s.cause, wire.ErrUnacceptable) {
			// This channel only publishes, so the error is about a message.
			s.cause = fmt.Errorf("%w: %s", wire.ErrUnacceptable, e.Reason)
		}
		if connectionEnded(e) {
			s.cause = fmt.Errorf("%w: %v", wire.ErrNoAnswer, s.cause)
		}
	}
}

// connectionEnded tells an error of the connection from one of the channel alone.
func connectionEnded(e *amqp.Error) bool {
	switch e.Code {
	case amqp.AccessRefused, amqp.NotFound, amqp.PreconditionFailed, amqp.ContentTooLarge, amqp.NoConsumers, amqp.ResourceLocked:
		return !e.Server
	}
	return true
}

func (s *session) close() {
	_ = s.ch.Close()
	<-s.closed
}

func (s *session) publish(o *wire.Outgoing) (*amqp.DeferredConfirmation, error) {
	if err := checkHeaders(o.Message.Headers, 0); err != nil {
		return nil, fmt.Errorf("%w: %v", wire.ErrUnacceptable, err)
	}
	if n := headerSize(o.Message); s.limit > 0 && n > s.limit {
		return nil, fmt.Errorf("%w: its properties and headers take %d bytes, and one frame holds %d", wire.ErrUnacceptable, n, s.limit)
	}
	c, err := s.ch.PublishWithDeferredConfirm(o.Exchange, o.RoutingKey, !o.Unchecked, false, publishing(o.Message))
	if err != nil {
		return nil, fmt.Errorf("%w: %v", wire.ErrNoAnswer, explain(err))
	}
	s.mu.Lock()
	s.dropAnswered()
	if s.sent++; len(s.underWay) == 0 {
		s.answered = time.Now()
	}
	s.underWay = append(s.underWay, c)
	s.mu.Unlock()
	return c, nil
}

// answer waits for RabbitMQ's answer to one message.
func (s *session) answer(ctx context.Context, c *amqp.DeferredConfirmation) error {
	acked, err := c.WaitContext(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %v", wire.ErrNoAnswer, err)
	case acked:
		return nil // or unroutable: see routed
	case !s.ch.IsClosed():
		return wire.ErrNacked
	}
	select {
	case <-s.closed:
	case <-ctx.Done():
		return wire.ErrNoAnswer
	}
	if errors.Is(s.cause, wire.ErrNoAnswer) {
		return s.cause
	}
	return errChannelEnded
}

// syncReturns makes what RabbitMQ has returned visible to routed, up to the latest answer that was
// waited for. RabbitMQ sends the return before the ack.
func (s *session) syncReturns() {
	select {
	case <-s.sync:
	case <-s.closed:
	}
}

// hasReturned tells whether RabbitMQ has returned any message, up to the latest answer that was
// waited for.
func (s *session) hasReturned() bool {
	s.syncReturns()
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.returned) > 0
}

// routed returns wire.ErrUnroutable for a confirmed message that RabbitMQ returned.
func (s *session) routed(o *wire.Outgoing) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := o.Exchange + "\x00" + o.ID
	if s.returned[key] == 0 {
		return nil
	}
	if s.returned[key]--; s.returned[key] == 0 {
		delete(s.returned, key)
	}
	return wire.ErrUnroutable
}
