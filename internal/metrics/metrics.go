// Package metrics turns events into Prometheus metrics. It registers nothing globally.
package metrics

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/redrive-mq/redrive/internal/cluster"
	"github.com/redrive-mq/redrive/internal/condition"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/throttle"
)

// Metrics of one service.
type Metrics struct {
	registry *prometheus.Registry
	register prometheus.Registerer // to it, with the label vhost where the process serves several

	// counters with the label queue; byQueue are all of them, and fromZero those without
	// another label, which begin at 0: see label
	deadLetters, ignored, retried, forwarded, parked, discarded, replayed, waits, refused, opened *prometheus.CounterVec

	byQueue, fromZero []*prometheus.CounterVec

	declaredAgain, listeners, notifications, rules, configLoads *prometheus.CounterVec

	lateness, sync, confirm           prometheus.Histogram
	connected, blocked                *prometheus.GaugeVec
	ready, intakeStopped, quarantined prometheus.Gauge

	mu     sync.Mutex
	queues map[string]time.Time // those with a label, and when something last happened to them
	wanted bool                 // a queue found none left
	off    map[string]int64     // ledgers that are off, as counting what is kept showed
}

// New makes the metrics of a service that keeps its messages in s; free returns the room left
// for them and what is kept in reserve, in bytes. Unless vhost is "", all have the label vhost.
func New(s store.Store, free func() (uint64, uint64, error), version, vhost string) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry(), queues: map[string]time.Time{}}
	m.register = m.registry
	if vhost != "" {
		m.register = prometheus.WrapRegistererWith(prometheus.Labels{"vhost": clean(vhost)}, m.registry)
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "redrive_" + name, Help: help}, labels)
		m.register.MustRegister(c)
		return c
	}
	byQueue := func(name, help string, more ...string) *prometheus.CounterVec {
		c := counter(name, help, append([]string{"queue"}, more...)...)
		if m.byQueue = append(m.byQueue, c); len(more) == 0 {
			m.fromZero = append(m.fromZero, c)
		}
		return c
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "redrive_" + name, Help: help}, labels)
		m.register.MustRegister(g)
		return g
	}
	histogram := func(name, help string, from float64, buckets int) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "redrive_" + name, Help: help,
			Buckets: prometheus.ExponentialBuckets(from, 2, buckets), NativeHistogramBucketFactor: 1.1,
			NativeHistogramMaxBucketNumber: 100})
		m.register.MustRegister(h)
		return h
	}
	m.deadLetters = byQueue("dead_letters_total", "Failed messages received.", "reason")
	m.ignored = byQueue("ignored_headers_total",
		"Failed messages with a header of Redrive's that should be a number and is none, and was ignored.", "header")
	m.retried = byQueue("retried_total", "Messages that RabbitMQ confirmed in their work queue again.")
	m.forwarded = byQueue("forwarded_total", "Messages that RabbitMQ confirmed where their policy, or a person's "+
		"copy, sends them.")
	m.parked = byQueue("parked_total", "Messages parked.")
	m.discarded = byQueue("discarded_total", "Messages discarded, by their policy or by a person.")
	m.replayed = byQueue("replayed_total", "Parked or waiting messages that a person replayed.")
	m.waits = byQueue("waits_total", "Messages that started to wait, by place: disk (the store, also in Redis), or a "+
		"way in RabbitMQ.", "wait")
	m.refused = byQueue("wait_refused_total",
		"Messages that wait in the store because RabbitMQ did not accept them.", "wait")
	m.opened = byQueue("breaker_opened_total", "How often the queue's breaker opened.")
	m.listeners = counter("event_failures_total",
		"Events that a part of the service (listener) missed because it panicked.", "listener")
	m.notifications = counter("notifications_total",
		"Notifications, by route and result: sent, or failed (tried again later).", "route", "result")
	m.rules = counter("rule_matches_total", "Failed messages about which a rule decided, by its policy and its name "+
		"or number.", "policy", "rule")
	m.lateness = histogram("retry_lateness_seconds", "Time from due to confirmed by RabbitMQ.", 0.0005, 20)
	m.sync = histogram("store_sync_seconds", "Time to make a batch durable in the store.", 0.0001, 18)
	m.confirm = histogram("confirm_seconds", "Time from sending a batch to RabbitMQ's last answer, with the wait for "+
		"a connection.", 0.0005, 18)
	m.connected = gauge("connected", "1 while connected to RabbitMQ.", "connection")
	m.blocked = gauge("blocked", "1 while a RabbitMQ alarm blocks the connection.", "connection")
	m.ready = gauge("ready", "1 while /readyz answers 200.").WithLabelValues()
	m.intakeStopped = gauge("intake_stopped",
		"1 while failed messages cannot be stored and stay in RabbitMQ.").WithLabelValues()
	m.quarantined = gauge("quarantine", "Messages that RabbitMQ failed to deliver to the intake, in its queue "+
		"redrive.quarantine.").WithLabelValues()
	m.declaredAgain = counter("declared_again_total",
		"Deleted exchanges and queues of Redrive that were declared again, by name.", "name")
	m.configLoads = counter("config_loads_total", "Loads of the config file, by result: ok or refused. After a "+
		"refused load the previous configuration stays in force.", "result")
	for _, r := range []string{"ok", "refused"} {
		m.configLoads.WithLabelValues(r)
	}
	gauge("build_info", "Always 1.", "version").WithLabelValues(version).Set(1)
	m.collects(func(ch chan<- prometheus.Metric) { m.contents(ch, s, free) }, upDesc, waitingDesc, parkedDesc,
		discardedDesc, overdueDesc, oldestDesc, freeDesc, reserveDesc, ledgerDesc, imbalanceDesc, damagedDesc)
	return m
}

