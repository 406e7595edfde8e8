package broker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/wire"
)

// While the leader of a queue hangs, RabbitMQ stops each channel at its first message to the queue, and the whole
// connection when 400 messages of a channel that has published to it before have no answer, see session.credit.
// [measured on 3.10.8 and 4.3.6 with a suspended leader: TestOnANodeOfItsOwn] So each destination with messages under
// way has a worker of its own, and each session of a worker (one channel) has fewer under way. A session with its
// maximum under way waits until hardly any is left; meanwhile the worker continues on another one.
const (
	// maxWorkers is how many destinations can have messages under way at once before they share workers: then one that
	// hangs delays those that share with it. RabbitMQ's default limit is 2,047 channels per connection.
	maxWorkers = 64
	// maxSessions lets one destination have as many messages under way as it may have claimed.
	maxSessions = 4
	// maxRemembered bounds the destinations whose latest worker is remembered.
	maxRemembered = 10_000
	// Every closeIdleEvery, workers without messages for closeIdleAfter close their sessions.
	closeIdleAfter, closeIdleEvery = time.Minute, 20 * time.Second
)

// worker publishes the messages of one destination, one after the other: on one session, or on several when that is out
// of credit. Its goroutine runs while it has jobs.
type worker struct {
	publisher *Publisher

	// The rest is guarded by the publisher's mu.
	key        string // its destination, or the latest one
	jobs       []*job
	running    bool
	publishing bool
	used       time.Time
	sessions   [maxSessions]*session // nil until those before it are out of credit
	current    int                   // the session that published last
}

// job is what one Send publishes to one destination.
type job struct {
	key       string
	ctx       context.Context
	cancel    context.CancelFunc
	out       []wire.Outgoing
	indices   []int         // in out
	sent      []sentMessage // in the order of indices, complete when published is closed
	published chan struct{}
	abandoned bool // nothing waits for the answers; guarded by the publisher's mu
}

// destinationOf names what a message may have to wait for. For Redrive's own exchanges it is the exchange: their
// routing keys are those of first publication, or lead to a shared queue.
func destinationOf(o *wire.Outgoing) string {
	if strings.HasPrefix(o.Exchange, "redrive.") {
		return o.Exchange
	}
	return o.Exchange + "\x00" + o.RoutingKey
}

// dispatch passes a job to the worker of its destination. After the end of Run it publishes nothing.
func (p *Publisher) dispatch(j *job) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.ended:
		for _, i := range j.indices {
			j.sent = append(j.sent, sentMessage{index: i, err: wire.ErrNoAnswer})
		}
		j.cancel()
		close(j.published)
		return
	default:
	}
	w := p.workerOf(j.key)
	w.jobs = append(w.jobs, j)
	if !w.running {
		w.running = true
		p.working.Go(w.run)
	}
}

// workerOf returns the worker of a destination: the one that it has; an idle one, preferably its latest, since the
// first message to a queue on a channel costs RabbitMQ more; or a new one. At the limit it is the worker with the
// latest answer. The caller holds mu.
func (p *Publisher) workerOf(key string) *worker {
	if w := p.byKey[key]; w != nil {
		if idle, _ := w.idle(); idle || w.key == key {
			w.key = key
			return w
		}
	}
	if len(p.byKey) >= maxRemembered {
		clear(p.byKey)
	}
	var latest *worker
	var answered time.Time
	for _, w := range p.workers {
		idle, at := w.idle()
		if idle || w.key == key {
			w.key, p.byKey[key] = key, w
			return w
		}
		if latest == nil || at.After(answered) {
			latest, answered = w, at
		}
	}
	if len(p.workers) < p.workerLimit() {
		w := &worker{publisher: p, key: key}
		p.workers, p.byKey[key] = append(p.workers, w), w
		return w
	}
	return latest
}

