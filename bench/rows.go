package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/procfs"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/redisnode"
	"github.com/redrive-mq/redrive/testenv/subprocess"
)

// work is the queue whose messages are rejected and come back.
const work = "work"

// row is one way to bring a message back.
type row struct {
	name string
	// requeue: its consumer rejects with requeue, and the queue itself delays.
	requeue bool
	// start makes the work queue and what brings its messages back, and returns
	// when all is ready, or with notThere. The virtual host's close ends it.
	start func(context.Context, *vhost) error
}

// notThere is why a broker does not have a row.
type notThere string

func (n notThere) Error() string { return "not there: " + string(n) }

var forwarder = row{name: "bare forwarder", start: startForwarder}

// rows are all of them.
func rows() []row {
	return slices.Concat([]row{forwarder}, serviceRows(0, []string{onDisk, onRedis}), []row{
		{name: "fixed recipe (broker alone)", start: startFixed},
		{name: "native delayed retry", requeue: true, start: startNative},
	})
}

// serviceRows are Redrive on some stores, on Redis also in replicas.
func serviceRows(delay time.Duration, stores []string) (all []row) {
	add := func(name, store string, count int) {
		all = append(all, row{name: name, start: func(ctx context.Context, v *vhost) error {
			return startServices(ctx, v, store, count, map[string]time.Duration{work: delay})
		}})
	}
	if slices.Contains(stores, onDisk) {
		add("redrive", onDisk, 1)
	}
	if slices.Contains(stores, onRedis) {
		add("redrive on Redis", onRedis, 1)
		add("redrive on Redis, 2 replicas", onRedis, 2)
		add("redrive on Redis, 3 replicas", onRedis, 3)
	}
	return all
}

// vhost is where one round of one row runs, with what runs there.
type vhost struct {
	brokertest.Broker
	name, url, kind string // kind is that of the work queue
	manage          *management.Client
	services        []*service
	redis           *redisnode.Server // that keeps their messages; nil: a disk does
	ends            []func()
}

// atEnd has close call something, the last first.
func (v *vhost) atEnd(do func()) { v.ends = append(v.ends, do) }

func (v *vhost) close() {
	for _, end := range slices.Backward(v.ends) {
		end()
	}
}

func newVHost(ctx context.Context, b brokertest.Broker, kind string) (*vhost, error) {
	name := "redrive-bench-" + uuid.NewString()
	u, err := url.Parse(b.AMQP)
	if err != nil {
		return nil, err
	}
	u.Path = "/" + name
	api, err := management.New(b.Management, name)
	if err != nil {
		return nil, err
	}
	user := "guest"
	if u.User != nil {
		user = u.User.Username()
	}
	if err := api.Call(ctx, http.MethodPut, "vhosts/"+name, map[string]any{}, nil); err != nil {
		return nil, err
	}
	v := &vhost{Broker: b, name: name, url: u.String(), kind: kind, manage: api}
	v.atEnd(func() { _ = api.Call(context.WithoutCancel(ctx), http.MethodDelete, "vhosts/"+name, nil, nil) })
	all := map[string]any{"configure": ".*", "write": ".*", "read": ".*"}
	if err := api.Call(ctx, http.MethodPut, "permissions/"+name+"/"+url.PathEscape(user), all, nil); err != nil {
		v.close()
		return nil, err
	}
	return v, nil
}

func declare(ch *amqp.Channel, queue string, args amqp.Table) error {
	_, err := ch.QueueDeclare(queue, true, false, false, false, args)
	return err
}

// startFixed is the recipe in the broker alone: a rejected message is dead-lettered
// to a queue with a TTL, and from there back.
func startFixed(_ context.Context, v *vhost) error {
	return onChannel(v.url, func(ch *amqp.Channel) error {
		to := func(queue string) amqp.Table {
			return amqp.Table{"x-queue-type": v.kind, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}
		}
		wait := to(work)
		wait["x-message-ttl"] = int64(1)
		return errors.Join(declare(ch, work, to("wait")), declare(ch, "wait", wait))
	})
}

// startNative is RabbitMQ's own delayed retry, of a millisecond: the queue keeps
// what is rejected with requeue.
func startNative(_ context.Context, v *vhost) error {
	var major, minor int
	_, err := fmt.Sscanf(v.Version, "%d.%d", &major, &minor)
	switch {
	case v.kind != "quorum":
		return notThere("only quorum queues have delayed retry")
	case err != nil || slices.Compare([]int{major, minor}, []int{4, 3}) < 0:
		return notThere("RabbitMQ " + v.Version + " ignores its arguments; it came with 4.3")
	}
	return onChannel(v.url, func(ch *amqp.Channel) error {
		return declare(ch, work, amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(1000),
			"x-delayed-retry-type": "all", "x-delayed-retry-min": int64(1), "x-delayed-retry-max": int64(1)})
	})
}