// Handler serves these metrics alone.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// Handler serves the metrics of all services in this process, which differ in their labels,
// and the process's own.
func Handler(all ...*Metrics) http.Handler {
	process := prometheus.NewRegistry()
	process.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	from := prometheus.Gatherers{process}
	for _, m := range all {
		from = append(from, m.registry)
	}
	return promhttp.HandlerFor(from, promhttp.HandlerOpts{Registry: process})
}

// clean makes a label value valid UTF-8, since Prometheus panics at any other. RabbitMQ's strings
// are bytes: those that are not UTF-8 are shown as \xNN.
func clean(value string) string {
	if utf8.ValidString(value) {
		return value
	}
	quoted := strconv.Quote(value)
	return quoted[1 : len(quoted)-1]
}

// Event counts an event.
func (m *Metrics) Event(e retry.Event) {
	q := m.label(e.Queue, active)
	switch e.Kind {
	case retry.Failed:
		m.deadLetters.WithLabelValues(q, reasonLabel(e.Reason)).Inc()
		if e.Rule != "" {
			m.rules.WithLabelValues(clean(e.Policy), clean(e.Rule)).Inc()
		}
		if e.Ignored != "" {
			m.ignored.WithLabelValues(q, e.Ignored).Inc()
		}
	case retry.Waiting:
		m.waits.WithLabelValues(q, e.Way).Inc()
		if e.Instead != "" {
			m.refused.WithLabelValues(q, e.Instead).Inc()
		}
	case retry.Retried:
		m.retried.WithLabelValues(q).Inc()
		m.lateness.Observe(e.Late.Seconds())
	case retry.Forwarded:
		m.forwarded.WithLabelValues(q).Inc()
	case retry.Parked:
		m.parked.WithLabelValues(q).Inc()
	case retry.Discarded:
		m.discarded.WithLabelValues(q).Add(float64(max(e.N, 1)))
	case retry.Opened:
		m.opened.WithLabelValues(q).Inc()
	case retry.Replayed:
		m.replayed.WithLabelValues(q).Add(float64(e.N))
	}
}

// reasonLabel keeps what RabbitMQ does not say today out of the labels.
func reasonLabel(r string) string {
	switch r {
	case "rejected", "expired", "maxlen", "delivery_limit", "reported":
		return r
	}
	return "other"
}

// Recounted shows the queues whose ledger is off, and by how much.
func (m *Metrics) Recounted(off map[string]int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.off = off
}

// ListenerFailed counts an event that a listener panicked at.
func (m *Metrics) ListenerFailed(listener string) { m.listeners.WithLabelValues(clean(listener)).Inc() }

