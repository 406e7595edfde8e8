package redisnode

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
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

// StartCluster starts them and waits until all slots are served and all replicas
// follow.
func StartCluster(ctx context.Context, o Options) (_ *Cluster, err error) {
	c := &Cluster{ids: map[*Server]string{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Stop())
		}
	}()
	config := fmt.Sprintf("cluster-enabled yes\ncluster-node-timeout %d\ncluster-allow-replica-migration no", o.downAfter().Milliseconds())
	for range 2 * primaries {
		s, err := start(ctx, o, config)
		if err != nil {
			return c, err
		}
		c.Servers = append(c.Servers, s)
		id, err := s.Do(ctx, "CLUSTER", "MYID")
		if err != nil {
			return c, err
		}
		c.ids[s], _ = id.(string)
	}
	if err := c.assemble(ctx); err != nil {
		return c, err
	}
	return c, until(ctx, "the cluster serves all slots and its replicas follow", func() bool {
		for i, s := range c.Servers {
			if !c.Well(ctx, s) || i >= primaries && !s.following(ctx) {
				return false
			}
		}
		return true
	})
}

// assemble makes a cluster of the servers.
func (c *Cluster) assemble(ctx context.Context) error {
	first := c.Servers[0]
	for i, s := range c.Servers {
		if _, err := s.Do(ctx, "CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1)); err != nil {
			return err
		}
		if i < primaries {
			if _, err := s.Do(ctx, "CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(i*slots/primaries), strconv.Itoa((i+1)*slots/primaries-1)); err != nil {
				return err
			}
		}
		if i > 0 {
			bus, err := s.Do(ctx, "CONFIG", "GET", "cluster-port")
			if err != nil {
				return err
			}
			if _, err := first.Do(ctx, "CLUSTER", "MEET", "127.0.0.1", strconv.Itoa(s.port), texts(bus)[1]); err != nil {
				return err
			}
		}
	}
	for i, s := range c.Servers[primaries:] {
		// It refuses until it has heard of that primary.
		if err := until(ctx, "a server of the cluster becomes a replica", func() bool {
			_, err := s.Do(ctx, "CLUSTER", "REPLICATE", c.ids[c.Servers[i]])
			return err == nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// Well tells whether a server takes the cluster for whole.
func (c *Cluster) Well(ctx context.Context, s *Server) bool {
	answer, err := s.Do(ctx, "CLUSTER", "INFO")
	return err == nil && fieldOf(answer, "cluster_state") == "ok" && fieldOf(answer, "cluster_known_nodes") == strconv.Itoa(len(c.Servers))
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
func (c *Cluster) Owner(ctx context.Context, slot int) *Server {
	for _, s := range c.Servers {
		if s.process != nil && c.owns(ctx, s, slot) {
			return s
		}
	}
	return nil
}

// owns tells whether all servers that run and are well say that this one has the slot.
func (c *Cluster) owns(ctx context.Context, s *Server, slot int) bool {
	for _, asked := range c.Servers {
		if asked.process == nil {
			continue
		}
		answer, err := asked.Do(ctx, "CLUSTER", "NODES")
		text, _ := answer.(string)
		if err != nil || ownerIn(text, slot) != c.ids[s] {
			return false
		}
	}
	return true
}

// ownerIn is the id of a slot's owner in what CLUSTER NODES says.
func ownerIn(nodes string, slot int) string {
	for line := range strings.Lines(nodes) {
		fields := strings.Fields(line) // id address flags primary ping pong epoch link slots…
		if len(fields) < 9 || !strings.Contains(fields[2], "master") || strings.Contains(fields[2], "fail") {
			continue
		}
		for _, r := range fields[8:] {
			from, to, isRange := strings.Cut(r, "-")
			if !isRange {
				to = from
			}
			low, err := strconv.Atoi(from)
			high, err2 := strconv.Atoi(to)
			if err == nil && err2 == nil && low <= slot && slot <= high {
				return fields[0]
			}
		}
	}
	return ""
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
	from := c.Owner(ctx, slot)
	if from == nil || from == to {
		return fmt.Errorf("slot %d cannot be moved: it has no owner, or is there already", slot)
	}
	set := func(on *Server, words ...string) error {
		_, err := on.Do(ctx, append([]string{"CLUSTER", "SETSLOT", strconv.Itoa(slot)}, words...)...)
		return err
	}
	if err := set(to, "IMPORTING", c.ids[from]); err != nil {
		return err
	}
	if err := set(from, "MIGRATING", c.ids[to]); err != nil {
		return err
	}
	for {
		answer, err := from.Do(ctx, "CLUSTER", "GETKEYSINSLOT", strconv.Itoa(slot), "1")
		if err != nil {
			return err
		}
		keys := texts(answer)
		if len(keys) == 0 {
			break
		}
		if _, err := from.Do(ctx, append([]string{"MIGRATE", "127.0.0.1", strconv.Itoa(to.port), "", "0", "5000", "KEYS"}, keys...)...); err != nil {
			return err
		}
	}
	// The new owner first, or for a moment no server would be.
	for _, s := range []*Server{to, from} {
		if err := set(s, "NODE", c.ids[to]); err != nil {
			return err
		}
	}
	return until(ctx, "all servers know who has the slot", func() bool { return c.Owner(ctx, slot) == to })
}

// Stop ends all of it for good.
func (c *Cluster) Stop() error { return stop(c.Servers) }
