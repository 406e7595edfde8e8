package doctor

import (
	"fmt"
	"strings"

	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/wire"
)

func retryExchange(s *Scene) (all []Finding) {
	of := map[string]bool{} // retry exchanges of queues that exist
	from := map[string][]management.Binding{}
	for _, b := range s.Bindings {
		from[b.Source] = append(from[b.Source], b)
	}
	for i := range s.Queues {
		q := &s.Queues[i]
		name := wire.RetryExchange(q.Name)
		of[name] = true
		if wire.OwnQueue(q.Name) || !s.selected(q.Name) {
			continue
		}
		x := s.exchange(name)
		if x == nil {
			// Declared with the argument, a queue gets it with its first dead letter.
			if s.enrolled(q) && management.PolicyNamed(s.Policies, "redrive."+q.Name) != nil {
				all = append(all, s.bind(q.Name, fmt.Sprintf("its retry exchange %s does not exist", name)))
			}
			continue
		}
		if not := differs(x, "fanout", false); not != "" {
			all = append(all, Finding{Queue: q.Name, Status: Wrong, What: fmt.Sprintf("its retry exchange %s is %s", name, not), Remedy: "Delete it, and declare it again:", Commands: []string{s.deleteCommand(s.Manage.URL("exchanges", name)), s.redrive("doctor --fix")}})
			continue
		}
		bound := false
		for _, b := range from[name] {
			if b.DestinationType == "queue" && b.Destination == q.Name {
				bound = true
				continue
			}
			if b.DestinationType == "exchange" && strings.HasPrefix(b.Destination, "federation: ") {
				continue // see foreign
			}
			all = append(all, Finding{Queue: q.Name, Status: Wrong, What: fmt.Sprintf("its retry exchange also leads to the %s %s, which gets a copy of each retried message", b.DestinationType, b.Destination), Remedy: "Remove the binding:", Commands: []string{s.deleteCommand(s.Manage.BindingURL(b))}})
		}
		if !bound {
			all = append(all, s.bind(q.Name, fmt.Sprintf("its retry exchange %s does not lead to it", name)))
		}
	}
	var gone []string
	for _, x := range s.Exchanges {
		if strings.HasPrefix(x.Name, wire.RetryExchange("")) && !of[x.Name] {
			gone = append(gone, x.Name)
		}
	}
	if len(gone) > 0 && len(s.Only) == 0 {
		all = append(all, Finding{Status: Warning, What: "retry exchanges without a queue of their name: " + few(gone) + "; messages wait 5 minutes for such a queue (no_queue), and are parked then",
			Remedy: "Declare the queues again, or do nothing: a running service deletes such an exchange when nothing waits for it."})
	}
	return all
}

func (s *Scene) bind(queue, what string) Finding {
	return Finding{Queue: queue, Status: Wrong, What: what, Remedy: "Declare it and bind it:", Commands: []string{s.redrive("doctor --fix --queue=" + Quote(queue))}, Fixable: true, fix: fix{queue: queue}}
}

func retryExchangeByAMQP(s *Scene) (all []Finding) {
	for _, q := range s.Probed.Named {
		switch {
		case !q.Exists:
			all = append(all, Finding{Queue: q.Name, Status: Warning, What: "a policy names it, and it does not exist", Remedy: "Declare it, or remove it from the config."})
		case !q.RetryExchange:
			all = append(all, Finding{Queue: q.Name, Status: OK, What: "it has no retry exchange yet; it gets one with its first dead letter"})
		}
	}
	return all
}
