package redisnode

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"
)

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

// Follows tells whether it is a replica of a primary.
func (s *Server) Follows(ctx context.Context, primary *Server) bool {
	return s.Info(ctx, "replication", "master_port") == strconv.Itoa(primary.port)
}

// following tells whether it is a replica that has all that its primary had.
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
