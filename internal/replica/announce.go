package replica

import (
	"encoding/json"
	"reflect"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/cluster"
	"github.com/redrive-mq/redrive/internal/throttle"
)

// Changed announces changed operations or, without any, that the side table has changed. It is
// inspect.Config.Changed.
func (r *Replica) Changed(operations ...string) {
	r.Announce(func(a *cluster.Announcement) {
		a.SideTableChanged = a.SideTableChanged || len(operations) == 0
		a.AddChanged(operations...)
	})
}

// AnnounceFailed announces a message that failed, and that another replica may have retried.
func (r *Replica) AnnounceFailed(queue string, id uuid.UUID) {
	if r.others.Load() {
		r.Announce(func(a *cluster.Announcement) { a.AddFailed(queue, id) })
	}
}

// AnnounceFlow announces what happened to a queue's messages here, for CountFlow of the others.
func (r *Replica) AnnounceFlow(queue string, n [4]int64) {
	if r.others.Load() {
		r.Announce(func(a *cluster.Announcement) { a.AddFlows(map[string][4]int64{queue: n}) })
	}
}

// announceRetryStats announces the results of the latest retries from here: when they change, and
// once a second.
func (r *Replica) announceRetryStats(now time.Time) {
	stats := r.Throttle.RetryStats(now)
	if !r.others.Load() || len(stats)+len(r.announced) == 0 || now.Sub(r.announcedAt) < time.Second && reflect.DeepEqual(stats, r.announced) {
		return
	}
	r.announced, r.announcedAt = stats, now
	if encoded, err := json.Marshal(stats); err == nil {
		r.Announce(func(a *cluster.Announcement) { a.RetryStats = encoded })
	}
}

// receive handles an announcement of another replica.
func (r *Replica) receive(a cluster.Announcement) {
	now := time.Now()
	if len(a.Operations) > 0 {
		r.Operations.ChangedElsewhere(a.Operations...)
	}
	for queue, ids := range a.Failed {
		for ; len(ids) >= 16; ids = ids[16:] {
			r.Throttle.Failed(queue, uuid.UUID(ids[:16]), now)
		}
	}
	for queue, n := range a.Flows {
		r.CountFlow(queue, n, now)
	}
	if a.RetryStats != nil {
		var all map[string]throttle.RetryStats
		if json.Unmarshal(a.RetryStats, &all) == nil {
			r.Throttle.Receive(a.From, all, now)
		}
	}
}