// workerLimit returns the limit of workers. It leaves half of the connection's channels to declarations and large
// messages. The caller holds mu.
func (p *Publisher) workerLimit() int {
	if p.conn == nil || p.conn.Config.ChannelMax == 0 {
		return maxWorkers
	}
	return max(1, min(maxWorkers, int(p.conn.Config.ChannelMax)/(2*maxSessions)))
}

// idle reports whether everything has its answer, and when the latest answer came. The caller holds the publisher's mu.
func (w *worker) idle() (yes bool, answered time.Time) {
	yes = !w.publishing && len(w.jobs) == 0
	for _, s := range w.sessions {
		if s == nil {
			continue
		}
		underWay, at := s.progress()
		yes = yes && underWay == 0
		if at.After(answered) {
			answered = at
		}
	}
	return yes, answered
}

func (p *Publisher) closeIdle(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.workers = slices.DeleteFunc(p.workers, func(w *worker) bool {
		if idle, _ := w.idle(); !idle || now.Sub(w.used) < closeIdleAfter {
			return false
		}
		for _, s := range w.sessions {
			if s != nil {
				s.retire()
			}
		}
		clear(p.byKey)
		return true
	})
}

func (w *worker) run() {
	p := w.publisher
	for {
		p.mu.Lock()
		if len(w.jobs) == 0 {
			w.jobs, w.running = nil, false
			p.mu.Unlock()
			return
		}
		j := w.jobs[0]
		w.jobs[0], w.jobs, w.publishing = nil, w.jobs[1:], true
		p.mu.Unlock()
		for _, i := range j.indices {
			m := w.publish(j.ctx, &j.out[i])
			m.index = i
			j.sent = append(j.sent, m)
		}
		j.cancel()
		p.mu.Lock()
		abandoned := j.abandoned
		w.publishing, w.used = false, time.Now()
		close(j.published)
		p.mu.Unlock()
		if abandoned {
			j.forget()
		}
	}
}

// publish waits for a usable connection and for credit, and publishes one message, unless ctx ends.
func (w *worker) publish(ctx context.Context, o *wire.Outgoing) sentMessage {
	if err := ctx.Err(); err != nil {
		return sentMessage{err: fmt.Errorf("%w: %w", wire.ErrNoAnswer, err)}
	}
	if len(o.Message.Body) >= largeMessage {
		m, err := w.publisher.publishAlone(ctx, o)
		m.err = err
		return m
	}
	for {
		s, err := w.awaitCredit(ctx)
		if err != nil {
			return sentMessage{err: err}
		}
		if s.begin() {
			m := sentMessage{session: s}
			if m.confirm, m.err = s.publish(o); m.err != nil {
				s.end()
			}
			return m
		}
	}
}

// awaitCredit returns a session with credit: the one that published last, if it has some. So no
// message overtakes another while at most noWaitUnderWay are under way.
func (w *worker) awaitCredit(ctx context.Context) (*session, error) {
	for {
		var answered <-chan struct{} // at last, of the session that has been out of credit for longest
		for range w.sessions {
			s, err := w.open(ctx)
			if err != nil {
				return nil, err
			}
			var yes bool
			if yes, answered = s.credit(); yes {
				return s, nil
			}
			w.current = (w.current + 1) % maxSessions
		}
		select {
		case <-answered:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", wire.ErrNoAnswer, ctx.Err())
		}
	}
}

// open waits for a connection, and returns the current session, or a new one if that has ended.
func (w *worker) open(ctx context.Context) (*session, error) {
	for {
		conn, err := w.publisher.usableConn(ctx)
		if err != nil {
			return nil, err
		}
		if s := w.sessions[w.current]; s != nil && s.conn == conn && s.open() {
			return s, nil
		}
		s, err := newSessionUntil(ctx, conn)
		if err == nil {
			w.publisher.mu.Lock()
			w.sessions[w.current] = s
			w.publisher.mu.Unlock()
			return s, nil
		}
		if ctx.Err() != nil || !conn.IsClosed() {
			if ctx.Err() == nil {
				w.publisher.link.refused(err)
			}
			return nil, fmt.Errorf("%w: opening a channel: %v", wire.ErrNoAnswer, err)
		}
	}
}

