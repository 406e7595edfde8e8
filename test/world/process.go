package world

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/audit"
	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/cluster"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/server"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/testenv/memstore"
	"github.com/redrive-mq/redrive/testenv/pipe"
	"github.com/redrive-mq/redrive/wire"
)

// folder is where the store is, on the world's disk.
const folder = "/var/lib/redrive"

// restorable is how long what a person discards is there: to the end of the run.
const restorable = 1000 * time.Hour

// process is the service as server wires it: the path of a message, without page and API.
type process struct {
	place      int
	store      engine // as the service reaches it
	reached    *reached
	kept       engine // as it is
	member     *memstore.Member
	replica    *server.Replica // nil: no others can use its store
	network    *network
	hook       hook
	throttle   *throttle.Throttle
	cutOff     trouble // its store is in trouble for it alone
	inForce    *retry.InForce
	scheduler  *retry.Scheduler
	actions    *actions.Actions
	operations *operations.Runner
	canPublish func() bool
	stop       context.CancelFunc
	ended      sync.WaitGroup
}

type engine interface {
	retry.Store
	inspect.Store
	actions.Store
	Close() error
}

// startProcess opens the store, on the disk as it is or in memory, and starts.
func (w *World) startProcess(place int) (*process, error) {
	p := &process{place: place}
	p.network = &network{dial: w.broker.Dial}
	p.cutOff.random = newRandom(w.scenario.seed, 43+uint64(place))
	var shared store.Shared
	if w.disk == nil {
		p.member = w.memory.Join()
		p.kept, shared = p.member, p.member
	} else {
		onDisk, err := diskstore.Open(folder, diskstore.Options{FS: w.disk, Log: w.service})
		if err != nil {
			return nil, fmt.Errorf("opening the store: %w", err)
		}
		p.kept = onDisk
	}
	p.reached = &reached{engine: p.kept, redis: w.disk == nil, trouble: w.trouble, cutOff: &p.cutOff, hook: &p.hook,
		ledger: w.ledger, part: p.part("scheduler"), added: map[[sha256.Size]byte]bool{}, held: map[store.Key]heldClaim{}}
	p.store = p.reached
	if shared != nil {
		p.store = &sharedStore{p.reached, shared}
	}
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	if err := p.run(ctx, w); err != nil {
		stop()
		_ = p.close() // Join is the only error, and of a shared store
		return nil, err
	}
	return p, nil
}

// part names a part of this process in the ledger.
func (p *process) part(name string) string { return fmt.Sprint(name, " ", p.place) }