// startForwarder is the least any service on this path must do: it consumes dead
// letters, publishes them back at once with confirms, and acknowledges what is
// confirmed. It stores nothing and waits for nothing. It runs in this process.
func startForwarder(_ context.Context, v *vhost) error {
	var passing sync.WaitGroup
	v.atEnd(passing.Wait)
	var channels [2]*amqp.Channel
	for i := range channels {
		conn, err := amqp.Dial(v.url)
		if err != nil {
			return err
		}
		v.atEnd(func() { conn.Close() })
		if channels[i], err = conn.Channel(); err != nil {
			return err
		}
	}
	in, out := channels[0], channels[1]
	if err := errors.Join(
		out.Confirm(false),
		in.ExchangeDeclare("dead", "fanout", true, false, true, false, nil),
		in.ExchangeDeclare("back", "fanout", true, false, false, false, nil),
		declare(in, "intake", amqp.Table{"x-queue-type": "quorum"}),
		declare(in, work, amqp.Table{"x-queue-type": v.kind, "x-dead-letter-exchange": "dead"}),
		in.QueueBind("intake", "", "dead", false, nil),
		in.QueueBind(work, "", "back", false, nil),
		in.Qos(4096, 0, false),
	); err != nil {
		return err
	}
	deliveries, err := in.Consume("intake", "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	type sent struct {
		tag     uint64
		confirm *amqp.DeferredConfirmation
	}
	flight := make(chan sent, 2048)
	passing.Go(func() {
		defer close(flight)
		for d := range deliveries {
			delete(d.Headers, "x-death")
			c, err := out.PublishWithDeferredConfirm("back", d.RoutingKey, true, false, amqp.Publishing{
				Headers: d.Headers, MessageId: d.MessageId, DeliveryMode: amqp.Persistent, Body: d.Body})
			if err != nil {
				return
			}
			flight <- sent{d.DeliveryTag, c}
		}
	})
	passing.Go(func() {
		// After a failure the rest is only drained, or the other would block.
		n, failed := 0, false
		for s := range flight {
			if failed = failed || !s.confirm.Wait(); failed {
				continue
			}
			// One ack for many, unless nothing else is on its way.
			if n++; n%256 == 0 || len(flight) == 0 {
				failed = in.Ack(s.tag, true) != nil
			}
		}
	})
	return nil
}

// startServices starts so many services with delays by queue, all of them on one Redis, which
// syncs each write, or one on disk. They are where the queues' dead letters go.
func startServices(ctx context.Context, v *vhost, store string, count int, delays map[string]time.Duration) error {
	if store == onRedis {
		r, err := redisnode.Start(ctx, redisnode.Options{})
		if errors.Is(err, redisnode.ErrNotInstalled) {
			return notThere(err.Error())
		}
		if err != nil {
			return err
		}
		v.redis = r
		v.atEnd(func() { _ = r.Stop() })
	}
	for range count {
		s, err := newService(v, delays)
		if err == nil {
			v.services = append(v.services, s)
			err = s.start(ctx)
		}
		if err != nil {
			return err
		}
	}
	return onChannel(v.url, func(ch *amqp.Channel) (err error) {
		for queue := range delays {
			args := amqp.Table{"x-queue-type": v.kind, "x-dead-letter-exchange": "redrive"}
			err = errors.Join(err, declare(ch, queue, args))
		}
		return err
	})
}

// service is Redrive as users run it: a process of its own.
type service struct {
	listen       string
	args, env    []string // of its process
	config, yaml string   // its file, and what is in that at least
	cmd          *exec.Cmd
}

// newService writes a service's config, with delays by queue; without any it has no config. Its
// messages are on the virtual host's Redis, if it has one, or else on disk.
func newService(v *vhost, delays map[string]time.Duration) (*service, error) {
	ports, err := subprocess.Ports(1)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "redrive-bench-")
	if err != nil {
		return nil, err
	}
	s := &service{listen: fmt.Sprintf("127.0.0.1:%d", ports[0]), args: []string{"serve"},
		env: []string{"REDRIVE_BROKER_URL=" + v.url}}
	v.atEnd(func() {
		s.end(syscall.SIGTERM)
		os.RemoveAll(dir)
	})
	data := filepath.Join(dir, "data")
	if len(delays) == 0 {
		s.env = append(s.env, "REDRIVE_STORE_DISK="+data, "REDRIVE_LISTEN="+s.listen)
		if !strings.HasSuffix(v.Management, ":15672") { // where the service looks for it
			s.env = append(s.env, "REDRIVE_MANAGEMENT_URL="+v.Management)
		}
		return s, nil
	}
	s.config = filepath.Join(dir, "redrive.yaml")
	s.args = append(s.args, "--config", s.config)
	store := "disk: " + data
	if v.redis != nil {
		store += ", redis: {url: " + v.redis.URL() + "}"
	}
	s.yaml = fmt.Sprintf("store: {%s}\nlisten: %s\npolicies:\n", store, s.listen)
	for queue, delay := range delays {
		s.yaml += fmt.Sprintf("- {name: %[1]s, queues: [%[1]s], backoff: {fixed: %[2]dms}, jitter: none, attempts: 1000000}\n",
			queue, delay.Milliseconds())
	}
	return s, s.configure("")
}

