package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/httpapi"
)

// service is Redrive as users run it: a process of its own.
type service struct {
	dir, listen string
	url         string
	redis       *redis // its own, if it has one
	cmd         *exec.Cmd
}

// startService is Redrive with a delay of nothing.
func startService(ctx context.Context, v vhost) (way, error) { return startServiceWith(ctx, v, 0) }

func startServiceWith(ctx context.Context, v vhost, delay time.Duration) (way, error) {
	s, err := newService(v.url, delays{work: delay})
	if err != nil {
		return way{}, err
	}
	return s.serve(ctx, v)
}

// serve is the service as a way, with its work queue.
func (s *service) serve(ctx context.Context, v vhost) (way, error) {
	err := s.start(ctx)
	if err == nil {
		err = enrolled(v, work)
	}
	if err != nil {
		s.remove()
		return way{}, err
	}
	return way{pids: s.pids(), stop: s.remove}, nil
}

// enrolled declares a queue that dead-letters to the service.
func enrolled(v vhost, queue string) error {
	return onChannel(v.url, func(ch *amqp.Channel) error {
		return declare(ch, queue, amqp.Table{"x-queue-type": v.kind, "x-dead-letter-exchange": "redrive"})
	})
}

// delays by queue.
type delays map[string]time.Duration

// newService writes its config; start it, and remove it in the end.
func newService(url string, policies delays) (*service, error) {
	return newServiceOf(url, "", policiesOf(policies))
}

// newServiceIn is newService with its messages where -store says: on disk, or in a Redis
// of its own.
func newServiceIn(ctx context.Context, store, url string, policies delays) (*service, error) {
	if store == onDisk {
		return newService(url, policies)
	}
	r, err := startRedis(ctx)
	if err != nil {
		return nil, err
	}
	s, err := newServiceOf(url, r.URL(), policiesOf(policies))
	if err != nil {
		r.stop()
		return nil, err
	}
	s.redis = r
	return s, nil
}

// policiesOf are delays in YAML.
func policiesOf(d delays) (yaml string) {
	for queue, delay := range d {
		yaml += fmt.Sprintf("- {name: %s, queues: [%s], backoff: {fixed: %dms}, jitter: none, attempts: 1000000}\n", queue, queue, delay.Milliseconds())
	}
	return yaml
}

// newServiceOf is one on a Redis, or on disk, with a list of policies in YAML.
func newServiceOf(url, redis, policies string) (s *service, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s = &service{url: url, listen: l.Addr().String()}
	l.Close()
	if s.dir, err = os.MkdirTemp(*folder, "redrive-bench-"); err != nil {
		return nil, err
	}
	store := "disk: " + s.data()
	if redis != "" {
		store += ", redis: {url: " + redis + "}"
	}
	yaml := fmt.Sprintf("store: {%s}\nlisten: %s\npolicies:\n%s", store, s.listen, policies)
	return s, os.WriteFile(s.config(), []byte(yaml), 0o600)
}

func (s *service) config() string { return filepath.Join(s.dir, "redrive.yaml") }
func (s *service) data() string   { return filepath.Join(s.dir, "data") }

func (s *service) pids() []int { return []int{s.cmd.Process.Pid} }

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
		select {
		case <-ctx.Done():
			return fmt.Errorf("the service is not ready (REDRIVE_BENCH_LOG=1 shows its log): %w", ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// waiting is how many messages of a queue wait in it.
func (s *service) waiting(ctx context.Context, queue string) (int, error) {
	st, err := httpapi.Client{Addr: s.listen}.Overview(ctx)
	for _, q := range st.Queues {
		if q.Name == queue {
			return int(q.Waiting), nil
		}
	}
	return 0, err
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
	if s.redis != nil {
		s.redis.stop()
	}
	os.RemoveAll(s.dir)
}