func (p *process) run(ctx context.Context, w *World) error {
	rules, log := w.rules(), w.service
	connection := func(name string) broker.Config {
		return broker.Config{URL: "amqp://guest:guest@model/%2F", Name: name, Log: log, AMQP: amqp.Config{Dial: p.network.Dial}}
	}
	limits := map[string]throttle.Rules{}
	for _, q := range w.scenario.queues {
		limits[q.name] = q.limits
	}
	th := throttle.New(func(queue string) throttle.Rules { return limits[queue] }, rand.Float64, func(throttle.Transition) {})
	p.throttle = th
	heard := func(e retry.Event) {
		if e.Kind == retry.Failed {
			if elsewhere := th.Failed(e.Queue, e.ID, e.At); elsewhere && p.replica != nil {
				p.replica.AnnounceFailed(e.Queue, e.ID)
			}
			p.operations.Failed(e)
		}
		w.ledger.heard(e)
	}
	publisher := broker.NewPublisher(connection("redrive retries"))
	p.canPublish = publisher.Ready
	delayPublisher := broker.NewPublisher(connection("redrive delays"))
	p.inForce = retry.NewInForce(rules)
	wake := retry.NewWakeup()
	sender := retry.NewSender(publisher, p.inForce.Policies, nil, func(string) time.Duration { return throttle.DefaultNoQueue }, wake.Wake, heard)
	names := retry.NewReportedNames(p.store, sender)
	delays := retry.NewDelayQueues(delayPublisher, p.inForce.Policies, nil, 0, func(way string, err error) {
		log.Info("wait in RabbitMQ", "way", way, "error", err)
	})
	intake := retry.NewIntake(p.store, p.inForce, delays, names, nil, heard)
	parkedIntake := retry.NewParkedIntake(p.store, p.inForce, names, delays.MarkLost, heard)
	intakeConsumer := broker.NewIntakeConsumer(connection("redrive intake"), 4096, func(err error) {
		if err != nil {
			log.Error("intake", "error", err)
		}
	}, func(int) {})
	parkedConsumer := broker.NewParkedConsumer(connection("redrive parked"), 1024, func(error) {})
	p.scheduler = retry.NewScheduler(p.store, sender, th, wake, heard, log, func(store.Lane, error) {})

	if err := p.openForPeople(ctx, inspect.Config{Store: p.store, Broker: brokerQueues{publisher}, Policies: p.inForce.Policies, Log: log}, th, heard); err != nil {
		return err
	}

	publishing, stopPublishing := context.WithCancel(context.WithoutCancel(ctx))
	var publishers, workers sync.WaitGroup
	publishers.Go(func() { _ = publisher.Run(publishing) })
	publishers.Go(func() { _ = delayPublisher.Run(publishing) })
	workers.Go(func() { p.scheduler.Run(ctx, 10*time.Second) })
	workers.Go(func() { p.operations.Run(ctx) })
	if p.replica != nil {
		workers.Go(func() { p.replica.Run(ctx) })
		workers.Go(func() { p.reached.keepLeases(ctx) })
	}
	workers.Go(func() {
		if len(rules.Ways) > 0 {
			connecting, cancel := context.WithTimeout(ctx, 10*time.Second)
			delayPublisher.AwaitUsable(connecting)
			cancel()
		}
		_ = intakeConsumer.Run(ctx, &watched{Handler: intake, ledger: w.ledger, name: p.part("intake")})
	})
	workers.Go(func() {
		_ = parkedConsumer.Run(ctx, &watched{Handler: parkedIntake, ledger: w.ledger, name: p.part("parked intake")})
	})
	p.ended.Go(func() {
		workers.Wait()
		sender.Close()
		stopPublishing()
		publishers.Wait()
		delays.Wait()
	})
	return nil
}

// openForPeople makes what people use, and the replica where others may use the store too.
func (p *process) openForPeople(ctx context.Context, c inspect.Config, th *throttle.Throttle, heard retry.Listener) error {
	shared, isShared := p.store.(store.Shared)
	replicaID := ""
	if isShared {
		p.replica = server.NewReplica(shared, func() cluster.About { return cluster.About{CanPublish: p.canPublish()} }, c.Log)
		replicaID, c.Replicas, c.Changed = p.replica.ID, p.replica.Shown, p.replica.Changed
	}
	shows := inspect.New(c)
	p.actions = actions.New(actions.Config{Inspect: shows, Store: p.store, Audit: noAudit{}, Events: heard, Restorable: restorable, SetPaused: p.scheduler.Pause})
	p.operations = operations.New(operations.Config{Inspect: shows, Actions: p.actions, Store: p.store, Replica: replicaID})
	if !isShared {
		return nil
	}
	return p.replica.Join(ctx, server.ReplicaParts{Throttle: th, Scheduler: p.scheduler, Inspect: shows, Actions: p.actions, Operations: p.operations,
		CountFlow: func(string, [4]int64, time.Time) {}, LeaderTasks: []func(context.Context){shows.Lead, p.operations.Lead}})
}

// end stops the service in order, and closes its store; what is in memory stays.
func (p *process) end() error {
	p.stop()
	p.ended.Wait()
	return p.close()
}

// close closes the store; it releases what this process has claimed, if it answers.
func (p *process) close() error {
	if p.member != nil {
		p.member.Kill()
		return nil
	}
	return p.kept.Close()
}

// brokerQueues asks RabbitMQ about a queue, for a person.
type brokerQueues struct{ publisher *broker.Publisher }

func (q brokerQueues) Queue(ctx context.Context, name string) (at inspect.AtBroker, err error) {
	at.Consumers, at.Ready, err = q.publisher.Queue(ctx, name)
	at.Exists = err == nil
	if errors.Is(err, wire.ErrQueueGone) {
		err = nil
	}
	return at, err
}

