package broker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/wire"
)

// Publisher publishes with confirms, on a connection of its own.
type Publisher struct {
	// Confirmed, when not nil, receives how long RabbitMQ took to answer each Send. It is to
	// be set before Run.
	Confirmed func(time.Duration)

	link link

	mu      sync.Mutex
	session *session      // nil while there is none
	changed chan struct{} // closed when session changes, or the connection's state
}

// NewPublisher makes a publisher; Run keeps it connected.
func NewPublisher(c Config) *Publisher {
	p := &Publisher{changed: make(chan struct{})}
	observe := c.Observe
	c.Observe = func(s State) {
		p.wake()
		if observe != nil {
			observe(s)
		}
	}
	p.link.Config = c
	return p
}

// Run connects, and connects again for as long as it takes, until ctx ends. A
// Send then under way gets wire.ErrUnsent.
func (p *Publisher) Run(ctx context.Context) error {
	gather := func(c net.Conn) net.Conn { return newGatheringConn(c) }
	return p.link.keep(ctx, gather, func(ctx context.Context, conn *amqp.Connection) error {
		for ctx.Err() == nil {
			s, err := newSessionUntil(ctx, conn)
			if err != nil {
				return err
			}
			p.use(s)
			p.link.observe(State{Connected: true})
			select {
			case <-ctx.Done():
			case <-s.closed: // an error of one channel leaves the connection usable
			case <-s.stale:
			}
			p.use(nil)
		}
		return nil
	})
}

// Await waits for a connection that no alarm blocks, until ctx ends. Safe for concurrent use.
func (p *Publisher) Await(ctx context.Context) { _, _ = p.current(ctx) }

// Ready tells whether there is a connection, and no alarm blocks it. Safe for
// concurrent use.
func (p *Publisher) Ready() bool {
	s := p.link.now()
	return s.Connected && s.Blocked == ""
}

func (p *Publisher) use(s *session) {
	p.mu.Lock()
	p.session = s
	p.mu.Unlock()
	p.wake()
}

// wake makes whoever waits in current look again.
func (p *Publisher) wake() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.changed)
	p.changed = make(chan struct{})
}

// current waits for a session that is open, on a connection that no alarm blocks:
// RabbitMQ reads nothing from one that is blocked until the alarm is over.
func (p *Publisher) current(ctx context.Context) (*session, error) {
	for {
		p.mu.Lock()
		s, changed := p.session, p.changed
		p.mu.Unlock()
		if s != nil && s.open() && p.link.now().Blocked == "" {
			return s, nil
		}
		select {
		case <-changed: // Run replaces a session that has closed, or is to be; an alarm ends
		case <-ctx.Done():
			return nil, wire.ErrUnsent
		}
	}
}

// alone is the body size, in bytes, from which a message is sent on a channel of its own.
// One over RabbitMQ's limit (16 MiB by default from 4.0) ends the channel, and what
// was unanswered on it would have to be sent twice.
const alone = 1 << 20

// Send publishes persistent and mandatory (but for Unchecked), in order (but for large
// ones, which those behind them may overtake), and returns a function that
// waits for RabbitMQ's answer to each message: nil when it is confirmed and was
// routed, else wire.ErrUnroutable, ErrNacked, ErrUnacceptable, ErrForbidden or
// ErrUnsent, wrapped. Send is called by one goroutine at a time; until ctx ends it waits
// for a connection, and while an alarm blocks that: what is not published then is ErrUnsent.
func (p *Publisher) Send(ctx context.Context, out []wire.Outgoing) (wait func(context.Context) []error) {
	began := time.Now()
	errs := make([]error, len(out))
	pending := make([]sentMessage, 0, len(out))
	for i := range out {
		publish := p.publish
		if len(out[i].Message.Body) >= alone {
			publish = p.publishAlone // no one waits for its answer here: its target may give none
		}
		m, err := publish(ctx, &out[i])
		m.index = i
		if errs[i] = err; err == nil {
			pending = append(pending, m)
		}
	}
	return func(ctx context.Context) []error {
		p.collect(ctx, out, pending, errs)
		if p.Confirmed != nil {
			p.Confirmed(time.Since(began))
		}
		return errs
	}
}

type sentMessage struct {
	index   int
	session *session
	confirm *amqp.DeferredConfirmation
	alone   bool // the session is its own
}

func (p *Publisher) publish(ctx context.Context, o *wire.Outgoing) (sentMessage, error) {
	s, err := p.current(ctx)
	if err != nil {
		return sentMessage{}, err
	}
	if !s.begin() {
		return sentMessage{}, wire.ErrUnsent // just now; there is another in a moment
	}
	c, err := s.publish(o)
	if err != nil {
		s.end()
	}
	return sentMessage{session: s, confirm: c}, err
}

// collect waits for the answers to pending. What a channel's end left unanswered
// is sent again, each message by itself, so that exactly the one that RabbitMQ
// objected to gets the blame, and the same one does not end the next channel too.
func (p *Publisher) collect(ctx context.Context, out []wire.Outgoing, pending []sentMessage, errs []error) {
	var blamed map[string]error // by exchange: a right or an exchange that is missing is missing for all
	var synced *session
	for _, m := range pending {
		errs[m.index] = m.session.answer(ctx, m.confirm)
	}
	for _, m := range pending {
		if m.alone {
			errs[m.index] = m.session.judgeAlone(&out[m.index], errs[m.index])
			continue
		}
		err := errs[m.index]
		if err == nil {
			if synced != m.session {
				synced = m.session
				synced.syncReturns()
			}
			err = m.session.routed(&out[m.index])
		}
		if errors.Is(err, errChannelEnded) {
			exchange := out[m.index].Exchange
			if err = blamed[exchange]; err == nil {
				err = p.sendAlone(ctx, &out[m.index])
				if errors.Is(err, wire.ErrForbidden) || errors.Is(err, errNoExchange) {
					if blamed == nil {
						blamed = map[string]error{}
					}
					blamed[exchange] = err
				}
			}
		}
		if errs[m.index] = err; errors.Is(err, wire.ErrNacked) {
			m.session.nacked()
		}
	}
	for _, m := range pending {
		if !m.alone {
			m.session.end()
		}
	}
}

