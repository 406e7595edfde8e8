package faults_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/wire"
)

// replica is a service that shares a Redis with others.
type replica struct {
	*process
	httpapi.Client
}

func newReplica(t *testing.T, url, redis, policies string) *replica {
	t.Helper()
	return newReplicaOn(t, url, "redis://"+redis, synced, policies)
}

func newReplicaOn(t *testing.T, url, redis, settings, policies string) *replica {
	t.Helper()
	p := newProcess(t, url)
	p.store = fmt.Sprintf("{disk: %s, redis: {url: %q, lease: 5s, %s}}", p.data(), redis, settings)
	p.configure(policies)
	if err := os.MkdirAll(filepath.Join(p.data(), "audit"), 0o700); err != nil {
		t.Fatal(err)
	}
	p.start()
	return &replica{p, httpapi.Client{Addr: p.listen}}
}

// ended tells whether it has, by itself.
func (r *replica) ended() bool {
	pid, err := syscall.Wait4(r.cmd.Process.Pid, nil, syscall.WNOHANG, nil)
	return err != nil || pid != 0
}

func (r *replica) signal(s os.Signal) {
	r.t.Helper()
	if err := r.cmd.Process.Signal(s); err != nil {
		r.t.Fatal(err)
	}
}

// sees waits until each of these replicas shows so many, of which one leads, and
// returns that one.
func sees(t *testing.T, n int, all ...*replica) (leader *replica) {
	t.Helper()
	brokertest.Eventually(t, fmt.Sprintf("%d replicas with one leader", n), func() bool {
		leader = nil
		for _, r := range all {
			o, err := r.Overview(context.Background())
			leads := slices.IndexFunc(o.Replicas, func(r inspect.Replica) bool { return r.Leads })
			if err != nil || len(o.Replicas) != n || leads < 0 {
				return false
			}
			if o.Replicas[leads].Self {
				leader = r
			}
		}
		return leader != nil
	})
	return leader
}

// returns notes when each message of a queue came back; it fails each once.
type returns struct {
	mu     sync.Mutex
	times  []time.Time
	bodies map[string]int
}

func failingOnce(t *testing.T, v *brokertest.VHost, queue string) *returns {
	ch := v.Channel()
	if err := ch.Qos(200, 0, false); err != nil {
		t.Fatal(err)
	}
	in, err := ch.Consume(queue, "", false, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	r := &returns{bodies: map[string]int{}}
	var consuming sync.WaitGroup
	consuming.Go(func() {
		for d := range in {
			if d.Headers[wire.HeaderAttempt] == nil {
				_ = d.Reject(false)
				continue
			}
			r.mu.Lock()
			r.times = append(r.times, time.Now())
			r.bodies[string(d.Body)]++
			r.mu.Unlock()
			_ = d.Ack(false)
		}
	})
	t.Cleanup(func() { ch.Close(); consuming.Wait() })
	return r
}

func (r *returns) between(from, to time.Time) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, at := range r.times {
		if !at.Before(from) && at.Before(to) {
			n++
		}
	}
	return n
}
