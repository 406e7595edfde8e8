package metrics

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/redrive-mq/redrive/internal/store"
)

// contents collects what the store keeps, at each scrape.
type contents struct {
	store   store.Store
	free    func() (uint64, uint64, error)
	metrics *Metrics
}

// storeTimeout bounds the questions to a store, so that a scrape is answered in time although the
// store does not answer: Prometheus waits for 10 s.
const storeTimeout = 4 * time.Second

var (
	upDesc        = prometheus.NewDesc("redrive_store_up", "1 while the store answers; while it does not, the metrics of its contents are left out.", nil, nil)
	waitingDesc   = prometheus.NewDesc("redrive_waiting", "Waiting messages in the store, on disk or in Redis; those that wait in RabbitMQ are in its queues redrive.delay.* and redrive.lane.*, or with delayed-exchange in an exchange.", []string{"queue"}, nil)
	discardedDesc = prometheus.NewDesc("redrive_discarded", "Discarded messages that can still be restored.", []string{"queue"}, nil)
	parkedDesc    = prometheus.NewDesc("redrive_parked", "Parked messages.", []string{"queue"}, nil)
	overdueDesc   = prometheus.NewDesc("redrive_overdue_seconds", "How long the waiting message with the earliest due time is overdue; 0 when none is.", []string{"queue"}, nil)
	oldestDesc    = prometheus.NewDesc("redrive_oldest_waiting_seconds", "How long ago the waiting message with the earliest due time failed.", []string{"queue"}, nil)
	freeDesc      = prometheus.NewDesc("redrive_store_free_bytes", "Free space on the store's disk, or in Redis's memory.", nil, nil)
	ledgerDesc    = prometheus.NewDesc("redrive_ledger_total", "Messages that arrived (as=in), and messages by what became of them (each other value of as); the difference is waiting, parked or discarded and can be restored.", []string{"queue", "as"}, nil)
	imbalanceDesc = prometheus.NewDesc("redrive_ledger_imbalance", "Messages that arrived and are missing from the other columns of the ledger; negative: the other columns have too many. Stored messages are also counted one by one every ten minutes.", []string{"queue"}, nil)
	damagedDesc   = prometheus.NewDesc("redrive_store_damaged", "Files of the store on disk, or parts of them, that cannot be read, and messages in Redis; redrive_ledger_imbalance shows how many messages the files cost.", nil, nil)
	reserveDesc   = prometheus.NewDesc("redrive_store_reserve_bytes", "Space that the store keeps free on its disk, or in Redis.", nil, nil)
)

func (h *contents) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{upDesc, waitingDesc, parkedDesc, discardedDesc, overdueDesc, oldestDesc, freeDesc, reserveDesc, ledgerDesc, imbalanceDesc, damagedDesc} {
		ch <- d
	}
}

func (h *contents) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
	defer cancel()
	counts, err := h.store.Counts(ctx)
	var lines []store.LedgerLine
	if err == nil {
		lines, err = h.store.Ledger(ctx)
	}
	ch <- prometheus.MustNewConstMetric(upDesc, prometheus.GaugeValue, number(err == nil))
	if err != nil {
		return
	}
	h.metrics.release(counts)
	type sums struct{ waiting, parked, discarded, overdue, oldest float64 }
	by := map[string]sums{} // queues beyond the limit add up
	now := time.Now()
	for _, c := range counts {
		label := h.metrics.label(c.Queue, kept)
		s := by[label]
		s.waiting += float64(c.Waiting)
		s.parked += float64(c.Parked)
		s.discarded += float64(c.Discarded)
		if !c.NextDue.IsZero() {
			s.overdue = max(s.overdue, now.Sub(c.NextDue).Seconds())
		}
		if !c.NextFailed.IsZero() {
			s.oldest = max(s.oldest, now.Sub(c.NextFailed).Seconds())
		}
		by[label] = s
	}
	show := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for q, s := range by {
		show(waitingDesc, s.waiting, q)
		show(parkedDesc, s.parked, q)
		show(discardedDesc, s.discarded, q)
		show(overdueDesc, s.overdue, q)
		show(oldestDesc, s.oldest, q)
	}
	if free, reserve, err := h.free(); err == nil {
		show(freeDesc, float64(free))
		show(reserveDesc, float64(reserve))
	}
	if s, ok := h.store.(store.Damageable); ok {
		show(damagedDesc, float64(len(s.Damage())))
	}
	h.ledger(ch, lines)
}

// ledger shows what came and what became of it: of queues beyond the limit the sums,
// and the one that is off most.
func (h *contents) ledger(ch chan<- prometheus.Metric, lines []store.LedgerLine) {
	h.metrics.mu.Lock()
	recounted := h.metrics.off
	h.metrics.mu.Unlock()
	by, off := map[string]*store.Sums{}, map[string]int64{}
	for i := range lines {
		label, n := h.metrics.label(lines[i].Queue, known), lines[i].Off()
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
		ch <- prometheus.MustNewConstMetric(imbalanceDesc, prometheus.GaugeValue, float64(off[q]), q)
	}
}

func abs(n int64) int64 { return max(n, -n) }
