package world

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/redisstore"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/testenv/memredis"
)

const (
	// latest is how late a command comes to Redis at the latest, when its caller has given it up long
	// ago.
	latest = 20 * time.Second
	// latestWrite is that of a command that is not safe to come later than its caller waits: what it
	// writes is written whatever was written meanwhile.
	latestWrite = 4 * time.Second
	// longestOnRedis is how long a message waits there: each second of a world costs scripts.
	longestOnRedis = 2 * time.Minute
)

// OnRedis tells which worlds in Redis use Redis's own store in any case. Of the others few do: it costs
// ten times as much as the one in memory. Set it before the first world runs.
var OnRedis = func(seed uint64) bool { return false }

// ownRedis is how many worlds in Redis there are for each that uses Redis's own store.
const ownRedis = 12

// drawRedis has the store of some worlds be Redis's own, on a Redis in memory, which is in trouble
// more often.
func (s *scenario) drawRedis(r *rand.Rand) {
	if is := r.IntN(ownRedis) == 0; !s.inRedis || !is && !OnRedis(s.seed) {
		return
	}
	s.onRedis, s.everySecond, s.withoutRedis = true, r.IntN(2) == 0, len(s.faults)
	for range r.IntN(3) {
		s.faults = append(s.faults, fault{at: between(r, 0, faultsEnd), kind: redisCrash, away: pick(r, 0, time.Second, 20*time.Second, time.Minute), loads: pick(r, 0, 3*time.Second), survives: pick(r, 0, 50, 100)})
	}
	for range 1 + r.IntN(3) {
		s.faults = append(s.faults, fault{at: between(r, 0, faultsEnd), kind: storeTrouble, away: pick(r, 20*time.Second, time.Minute), percent: pick(r, 10, 30)})
	}
	for _, q := range s.queues {
		if q.way == nil && q.library == nil && q.policy.Backoff.Delay(q.policy.Attempts) > longestOnRedis {
			was := q.policy.Backoff
			q.withoutRedis, q.policy.Backoff = &was, policy.Exponential(10*time.Second, 2, longestOnRedis)
		}
	}
	if s.replicas == 1 {
		return
	}
	// What is published is not confirmed for long, and meanwhile leases end, so that others publish it too.
	for range r.IntN(3) {
		at := between(r, 0, faultsEnd)
		s.faults = append(s.faults, fault{at: at, kind: memoryAlarm, away: pick(r, time.Minute, 3*time.Minute)},
			fault{at: at + between(r, 0, 20*time.Second), kind: losesStore, replica: r.IntN(s.replicas), away: pick(r, 40*time.Second, time.Minute), percent: 100})
	}
}

// redis is the Redis of a world, and what is known of what was done in it.
type redis struct {
	server  *memredis.Server
	trouble *trouble // of all that use it
	looking *redisstore.Store

	mu      sync.Mutex
	opened  int
	clients map[string]*redisClient
	claimed map[store.Key]*redisClient // and their ends are not known
}

func newRedis(everySecond bool, t *trouble) *redis {
	r := &redis{trouble: t, clients: map[string]*redisClient{}, claimed: map[store.Key]*redisClient{}}
	r.server = memredis.New(memredis.Options{EverySecond: everySecond, Fault: r.fault, Done: r.done})
	return r
}

// redisClient is one process's way to Redis.
type redisClient struct {
	redis  *redis
	name   string
	cutOff *trouble // of this process alone
	stall  *stall

	mu    sync.Mutex
	ended bool
	conns []net.Conn

	// What redis.mu protects.
	change  *redisChange            // the last one
	changes map[string]*redisChange // by their tokens
}

// redisChange is what became of a Change.
type redisChange struct {
	sent, done bool
	onDone     func() // when it is done after all; nil while its caller waits
}

// client makes the way to Redis of a process that is about to start.
func (r *redis) client(place int, cutOff *trouble, s *stall) *redisClient {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.opened++
	c := &redisClient{redis: r, name: fmt.Sprintf("%d of replica %d", r.opened, place), cutOff: cutOff, stall: s, changes: map[string]*redisChange{}}
	r.clients[c.name] = c
	return c
}

