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

// Publisher publishes with confirms on its own connection, to each destination on its own channel, see worker. Its
// methods except Run are safe for concurrent use.
type Publisher struct {
	// Confirmed, if not nil, receives how long each Send took until RabbitMQ had answered, including the wait for a
	// connection. Set it before Run.
	Confirmed func(time.Duration)

	link    link
	ended   chan struct{}
	working sync.WaitGroup

	mu      sync.Mutex
	conn    *amqp.Connection // nil while not connected
	changed chan struct{}    // closed when conn changes, or the connection's state
	workers []*worker
	byKey   map[string]*worker // by destination, its latest
}

// NewPublisher returns a Publisher, which Run keeps connected.
func NewPublisher(c Config) *Publisher {
	p := &Publisher{changed: make(chan struct{}), ended: make(chan struct{}), byKey: map[string]*worker{}}
	observe := c.Observe
	c.Observe = func(s State) {
		p.signalChange()
		if observe != nil {
			observe(s)
		}
	}
	p.link.Config = c
	return p
}

// Run connects, and connects again, until ctx ends. Messages without an answer then get wire.ErrNoAnswer, as do later
// ones. Call Run once.
func (p *Publisher) Run(ctx context.Context) error {
	defer func() {
		p.mu.Lock()
		close(p.ended)
		p.mu.Unlock()
		p.working.Wait()
	}()
	coalesce := func(c net.Conn) net.Conn { return newCoalescingConn(c) }
	return p.link.keep(ctx, coalesce, func(ctx context.Context, conn *amqp.Connection) error {
		p.setConn(conn)
		defer p.setConn(nil)
		p.link.observe(State{Connected: true})
		for {
			select {
			case <-ctx.Done():
				if errors.Is(context.Cause(ctx), errSignInAgain) {
					p.setConn(nil)
					p.awaitAnswers(conn)
				}
				return nil
			case now := <-time.After(closeIdleEvery):
				p.closeIdle(now)
			}
		}
	})
}

// awaitAnswers waits up to closeLimit for the confirms of messages published on conn. The next connection publishes the
// others again.
func (p *Publisher) awaitAnswers(conn *amqp.Connection) {
	underWay := func() (n int) {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, w := range p.workers {
			for _, s := range w.sessions {
				if s != nil && s.conn == conn {
					one, _ := s.progress()
					n += one
				}
			}
		}
		return n
	}
	for end := time.Now().Add(closeLimit); underWay() > 0 && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
}

// AwaitUsable waits for a connection that no alarm blocks, until ctx ends.
func (p *Publisher) AwaitUsable(ctx context.Context) { _, _ = p.usableConn(ctx) }

// Ready reports whether there is a connection, and no alarm blocks it.
func (p *Publisher) Ready() bool {
	s := p.link.now()
	return s.Connected && s.Blocked == ""
}

func (p *Publisher) setConn(conn *amqp.Connection) {
	p.mu.Lock()
	p.conn = conn
	p.mu.Unlock()
	p.signalChange()
}

// signalChange makes goroutines that wait in usableConn check again.
func (p *Publisher) signalChange() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.changed)
	p.changed = make(chan struct{})
}

// usableConn waits for a connection that no alarm blocks: RabbitMQ reads nothing from a blocked one.
func (p *Publisher) usableConn(ctx context.Context) (*amqp.Connection, error) {
	for {
		p.mu.Lock()
		conn, changed := p.conn, p.changed
		p.mu.Unlock()
		if conn != nil && !conn.IsClosed() && p.link.now().Blocked == "" {
			return conn, nil
		}
		select {
		case <-changed: // another connection, or the end of an alarm
		case <-p.ended:
			return nil, wire.ErrNoAnswer
		case <-ctx.Done():
			return nil, wire.ErrNoAnswer
		}
	}
}

// largeMessage is the body size, in bytes, from which a message gets a channel of its own: a body over RabbitMQ's limit
// (16 MiB by default from 4.0) closes the channel, and unanswered messages on it must be sent again.
const largeMessage = 1 << 20

// Send publishes persistent and mandatory (except Unchecked) and returns a function, to be called once, that waits for
// RabbitMQ's answer to each message: nil if it is confirmed and routed, else wire.ErrUnroutable, ErrNacked,
// ErrUnacceptable, ErrForbidden or ErrNoAnswer, wrapped. Send waits for a connection that no alarm blocks; messages not
// published when ctx ends get ErrNoAnswer. Messages for one destination may overtake each other when more than
// noWaitUnderWay have no answer yet, and large ones always.
func (p *Publisher) Send(ctx context.Context, out []wire.Outgoing) (wait func(context.Context) []error) {
	began := time.Now()
	errs := make([]error, len(out))
	if _, err := p.usableConn(ctx); err != nil {
		for i := range errs {
			errs[i] = err
		}
		return func(context.Context) []error { return errs }
	}
	all := p.divide(ctx, out)
	return func(ctx context.Context) []error {
		pending := make([]sentMessage, 0, len(out))
		for _, j := range all {
			pending = j.answers(ctx, p, pending, errs)
		}
		p.awaitConfirms(ctx, out, pending, errs)
		if p.Confirmed != nil {
			p.Confirmed(time.Since(began))
		}
		return errs
	}
}

