package broker

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/wire"
)

// While the leader of a queue hangs, RabbitMQ stops each channel at the first message that it
// publishes to the queue for the first time, and the whole connection when 400 messages of a
// channel that has published to it before have no answer, see session.credit. [measured on
// 3.10.8 and 4.3.6 with a suspended leader: TestAQueueThatHangsDelaysNoOther] So each
// destination with messages under way has a worker of its own, and each session of a worker
// (one channel) has fewer under way. A session that has as many as it may waits until hardly
// any is left, and RabbitMQ would idle meanwhile: then the worker continues on another one.
const (
	// maxWorkers is how many destinations can have messages under way at once before they share
	// workers: then one that hangs holds up those that share with it. RabbitMQ's default limit
	// is 2,047 channels for one connection.
	maxWorkers = 64
	// maxSessions is how many a worker has at most, so that one destination can have as many
	// messages under way as it may have claimed. With one, retries to a quorum queue took a
	// tenth longer.
	maxSessions = 4
	// maxRemembered is for how many destinations it is known which worker they had last.
	maxRemembered = 10_000
	// closeIdleAfter is how long a worker without messages keeps its sessions open,
	// closeIdleEvery how often that is checked.
	closeIdleAfter, closeIdleEvery = time.Minute, 20 * time.Second
)

// worker publishes the messages of one destination, one after the other: on one session, or
// on several where that is out of credit. Its goroutine runs while it has jobs.
type worker struct {
	publisher *Publisher

	// The rest is guarded by the publisher's mu.
	key        string // of the destination that has it, or had it last
	jobs       []*job
	running    bool // its goroutine
	publishing bool // one of jobs
	used       time.Time
	sessions   [maxSessions]*session // each nil until those before it are out of credit
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
	abandoned bool // nothing waits for the answers any more; guarded by the publisher's mu
}

// destinationOf names the destination of a message, for which it waits. Of Redrive's own
// exchanges that is the exchange: their routing keys are those of first publication, or lead
// to a queue that others share.
func destinationOf(o *wire.Outgoing) string {
	if strings.HasPrefix(o.Exchange, "redrive.") {
		return o.Exchange
	}
	return o.Exchange + "\x00" + o.RoutingKey
}

// dispatch passes a job to the worker of its destination. After the end of Run nothing is
// published any more.
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

// workerOf finds the worker of a destination: the one that it has; the one it had last, as
// the first message to a queue on a channel costs RabbitMQ more, or another, if that is idle;
// or a new one. Where there may be no more, it is the one that had an answer last. The caller
// holds mu.
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

// workerLimit leaves half of the channels that the connection may have to declarations and
// large messages. The caller holds mu.
func (p *Publisher) workerLimit() int {
	if p.conn == nil || p.conn.Config.ChannelMax == 0 {
		return maxWorkers
	}
	return max(1, min(maxWorkers, int(p.conn.Config.ChannelMax)/(2*maxSessions)))
}

// idle tells whether everything has its answer, or else when the last one came. The caller
// holds the publisher's mu.
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

// closeIdle closes the sessions of workers that have published nothing for long.
func (p *Publisher) closeIdle(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	kept := p.workers[:0]
	for _, w := range p.workers {
		if idle, _ := w.idle(); !idle || now.Sub(w.used) < closeIdleAfter {
			kept = append(kept, w)
			continue
		}
		for _, s := range w.sessions {
			if s != nil {
				s.retire()
			}
		}
	}
	if len(kept) < len(p.workers) {
		clear(p.workers[len(kept):])
		clear(p.byKey)
	}
	p.workers = kept
}

// run publishes until there is no other job.
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

// publish publishes one message, once there is a connection that no alarm blocks, and credit.
// When ctx ends it does not: nothing waits for the message's result any more.
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
		var answered <-chan struct{} // in the end of the session that has been out of credit for longest
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

// open waits for a connection, and opens another session when the current one has ended.
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

// answers adds the published messages of the job to pending, and the errors of the others to
// errs. When ctx ends before the job is done, all of its messages get wire.ErrNoAnswer.
func (j *job) answers(ctx context.Context, p *Publisher, pending []sentMessage, errs []error) []sentMessage {
	select {
	case <-j.published:
	case <-ctx.Done():
		j.cancel() // what is not published yet never is
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

// forget releases published messages for whose answers nothing waits any more.
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
