package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/redrive-mq/redrive/internal/cluster"
)

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
