package doctor

import (
	"cmp"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/store/redisstore"
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

func alarms(s *Scene) (all []Finding) {
	for _, n := range s.Nodes {
		if !n.Running {
			all = append(all, Finding{Status: Wrong, What: fmt.Sprintf("node %s is down", n.Name), Remedy: "Start it: its quorum queues have fewer members to lose.",
				Commands: []string{"rabbitmqctl -n " + Quote(n.Name) + " status"}})
		}
		if n.MemAlarm {
			all = append(all, Finding{Status: Wrong, What: fmt.Sprintf("node %s has a memory alarm", n.Name), Remedy: "Let consumers catch up, or give it more memory. What uses it:",
				Commands: []string{"rabbitmq-diagnostics -n " + Quote(n.Name) + " memory_breakdown"}})
		}
		if n.DiskAlarm {
			all = append(all, Finding{Status: Wrong, What: fmt.Sprintf("node %s has a disk alarm: %s free, limit %s", n.Name, size(n.DiskFree), size(n.DiskLimit)), Remedy: "Make room on its disk."})
		}
	}
	return all
}

func diskRoom(s *Scene) (all []Finding) {
	for _, n := range s.Nodes {
		if n.Running && !n.DiskAlarm && n.DiskLimit > 0 && n.DiskFree < 2*n.DiskLimit {
			all = append(all, Finding{Status: Warning, What: fmt.Sprintf("node %s has %s free, and its alarm comes at %s", n.Name, size(n.DiskFree), size(n.DiskLimit)), Remedy: "Make room on its disk."})
		}
	}
	return all
}

func storeRoom(s *Scene) []Finding {
	free, reserve := s.StoreFree, s.Config.Store.Reserve
	if s.Config.Store.Redis.URL != "" {
		free, limit := redisRoom(s.Redis)
		if limit == 0 {
			return nil
		}
		reserve = min(reserve, limit/10) // as the store has it
		what := fmt.Sprintf("Redis has %s of its maxmemory free, and %s of that are kept in reserve", size(int64(free)), size(int64(reserve)))
		return roomLeft(free, reserve, what, "Give Redis more maxmemory, or discard what is parked and not needed.")
	}
	what := fmt.Sprintf("the store's disk has %s free, and store.reserve is %s", size(int64(free)), size(int64(reserve)))
	remedy := fmt.Sprintf("Make room on the disk of %s, or discard what is parked and not needed.", s.Config.Store.Disk)
	return roomLeft(free, reserve, what, remedy)
}

func roomLeft(free, reserve uint64, what, remedy string) []Finding {
	switch {
	case free < reserve:
		return []Finding{{Status: Wrong, What: what + ": the intake has stopped", Remedy: remedy}}
	case free < 2*reserve:
		return []Finding{{Status: Warning, What: what, Remedy: remedy}}
	}
	return []Finding{{Status: OK, What: what}}
}

// tolerated is a difference of clocks that matters to no one.
const tolerated = 3 * time.Second

func clock(s *Scene) []Finding {
	by := s.Ahead.Abs()
	if by <= tolerated+s.Within {
		return nil
	}
	direction := "ahead of"
	if s.Ahead < 0 {
		direction = "behind"
	}
	return []Finding{{Status: Warning, What: fmt.Sprintf("RabbitMQ's clock is %s %s this one", by.Round(time.Second), direction),
		Remedy: "Synchronise the clocks of both machines (NTP).", Commands: []string{"timedatectl set-ntp true"}}}
}

// size is bytes for people.
func size(n int64) string {
	switch {
	case n >= 10<<30:
		return fmt.Sprintf("%d GiB", n>>30)
	case n >= 10<<20:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 10<<10:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d bytes", n)
}