// noAudit is an audit log that always works.
type noAudit struct{}

func (noAudit) Begin(audit.Entry) (func(string, int64), error) { return func(string, int64) {}, nil }

func (noAudit) Forget(context.Context, time.Time) error { return nil }

// disk is in memory. It can be full, and a crash leaves what was synced and, by chance, some of
// the rest.
type disk struct {
	*vfs.MemFS
	full atomic.Bool
}

// GetDiskUsage implements vfs.FS.
func (d *disk) GetDiskUsage(string) (vfs.DiskUsage, error) {
	u := vfs.DiskUsage{AvailBytes: 1 << 40, TotalBytes: 1 << 41, UsedBytes: 1 << 40}
	if d.full.Load() {
		u.AvailBytes, u.UsedBytes = 0, u.TotalBytes
	}
	return u, nil
}

// afterCrash is what a power cut leaves: of what was not synced, each write with a chance of
// survives percent.
func (d *disk) afterCrash(survives int, r *rand.Rand) *disk {
	return &disk{MemFS: d.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: survives, RNG: r})}
}

const (
	// theLeader is the place of the replica that leads when a fault happens.
	theLeader = -1
	// forGood is how long a replica is away that does not come back.
	forGood = -time.Second
)

// put puts a process into its place, nil for none.
func (w *World) put(place int, p *process) {
	defer lock(&w.mu)()
	w.replicas[place] = p
}

// running are the processes that are not away.
func (w *World) running() []*process {
	defer lock(&w.mu)()
	return slices.DeleteFunc(slices.Clone(w.replicas), func(p *process) bool { return p == nil })
}

// start starts a process of the service in a place, on the disk as it is. One whose store does not
// answer is started again, as its supervisor does.
func (w *World) start(place int) error {
	var p *process
	err := w.repeat(func() (err error) { p, err = w.startProcess(place); return err })
	if err == nil {
		w.put(place, p)
	}
	return err
}

// beside does something while all else goes on, where there are other replicas.
func (w *World) beside(do func() error) error {
	if w.scenario.replicas == 1 {
		return do()
	}
	w.returning.Go(func() {
		if err := do(); err != nil {
			w.broken(err)
		}
	})
	return nil
}

// struck is the process that a fault is about; nil: it is away, or the last one, which cannot go for
// good.
func (w *World) struck(f fault) *process {
	all := w.running()
	i := slices.IndexFunc(all, func(p *process) bool {
		if f.replica == theLeader {
			return p.replica.Leads()
		}
		return p.place == f.replica%w.scenario.replicas
	})
	if i < 0 || f.away == forGood && len(all) == 1 {
		w.say("there is no such replica, or it is the last one")
		return nil
	}
	return all[i]
}

// strike makes a fault of one process happen.
func (w *World) strike(p *process, f fault) error {
	if f.point != anywhere {
		return w.strikeAt(p, f)
	}
	end := func() error { return nil }
	switch f.kind {
	case cutService:
		f.cut(p.network, w.ledger.cut)
		return nil
	case losesStore:
		w.ledger.storeTrouble(f.away)
		p.cutOff.begin(f.away, f.percent)
		return nil
	case crash:
		w.crash(p, f)
	default:
		end = func() error {
			defer w.ledger.stopped()
			return p.end()
		}
	}
	w.put(p.place, nil)
	return w.beside(func() error {
		if err := end(); err != nil || f.away == forGood {
			return err
		}
		time.Sleep(f.away)
		return w.start(p.place)
	})
}

// crash ends a process at this instant: nothing of it reaches RabbitMQ or Redis any more, and what it still
// writes is on a disk that no one reads.
func (w *World) crash(p *process, f fault) {
	w.ledger.cut()
	p.reached.crash()
	p.network.end()
	if p.member != nil {
		p.member.Kill()
	} else {
		w.disk = w.disk.afterCrash(f.survives, w.random)
	}
	w.old.Go(func() { _ = p.end() }) // its disk is gone: whatever it says is of no account
}