// Notified counts a notification by what came of it: sent or failed.
func (m *Metrics) Notified(route, result string) {
	m.notifications.WithLabelValues(clean(route), result).Inc()
}

// Synced observes a commit.
func (m *Metrics) Synced(d time.Duration) { m.sync.Observe(d.Seconds()) }

// Confirmed observes the answers to a batch.
func (m *Metrics) Confirmed(d time.Duration) { m.confirm.Observe(d.Seconds()) }

// Connection shows the state of a connection to RabbitMQ.
func (m *Metrics) Connection(name string, connected, blocked bool) {
	m.connected.WithLabelValues(name).Set(number(connected))
	m.blocked.WithLabelValues(name).Set(number(blocked))
}

// Ready shows whether the service is ready, and whether its intake has stopped.
func (m *Metrics) Ready(ready, intakeStopped bool) {
	m.ready.Set(number(ready))
	m.intakeStopped.Set(number(intakeStopped))
}

// Quarantined shows how many messages RabbitMQ could not deliver.
func (m *Metrics) Quarantined(n int) { m.quarantined.Set(float64(n)) }

// DeclaredAgain counts exchanges and queues that were declared again. Call it with 0 at the start,
// or Prometheus sees no increase.
func (m *Metrics) DeclaredAgain(n int, names ...string) {
	for _, name := range names {
		m.declaredAgain.WithLabelValues(name).Add(float64(n))
	}
}

// ConfigLoaded counts a load of the config file.
func (m *Metrics) ConfigLoaded(ok bool) {
	m.configLoads.WithLabelValues(map[bool]string{true: "ok", false: "refused"}[ok]).Inc()
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

const (
	// maxQueues is how many queues get a label of their own; the others share
	// "(other)", since a label value per queue for ever would fill Prometheus.
	maxQueues   = 500
	otherQueues = "(other)"
	// idleLabel is how long nothing must have happened to a queue that nothing is kept for
	// before another one can have its label, and maxReleased how many labels a scrape
	// releases, so that a burst of new names does not take those of all idle queues.
	idleLabel   = time.Hour
	maxReleased = 50
)

// labelNeed is why a queue needs a label: something happened to it, something is kept for it,
// or it is only known.
type labelNeed int

const (
	known labelNeed = iota
	kept
	active
)

// label is the queue's name, or what the queues beyond the limit share.
func (m *Metrics) label(queue string, why labelNeed) string {
	queue = clean(queue)
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.queues[queue]; ok {
		if why == active {
			m.queues[queue] = time.Now()
		}
		return queue
	}
	if len(m.queues) >= maxQueues {
		m.wanted = m.wanted || why != known
		return otherQueues
	}
	m.queues[queue] = time.Now()
	// They begin at 0 where they can be seen: a counter that comes up with a hundred
	// is no increase to Prometheus.
	for _, c := range m.fromZero {
		c.WithLabelValues(queue)
	}
	return queue
}

// release takes the labels of queues that nothing is kept for and nothing happened to
// lately, those idle for longest first, where others found none left. Their counters go
// with them: they begin at 0 again when such a queue comes back, as after a restart.
func (m *Metrics) release(counts []store.QueueCount) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.wanted {
		return
	}
	m.wanted = false
	used := map[string]bool{}
	for _, c := range counts {
		used[clean(c.Queue)] = true
	}
	var idle []string
	for queue, last := range m.queues {
		if !used[queue] && time.Since(last) > idleLabel {
			idle = append(idle, queue)
		}
	}
	slices.SortFunc(idle, func(a, b string) int { return m.queues[a].Compare(m.queues[b]) })
	for _, queue := range idle[:min(maxReleased, len(idle))] {
		delete(m.queues, queue)
		for _, c := range m.byQueue {
			c.DeletePartialMatch(prometheus.Labels{"queue": queue})
		}
	}
}

var (
	replicaDesc = prometheus.NewDesc("redrive_replica_start_time_seconds",
		"Start time of each live replica, in seconds since 1970.", []string{"replica", "address", "version"}, nil)
	leadsDesc = prometheus.NewDesc("redrive_replica_leads", "1 for the leader, 0 for the other replicas.",
		[]string{"replica"}, nil)
	beatDesc = prometheus.NewDesc("redrive_replica_beat_age_seconds",
		"Time since the last heartbeat that this replica received from the one in the label.", []string{"replica"}, nil)
)

