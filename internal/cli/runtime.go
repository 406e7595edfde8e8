package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"os"
	"path"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"
)

// memoryLimit is the heap size above which Go collects garbage as often as it can.
const memoryLimit = 256 << 20

// limitRuntime sets how many cores and how much memory Go uses, where the environment does not.
func (p *program) limitRuntime(log *slog.Logger) {
	if p.getenv("GOMAXPROCS") == "" {
		// A message passes through many goroutines, each with little to do:
		// on fewer cores they cost less (a sixth of the CPU on two), and
		// RabbitMQ, often beside it, has the rest.
		runtime.GOMAXPROCS(max(1, runtime.GOMAXPROCS(0)/2))
	}
	if p.getenv("GOMEMLIMIT") == "" {
		// Large bodies leave garbage of several times their size. Up to this, which
		// small ones do not reach, it is collected no sooner than by default.
		limit := int64(memoryLimit)
		if most := cgroupMemory(os.DirFS("/")); most > 0 && most/5*4 < limit {
			limit = most / 5 * 4 // the rest is for what is not on the heap
			log.Info("less memory is used, since the container or unit has little", "limit", most, "heap", limit)
		}
		debug.SetMemoryLimit(limit)
	}
}

// cgroupMemory returns the bytes that this process and its cgroup may use, 0 when there is no
// limit: of version 2, that of its group and of each above it, or of version 1.
func cgroupMemory(root fs.FS) (least int64) {
	const v2, v1 = "sys/fs/cgroup", "sys/fs/cgroup/memory"
	groups, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(groups)) {
		// Such as 0::/system.slice/redrive.service, or 4:memory:/docker/1234.
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		at, file := v2, "memory.max"
		if parts[0] != "0" {
			at, file = v1, "memory.limit_in_bytes"
			if parts[1] != "memory" {
				continue
			}
		}
		for group := path.Clean("/" + parts[2]); ; group = path.Dir(group) {
			data, err := fs.ReadFile(root, path.Join(at, group, file))
			// Of version 1 no limit is a number of nearly 2⁶³; of version 2 it is "max".
			if limit, wrong := strconv.ParseInt(string(bytes.TrimSpace(data)), 10, 64); err == nil && wrong == nil && limit < 1<<60 && (least == 0 || limit < least) {
				least = limit
			}
			if group == "/" {
				break
			}
		}
	}
	return least
}

// serveProfiles serves Go's profiles until stop is called; "" serves none. Only to this machine,
// since each request costs CPU, and no one signs in.
func serveProfiles(address string, log *slog.Logger) (stop func(), err error) {
	if address == "" {
		return func() {}, nil
	}
	at, err := netip.ParseAddrPort(address)
	if err != nil || !at.Addr().IsLoopback() {
		return nil, fmt.Errorf("--pprof %q: expected an address of this machine alone, such as 127.0.0.1:6060: %w", address, errUsage)
	}
	listen, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--pprof: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	s := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := s.Serve(listen); !errors.Is(err, http.ErrServerClosed) {
			log.Warn("profiles are not served any more", "error", err)
		}
	}()
	log.Info("profiles are served", "url", "http://"+listen.Addr().String()+"/debug/pprof/")
	return func() { _ = s.Close(); <-ended }, nil
}
