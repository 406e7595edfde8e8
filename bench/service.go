package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/testenv/redisnode"
)

// redis is one that syncs each write.
type redis struct {
	*redisnode.Server
	dir string // its data, where the services' is
	pid int
}

// startRedis starts one, or says that it is notThere.
func startRedis(ctx context.Context) (_ *redis, err error) {
	r := new(redis)
	if r.dir, err = os.MkdirTemp(*folder, "redrive-bench-redis-"); err != nil {
		return nil, err
	}
	r.Server, err = redisnode.Start(ctx, redisnode.Options{Config: "dir " + r.dir})
	if err == nil {
		r.pid, err = strconv.Atoi(r.Info(ctx, "server", "process_id"))
	}
	switch {
	case err == nil:
		return r, nil
	case errors.Is(err, redisnode.ErrNotInstalled):
		err = notThere(err.Error())
	}
	r.stop()
	return nil, err
}

func (r *redis) stop() {
	if r.Server != nil {
		_ = r.Stop()
	}
	os.RemoveAll(r.dir)
}

// startServices starts so many services with one delay for the work queue, all of them on one
// Redis, or one on disk.
func startServices(ctx context.Context, v vhost, store string, count int, delay time.Duration) (w way, err error) {
	var began []func()
	w.stop = func() {
		for _, stop := range slices.Backward(began) {
			stop()
		}
	}
	defer func() {
		if err != nil {
			w.stop()
		}
	}()
	var on *redis
	if store == onRedis {
		if on, err = startRedis(ctx); err != nil {
			return w, err
		}
		began, w.redis = append(began, on.stop), []int{on.pid}
	}
	for range count {
		s, err := newService(v.url, on, map[string]time.Duration{work: delay})
		if err != nil {
			return w, err
		}
		began = append(began, s.remove)
		if err := s.start(ctx); err != nil {
			return w, err
		}
		w.pids = append(w.pids, s.pid())
	}
	return w, enrolled(v, work)
}

// enrolled declares queues that dead-letter to the service.
func enrolled(v vhost, queues ...string) error {
	return onChannel(v.url, func(ch *amqp.Channel) (err error) {
		for _, queue := range queues {
			err = errors.Join(err, declare(ch, queue, amqp.Table{"x-queue-type": v.kind, "x-dead-letter-exchange": "redrive"}))
		}
		return err
	})
}

// service is Redrive as users run it: a process of its own.
type service struct {
	dir, listen, url string
	cmd              *exec.Cmd
}

// newService writes its config, with delays by queue; start it, and remove it in the end. Its
// messages are on a Redis, or on disk if that is nil.
func newService(url string, on *redis, delays map[string]time.Duration) (s *service, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s = &service{url: url, listen: l.Addr().String()}
	l.Close()
	if s.dir, err = os.MkdirTemp(*folder, "redrive-bench-"); err != nil {
		return nil, err
	}
	store := "disk: " + filepath.Join(s.dir, "data")
	if on != nil {
		store += ", redis: {url: " + on.URL() + "}"
	}
	yaml := fmt.Sprintf("store: {%s}\nlisten: %s\npolicies:\n", store, s.listen)
	for queue, delay := range delays {
		yaml += fmt.Sprintf("- {name: %s, queues: [%s], backoff: {fixed: %dms}, jitter: none, attempts: 1000000}\n", queue, queue, delay.Milliseconds())
	}
	return s, os.WriteFile(s.config(), []byte(yaml), 0o600)
}

func (s *service) config() string { return filepath.Join(s.dir, "redrive.yaml") }

func (s *service) pid() int { return s.cmd.Process.Pid }

// launch starts the process.
func (s *service) launch() error {
	s.cmd = exec.Command(*binary, "serve", "--config", s.config())
	s.cmd.Env = append(os.Environ(), "REDRIVE_BROKER_URL="+s.url)
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
	last, changed := -1, time.Now()
	for {
		st, err := httpapi.Client{Addr: s.listen}.Overview(ctx)
		if err != nil {
			return err
		}
		now := 0
		for _, q := range st.Queues {
			if q.Name == queue {
				now = int(q.Waiting)
			}
		}
		if enough(now) {
			return nil
		}
		if now != last {
			last, changed = now, time.Now()
		}
		if time.Since(changed) > time.Minute {
			return fmt.Errorf("%d messages of %s wait, and for a minute that did not change", now, queue)
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

func (s *service) remove() {
	s.end(syscall.SIGTERM)
	os.RemoveAll(s.dir)
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
