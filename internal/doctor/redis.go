package doctor

import (
	"cmp"
	"fmt"
	"net"

	"github.com/redrive-mq/redrive/internal/store/redisstore"
)

// redis says how safe messages are in Redis, and what can be lost.
func redis(s *Scene) (all []Finding) {
	c := s.Config.Store.Redis
	if c.URL == "" {
		return []Finding{{Status: OK, What: "messages are kept on this machine's disk, not in Redis"}}
	}
	for i := range s.Redis {
		all = append(all, redisServer(&s.Redis[i], cmp.Or(c.Durability, string(redisstore.Synced)), max(1, c.Replicas))...)
	}
	if s.Failover && c.Durability != string(redisstore.Replicated) {
		all = append(all, Finding{Status: Warning, What: "a server that is replaced by its replica loses what that did not have yet",
			Remedy: "Set store.redis.durability to replicated."})
	}
	return all
}

// redisServer says that of one server.
func redisServer(r *redisstore.Server, durability string, replicas int) (all []Finding) {
	at := "Redis at " + r.Addr
	set := func(name, value string) []string {
		host, port, _ := net.SplitHostPort(r.Addr)
		return []string{fmt.Sprintf("redis-cli -h %s -p %s CONFIG SET %s %s", Quote(host), Quote(port), name, value)}
	}
	const file = " and the same in its configuration file"
	if r.Eviction != "noeviction" {
		all = append(all, Finding{Status: Wrong, What: fmt.Sprintf("%s deletes messages when its memory is full: maxmemory-policy is %s", at, r.Eviction),
			Remedy: "The service refuses it. This," + file + ":", Commands: set("maxmemory-policy", "noeviction")})
	}
	if r.Max == 0 {
		all = append(all, Finding{Status: Warning, What: at + " has no maxmemory, so it may take all memory of its machine, and be ended for it",
			Remedy: "What it may take, for example 4 GiB," + file + ":", Commands: set("maxmemory", "4gb")})
	}
	safe := Finding{Status: OK}
	switch durability {
	case string(redisstore.Cached):
		safe.What = at + " keeps messages in memory (durability: cached): a crash or a failover loses the last moments"
	case string(redisstore.Replicated):
		safe.What = fmt.Sprintf("%s has %d replicas, and a write counts when %d have it in memory (durability: replicated)", at, r.Replicas, replicas)
		if r.Replicas < replicas {
			safe.Status, safe.Remedy = Wrong, "Start the replicas: no message is accepted or retried until they are there."
		}
	default:
		switch safe.What = fmt.Sprintf("%s has a write on its disk when it counts (durability: synced; appendonly %v, appendfsync %s)", at, r.AppendOnly, cmp.Or(r.Fsync, "unknown")); {
		case !r.AppendOnly:
			safe.Status, safe.What = Wrong, at+" writes nothing to its disk, as durability: synced needs"
			safe.Remedy, safe.Commands = "This,"+file+":", append(set("appendonly", "yes"), set("appendfsync", "always")...)
		case r.Fsync != "always" && (!r.TellsSyncs() || r.Fsync == "no"):
			safe.Status, safe.What = Wrong, fmt.Sprintf("%s does not confirm that a write is on its disk: appendfsync is %s", at, cmp.Or(r.Fsync, "unknown"))
			safe.Remedy, safe.Commands = "This,"+file+":", set("appendfsync", "always")
		case r.Fsync == "everysec":
			safe.Status, safe.What = Warning, at+" syncs once a second, and each write waits for that"
			safe.Remedy, safe.Commands = "This,"+file+":", set("appendfsync", "always")
		}
	}
	return append(all, safe)
}

// redisRoom is the free space of the server that has the least, and its limit; 0, 0 when none has a
// limit.
func redisRoom(all []redisstore.Server) (free, limit uint64) {
	for _, r := range all {
		if is := r.Max - min(r.Max, r.Used); r.Max > 0 && (limit == 0 || is < free) {
			free, limit = is, r.Max
		}
	}
	return free, limit
}
