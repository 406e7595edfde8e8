package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// usage is what processes took of the machine.
type usage struct {
	known bool
	cpu   float64 // seconds
	peak  float64 // MiB that are resident, the largest during the round
}

// costs are what a round took, by whom; broker is not known when somebody else runs it.
type costs struct{ own, redis, broker usage }

// measureCosts measures from now on, until its result is called.
func measureCosts(v *vhost) func() costs {
	var services, redis []int
	for _, s := range v.services {
		services = append(services, s.pid())
	}
	if v.redis != nil {
		redis = append(redis, v.redisPID())
	}
	own, kept, broker := measureUsage(services), measureUsage(redis), measureUsage(groupPids(v.Group))
	return func() costs { return costs{own(), kept(), broker()} }
}

// measureUsage begins. Without processes, as with a broker on another machine, or
// without /proc, there is nothing to measure.
func measureUsage(pids []int) func() usage {
	for _, pid := range pids {
		// Makes now the peak; where it is refused the peak is that of its life.
		_ = os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)
	}
	before, _ := cpuSeconds(pids)
	return func() usage {
		after, ok := cpuSeconds(pids)
		u := usage{known: ok, cpu: after - before}
		for _, pid := range pids {
			u.peak += memory(pid, "VmHWM")
		}
		return u
	}
}

// groupPids are the processes of a process group; none for group 0.
func groupPids(group int) (pids []int) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(d))
		if f := stat(pid); group > 0 && len(f) > 2 && f[2] == strconv.Itoa(group) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// cpuSeconds is what living processes have used.
func cpuSeconds(pids []int) (seconds float64, ok bool) {
	const ticks = 100 // a second, on every Linux, whatever the kernel counts in
	for _, pid := range pids {
		f := stat(pid)
		if len(f) < 13 {
			continue
		}
		ok = true
		for _, field := range f[11:13] { // user and system time
			n, _ := strconv.ParseFloat(field, 64)
			seconds += n / ticks
		}
	}
	return seconds, ok
}

// stat is /proc/pid/stat from the third field, the state, on.
func stat(pid int) []string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	return strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:])) // a name may hold spaces
}

// memory is a line of /proc/pid/status, in MiB; 0 when it is unknown.
func memory(pid int, line string) float64 {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, rest, _ := strings.Cut(string(status), line+":")
	f := strings.Fields(rest)
	if len(f) == 0 {
		return 0
	}
	kb, _ := strconv.ParseFloat(f[0], 64)
	return kb / 1024
}

// columns of a table, for n messages.
func (u usage) columns(n int) string {
	if !u.known {
		return "-\t-"
	}
	return fmt.Sprintf("%.0f\t%.0f", u.cpu/float64(n)*1e6, u.peak)
}

func (u usage) text(n int) string {
	if !u.known {
		return "-"
	}
	return fmt.Sprintf("CPU %.1f s, %.0f µs a message; peak memory %.0f MiB", u.cpu, u.cpu/float64(n)*1e6, u.peak)
}

// footprint is the memory of a process.
func footprint(pid int) string {
	return fmt.Sprintf("resident %.0f MiB, peak %.0f MiB", memory(pid, "VmRSS"), memory(pid, "VmHWM"))
}