type collector struct {
	descs   []*prometheus.Desc
	collect func(ch chan<- prometheus.Metric)
}

func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		ch <- d
	}
}

func (c *collector) Collect(ch chan<- prometheus.Metric) { c.collect(ch) }

func (m *Metrics) collects(collect func(ch chan<- prometheus.Metric), descs ...*prometheus.Desc) {
	m.register.MustRegister(&collector{descs, collect})
}

func gauge(ch chan<- prometheus.Metric, d *prometheus.Desc, v float64, labels ...string) {
	ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

// Store shows the id of a store that services share, so that dashboards count what each of them
// shows of it once.
func (m *Metrics) Store(id string) {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: "redrive_store_info",
		Help: "Always 1; the label store names the store that replicas share. Absent where only one service can use " +
			"the store.", ConstLabels: prometheus.Labels{"store": id}})
	g.Set(1)
	m.register.MustRegister(g)
}

// Replicas shows the live replicas, which all returns.
func (m *Metrics) Replicas(all func() []cluster.Replica) {
	m.collects(func(ch chan<- prometheus.Metric) {
		for _, r := range all() {
			gauge(ch, replicaDesc, float64(r.Since.UnixMilli())/1000, r.ID, clean(r.Address), clean(r.Version))
			gauge(ch, leadsDesc, number(r.Leads), r.ID)
			gauge(ch, beatDesc, max(0, time.Since(r.Beat).Seconds()), r.ID)
		}
	}, replicaDesc, leadsDesc, beatDesc)
}

// storeTimeout bounds the questions to a store, so that a scrape is answered in time although the
// store does not answer: Prometheus waits for 10 s.
const storeTimeout = 4 * time.Second

var (
	upDesc = prometheus.NewDesc("redrive_store_up",
		"1 while the store answers; while it does not, the metrics of its contents are left out.", nil, nil)
	waitingDesc = prometheus.NewDesc("redrive_waiting",
		"Waiting messages in the store, on disk or in Redis; those that wait in RabbitMQ are in its queues "+
			"redrive.delay.* and redrive.lane.*, or with delayed-exchange in an exchange.", []string{"queue"}, nil)
	discardedDesc = prometheus.NewDesc("redrive_discarded", "Discarded messages that can still be restored.",
		[]string{"queue"}, nil)
	parkedDesc  = prometheus.NewDesc("redrive_parked", "Parked messages.", []string{"queue"}, nil)
	overdueDesc = prometheus.NewDesc("redrive_overdue_seconds",
		"How long the waiting message with the earliest due time is overdue; 0 when none is.", []string{"queue"}, nil)
	oldestDesc = prometheus.NewDesc("redrive_oldest_waiting_seconds",
		"How long ago the waiting message with the earliest due time failed.", []string{"queue"}, nil)
	freeDesc = prometheus.NewDesc("redrive_store_free_bytes",
		"Free space on the store's disk, or in Redis's memory.", nil, nil)
	ledgerDesc = prometheus.NewDesc("redrive_ledger_total",
		"Messages that arrived (as=in), and messages by what became of them (each other value of as); the difference "+
			"is waiting, parked or discarded and can be restored.", []string{"queue", "as"}, nil)
	imbalanceDesc = prometheus.NewDesc("redrive_ledger_imbalance",
		"Messages that arrived and are missing from the other columns of the ledger; negative: the other columns "+
			"have too many. Stored messages are also counted one by one every ten minutes.", []string{"queue"}, nil)
	damagedDesc = prometheus.NewDesc("redrive_store_damaged",
		"Files of the store on disk, or parts of them, that cannot be read, and messages in Redis; "+
			"redrive_ledger_imbalance shows how many messages the files cost.", nil, nil)
	reserveDesc = prometheus.NewDesc("redrive_store_reserve_bytes",
		"Space that the store keeps free on its disk, or in Redis.", nil, nil)
)