// configure writes its config, with more in it.
func (s *service) configure(more string) error {
	return os.WriteFile(s.config, []byte(s.yaml+more), 0o600)
}

func (s *service) pid() int { return s.cmd.Process.Pid }

// redisPID is the process of the virtual host's Redis.
func (v *vhost) redisPID() int {
	pid, _ := strconv.Atoi(v.redis.Info(context.Background(), "server", "process_id"))
	return pid
}

// launch starts the process.
func (s *service) launch() error {
	s.cmd = exec.Command(*binary, s.args...)
	s.cmd.Env = append(os.Environ(), s.env...)
	if os.Getenv("REDRIVE_BENCH_LOG") != "" {
		s.cmd.Stderr = os.Stderr
	}
	// Not in the group that Ctrl-C ends: this process ends it, measured.
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := s.cmd.Start(); err != nil {
		s.cmd = nil
		return fmt.Errorf("starting the service: %w; `make build` makes it", err)
	}
	return nil
}

// start launches it and waits until it is ready.
func (s *service) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := s.launch(); err != nil {
		return err
	}
	for {
		resp, err := http.Get("http://" + s.listen + "/readyz")
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		if pause(ctx, 20*time.Millisecond) != nil {
			return fmt.Errorf("the service is not ready (REDRIVE_BENCH_LOG=1 shows its log): %w", ctx.Err())
		}
	}
}

// untilWaiting waits until enough messages of a queue wait in the service, for as
// long as their number changes.
func (s *service) untilWaiting(ctx context.Context, queue string, enough func(now int) bool) error {
	return s.until(ctx, "messages of "+queue+" wait", enough, func(o *inspect.Overview) (now int) {
		for _, q := range o.Queues {
			if q.Name == queue {
				now = int(q.Waiting)
			}
		}
		return now
	})
}

// until waits until a count of the overview is enough, for as long as it changes.
func (s *service) until(ctx context.Context, what string, enough func(now int) bool,
	count func(*inspect.Overview) int) error {
	last, changed := -1, time.Now()
	for {
		o, err := httpapi.Client{Addr: s.listen}.Overview(ctx)
		if err != nil {
			return err
		}
		now := count(&o)
		if enough(now) {
			return nil
		}
		if now != last {
			last, changed = now, time.Now()
		}
		if time.Since(changed) > time.Minute {
			return fmt.Errorf("%d %s, and for a minute that did not change", now, what)
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// end ends the process and waits for it.
func (s *service) end(by os.Signal) {
	if s.cmd != nil {
		_ = s.cmd.Process.Signal(by)
		_ = s.cmd.Wait()
		s.cmd = nil
	}
}

// pause waits so long, or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

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
			_, peak := memory(pid)
			u.peak += peak
		}
		return u
	}
}

// groupPids are the processes of a process group; none for group 0.
func groupPids(group int) (pids []int) {
	all, _ := procfs.AllProcs()
	for _, p := range all {
		if s, err := p.Stat(); err == nil && group > 0 && s.PGRP == group {
			pids = append(pids, p.PID)
		}
	}
	return pids
}

// cpuSeconds is what living processes have used.
func cpuSeconds(pids []int) (seconds float64, ok bool) {
	for _, pid := range pids {
		p, err := procfs.NewProc(pid)
		if err != nil {
			continue
		}
		if s, err := p.Stat(); err == nil {
			seconds, ok = seconds+s.CPUTime(), true
		}
	}
	return seconds, ok
}

// memory is what of a process is resident, and was at most, in MiB; 0 when it is unknown.
func memory(pid int) (resident, peak float64) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return 0, 0
	}
	s, _ := p.NewStatus()
	return float64(s.VmRSS) / (1 << 20), float64(s.VmHWM) / (1 << 20)
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
	resident, peak := memory(pid)
	return fmt.Sprintf("resident %.0f MiB, peak %.0f MiB", resident, peak)
}
