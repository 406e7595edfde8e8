package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/redrive-mq/redrive/testenv/brokertest"
)

// usage is what processes took of the machine.
type usage struct {
	CPU  float64 `json:"cpu_s"`
	Peak float64 `json:"peak_mib"` // resident, the largest during the round
}

// meter measures processes from now on.
type meter struct {
	pids   []int
	before float64
}

// newMeter begins. Without processes, as with a broker on another machine, or
// without /proc, there is nothing to measure.
func newMeter(pids []int) meter {
	m := meter{pids: pids}
	for _, pid := range pids {
		// Makes now the peak; where it is refused the peak is that of its life.
		_ = os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)
	}
	m.before, _ = cpuSeconds(pids)
	return m
}

// usage is nil when it is unknown.
func (m meter) usage() *usage {
	cpu, ok := cpuSeconds(m.pids)
	if !ok {
		return nil
	}
	peak := 0.0
	for _, pid := range m.pids {
		peak += memory(pid, "VmHWM")
	}
	return &usage{CPU: round(cpu - m.before), Peak: round(peak)}
}

// costs are what a round took of the machine, by whom.
type costs struct {
	Own    *usage `json:"own"`    // of its own processes
	Redis  *usage `json:"redis"`  // of the Redis that keeps its messages
	Broker *usage `json:"broker"` // null for one that somebody else runs
	Bench  *usage `json:"bench"`  // of this process
}

// meters measure them.
type meters struct{ own, redis, broker, bench meter }

func newMeters(w way, b brokertest.Broker) meters {
	return meters{newMeter(w.pids), newMeter(w.redis), newMeter(groupPids(b.Group)), newMeter([]int{os.Getpid()})}
}

func (m meters) costs() costs {
	return costs{m.own.usage(), m.redis.usage(), m.broker.usage(), m.bench.usage()}
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

// each is the CPU time for one of n messages, in microseconds; 0 when it is unknown.
func (u *usage) each(n int) float64 {
	if u == nil || n == 0 {
		return 0
	}
	return round(u.CPU / float64(n) * 1e6)
}

// of n messages, as two columns of a table.
func (u *usage) of(n int) string {
	if u == nil {
		return "-\t-"
	}
	return fmt.Sprintf("%.0f\t%.0f", u.each(n), u.Peak)
}

func (r *report) printUsage(who string, u *usage, n int) {
	if u == nil {
		r.printf("%s: CPU -, peak memory -\n", who)
		return
	}
	r.printf("%s: CPU %.1f s, %.0f µs a message; peak memory %.0f MiB\n", who, u.CPU, u.each(n), u.Peak)
}