func (m *Metrics) contents(ch chan<- prometheus.Metric, s store.Store, room func() (uint64, uint64, error)) {
	ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
	defer cancel()
	counts, err := s.Counts(ctx)
	var lines []store.LedgerLine
	if err == nil {
		lines, err = s.Ledger(ctx)
	}
	gauge(ch, upDesc, number(err == nil))
	if err != nil {
		return
	}
	m.release(counts)
	type sums struct{ waiting, parked, discarded, overdue, oldest float64 }
	by := map[string]sums{} // queues beyond the limit add up
	now := time.Now()
	for _, c := range counts {
		label := m.label(c.Queue, kept)
		sum := by[label]
		sum.waiting += float64(c.Waiting)
		sum.parked += float64(c.Parked)
		sum.discarded += float64(c.Discarded)
		if !c.NextDue.IsZero() {
			sum.overdue = max(sum.overdue, now.Sub(c.NextDue).Seconds())
		}
		if !c.NextFailed.IsZero() {
			sum.oldest = max(sum.oldest, now.Sub(c.NextFailed).Seconds())
		}
		by[label] = sum
	}
	for q, sum := range by {
		gauge(ch, waitingDesc, sum.waiting, q)
		gauge(ch, parkedDesc, sum.parked, q)
		gauge(ch, discardedDesc, sum.discarded, q)
		gauge(ch, overdueDesc, sum.overdue, q)
		gauge(ch, oldestDesc, sum.oldest, q)
	}
	if free, reserve, err := room(); err == nil {
		gauge(ch, freeDesc, float64(free))
		gauge(ch, reserveDesc, float64(reserve))
	}
	if d, ok := s.(store.Damageable); ok {
		gauge(ch, damagedDesc, float64(len(d.Damage())))
	}
	m.ledger(ch, lines)
}

// ledger sends what came and what became of it: of queues beyond the limit the sums, and the one that is off most.
func (m *Metrics) ledger(ch chan<- prometheus.Metric, lines []store.LedgerLine) {
	m.mu.Lock()
	recounted := m.off
	m.mu.Unlock()
	by, off := map[string]*store.Sums{}, map[string]int64{}
	for i := range lines {
		label, n := m.label(lines[i].Queue, known), lines[i].Off()
		if by[label] == nil {
			by[label] = new(store.Sums)
		}
		by[label].Add(&lines[i].Sums)
		if n == 0 {
			n = recounted[lines[i].Queue]
		}
		if abs(n) > abs(off[label]) {
			off[label] = n
		}
	}
	for q, sums := range by {
		for _, as := range store.Flows {
			ch <- prometheus.MustNewConstMetric(ledgerDesc, prometheus.CounterValue, float64(sums[as]), q, as.String())
		}
		gauge(ch, imbalanceDesc, float64(off[q]), q)
	}
}

func abs(n int64) int64 { return max(n, -n) }

// QueueRetries is the state of one queue's retries.
type QueueRetries struct {
	Queue       string
	View        throttle.View
	WaitReasons []throttle.WaitReason // why due messages wait, or would, but for the queue's conditions
}

var (
	breakerDesc = prometheus.NewDesc("redrive_breaker_state",
		"1 for the state that the queue's breaker is in: closed, open, half-open or ramp.",
		[]string{"queue", "state"}, nil)
	pausedDesc = prometheus.NewDesc("redrive_queue_paused",
		"1 while retries of the queue are paused or limited, by why: "+reasons(throttle.WaitReasons, "or")+". "+
			reasons(limits(), "and")+" only slow retries down, and are shown only while a message is due; the others "+
			"stop them.", []string{"queue", "why"}, nil)
	unreachableDesc = prometheus.NewDesc("redrive_forward_blocked",
		"1 while RabbitMQ accepts no message of the queue for the forward target.", []string{"queue", "target"}, nil)
	conditionDesc = prometheus.NewDesc("redrive_condition",
		"1 while something is wrong or makes messages wait, by kind: "+
			reasons(slices.Sorted(maps.Keys(condition.Kinds)), "or")+
			". queue is empty where it is not of a single one.", []string{"kind", "queue"}, nil)
	consumersDesc = prometheus.NewDesc("redrive_queue_consumers", "Consumers of a queue with due messages.",
		[]string{"queue"}, nil)
)

