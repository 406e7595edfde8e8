// Package metrics turns events into Prometheus metrics. It registers nothing
// globally.
package metrics

import (
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/redrive-mq/redrive/internal/cluster"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
)

// Metrics of one service.
type Metrics struct {
	registry *prometheus.Registry
	register prometheus.Registerer // to it, with the label vhost where the process serves several

	// counters with the label queue; byQueue are all of them, and fromZero those without
	// another label, which begin at 0: see label
	deadLetters, ignored, retried, forwarded, parked, discarded, replayed, waits, refused, opened *prometheus.CounterVec

	byQueue, fromZero []*prometheus.CounterVec

	declaredAgain, listeners, notifications *prometheus.CounterVec

	lateness      prometheus.Histogram
	sync          prometheus.Histogram
	confirm       prometheus.Histogram
	connected     *prometheus.GaugeVec
	blocked       *prometheus.GaugeVec
	ready         prometheus.Gauge
	intakeStopped prometheus.Gauge
	quarantined   prometheus.Gauge
	configLoads   *prometheus.CounterVec

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
			Buckets: prometheus.ExponentialBuckets(from, 2, buckets), NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100})
		m.register.MustRegister(h)
		return h
	}
	m.deadLetters = byQueue("dead_letters_total", "Failed messages received.", "reason")
	m.ignored = byQueue("ignored_headers_total", "Failed messages with a header of Redrive's that should be a number and is none, and was ignored.", "header")
	m.retried = byQueue("retried_total", "Messages that RabbitMQ confirmed in their work queue again.")
	m.forwarded = byQueue("forwarded_total", "Messages that RabbitMQ confirmed where their policy, or a person's copy, sends them.")
	m.parked = byQueue("parked_total", "Messages parked.")
	m.discarded = byQueue("discarded_total", "Messages discarded, by their policy or by a person.")
	m.replayed = byQueue("replayed_total", "Parked or waiting messages that a person replayed.")
	m.waits = byQueue("waits_total", "Messages that started to wait, by place: disk (the store, also in Redis), or a way in RabbitMQ.", "wait")
	m.refused = byQueue("wait_refused_total", "Messages that wait in the store because RabbitMQ did not accept them.", "wait")
	m.opened = byQueue("breaker_opened_total", "How often the queue's breaker opened.")
	m.listeners = counter("event_failures_total", "Events that a part of the service (listener) missed because it panicked.", "listener")
	m.notifications = counter("notifications_total", "Notifications, by route and result: sent, or failed (tried again later).", "route", "result")
	m.lateness = histogram("retry_lateness_seconds", "Time from due to confirmed by RabbitMQ.", 0.0005, 20)
	m.sync = histogram("store_sync_seconds", "Time to make a batch durable in the store.", 0.0001, 18)
	m.confirm = histogram("confirm_seconds", "Time from sending a batch to RabbitMQ's last answer, with the wait for a connection.", 0.0005, 18)
	m.connected = gauge("connected", "1 while connected to RabbitMQ.", "connection")
	m.blocked = gauge("blocked", "1 while a RabbitMQ alarm blocks the connection.", "connection")
	m.ready = gauge("ready", "1 while /readyz answers 200.").WithLabelValues()
	m.intakeStopped = gauge("intake_stopped", "1 while failed messages cannot be stored and stay in RabbitMQ.").WithLabelValues()
	m.quarantined = gauge("quarantine", "Messages that RabbitMQ failed to deliver to the intake, in its queue redrive.quarantine.").WithLabelValues()
	m.declaredAgain = counter("declared_again_total", "Deleted exchanges and queues of Redrive that were declared again, by name.", "name")
	m.configLoads = counter("config_loads_total", "Loads of the config file, by result: ok or refused. After a refused load the previous configuration stays in force.", "result")
	for _, r := range []string{"ok", "refused"} {
		m.configLoads.WithLabelValues(r)
	}
	gauge("build_info", "Always 1.", "version").WithLabelValues(version).Set(1)
	m.register.MustRegister(&contents{store: s, free: free, metrics: m})
	return m
}

// Handler serves these metrics alone.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// Handler serves those of all services in this process, which differ in their labels,
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
	// MostQueues is how many queues get a label of their own; the others share
	// "(other)", since a label value per queue for ever would fill Prometheus.
	MostQueues  = 500
	otherQueues = "(other)"
	// idleLabel is how long nothing must have happened to a queue that nothing is kept for
	// before another one can have its label, and mostReleased how many labels a scrape
	// releases, so that a burst of new names does not take those of all idle queues.
	idleLabel    = time.Hour
	mostReleased = 50
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
	if len(m.queues) >= MostQueues {
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
	for _, queue := range idle[:min(mostReleased, len(idle))] {
		delete(m.queues, queue)
		for _, c := range m.byQueue {
			c.DeletePartialMatch(prometheus.Labels{"queue": queue})
		}
	}
}

var (
	replicaDesc = prometheus.NewDesc("redrive_replica_start_time_seconds", "Start time of each live replica, in seconds since 1970.", []string{"replica", "address", "version"}, nil)
	leadsDesc   = prometheus.NewDesc("redrive_replica_leads", "1 for the leader, 0 for the other replicas.", []string{"replica"}, nil)
	beatDesc    = prometheus.NewDesc("redrive_replica_beat_age_seconds", "Time since the last heartbeat that this replica received from the one in the label.", []string{"replica"}, nil)
)

// replicas collects the live replicas, at each scrape.
type replicas struct{ all func() []cluster.Replica }

// Store shows the id of a store that services share, so that dashboards count what each of them
// shows of it once.
func (m *Metrics) Store(id string) {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: "redrive_store_info", Help: "Always 1; the label store names the store that replicas share. Absent where only one service can use the store.", ConstLabels: prometheus.Labels{"store": id}})
	g.Set(1)
	m.register.MustRegister(g)
}

// Replicas shows the live replicas, which all returns.
func (m *Metrics) Replicas(all func() []cluster.Replica) { m.register.MustRegister(&replicas{all}) }

func (r *replicas) Describe(ch chan<- *prometheus.Desc) {
	ch <- replicaDesc
	ch <- leadsDesc
	ch <- beatDesc
}

func (r *replicas) Collect(ch chan<- prometheus.Metric) {
	for _, one := range r.all() {
		ch <- prometheus.MustNewConstMetric(replicaDesc, prometheus.GaugeValue, float64(one.Since.UnixMilli())/1000, one.ID, clean(one.Address), clean(one.Version))
		ch <- prometheus.MustNewConstMetric(leadsDesc, prometheus.GaugeValue, number(one.Leads), one.ID)
		ch <- prometheus.MustNewConstMetric(beatDesc, prometheus.GaugeValue, max(0, time.Since(one.Beat).Seconds()), one.ID)
	}
}