// strikeAt has a process crash when it comes to a point in its work; in any case soon.
func (w *World) strikeAt(p *process, f fault) error {
	reached := p.hook.set(f.point)
	return w.beside(func() error {
		select {
		case <-reached:
		case <-time.After(20 * time.Second):
		}
		if !slices.Contains(w.running(), p) || f.away == forGood && len(w.running()) == 1 {
			p.hook.end() // it crashed or stopped meanwhile, or is the last one
			return nil
		}
		w.say("now: %s", f)
		f.point = anywhere
		return w.strike(p, f)
	})
}

// used is the process that a person uses: the nth of those that answer, once there is one.
func (w *World) used(nth int) *process {
	for {
		if all := w.running(); len(all) > 0 {
			return all[nth%len(all)]
		}
		time.Sleep(time.Second)
	}
}

// stored is the store as it is, to look at.
func (w *World) stored() engine {
	if w.disk == nil {
		return w.looking
	}
	return w.running()[0].kept
}

// hook holds a process at a point in its work, so that it crashes there.
type hook struct {
	mu                sync.Mutex
	at                point
	reached, released chan struct{}
}

// point is where a process is in its work when it crashes.
type point int

const (
	anywhere point = iota
	adding         // it is about to store what failed
	added          // it has, and has not noticed
	finishing
	finished
	pointCount
)

func (p point) String() string {
	return [...]string{"", " when it is about to store", " when it has just stored", " when it is about to end claims",
		" when it has just ended claims"}[p]
}

// set has the process held at a point, and returns what is closed then.
func (h *hook) set(p point) <-chan struct{} {
	defer lock(&h.mu)()
	h.at, h.reached, h.released = p, make(chan struct{}), make(chan struct{})
	return h.reached
}

// reach is called when the process is at a point.
func (h *hook) reach(p point) {
	h.mu.Lock()
	is, reached, released := h.at == p, h.reached, h.released
	if is {
		h.at = anywhere
	}
	h.mu.Unlock()
	if is {
		close(reached)
		<-released
	}
}

// end lets the process go on.
func (h *hook) end() {
	defer lock(&h.mu)()
	if h.at = anywhere; h.released != nil {
		close(h.released)
		h.released = nil
	}
}

// network is how one process reaches the model. Its connections can be cut.
type network struct {
	dial func(network, address string) (net.Conn, error)

	mu    sync.Mutex
	down  bool
	conns []*pipe.End // oldest first
}

// Dial is an amqp.Config.Dial.
func (n *network) Dial(network, address string) (net.Conn, error) {
	defer lock(&n.mu)()
	if n.down {
		return nil, errors.New("the network is down")
	}
	conn, err := n.dial(network, address)
	if err != nil {
		return nil, err
	}
	n.conns = append(n.conns, conn.(*pipe.End))
	return conn, nil
}

// open are the connections that are not cut yet.
func (n *network) open() []*pipe.End {
	defer lock(&n.mu)()
	n.conns = slices.DeleteFunc(n.conns, (*pipe.End).IsClosed)
	return slices.Clone(n.conns)
}

// end cuts all connections at once, for good: what is under way on them is lost.
func (n *network) end() {
	n.mu.Lock()
	n.down = true
	n.mu.Unlock()
	for _, c := range n.open() {
		_ = c.Close() // never fails
	}
}

const (
	// callTimeout is how long a call of Redis may take, and lease how long a claim stays with a
	// process that does not know of it: see redisstore.Options.
	callTimeout = 5 * time.Second
	lease       = 30 * time.Second
)

// trouble is what a store has while a fault lasts: some of what it is asked is not done, some is
// late, and where it is Redis some is done and not answered.
type trouble struct {
	mu      sync.Mutex
	random  *rand.Rand
	until   time.Time
	percent int // of the calls
}

func (t *trouble) begin(lasts time.Duration, percent int) {
	defer lock(&t.mu)()
	t.until, t.percent = time.Now().Add(lasts), percent
}

// manner is how one call goes.
type manner struct {
	late time.Duration
	lost bool
	err  error // it is not done; or with lost, it is, and this is what the caller sees
}