// limits are the reasons for which retries continue, as fast as the limit allows.
func limits() []throttle.WaitReason {
	return slices.DeleteFunc(slices.Clone(throttle.WaitReasons),
		func(why throttle.WaitReason) bool { return !why.IsLimit() })
}

// reasons are a list in words, with or or and before the last.
func reasons[T ~string](list []T, before string) string {
	var all []string
	for _, why := range list {
		all = append(all, string(why))
	}
	last := len(all) - 1
	return strings.Join(all[:last], ", ") + " " + before + " " + all[last]
}

// Retries shows the state of each queue's retries, and the conditions that hold; queues beyond the limit of
// labels are left out, since states do not add up.
func (m *Metrics) Retries(all func(shown func(queue string) bool) []QueueRetries, holds func() []condition.Condition) {
	m.collects(func(ch chan<- prometheus.Metric) { m.retries(ch, all, holds()) },
		breakerDesc, pausedDesc, unreachableDesc, conditionDesc, consumersDesc)
}

func (m *Metrics) retries(
	ch chan<- prometheus.Metric, all func(shown func(queue string) bool) []QueueRetries, holds []condition.Condition,
) {
	shown := func(queue string) bool { return queue == "" || m.label(queue, known) == queue }
	once := map[[2]any]bool{} // two targets may be the same once they are clean
	show := func(d *prometheus.Desc, v float64, labels ...string) {
		if key := [2]any{d, strings.Join(labels, "\x00")}; !once[key] {
			once[key] = true
			gauge(ch, d, v, labels...)
		}
	}
	for _, c := range holds {
		if !shown(c.Queue) {
			continue
		}
		switch show(conditionDesc, 1, string(c.Kind), c.Queue); c.Kind {
		case condition.Unreachable:
			show(pausedDesc, 1, c.Queue, string(throttle.WhyUnreachable))
		case condition.Forward:
			show(unreachableDesc, 1, c.Queue, clean(c.Target))
		}
	}
	for _, q := range all(shown) {
		if q.View.HasBreaker || q.View.State != throttle.Closed {
			for _, s := range throttle.States {
				show(breakerDesc, number(s == q.View.State), q.Queue, string(s))
			}
		}
		for _, why := range q.WaitReasons {
			show(pausedDesc, 1, q.Queue, string(why))
		}
		if q.View.Consumers >= 0 {
			show(consumersDesc, float64(q.View.Consumers), q.Queue)
		}
	}
}

// WatchedQueue is what RabbitMQ last said of a queue.
type WatchedQueue struct {
	Queue                     string
	Ready, Unacked, Consumers int
}

var (
	queueReadyDesc = prometheus.NewDesc("redrive_queue_ready",
		"Ready messages of a watched queue in RabbitMQ; gone after 5 minutes without an answer.",
		[]string{"queue"}, nil)
	queueUnackedDesc = prometheus.NewDesc("redrive_queue_unacked",
		"Unacknowledged messages of a watched queue, likewise.", []string{"queue"}, nil)
	watchedConsumersDesc = prometheus.NewDesc("redrive_watched_consumers",
		"Consumers of a watched queue, likewise; redrive_queue_consumers is what retries go by.",
		[]string{"queue"}, nil)
)

// Watched shows the first of the watched queues, as far as the limit of labels allows. They take no label from queues
// of which messages fail.
func (m *Metrics) Watched(all func() []WatchedQueue) {
	m.collects(func(ch chan<- prometheus.Metric) {
		m.mu.Lock()
		labels := maps.Clone(m.queues)
		m.mu.Unlock()
		shown := map[string]bool{}
		for _, q := range all() {
			label := clean(q.Queue)
			if _, has := labels[label]; shown[label] || !has && len(labels) >= maxQueues {
				continue
			}
			labels[label], shown[label] = time.Time{}, true
			gauge(ch, queueReadyDesc, float64(q.Ready), label)
			gauge(ch, queueUnackedDesc, float64(q.Unacked), label)
			gauge(ch, watchedConsumersDesc, float64(q.Consumers), label)
		}
	}, queueReadyDesc, queueUnackedDesc, watchedConsumersDesc)
}
