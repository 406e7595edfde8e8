package world

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/audit"
	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/cluster"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/replica"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/testenv/memstore"
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
	replica    *replica.Replica // nil: no others can use its store
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
	intake := retry.NewIntake(p.store, p.inForce, delays, names, heard)
	parkedIntake := retry.NewParkedIntake(p.store, names, delays.MarkLost, heard)
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
		p.replica = replica.New(shared, func() cluster.About { return cluster.About{CanPublish: p.canPublish()} }, c.Log)
		replicaID, c.Replicas, c.Changed = p.replica.ID, p.replica.Shown, p.replica.Changed
	}
	shows := inspect.New(c)
	p.actions = actions.New(actions.Config{Inspect: shows, Store: p.store, Audit: noAudit{}, Events: heard, Restorable: restorable, SetPaused: p.scheduler.Pause})
	p.operations = operations.New(operations.Config{Inspect: shows, Actions: p.actions, Store: p.store, Replica: replicaID})
	if !isShared {
		return nil
	}
	return p.replica.Join(ctx, replica.Parts{Throttle: th, Scheduler: p.scheduler, Inspect: shows, Actions: p.actions, Operations: p.operations,
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
	case damaged:
		if f.damage.killed {
			w.crash(p, f)
			end = func() error { return w.damageStore(f) }
			break
		}
		end = func() error {
			defer w.ledger.stopped()
			return errors.Join(p.end(), w.damageStore(f))
		}
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
	conns []*cable // oldest first
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
	c := &cable{Conn: conn, up: -1, down: -1}
	n.conns = append(n.conns, c)
	return c, nil
}

// open are the connections that are not cut yet.
func (n *network) open() (open []*cable) {
	defer lock(&n.mu)()
	for _, c := range n.conns {
		if !c.isCut() {
			open = append(open, c)
		}
	}
	n.conns = open
	return open
}

// end cuts all connections at once, for good: what is under way on them is lost.
func (n *network) end() {
	n.mu.Lock()
	n.down = true
	n.mu.Unlock()
	for _, c := range n.open() {
		c.cutNow()
	}
}

// cable is a connection that can be cut at a chosen byte of either direction.
type cable struct {
	net.Conn
	mu       sync.Mutex
	cut      bool
	up, down int // how many bytes still pass to RabbitMQ and from it before it is cut; negative: it is not
	onCut    func()
}

// arm cuts the connection once so many more bytes have passed in one direction; the other
// number is negative.
func (c *cable) arm(up, down int, onCut func()) {
	c.mu.Lock()
	c.up, c.down, c.onCut = up, down, onCut
	c.mu.Unlock()
	if up == 0 || down == 0 {
		c.cutNow()
	}
}

func (c *cable) isCut() bool {
	defer lock(&c.mu)()
	return c.cut
}

func (c *cable) cutNow() {
	c.mu.Lock()
	was, onCut := c.cut, c.onCut
	c.cut = true
	c.mu.Unlock()
	if !was {
		_ = c.Conn.Close() // never fails
		if onCut != nil {
			onCut()
		}
	}
}

// pass tells how many of n bytes pass, and whether the connection is cut behind them.
func (c *cable) pass(left *int, n int) (passing int, cut bool) {
	defer lock(&c.mu)()
	if c.cut {
		return 0, true
	}
	if *left < 0 {
		return n, false
	}
	if n < *left {
		*left -= n
		return n, false
	}
	n, *left = *left, 0
	return n, true
}

func (c *cable) Write(b []byte) (int, error) {
	n, cut := c.pass(&c.up, len(b))
	if n > 0 {
		if n, err := c.Conn.Write(b[:n]); err != nil {
			return n, err
		}
	}
	if cut {
		c.cutNow()
		return n, net.ErrClosed
	}
	return n, nil
}

func (c *cable) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil {
		return n, err
	}
	n, cut := c.pass(&c.down, n)
	if cut {
		c.cutNow()
		return n, net.ErrClosed
	}
	return n, nil
}

// Close is the process's own, and no cut.
func (c *cable) Close() error {
	c.mu.Lock()
	c.cut = true
	c.mu.Unlock()
	return c.Conn.Close()
}