// answers adds the published messages of the job to pending, and the errors of the others to errs. When ctx ends before
// the job is done, all of its messages get wire.ErrNoAnswer.
func (j *job) answers(ctx context.Context, p *Publisher, pending []sentMessage, errs []error) []sentMessage {
	select {
	case <-j.published:
	case <-ctx.Done():
		j.cancel() // publish no more
		p.mu.Lock()
		select {
		case <-j.published:
			p.mu.Unlock()
		default:
			j.abandoned = true
			p.mu.Unlock()
			for _, i := range j.indices {
				errs[i] = fmt.Errorf("%w: %w", wire.ErrNoAnswer, ctx.Err())
			}
			return pending
		}
	}
	for _, m := range j.sent {
		if errs[m.index] = m.err; m.err == nil {
			pending = append(pending, m)
		}
	}
	return pending
}

// forget releases published messages whose answers nothing waits for.
func (j *job) forget() {
	for _, m := range j.sent {
		switch {
		case m.err != nil:
		case m.alone:
			go m.session.close() // it ends with its connection, if not before
		default:
			m.session.end()
		}
	}
}

var (
	// errChannelEnded means that RabbitMQ ended the channel before it answered, because of this message or another.
	errChannelEnded = errors.New("the channel ended")
	// errNoExchange is the error of all messages to an exchange that is missing.
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
	sync    chan struct{} // see newSession
	opened  time.Time

	mu       sync.Mutex
	returned map[string]int // exchange and id of unroutable messages whose ack has not been collected
	pending  int            // published, and the answer not collected
	retired  bool           // accepts no more messages, see nacked

	underWay []*amqp.DeferredConfirmation // of messages published, from the first without an answer
	sent     int                          // messages published
	credited int                          // see credit
	answered time.Time                    // when underWay became shorter, or was empty
}

// RabbitMQ lets a connection's reader pass initialCredit messages to a channel, and moreCredit each time that the
// channel has handled that many (credit_flow_default_credit). A channel that waits for a queue grants no credit, and
// without credit the reader stops. With up to noWaitUnderWay messages without an answer no channel waits: a quorum
// queue makes it wait from 32 on (quorum_commands_soft_limit). [measured on 3.10.8 and 4.3.6: TestOnANodeOfItsOwn]
const initialCredit, moreCredit, noWaitUnderWay = 400, 200, 16

// credit reports whether one more message cannot use up RabbitMQ's credit, whatever the queue does. If it could,
// answered closes when it is worth asking again.
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

// dropAnswered forgets messages with an answer. The caller holds mu.
func (s *session) dropAnswered() {
	for len(s.underWay) > 0 {
		select {
		case <-s.underWay[0].Done():
			s.underWay, s.answered = s.underWay[1:], time.Now()
		default:
			return
		}
	}
}

// progress returns how many messages are without an answer, and when the last answer arrived.
func (s *session) progress() (underWay int, answered time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropAnswered()
	return len(s.underWay), s.answered
}

// staleAfter is the age from which a nack replaces a channel: a full queue nacks for good reason, and must not cost a
// channel for each message.
const staleAfter = 2 * time.Second

// nacked retires this channel, so that another replaces it. On RabbitMQ 3.10, a channel that first publishes to a
// quorum queue while its leader dies nacks all later messages for it. [measured on 3.10.8; rabbitmq-server #9241
// repairs it in 3.11]
func (s *session) nacked() {
	if time.Since(s.opened) >= staleAfter {
		s.retire()
	}
}

// retire makes the channel accept no more messages, and closes it as soon as each has its answer.
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

// begin counts a message that is about to be published. It returns false if the channel accepts no more.
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
	s := &session{conn: conn, ch: ch, limit: conn.Config.FrameSize, closed: make(chan struct{}), opened: time.Now(),
		answered: time.Now(),
		// Not buffered: when amqp091-go continues with the ack, listen has received the return before it, and a receive
		// from sync makes that visible.
		returns: ch.NotifyReturn(make(chan amqp.Return)), sync: make(chan struct{}), returned: map[string]int{}}
	end := ch.NotifyClose(make(chan *amqp.Error, 1))
	go s.listen(end)
	return s, nil
}