var (
	errTimeout  = fmt.Errorf("redis: %w", context.DeadlineExceeded)
	errsOfRedis = []error{fmt.Errorf("redis: %w", &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}), fmt.Errorf("redis: %w", io.EOF), errTimeout,
		fmt.Errorf("redis: %w", &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED})} // the last: not done for sure
	errMemory = fmt.Errorf("redis: %w: OOM command not allowed when used memory > 'maxmemory'", store.ErrFull)
	errDisk   = fmt.Errorf("writing to the store: %w", syscall.EIO)
)

// draw decides how a call goes.
func (t *trouble) draw(redis, adds bool) (m manner) {
	defer lock(&t.mu)()
	if !time.Now().Before(t.until) || t.random.IntN(100) >= t.percent {
		return m
	}
	switch t.random.IntN(4) {
	case 0:
		m.late = between(t.random, 0, 2*callTimeout)
		if redis && m.late > callTimeout {
			m.late, m.lost, m.err = callTimeout, true, errTimeout
		}
	case 1:
		if redis {
			m.lost, m.err = true, pick(t.random, errsOfRedis[:3]...)
			break
		}
		fallthrough
	default:
		m.err = errDisk
		if redis {
			m.err = pick(t.random, errsOfRedis...)
		}
		if adds && t.random.IntN(3) == 0 {
			m.err = errMemory
		}
	}
	return m
}

// unanswered is the error of a store in trouble.
type unanswered struct {
	error
	done bool // what was asked, all the same
}

func (u *unanswered) Unwrap() error { return u.error }

// reached is a store as a service reaches it. What its contract leaves to Redis's engine it does
// as that does: a batch whose answer was lost is the same one when it is added again, an end of a
// claim that was ended already is none, and claims whose answer was lost end with their lease.
type reached struct {
	engine
	redis   bool
	trouble *trouble // of all that use the store
	cutOff  *trouble // of this process alone
	hook    *hook
	ledger  *ledger
	part    string // of the service, in the ledger: its scheduler

	mu      sync.Mutex
	dead    bool                       // its process has crashed, and changes nothing any more
	changes sync.WaitGroup             // under way
	added   map[[sha256.Size]byte]bool // batches that were added, and the answer was lost
	held    map[store.Key]heldClaim
}

// heldClaim is a claim of a process until its lease ends.
type heldClaim struct {
	record *store.Record
	until  time.Time
}

// Kinds of calls.
const (
	adds   = 1 << iota // it needs room
	reads              // it changes nothing
	prompt             // the service may hold a mutex meanwhile: fake time would not pass, so it is never late
)

// draw decides about a call.
func (s *reached) draw(kind int) manner {
	if m := s.cutOff.draw(s.redis, kind&adds != 0); m != (manner{}) {
		return m
	}
	return s.trouble.draw(s.redis, kind&adds != 0)
}

// ask asks the store, as well as that goes now.
func (s *reached) ask(ctx context.Context, kind int, do func() error) error {
	m := s.draw(kind)
	if m.err != nil && !m.lost {
		return &unanswered{error: m.err}
	}
	if m.late > 0 && kind&prompt == 0 {
		select {
		case <-ctx.Done():
			return &unanswered{error: ctx.Err()}
		case <-time.After(m.late):
		}
	}
	if err := do(); err != nil {
		return err
	}
	if m.lost {
		return &unanswered{error: m.err, done: kind&reads == 0}
	}
	return nil
}

// asked is ask for what has an answer.
func asked[T any](ctx context.Context, s *reached, kind int, do func() (T, error)) (answer T, err error) {
	err = s.ask(ctx, kind, func() (err error) { answer, err = do(); return err })
	return answer, err
}

func (s *reached) Add(ctx context.Context, records []*store.Record) error {
	s.hook.reach(adding)
	defer s.hook.reach(added)
	of := store.HashOf(records)
	s.mu.Lock()
	wasAdded := s.added[of]
	s.mu.Unlock()
	kind := adds
	if wasAdded {
		kind = 0 // that needs no room
	}
	err := s.ask(ctx, kind, func() error {
		if wasAdded {
			return nil
		}
		return s.engine.Add(ctx, records)
	})
	defer lock(&s.mu)()
	switch {
	case err == nil:
		delete(s.added, of)
	case doneUnanswered(err):
		s.added[of] = true
	}
	return err
}

