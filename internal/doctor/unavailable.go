package doctor

import (
	"fmt"
	"strings"

	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/wire"
)

// unavailable is a finding about a queue in which the due messages of one work queue stay
// while that one does not accept them: it names the work queue, which is what needs
// repairing. Other queues' messages do not wait behind these.
func (s *Scene) unavailable(q *management.QueueState, n int) (Finding, bool) {
	work := s.queue(workQueueOf(q))
	if work == nil {
		return Finding{}, false
	}
	return Finding{Queue: work.Name, Status: Wrong, What: fmt.Sprintf("%d of its retries are due and stay in %s, since %s", n, q.Name, refuses(work)),
		Remedy: "Let its consumers catch up, raise its limit, or bring its nodes back. RabbitMQ tries again every three minutes, by itself, and loses none; other queues' retries continue."}, true
}

// workQueueOf is the work queue that a queue of ours alone dead-letters to; "": none.
func workQueueOf(q *management.QueueState) (work string) {
	if strings.HasPrefix(q.Name, wire.ExchangeLane+".") {
		work, _ = q.Arguments["x-dead-letter-routing-key"].(string)
	} else if name, ok := strings.CutPrefix(q.Name, wire.DelayPrefix+"message-ttl.quorum."); ok {
		work = name
	}
	return work
}

// refuses says why a queue accepts nothing, as far as RabbitMQ shows it.
func refuses(q *management.QueueState) string {
	if overflow, _ := q.Setting("overflow").(string); strings.HasPrefix(overflow, "reject-publish") {
		if limit := reached(q); limit != "" {
			return fmt.Sprintf("it is full (%s) and its overflow is %s", limit, overflow)
		}
	}
	if q.Type == "quorum" && (q.Leader == "" || len(q.Online) <= len(q.Members)/2) {
		return fmt.Sprintf("%d of its %d replicas run, so it has no leader", len(q.Online), len(q.Members))
	}
	return "it does not accept them"
}