// dial connects a process.
func (c *redisClient) dial(ctx context.Context, _ string) (net.Conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.ended:
		return nil, errDown
	case c.stall.isOn(), c.cutOff.refuses(), c.redis.trouble.refuses():
		return nil, errRefused
	}
	conn, err := c.redis.server.Dial(ctx, c.name)
	if err == nil {
		c.conns = append(c.conns, conn)
	}
	return conn, err
}

// end is the end of the process: nothing of it reaches Redis any more, but for what is late.
func (c *redisClient) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	for _, conn := range c.conns {
		_ = conn.Close() // never fails
	}
}

// refuses tells whether a connection is refused.
func (t *trouble) refuses() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return time.Now().Before(t.until) && t.random.IntN(400) < t.percent
}

// command draws how a command goes that may be late by so much.
func (t *trouble) command(late time.Duration, grows bool) (f memredis.Fault) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !time.Now().Before(t.until) || t.random.IntN(100) >= t.percent {
		return f
	}
	switch t.random.IntN(5) {
	case 0:
		f.Late = between(t.random, 0, late)
	case 1:
		f.AnswerLate = between(t.random, 0, 2*callTimeout)
	case 2:
		f.CutAnswer = true
	case 3:
		f.Cut = true
	default:
		if f.Error = "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."; grows {
			f.Error = "OOM command not allowed when used memory > 'maxmemory'."
		}
	}
	return f
}

// Scripts by their first lines.
const (
	addScript    = "-- Add: "
	applyScript  = "-- Does what a Change decided"
	finishScript = "-- Finish: "
	claimScript  = "-- Claim: "
	renewScript  = "-- Renews the leases"
)

// kindOf is which of the scripts a command is; "" for any other.
func kindOf(c memredis.Command) string {
	for _, kind := range []string{addScript, applyScript, finishScript, claimScript, renewScript} {
		if strings.Contains(c.Script, "\n"+kind) {
			return kind
		}
	}
	return ""
}

// tokenAt is which argument of applyScript is its token, behind EVALSHA, the script, two keys, what is led
// and its term.
const tokenAt = 3 + 2 + 2

// fault decides how a command goes.
func (r *redis) fault(cmd memredis.Command) memredis.Fault {
	r.mu.Lock()
	c := r.clients[cmd.Client]
	kind := ""
	if c != nil {
		kind = kindOf(cmd)
	}
	if kind == applyScript && len(cmd.Args) > tokenAt && c.changes[cmd.Args[tokenAt]] == nil {
		c.change.sent = true
		c.changes[cmd.Args[tokenAt]] = c.change
	}
	r.mu.Unlock()
	if c == nil || strings.EqualFold(cmd.Args[0], "PING") { // rueidis waits for it with a mutex
		return memredis.Fault{}
	}
	if c.stall.isOn() {
		return memredis.Fault{Cut: true}
	}
	late := latestWrite
	if kind != "" {
		late = latest
	}
	if f := c.cutOff.command(late, kind == addScript); f != (memredis.Fault{}) {
		return f
	}
	return r.trouble.command(late, kind == addScript)
}

// done notes that a Change was done.
func (r *redis) done(cmd memredis.Command, answer any) {
	n, _ := answer.(int64)
	if n != 1 || kindOf(cmd) != applyScript {
		return
	}
	r.mu.Lock()
	c := r.clients[cmd.Client]
	was := c.changes[cmd.Args[tokenAt]]
	onDone := was.onDone
	was.done, was.onDone = true, nil
	r.mu.Unlock()
	if onDone != nil {
		onDone()
	}
}

// begin is when a Change is about to be sent.
func (c *redisClient) begin(is *redisChange) {
	c.redis.mu.Lock()
	defer c.redis.mu.Unlock()
	c.change = is
}