func (s *reached) Claim(ctx context.Context, lane store.Lane, upTo time.Time, n, maxBytes int) (claims []store.Claim, err error) {
	err = s.ask(ctx, 0, func() (err error) {
		claims, err = s.engine.Claim(ctx, lane, upTo, n, maxBytes)
		return err
	})
	if err != nil {
		lost := claims
		time.AfterFunc(lease, func() { _ = s.engine.Release(context.WithoutCancel(ctx), lost) }) // it may be closed
		return nil, err
	}
	defer lock(&s.mu)()
	for _, c := range claims {
		s.held[c.Key] = heldClaim{c.Record, time.Now().Add(lease)}
	}
	s.ledger.doubt(s.part, idsOf(claims)) // it may be published from now on
	return claims, nil
}

func idsOf(claims []store.Claim) (ids []string) {
	for _, c := range claims {
		ids = append(ids, idIn(c.Record.Message.Headers))
	}
	return ids
}

// holds reports whether a claim has not ended yet.
func (s *reached) holds(c store.Claim) bool {
	defer lock(&s.mu)()
	return s.held[c.Key].record == c.Record
}

func (s *reached) ended(c store.Claim) {
	defer lock(&s.mu)()
	if s.held[c.Key].record == c.Record {
		delete(s.held, c.Key)
	}
}