// sendAlone sends one message on a channel of its own and waits for the answer.
func (p *Publisher) sendAlone(ctx context.Context, o *wire.Outgoing) error {
	m, err := p.publishAlone(ctx, o)
	if err != nil {
		return err
	}
	return m.session.judgeAlone(o, m.session.answer(ctx, m.confirm))
}

// publishAlone publishes one message on a channel of its own, which judgeAlone closes.
func (p *Publisher) publishAlone(ctx context.Context, o *wire.Outgoing) (sentMessage, error) {
	s, err := p.current(ctx)
	if err != nil {
		return sentMessage{}, err
	}
	own, err := newSessionUntil(ctx, s.conn)
	if err != nil {
		return sentMessage{}, fmt.Errorf("%w: %v", wire.ErrUnsent, err)
	}
	confirm, err := own.publish(o)
	if err != nil {
		go own.close()
	}
	return sentMessage{session: own, confirm: confirm, alone: true}, err
}

// judgeAlone says what became of the only message of a session from its answer, and closes
// the session.
func (s *session) judgeAlone(o *wire.Outgoing, err error) error {
	defer func() { go s.close() }() // it ends with its connection, if not before: an alarm may hold it up
	switch {
	case err == nil:
		s.syncReturns()
		return s.routed(o)
	case errors.Is(err, errChannelEnded):
		return s.cause
	}
	return err
}

// canExist tells whether RabbitMQ can have a queue of that name. It has none that is
// not UTF-8, and ends the connection that asks for one, with 501. [measured on 3.10.8
// and 4.3.6]
func canExist(queue string) error {
	if !utf8.ValidString(queue) {
		return fmt.Errorf("queue %q: its name is not valid UTF-8: %w", queue, wire.ErrQueueGone)
	}
	return nil
}

// Version is RabbitMQ's. Safe for concurrent use.
func (p *Publisher) Version(ctx context.Context) (string, error) {
	s, err := p.current(ctx)
	if err != nil {
		return "", err
	}
	v, _ := s.conn.Properties["version"].(string)
	return v, nil
}

// BindReturn makes the retry exchange of queue and binds that queue alone:
// wire.ErrQueueGone when there is no such queue. Safe for concurrent use.
func (p *Publisher) BindReturn(ctx context.Context, queue string) error {
	if err := canExist(queue); err != nil {
		return err
	}
	exchange := wire.RetryExchange(queue)
	err := p.onChannel(ctx, func(ch *amqp.Channel) error { return bindReturn(ch, queue, exchange) })
	if errors.Is(err, wire.ErrQueueGone) {
		// The exchange is the permission to return; without its queue it goes too.
		_ = p.onChannel(ctx, func(ch *amqp.Channel) error { return ch.ExchangeDelete(exchange, true, false) })
	}
	return err
}

// bindReturn does not ask for the queue first: RabbitMQ 4.3 takes a minute to say that
// the node of a classic queue is down [measured on 4.3.6], and all returns would wait
// for that. Binding tells as well that there is none, and asks no queue.
func bindReturn(ch *amqp.Channel, queue, exchange string) error {
	if err := ch.ExchangeDeclare(exchange, amqp.ExchangeFanout, true, false, false, false, nil); err != nil {
		return err
	}
	return ch.QueueBind(queue, "", exchange, false, nil)
}

// ReturnExists tells whether queue has a retry exchange. Safe for concurrent use.
func (p *Publisher) ReturnExists(ctx context.Context, queue string) (bool, error) {
	if canExist(queue) != nil {
		return false, nil
	}
	err := p.onChannel(ctx, func(ch *amqp.Channel) error {
		return ch.ExchangeDeclarePassive(wire.RetryExchange(queue), amqp.ExchangeFanout, true, false, false, false, nil)
	})
	if errors.Is(err, wire.ErrUnroutable) {
		return false, nil
	}
	return err == nil, err
}

// Queue tells how many consumers and ready messages a queue has: wire.ErrQueueGone
// when there is no such queue. Safe for concurrent use.
func (p *Publisher) Queue(ctx context.Context, name string) (consumers, ready int, err error) {
	if err := canExist(name); err != nil {
		return 0, 0, err
	}
	told := make(chan amqp.Queue, 1) // do may be left behind, so it shares nothing
	err = p.onChannel(ctx, func(ch *amqp.Channel) error {
		q, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
		told <- q
		return err
	})
	if err != nil {
		return 0, 0, err
	}
	q := <-told
	return q.Consumers, q.Messages, nil
}

// onChannel runs do on a channel of its own: an error ends the channel it
// happens on, and the one that publishes must not be it. When ctx ends first do is
// left behind, until its connection ends: under an alarm RabbitMQ answers nothing.
func (p *Publisher) onChannel(ctx context.Context, do func(*amqp.Channel) error) error {
	s, err := p.current(ctx)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() {
		ch, err := s.conn.Channel()
		if err != nil {
			done <- fmt.Errorf("%w: %v", wire.ErrUnsent, explain(err))
			return
		}
		err = do(ch)
		_ = ch.Close()
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			return explain(err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %v", wire.ErrUnsent, ctx.Err())
	}
}
