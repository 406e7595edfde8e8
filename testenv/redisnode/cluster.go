package redisnode

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"
)

const (
	slots     = 16384
	primaries = 3
)

// Cluster is six servers: three primaries with a third of the slots each, and a
// replica of each. A primary that is not heard of for DownAfter is replaced by its
// replica.
type Cluster struct {
	Servers []*Server // the first three are the primaries at the start
	ids     map[*Server]string
}

// NewCluster is a Cluster for one test, that serves all slots and whose replicas follow.
func NewCluster(t testing.TB, o Options) *Cluster {
	t.Helper()
	ctx, c := context.Background(), &Cluster{ids: map[*Server]string{}}
	do := func(s *Server, command ...string) any {
		t.Helper()
		answer, err := s.Do(ctx, command...)
		must(t, err)
		return answer
	}
	config := fmt.Sprintf("cluster-enabled yes\ncluster-node-timeout %d\ncluster-allow-replica-migration no",
		o.downAfter())
	for i := range 2 * primaries {
		s := begin(t, o, config)
		c.Servers = append(c.Servers, s)
		c.ids[s], _ = do(s, "CLUSTER", "MYID").(string)
		do(s, "CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1))
		if i < primaries {
			first, last := i*slots/primaries, (i+1)*slots/primaries-1
			do(s, "CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(first), strconv.Itoa(last))
		}
		if i > 0 {
			bus := texts(do(s, "CONFIG", "GET", "cluster-port"))[1]
			do(c.Servers[0], "CLUSTER", "MEET", "127.0.0.1", strconv.Itoa(s.port), bus)
		}
	}
	for i, s := range c.Servers[primaries:] {
		// It refuses until it has heard of that primary.
		must(t, until(ctx, "a server of the cluster becomes a replica", func() bool {
			_, err := s.Do(ctx, "CLUSTER", "REPLICATE", c.ids[c.Servers[i]])
			return err == nil
		}))
	}
	must(t, until(ctx, "the cluster serves all slots and its replicas follow", func() bool {
		for i, s := range c.Servers {
			is := func(field, want string) bool { return s.field(ctx, field, "CLUSTER", "INFO") == want }
			if !is("cluster_state", "ok") || !is("cluster_known_nodes", "6") || i >= primaries && !s.following(ctx) {
				return false
			}
		}
		return true
	}))
	return c
}

// URL names all servers.
func (c *Cluster) URL() string { return urlOf(c.Servers) }

// Slot is the slot of a key.
func (c *Cluster) Slot(ctx context.Context, key string) (int, error) {
	running := slices.IndexFunc(c.Servers, func(s *Server) bool { return s.process != nil })
	if running < 0 {
		return 0, errors.New("no server of the cluster runs")
	}
	answer, err := c.Servers[running].Do(ctx, "CLUSTER", "KEYSLOT", key)
	slot, _ := answer.(int64)
	return int(slot), err
}

// Owner is the primary that serves a slot by its own word and by what the others say
// of it; nil while they differ, or no server does.
func (c *Cluster) Owner(ctx context.Context, slot int) (owner *Server) {
	for _, s := range c.Servers {
		if s.process == nil {
			continue
		}
		port := s.ownerOf(ctx, slot)
		if owner != nil && port != owner.port {
			return nil
		}
		if owner == nil {
			i := slices.IndexFunc(c.Servers, func(s *Server) bool { return s.port == port && s.process != nil })
			if i < 0 {
				return nil
			}
			owner = c.Servers[i]
		}
	}
	return owner
}

// ownerOf is the port of a slot's primary as a server sees it; 0: it knows of none.
func (s *Server) ownerOf(ctx context.Context, slot int) int {
	answer, _ := s.Do(ctx, "CLUSTER", "SLOTS")
	ranges, _ := answer.([]any)
	for _, r := range ranges { // first and last slot, primary and replicas
		of, _ := r.([]any)
		first, _ := of[0].(int64)
		last, _ := of[1].(int64)
		primary, _ := of[2].([]any) // address, port and more
		if int(first) <= slot && slot <= int(last) {
			port, _ := primary[1].(int64)
			return int(port)
		}
	}
	return 0
}

// AwaitOwner waits until another one than this serves a slot, and says which.
func (c *Cluster) AwaitOwner(ctx context.Context, slot int, not *Server) (owner *Server, err error) {
	err = until(ctx, fmt.Sprintf("another server serves slot %d", slot), func() bool {
		owner = c.Owner(ctx, slot)
		return owner != nil && owner != not
	})
	return owner, err
}

// MoveSlot moves a slot with its keys to a primary, one key after the other while
// clients go on, as `redis-cli --cluster reshard` does. Until it is over a script sees
// of that slot only what is where it runs: a key that it names and that has gone
// already, or was never there, makes Redis answer ASK or TRYAGAIN before the script
// begins; one that it makes up itself is an error in the middle of it.
func (c *Cluster) MoveSlot(ctx context.Context, slot int, to *Server) error {
	from, number := c.Owner(ctx, slot), strconv.Itoa(slot)
	if from == nil || from == to {
		return fmt.Errorf("slot %d cannot be moved: it has no owner, or is there already", slot)
	}
	set := func(on *Server, how string, who *Server) error {
		_, err := on.Do(ctx, "CLUSTER", "SETSLOT", number, how, c.ids[who])
		return err
	}
	if err := errors.Join(set(to, "IMPORTING", from), set(from, "MIGRATING", to)); err != nil {
		return err
	}
	for {
		answer, err := from.Do(ctx, "CLUSTER", "GETKEYSINSLOT", number, "1")
		if err != nil {
			return err
		}
		keys := texts(answer)
		if len(keys) == 0 {
			break
		}
		if _, err := from.Do(ctx, "MIGRATE", "127.0.0.1", strconv.Itoa(to.port), keys[0], "0", "5000"); err != nil {
			return err
		}
	}
	// The new owner first, or for a moment no server would be.
	if err := errors.Join(set(to, "NODE", to), set(from, "NODE", to)); err != nil {
		return err
	}
	return until(ctx, "all servers know who has the slot", func() bool { return c.Owner(ctx, slot) == to })
}