func (s *reached) Finish(ctx context.Context, outcomes []store.Outcome) (n int, err error) {
	s.hook.reach(finishing)
	defer s.hook.reach(finished)
	var ids []string
	for _, o := range outcomes {
		ids = append(ids, idIn(o.Claim.Record.Message.Headers))
	}
	s.ledger.doubt(s.part, ids)
	err = s.ask(ctx, 0, func() (err error) {
		held := slices.DeleteFunc(slices.Clone(outcomes), func(o store.Outcome) bool { return !s.holds(o.Claim) })
		if n, err = s.engine.Finish(ctx, held); err == nil {
			for _, o := range held {
				s.ended(o.Claim)
			}
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	s.ledger.certain(s.part, ids)
	return n, nil
}

func (s *reached) Release(ctx context.Context, claims []store.Claim) error {
	err := s.ask(ctx, 0, func() error {
		held := slices.DeleteFunc(slices.Clone(claims), func(c store.Claim) bool { return !s.holds(c) })
		if err := s.engine.Release(ctx, held); err != nil {
			return err
		}
		for _, c := range held {
			s.ended(c)
		}
		s.ledger.certain(s.part, idsOf(held))
		return nil
	})
	return err
}

func (s *reached) Next(ctx context.Context) ([]store.NextDue, error) {
	return asked(ctx, s, reads, func() ([]store.NextDue, error) { return s.engine.Next(ctx) })
}

func (s *reached) Counts(ctx context.Context) ([]store.QueueCount, error) {
	return asked(ctx, s, reads|prompt, func() ([]store.QueueCount, error) { return s.engine.Counts(ctx) })
}

func (s *reached) Remember(ctx context.Context, receipts []store.Receipt) error {
	return s.ask(ctx, adds, func() error { return s.engine.Remember(ctx, receipts) })
}

func (s *reached) Receipts(ctx context.Context) ([]store.Receipt, error) {
	return asked(ctx, s, reads, func() ([]store.Receipt, error) { return s.engine.Receipts(ctx) })
}

func (s *reached) Change(ctx context.Context, keys []store.Key, edit func(store.Key, *store.Record) store.Edit,
	entries func(int) []store.Entry) (n int, err error) {
	if !s.beginChange() {
		return 0, store.ErrClosed
	}
	defer s.changes.Done()
	alone := entries == nil
	o, edit, entries := s.ledger.observe(edit, entries)
	err = s.ask(ctx, adds, func() (err error) {
		n, err = s.engine.Change(ctx, keys, edit, entries)
		return err
	})
	if u := (*unanswered)(nil); errors.As(err, &u) && alone && n == 0 {
		u.done = false // it came too late: there was nothing to be done
	}
	if o.end(err == nil || doneUnanswered(err)); err != nil {
		return 0, err
	}
	return n, nil
}

func (s *reached) beginChange() bool {
	defer lock(&s.mu)()
	if !s.dead {
		s.changes.Add(1)
	}
	return !s.dead
}

// crash is when its process crashes: not in the middle of a Change, or no one would know whether that
// is done.
func (s *reached) crash() {
	s.mu.Lock()
	s.dead = true
	s.mu.Unlock()
	s.hook.end()
	s.changes.Wait()
}

func (s *reached) Entry(ctx context.Context, name string) ([]byte, error) {
	return asked(ctx, s, reads|prompt, func() ([]byte, error) { return s.engine.Entry(ctx, name) })
}

func (s *reached) Entries(ctx context.Context, prefix, after string, visit func(store.Entry) (bool, error)) error {
	return s.ask(ctx, reads|prompt, func() error { return s.engine.Entries(ctx, prefix, after, visit) })
}

func (s *reached) PutEntries(ctx context.Context, entries []store.Entry) error {
	return s.ask(ctx, prompt, func() error { return s.engine.PutEntries(ctx, entries) })
}

func (s *reached) Get(ctx context.Context, key store.Key) (store.Listed, error) {
	return asked(ctx, s, reads, func() (store.Listed, error) { return s.engine.Get(ctx, key) })
}

// sharedStore is a store in Redis, which others may use too.
type sharedStore struct {
	*reached
	shared store.Shared
}

func (s *sharedStore) Beat(ctx context.Context, replica string, about []byte, ttl time.Duration) ([]store.Replica, error) {
	return asked(ctx, s.reached, 0, func() ([]store.Replica, error) { return s.shared.Beat(ctx, replica, about, ttl) })
}

func (s *sharedStore) Leave(ctx context.Context, replica string) error {
	return s.ask(ctx, 0, func() error { return s.shared.Leave(ctx, replica) })
}

func (s *sharedStore) Lead(ctx context.Context, what, replica string, ttl time.Duration) (term uint64, leads bool, err error) {
	err = s.ask(ctx, 0, func() (err error) { term, leads, err = s.shared.Lead(ctx, what, replica, ttl); return err })
	return term, leads && err == nil, err
}

func (s *sharedStore) Resign(ctx context.Context, what, replica string) error {
	return s.ask(ctx, 0, func() error { return s.shared.Resign(ctx, what, replica) })
}

func (s *sharedStore) Send(ctx context.Context, topic string, message []byte) error {
	return s.ask(ctx, 0, func() error { return s.shared.Send(ctx, topic, message) })
}

func (s *sharedStore) Listen(ctx context.Context, topic string, receive func([]byte)) error {
	ctx, lose := context.WithCancelCause(ctx)
	defer lose(nil)
	err := s.ask(ctx, reads, func() error {
		return s.shared.Listen(ctx, topic, func(message []byte) {
			if m := s.draw(reads); m.err != nil {
				lose(&unanswered{error: m.err}) // the connection is gone, and with it what is sent
			}
			if ctx.Err() == nil {
				receive(message)
			}
		})
	})
	return cmp.Or(context.Cause(ctx), err)
}

// keepLeases renews the leases of what the process has claimed, until ctx ends, as redisstore does;
// those that it cannot renew end: then others may claim the messages.
func (s *reached) keepLeases(ctx context.Context) {
	tick := time.NewTicker(lease / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		renewed := s.draw(reads).err == nil
		s.endLeases(context.WithoutCancel(ctx), renewed)
	}
}

func (s *reached) endLeases(ctx context.Context, renewed bool) {
	defer lock(&s.mu)()
	now := time.Now()
	var over []store.Claim
	for key, c := range s.held {
		switch {
		case renewed:
			c.until = now.Add(lease)
			s.held[key] = c
		case !now.Before(c.until):
			over = append(over, store.Claim{Key: key, Record: c.record})
			delete(s.held, key)
		}
	}
	if len(over) > 0 && s.engine.Release(ctx, over) == nil { // it may be closed
		s.ledger.leasesEnded(over)
	}
}
