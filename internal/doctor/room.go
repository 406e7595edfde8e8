package doctor

import (
	"fmt"
	"time"
)

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
