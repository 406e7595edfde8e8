package doctor

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/redrive-mq/redrive/wire"
)

// enough replicas survive the loss of one node. RabbitMQ gives a quorum queue as many by default.
const enough = 3

// replicas finds our quorum queues that were declared when there were fewer nodes, or
// that lost one: RabbitMQ gives them no other by itself.
func replicas(s *Scene) []Finding {
	want := min(enough, len(s.Nodes))
	var lack, few []string
	add := map[string][]string{} // queues, by the node that can have a replica
	for i := range s.Queues {
		q := &s.Queues[i]
		missing := want - len(q.Members)
		if q.Type != "quorum" || !wire.OwnQueue(q.Name) || missing <= 0 {
			continue
		}
		lack = append(lack, q.Name)
		few = append(few, fmt.Sprintf("%s has %d", q.Name, len(q.Members)))
		for _, n := range s.Nodes {
			if missing > 0 && n.Running && !slices.Contains(q.Members, n.Name) {
				add[n.Name] = append(add[n.Name], q.Name)
				missing--
			}
		}
	}
	if len(lack) == 0 {
		return nil
	}
	var commands []string
	for _, n := range s.Nodes {
		if on := add[n.Name]; len(on) > 0 {
			commands = append(commands, "rabbitmq-queues grow "+Quote(n.Name)+" all --vhost-pattern "+Quote(pattern(s.VHost))+" --queue-pattern "+Quote(pattern(on...)))
		}
	}
	f := Finding{Status: Warning, What: fmt.Sprintf("the cluster has %d nodes, and of our quorum queues some have fewer than %d replicas: %s", len(s.Nodes), want, strings.Join(few, ", ")), Commands: commands}
	f.Remedy = "Give each a replica on one more node, one after the other, while all nodes are up:"
	if len(commands) == 0 {
		f.Remedy = "Start the nodes that are down, then give each queue its replicas."
	}
	return []Finding{f}
}

// pattern is a regular expression of exactly these names.
func pattern(names ...string) string {
	var quoted []string
	for _, n := range names {
		quoted = append(quoted, regexp.QuoteMeta(n))
	}
	if len(quoted) == 1 {
		return "^" + quoted[0] + "$"
	}
	return "^(" + strings.Join(quoted, "|") + ")$"
}
