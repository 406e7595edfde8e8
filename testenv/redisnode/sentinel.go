package redisnode

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/testenv/subprocess"
)

// MasterSet is what sentinels call the servers that they watch.
const MasterSet = "redrive"

// Sentinel is a primary with two replicas, and three sentinels that watch them and
// make a replica the primary when they have not heard of it for DownAfter.
type Sentinel struct {
	Servers   []*Server // the first one is the primary at the start
	Sentinels []*Server
}

// DownAfter is how long servers of Sentinel and Cluster may be silent: long enough
// that a busy machine elects no primary.
const DownAfter = 3 * time.Second

func (o Options) downAfter() time.Duration { return cmp.Or(o.DownAfter, DownAfter) }

// StartSentinel starts them and waits until a failover is possible.
func StartSentinel(ctx context.Context, o Options) (_ *Sentinel, err error) {
	s := &Sentinel{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Stop())
		}
	}()
	for i := range 3 {
		config := ""
		if i > 0 {
			config = fmt.Sprintf("replicaof 127.0.0.1 %d", s.Servers[0].port)
		}
		server, err := start(ctx, o, config)
		if err != nil {
			return s, err
		}
		s.Servers = append(s.Servers, server)
	}
	// A sentinel that finds no replicas looks again only 10 s later.
	if err := until(ctx, "the replicas follow", func() bool { return s.Servers[1].following(ctx) && s.Servers[2].following(ctx) }); err != nil {
		return s, err
	}
	ports, err := subprocess.Ports(3)
	if err != nil {
		return s, err
	}
	for _, port := range ports {
		// A sentinel writes into this file what it learns.
		sentinel, err := run(ctx, o, port, 0, []string{"--sentinel"}, fmt.Sprintf(`sentinel monitor %[1]s 127.0.0.1 %[2]d 2
sentinel down-after-milliseconds %[1]s %[3]d
sentinel failover-timeout %[1]s 10000
sentinel parallel-syncs %[1]s 2
`, MasterSet, s.Servers[0].port, o.downAfter().Milliseconds()))
		if err != nil {
			return s, err
		}
		s.Sentinels = append(s.Sentinels, sentinel)
	}
	return s, until(ctx, "the sentinels know of each other and of two replicas", func() bool {
		for _, one := range s.Sentinels {
			line := one.Info(ctx, "sentinel", "master0") // name=redrive,status=ok,address=…,slaves=2,sentinels=3
			if !strings.Contains(line, "status=ok") || !strings.Contains(line, "slaves=2") || !strings.HasSuffix(line, "sentinels=3") {
				return false
			}
		}
		return true
	})
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
func (s *Sentinel) URL() string { return urlOf(s.Sentinels) + "&master_set=" + MasterSet }

// urlOf is a URL with the addresses of all.
func urlOf(all []*Server) string {
	var b strings.Builder
	for i, s := range all {
		switch i {
		case 0:
			b.WriteString(s.URL())
		case 1:
			b.WriteString("?addr=" + s.Addr())
		default:
			b.WriteString("&addr=" + s.Addr())
		}
	}
	return b.String()
}

// Primary is the server that most sentinels call the primary, and that takes itself
// for it; nil while there is none.
func (s *Sentinel) Primary(ctx context.Context) *Server {
	votes := map[string]int{}
	for _, one := range s.Sentinels {
		if answer, err := one.Do(ctx, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", MasterSet); err == nil {
			if host := texts(answer); len(host) == 2 {
				votes[net.JoinHostPort(host[0], host[1])]++
			}
		}
	}
	for _, server := range s.Servers {
		if votes[server.Addr()] > len(s.Sentinels)/2 && server.Info(ctx, "replication", "role") == "master" {
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
		_, err := s.Sentinels[0].Do(ctx, "SENTINEL", "FAILOVER", MasterSet)
		return err == nil
	}); err != nil {
		return nil, err
	}
	return s.AwaitPrimary(ctx, before)
}

// Stop ends all of it for good.
func (s *Sentinel) Stop() error { return stop(append(s.Sentinels, s.Servers...)) }

func stop(all []*Server) (err error) {
	for _, s := range all {
		err = errors.Join(err, s.Stop())
	}
	return err
}
