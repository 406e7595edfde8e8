package server

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/redrive-mq/redrive/internal/addresses"
	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/inspect"
)

// nodes are the addresses that the connections are to.
type nodes struct {
	mu sync.Mutex
	at map[string]string // by part of the service
	// cluster and version are what RabbitMQ said of itself last; "": it has not answered yet.
	cluster, version string
}

func (n *nodes) set(part string, st broker.State) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.at == nil {
		n.at = map[string]string{}
	}
	if st.Version != "" {
		n.cluster, n.version = st.Cluster, st.Version
	}
	if n.at[part] = st.At; !st.Connected {
		delete(n.at, part)
	}
}

func (n *nodes) String() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var all []string
	for _, part := range slices.Sorted(maps.Keys(n.at)) {
		all = append(all, part+" at "+n.at[part])
	}
	if len(all) == 0 {
		return "not connected"
	}
	return strings.Join(all, ", ")
}

// identity returns what the virtual host is called, and what RabbitMQ says of itself.
func (s *vhost) identity() inspect.Identity {
	s.nodes.mu.Lock()
	defer s.nodes.mu.Unlock()
	return inspect.Identity{Name: s.config.Name(), VHost: s.config.VHost(), Cluster: s.nodes.cluster, RabbitMQ: s.nodes.version}
}

// brokerAt returns where RabbitMQ is and, of several addresses, which of them are in use.
func (s *vhost) brokerAt() string {
	text := addresses.Redact(s.config.Broker.URL)
	if len(addresses.Split(s.config.Broker.URL)) > 1 {
		text += fmt.Sprintf(" (%s)", &s.nodes)
	}
	return text
}