// newSessionUntil calls newSession, and abandons it when ctx ends.
func newSessionUntil(ctx context.Context, conn *amqp.Connection) (*session, error) {
	return untilEnd(ctx, func() (*session, error) { return newSession(conn) }, (*session).close)
}

// listen notes what RabbitMQ returns. It ends with the channel: amqp091-go then closes returns and end.
func (s *session) listen(end <-chan *amqp.Error) {
	defer close(s.closed)
	for open := true; open; {
		select {
		case r, ok := <-s.returns:
			if open = ok; !ok {
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

// connectionEnded reports whether an error ended the connection, not just the channel.
func connectionEnded(e *amqp.Error) bool {
	switch e.Code {
	case amqp.AccessRefused, amqp.NotFound, amqp.PreconditionFailed, amqp.ContentTooLarge, amqp.NoConsumers,
		amqp.ResourceLocked:
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
		return nil, fmt.Errorf("%w: its properties and headers take %d bytes, and one frame holds %d",
			wire.ErrUnacceptable, n, s.limit)
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

// syncReturns makes the messages that RabbitMQ has returned before the latest awaited answer visible to routed: it
// sends a return before the ack.
func (s *session) syncReturns() {
	select {
	case <-s.sync:
	case <-s.closed:
	}
}

// hasReturned reports whether RabbitMQ has returned a message before the latest awaited answer.
func (s *session) hasReturned() bool {
	s.syncReturns()
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.returned) > 0
}

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

// coalescingConn writes at once what has gathered during the last write: amqp091-go flushes after every message, which
// costs thousands of system calls a second.
type coalescingConn struct {
	net.Conn
	mu        sync.Mutex
	changed   sync.Cond // buffer, err, closing or unbounded
	buffer    []byte
	err       error
	closing   bool
	unbounded bool // see setUnbounded
	done      chan struct{}
}

// maxCoalesced is how many bytes are buffered before Write waits: a slow broker must not fill our memory.
const maxCoalesced = 1 << 20

func newCoalescingConn(c net.Conn) *coalescingConn {
	g := &coalescingConn{Conn: c, done: make(chan struct{})}
	g.changed.L = &g.mu
	go g.run()
	return g
}

func (c *coalescingConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.buffer) >= maxCoalesced && !c.unbounded && c.err == nil && !c.closing {
		c.changed.Wait()
	}
	if c.err != nil {
		return 0, c.err
	}
	if c.closing {
		return 0, net.ErrClosed
	}
	c.buffer = append(c.buffer, b...)
	c.changed.Broadcast()
	return len(b), nil
}

// setUnbounded turns the buffer's limit off and on. While an alarm blocks the connection only heartbeats are added.
func (c *coalescingConn) setUnbounded(yes bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unbounded = yes
	c.changed.Broadcast()
}

// run writes, on a goroutine of its own; Close ends it and waits for it.
func (c *coalescingConn) run() {
	defer close(c.done)
	var out []byte
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		for len(c.buffer) == 0 && !c.closing {
			c.changed.Wait()
		}
		if len(c.buffer) == 0 || c.err != nil {
			return
		}
		out, c.buffer = c.buffer, out[:0]
		c.changed.Broadcast()
		c.mu.Unlock()
		_, err := c.Conn.Write(out)
		c.mu.Lock()
		if err != nil {
			c.err = err
			c.changed.Broadcast()
			return
		}
	}
}

// Close closes the wrapped connection first, so that a write that hangs ends. By then amqp091-go has had the broker's
// answer to all that matters.
func (c *coalescingConn) Close() error {
	c.mu.Lock()
	c.closing = true
	c.changed.Broadcast()
	c.mu.Unlock()
	err := c.Conn.Close()
	<-c.done
	return err
}