// became tells what has become of a Change that returned an error; onDone is called when it is done
// later.
func (c *redisClient) became(is *redisChange, onDone func()) (sent, done bool) {
	c.redis.mu.Lock()
	defer c.redis.mu.Unlock()
	if !is.done {
		is.onDone = onDone
	}
	return is.sent, is.done
}

// claims notes claims, and returns those of messages that were claimed already: the lease has ended.
func (c *redisClient) claims(all []store.Claim) (over []store.Claim) {
	c.redis.mu.Lock()
	defer c.redis.mu.Unlock()
	for _, claim := range all {
		if c.redis.claimed[claim.Key] != nil {
			over = append(over, claim)
		}
		c.redis.claimed[claim.Key] = c
	}
	return over
}

// endClaims notes that this process has ended claims.
func (c *redisClient) endClaims(all []store.Claim) {
	c.redis.mu.Lock()
	defer c.redis.mu.Unlock()
	for _, claim := range all {
		if c.redis.claimed[claim.Key] == c {
			delete(c.redis.claimed, claim.Key)
		}
	}
}

// openRedis opens the store of a process, or for the world to look at.
func (w *World) openRedis(dial func(context.Context, string) (net.Conn, error)) (*redisstore.Store, error) {
	s, err := redisstore.Open(context.Background(), redisstore.Options{URL: "redis://memory:6379", Dial: dial, Log: w.service, Lease: lease, Timeout: callTimeout})
	if err != nil {
		return nil, &unanswered{error: fmt.Errorf("opening the store: %w", err)}
	}
	return s, nil
}

// look opens the store for the world to look at.
func (w *World) look() (err error) {
	w.redis.looking, err = w.openRedis(func(ctx context.Context, _ string) (net.Conn, error) { return w.redis.server.Dial(ctx, "the world") })
	return err
}

func (r *redis) close() {
	if r.looking != nil {
		_ = r.looking.Close()
	}
	r.server.Close()
}

// lookedAt is a store that the world looks at until it answers: Redis may be away.
type lookedAt struct{ engine }

func (l lookedAt) Scan(ctx context.Context, of store.Range, visit func(store.Listed) (bool, error)) error {
	var all []store.Listed
	for {
		all = nil
		err := l.engine.Scan(ctx, of, func(l store.Listed) (bool, error) { all = append(all, l); return true, nil })
		if err == nil {
			break
		}
		time.Sleep(time.Second)
	}
	for _, one := range all {
		if more, err := visit(one); err != nil || !more {
			return err
		}
	}
	return nil
}

// crashRedis ends Redis, and starts it again.
func (w *World) crashRedis(f fault) {
	if w.redis == nil {
		return
	}
	w.ledger.storeTrouble(f.away + f.loads)
	w.ledger.cut() // what was claimed may be forgotten
	w.redis.server.Crash(func() bool { return w.random.IntN(100) < f.survives })
	w.returning.Go(func() {
		time.Sleep(f.away)
		w.redis.server.Start(f.loads)
	})
}

// wentUnanswered tells whether an error of redisstore's says that Redis did not answer, or not in time.
func wentUnanswered(err error) bool {
	if errors.Is(err, store.ErrFull) || errors.Is(err, store.ErrDeposed) || errors.Is(err, store.ErrClosed) || errors.Is(err, store.ErrNotFound) {
		return false
	}
	return errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), "redis: ") || strings.Contains(err.Error(), "the change took so long")
}

// redisShared is redisstore as a process reaches it.
type redisShared struct {
	*sharedStore
	store *redisstore.Store
	clock *wallClock
}

// NewReceipts implements store.ReceiptReader.
func (s *redisShared) NewReceipts(ctx context.Context, at store.ReceiptsAt) (all []store.Receipt, next store.ReceiptsAt, err error) {
	_, err = s.ask(ctx, reads, func() (err error) { all, next, err = s.store.NewReceipts(ctx, at); return err })
	off := s.clock.off()
	for i := range all {
		all[i].FirstFailed = all[i].FirstFailed.Add(-off)
	}
	return all, next, err
}
