package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/wire"
)

// watchFor is how long dead letters are watched: RabbitMQ tells of a quorum queue every 5 s,
// so this is three times. Those that are only on their way become fewer between two of them.
const watchFor = 15 * time.Second

// watchDeadLetters watches the queues that keep dead letters, until each has released some or the
// time is over.
func (s *Scene) watchDeadLetters(ctx context.Context, long time.Duration) (map[string]int, error) {
	left := map[string]int{}
	for _, q := range s.Queues {
		if q.Dead > 0 {
			left[q.Name] = q.Dead
		}
	}
	for until := time.Now().Add(long); len(left) > 0 && time.Now().Before(until); {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(min(time.Second, long)):
		}
		now, err := s.Manage.QueueStates(ctx)
		if err != nil {
			return nil, err
		}
		still := map[string]int{}
		for _, q := range now {
			if was, ok := left[q.Name]; ok && q.Dead >= was {
				still[q.Name] = q.Dead
			}
		}
		left = still
	}
	return left, nil
}

// standing finds dead letters that stand still: their target is missing, or the process in
// RabbitMQ that publishes them, one beside each queue's leader, does not go on.
func standing(s *Scene) (all []Finding) {
	for i := range s.Queues {
		q := &s.Queues[i]
		n := s.Standing[q.Name]
		if n == 0 {
			continue
		}
		f := Finding{Queue: q.Name, Status: Wrong, What: fmt.Sprintf("%d of its dead letters stand still in it", n)}
		to, _ := q.Setting("dead-letter-exchange").(string)
		if missing := s.nowhere(q, to); missing != "" {
			f.What += ": " + missing
			f.Remedy = "Give it a target. RabbitMQ tries again every three minutes, by itself, and loses none. Do not make it at-most-once meanwhile, which deletes them."
			switch {
			case to == wire.ExchangeDeadLetters:
				f.Commands, f.Fixable, f.fix = []string{s.redrive("doctor --fix")}, true, fix{topology: true}
			case !wire.OwnQueue(q.Name) && !isArgument(q, "dead-letter-exchange"):
				f.Commands = []string{s.redrive("enroll --at-least-once", q.Name)}
			}
			all = append(all, f)
			continue
		}
		if at, ok := s.unavailable(q, n); ok {
			all = append(all, at)
			continue
		}
		f.What += ", and their target is there"
		f.Remedy, f.Commands = s.anotherLeader(q)
		all = append(all, f)
	}
	return all
}

// nowhere says why a dead letter of a queue cannot be routed; "" if it can. It does not look at the
// routing keys of bindings.
func (s *Scene) nowhere(q *management.QueueState, to string) string {
	if to == "" {
		if key, ok := q.Setting("dead-letter-routing-key").(string); ok && s.queue(key) == nil {
			return fmt.Sprintf("they go to the queue %s, which does not exist", key)
		}
		return ""
	}
	x := s.exchange(to)
	switch {
	case x == nil:
		return fmt.Sprintf("they go to the exchange %s, which does not exist", to)
	case !slices.ContainsFunc(s.Bindings, func(b management.Binding) bool { return b.Source == to }) && s.alternate(x) == nil:
		return fmt.Sprintf("they go to the exchange %s, which is bound to nothing", to)
	}
	return ""
}

// alternate is the exchange that an exchange's argument names for what it cannot route; nil when it
// returns that.
func (s *Scene) alternate(x *management.Exchange) *management.Exchange {
	if to, named := x.Arguments["alternate-exchange"].(string); named && to != x.Name {
		return s.exchange(to)
	}
	return nil
}

// anotherLeader returns how to start the process again: it begins again on the node of a new leader.
// RabbitMQ has no command for that for a single queue, so this calls its code.
func (s *Scene) anotherLeader(q *management.QueueState) (remedy string, commands []string) {
	for _, node := range q.Online {
		if node != q.Leader {
			return "Let another node lead the queue, on any of RabbitMQ's machines; RabbitMQ then begins again, and loses none. Do not make it at-most-once meanwhile, which deletes them.",
				[]string{"rabbitmqctl eval " + Quote(fmt.Sprintf("{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(%s, queue, %s)), rabbit_quorum_queue:transfer_leadership(Q, %s).", binary(s.VHost), binary(q.Name), atom(node)))}
		}
	}
	return "It has no replica on another node that runs: start those that are down, or restart the node of its leader. Do not make it at-most-once meanwhile, which deletes them.", nil
}

// binary and atom are names as Erlang reads them.
func binary(s string) string { return `<<"` + erlang(s, `"`) + `"/utf8>>` }
func atom(s string) string   { return `'` + erlang(s, `'`) + `'` }

func erlang(s, quote string) string {
	return strings.NewReplacer(`\`, `\\`, quote, `\`+quote).Replace(s)
}
