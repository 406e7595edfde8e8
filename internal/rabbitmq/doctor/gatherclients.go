package doctor

import (
	"context"
	"maps"

	"github.com/redrive-mq/redrive/internal/rabbitmq/enroll"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
)

// askClients asks what others do in RabbitMQ, and what they may.
func (s *Scene) askClients(ctx context.Context) {
	keepPart(s, Limits, &s.VHostLimits)(s.Manage.VHostLimits(ctx))
	keepPart(s, Topics, &s.Topics)(s.Manage.TopicPermissions(ctx))
	keepPart(s, Topics, &s.Granted)(s.Manage.AllPermissions(ctx))
	keepPart(s, Shovels, &s.Shovels)(s.Manage.Parameters(ctx, "shovel"))
	monitors, err := s.Manage.Monitors(ctx)
	if err == nil && !monitors {
		err = management.ErrDenied
	}
	if keepPart(s, Clients, &monitors)(monitors, err); err != nil {
		return
	}
	keepPart(s, Clients, &s.UserLimits)(s.Manage.UserLimits(ctx, s.User)) // 4.3 denies it to others
	keepPart(s, Clients, &s.Consumers)(s.Manage.Consumers(ctx))
	keepPart(s, Clients, &s.Channels)(s.Manage.Channels(ctx))
	keepPart(s, Clients, &s.Connections)(s.Manage.Connections(ctx))
}

// followPolicies gives queues what their policies set where RabbitMQ's report of them is older:
// 3.10 reports on a quorum queue every 5 s, and applies a policy at once. It follows only our own
// policies, of which it is certain that RabbitMQ applies each key to the queue.
func (s *Scene) followPolicies() {
	s.Behind = map[string]bool{}
	for i := range s.Queues {
		q := &s.Queues[i]
		p, known := enroll.InForce(q.Queue, s.Policies)
		ours := known && p != nil && p.Name == "redrive."+q.Name
		if !ours || q.Policy == p.Name && (q.OperatorPolicy != "" || hasAll(q.Effective, p.Definition)) {
			continue
		}
		is := maps.Clone(p.Definition)
		if operator := management.PolicyNamed(s.OperatorPolicies, q.OperatorPolicy); operator != nil {
			maps.Copy(is, operator.Definition)
		}
		q.Policy, q.Effective, q.DeliveryLimit = p.Name, is, nil
		s.Behind[q.Name] = true
	}
}

// hasAll tells whether what is in force of a queue is what a policy sets.
func hasAll(effective management.Definition, policy map[string]any) bool {
	for key, v := range policy {
		if now, ok := effective[key]; !ok || management.Text(now) != management.Text(v) {
			return false
		}
	}
	return true
}
