package redisnode

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
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

// masterSet is what sentinels call the servers that they watch.
const masterSet = "redrive"

// Sentinel is a primary with two replicas, and three sentinels that watch them and
// make a replica the primary when they have not heard of it for DownAfter.
type Sentinel struct {
	Servers   []*Server // the first one is the primary at the start
	sentinels []*Server
}

// DownAfter is how long servers of Sentinel and Cluster may be silent: long enough
// that a busy machine elects no primary.
const DownAfter = 3 * time.Second

func (o Options) downAfter() int64 { return cmp.Or(o.DownAfter, DownAfter).Milliseconds() }

// NewSentinel is a Sentinel for one test, of which a failover is possible.
func NewSentinel(t testing.TB, o Options) *Sentinel {
	t.Helper()
	ctx, s := context.Background(), &Sentinel{Servers: []*Server{begin(t, o, "")}}
	for range 2 {
		s.Servers = append(s.Servers, begin(t, o, fmt.Sprintf("replicaof 127.0.0.1 %d", s.Servers[0].port)))
	}
	// A sentinel that finds no replicas looks again only 10 s later.
	must(t, until(ctx, "the replicas follow", func() bool {
		return s.Servers[1].following(ctx) && s.Servers[2].following(ctx)
	}))
	for range 3 {
		// A sentinel writes into this file what it learns.
		s.sentinels = append(s.sentinels, begin(t, o, fmt.Sprintf(`sentinel monitor %[1]s 127.0.0.1 %[2]d 2
sentinel down-after-milliseconds %[1]s %[3]d
sentinel failover-timeout %[1]s 10000
sentinel parallel-syncs %[1]s 2
`, masterSet, s.Servers[0].port, o.downAfter()), "--sentinel"))
	}
	must(t, until(ctx, "the sentinels know of each other and of two replicas", func() bool {
		for _, one := range s.sentinels {
			line := one.Info(ctx, "sentinel", "master0") // name=redrive,status=ok,address=…,slaves=2,sentinels=3
			if !strings.Contains(line, "status=ok") || !strings.HasSuffix(line, "slaves=2,sentinels=3") {
				return false
			}
		}
		return true
	}))
	return s
}

// Follows reports whether it is a replica of a primary.
func (s *Server) Follows(ctx context.Context, primary *Server) bool {
	return s.Info(ctx, "replication", "master_port") == strconv.Itoa(primary.port)
}

// following reports whether it is a replica that has all that its primary had.
func (s *Server) following(ctx context.Context) bool {
	return s.Info(ctx, "replication", "master_link_status") == "up"
}

// URL names the sentinels, for a client that asks them for the primary.
func (s *Sentinel) URL() string { return urlOf(s.sentinels) + "&master_set=" + masterSet }

// urlOf is a URL with the addresses of all.
func urlOf(all []*Server) string {
	url, separator := all[0].URL(), "?addr="
	for _, s := range all[1:] {
		url += separator + s.Addr()
		separator = "&addr="
	}
	return url
}

// Primary is the server that most sentinels call the primary, and that takes itself
// for it; nil while there is none.
func (s *Sentinel) Primary(ctx context.Context) *Server {
	votes := map[string]int{}
	for _, one := range s.sentinels {
		if answer, err := one.Do(ctx, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", masterSet); err == nil {
			votes[strings.Join(texts(answer), ":")]++
		}
	}
	for _, server := range s.Servers {
		if votes[server.Addr()] > len(s.sentinels)/2 && server.Info(ctx, "replication", "role") == "master" {
			return server
		}
	}
	return nil
}

// AwaitPrimary waits until another one than this is the primary, and says which.
func (s *Sentinel) AwaitPrimary(ctx context.Context, not *Server) (primary *Server, err error) {
	err = until(ctx, "another server is the primary", func() bool {
		primary = s.Primary(ctx)
		return primary != nil && primary != not
	})
	return primary, err
}

// Failover has the sentinels make a replica the primary though the primary is well,
// as before maintenance, and says which one it is.
func (s *Sentinel) Failover(ctx context.Context) (*Server, error) {
	before := s.Primary(ctx)
	// It refuses while an earlier one is not over, or a replica has not followed yet.
	if err := until(ctx, "a sentinel begins a failover", func() bool {
		_, err := s.sentinels[0].Do(ctx, "SENTINEL", "FAILOVER", masterSet)
		return err == nil
	}); err != nil {
		return nil, err
	}
	return s.AwaitPrimary(ctx, before)
}