func (p *Publisher) divide(ctx context.Context, out []wire.Outgoing) (all []*job) {
	by := map[string]*job{}
	for i := range out {
		key := destinationOf(&out[i])
		j := by[key]
		if j == nil {
			j = &job{key: key, out: out, published: make(chan struct{})}
			j.ctx, j.cancel = context.WithCancel(ctx)
			by[key], all = j, append(all, j)
		}
		j.indices = append(j.indices, i)
	}
	for _, j := range all {
		p.dispatch(j)
	}
	return all
}

type sentMessage struct {
	index   int
	session *session
	confirm *amqp.DeferredConfirmation
	alone   bool  // on a session of its own
	err     error // not published
}

// awaitConfirms waits for the answers to pending. It sends messages without an answer when their channel ended again,
// each on a channel of its own: so only the one that RabbitMQ refuses gets the error, and it ends no other's channel.
func (p *Publisher) awaitConfirms(ctx context.Context, out []wire.Outgoing, pending []sentMessage, errs []error) {
	refused := map[string]error{} // by exchange, if it or a permission is missing for all its messages
	var synced *session
	for _, m := range pending {
		errs[m.index] = m.session.answer(ctx, m.confirm)
	}
	for _, m := range pending {
		if m.alone {
			errs[m.index] = p.link.noted(m.session.judgeAlone(&out[m.index], errs[m.index]))
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
			if err = refused[exchange]; err == nil {
				err = p.link.noted(p.sendAlone(ctx, &out[m.index]))
				if errors.Is(err, wire.ErrForbidden) || errors.Is(err, errNoExchange) {
					refused[exchange] = err
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

func (p *Publisher) sendAlone(ctx context.Context, o *wire.Outgoing) error {
	m, err := p.publishAlone(ctx, o)
	if err != nil {
		return err
	}
	return m.session.judgeAlone(o, m.session.answer(ctx, m.confirm))
}

// publishAlone publishes one message on a channel of its own, which judgeAlone closes.
func (p *Publisher) publishAlone(ctx context.Context, o *wire.Outgoing) (sentMessage, error) {
	conn, err := p.usableConn(ctx)
	if err != nil {
		return sentMessage{}, err
	}
	own, err := newSessionUntil(ctx, conn)
	if err != nil {
		return sentMessage{}, fmt.Errorf("%w: %v", wire.ErrNoAnswer, err)
	}
	confirm, err := own.publish(o)
	if err != nil {
		go own.close()
	}
	return sentMessage{session: own, confirm: confirm, alone: true}, err
}

// judgeAlone returns the result of a session's only message, whose answer is err, and closes the session.
func (s *session) judgeAlone(o *wire.Outgoing, err error) error {
	defer func() { go s.close() }() // an alarm may delay it until the connection ends
	switch {
	case err == nil:
		s.syncReturns()
		return s.routed(o)
	case errors.Is(err, errChannelEnded):
		return s.cause
	}
	return err
}

// canExist returns an error for a name that is not UTF-8, so that no queue can have it. RabbitMQ closes a connection
// that asks for it (501). [measured on 3.10.8 and 4.3.6]
func canExist(queue string) error {
	if !utf8.ValidString(queue) {
		return fmt.Errorf("queue %q: its name is not valid UTF-8: %w", queue, wire.ErrQueueGone)
	}
	return nil
}

func (p *Publisher) Version(ctx context.Context) (string, error) {
	conn, err := p.usableConn(ctx)
	if err != nil {
		return "", err
	}
	return versionOf(conn), nil
}

func (p *Publisher) Cluster(ctx context.Context) (string, error) {
	conn, err := p.usableConn(ctx)
	if err != nil {
		return "", err
	}
	return clusterOf(conn), nil
}

// Queue returns how many consumers and ready messages a queue has: wire.ErrQueueGone
// when there is no such queue.
func (p *Publisher) Queue(ctx context.Context, name string) (consumers, ready int, err error) {
	if err := canExist(name); err != nil {
		return 0, 0, err
	}
	answer := make(chan amqp.Queue, 1) // an abandoned function shares nothing else
	err = p.onChannel(ctx, func(ch *amqp.Channel) error {
		q, err := queueState(ch, name)
		answer <- q
		return err
	})
	if err != nil {
		return 0, 0, err
	}
	q := <-answer
	return q.Consumers, q.Messages, nil
}

// onChannel runs do on a channel of its own: an error closes it, so it must not be one that publishes. When ctx ends
// first, onChannel abandons do, which ends with its connection: under an alarm RabbitMQ answers nothing.
func (p *Publisher) onChannel(ctx context.Context, do func(*amqp.Channel) error) error {
	conn, err := p.usableConn(ctx)
	if err != nil {
		return err
	}
	_, err = untilEnd(ctx, func() (struct{}, error) { return struct{}{}, onChannel(conn, do) }, nil)
	if err != nil && errors.Is(err, ctx.Err()) {
		return fmt.Errorf("%w: %v", wire.ErrNoAnswer, err)
	}
	return p.link.noted(err)
}
