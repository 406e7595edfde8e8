package rabbitnode

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/addresses"
)

// Cluster is several nodes of one RabbitMQ cluster, on loopback. Its methods are for
// one goroutine at a time.
type Cluster struct{ Nodes []*Node }

// cookie is the secret that lets the nodes of a cluster speak to each other. They
// listen on loopback alone.
const cookie = "redrive"

// FoundCluster starts the first of so many nodes; Grow starts the others. In a
// minority nodes of RabbitMQ 3 pause; RabbitMQ 4.3 has no such choice.
func FoundCluster(ctx context.Context, o Options, size int) (*Cluster, error) {
	server, err := findServer(o.Root)
	if err != nil {
		return nil, err
	}
	// Erlang would take away connections between nodes that see each other, when
	// they do not see the same others.
	o.Args += " -kernel prevent_overlapping_partitions false"
	c := &Cluster{}
	for range size {
		n := &Node{opts: o, server: server}
		c.Nodes = append(c.Nodes, n)
		if err == nil {
			err = n.prepare()
		}
		if err == nil {
			err = c.join(n)
		}
	}
	if err == nil {
		err = c.Nodes[0].Restart(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return c, nil
}

// join writes what makes a node one of the cluster: the others join the first when
// they start for the first time.
func (c *Cluster) join(n *Node) error {
	first := c.Nodes[0]
	more := "cluster_partition_handling = pause_minority\n"
	if n != first {
		n.epmd, n.epmdOf = first.epmd, first
		more += "cluster_formation.peer_discovery_backend = classic_config\n"
		for i, peer := range []*Node{first, n} {
			more += fmt.Sprintf("cluster_formation.classic_config.nodes.%d = %s\n", i+1, peer.name)
		}
	}
	return errors.Join(n.configure(more), os.WriteFile(filepath.Join(n.dir, ".erlang.cookie"), []byte(cookie), 0o400))
}

// Grow starts all but the first, and waits until all know each other.
func (c *Cluster) Grow(ctx context.Context) error {
	failed := make([]error, len(c.Nodes))
	var starting sync.WaitGroup
	for i, n := range c.Nodes[1:] {
		starting.Go(func() { failed[i] = n.Restart(ctx) })
	}
	starting.Wait()
	if err := errors.Join(failed...); err != nil {
		return err
	}
	return c.Await(ctx)
}

// Await waits until every node says that every other runs.
func (c *Cluster) Await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for _, n := range c.Nodes {
		for !n.sees(ctx, len(c.Nodes)) {
			select {
			case <-ctx.Done():
				return fmt.Errorf("%s does not see all nodes of its cluster:\n%s", n.name, n.LastWords())
			case <-time.After(100 * time.Millisecond):
			}
		}
	}
	return nil
}

// sees tells whether a node knows that so many run.
func (n *Node) sees(ctx context.Context, want int) bool {
	var all []struct{ Running bool }
	n.ask(ctx, "nodes", &all)
	running := 0
	for _, n := range all {
		if n.Running {
			running++
		}
	}
	return running == want
}

// URL is where its nodes speak AMQP.
func (c *Cluster) URL() string { return c.addresses((*Node).URL) }

// Management is where their management APIs are.
func (c *Cluster) Management() string { return c.addresses((*Node).Management) }

// SecureURL and SecureManagement are the same by TLS.
func (c *Cluster) SecureURL() string        { return c.addresses((*Node).SecureURL) }
func (c *Cluster) SecureManagement() string { return c.addresses((*Node).SecureManagement) }

func (c *Cluster) addresses(of func(*Node) string) string {
	var all []string
	for _, n := range c.Nodes {
		all = append(all, of(n))
	}
	return addresses.Join(all)
}

// Node is the one of a name, or of an address that is host:port; nil: there is none.
func (c *Cluster) Node(name string) *Node {
	for _, n := range c.Nodes {
		is := func(port int) bool { return strings.HasSuffix(name, fmt.Sprintf(":%d", port)) }
		if n.name == name || is(n.amqp) || is(n.amqps) {
			return n
		}
	}
	return nil
}

// Isolate parts a node from all others: both sides hang up, and neither lets the other
// in again.
func (c *Cluster) Isolate(ctx context.Context, n *Node) error {
	return c.eachOther(ctx, n, "erlang:set_cookie(N, isolated), erlang:disconnect_node(N)")
}

// Rejoin ends an Isolate.
func (c *Cluster) Rejoin(ctx context.Context, n *Node) error {
	return c.eachOther(ctx, n, "erlang:set_cookie(N, erlang:get_cookie()), net_kernel:connect_node(N)")
}

// eachOther has a node do something in Erlang with each other, N.
func (c *Cluster) eachOther(ctx context.Context, n *Node, do string) error {
	var others []string
	for _, other := range c.Nodes {
		if other != n {
			others = append(others, "'"+other.name+"'")
		}
	}
	_, err := n.Eval(ctx, "[begin "+do+" end || N <- ["+strings.Join(others, ", ")+"]].")
	return err
}

// Stop ends all nodes for good, and leaves nothing behind.
func (c *Cluster) Stop() error {
	var all []error
	for _, n := range slices.Backward(c.Nodes) { // the first has the epmd
		all = append(all, n.Stop())
	}
	return errors.Join(all...)
}

// LastWords are those of all nodes.
func (c *Cluster) LastWords() string {
	var all []string
	for _, n := range c.Nodes {
		all = append(all, n.name+":\n"+n.LastWords())
	}
	return strings.Join(all, "\n")
}
