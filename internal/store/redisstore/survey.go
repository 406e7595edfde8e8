package redisstore

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/redis/rueidis"
)

// Server is one that messages are kept in, as it says itself.
type Server struct {
	Addr, Version string
	Replicas      int    // that follow it now
	Eviction      string // maxmemory-policy
	Max, Used     uint64 // bytes of memory; Max 0: no bound
	AppendOnly    bool
	Fsync         string // appendfsync; "": it does not say
}

// TellsSyncs: it can tell when a write is on its disk.
func (s *Server) TellsSyncs() bool { return atLeast(s.Version, 7, 2) }

// Survey asks the primaries of a store how they are set up, and whether a replica may
// replace one of them by itself. It changes nothing.
func Survey(ctx context.Context, o Options) (all []Server, failover bool, err error) {
	o.defaults()
	client, err := connect(o, o.firstLogin())
	if err != nil {
		return nil, false, err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	for addr, node := range client.Nodes() {
		text, err := node.Do(ctx, node.B().Info().Build()).ToString()
		if err != nil {
			return nil, false, fmt.Errorf("redis at %s: %w", addr, err)
		}
		info := parseInfo(text)
		if info["role"] != "master" {
			continue
		}
		s := Server{Addr: addr, Version: info["redis_version"], Eviction: info["maxmemory_policy"], AppendOnly: info["aof_enabled"] == "1"}
		s.Replicas, _ = strconv.Atoi(info["connected_slaves"])
		s.Max, s.Used = number(info["maxmemory"]), number(info["used_memory"])
		// It may not be allowed.
		settings, _ := node.Do(ctx, node.B().ConfigGet().Parameter("appendfsync").Build()).AsStrMap()
		s.Fsync = settings["appendfsync"]
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b Server) int { return cmp.Compare(a.Addr, b.Addr) })
	return all, client.Mode() != rueidis.ClientModeStandalone, nil
}
