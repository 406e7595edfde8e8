package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// service is Redrive as users run it, with a delay of nothing.
type service struct {
	dir string
	cmd *exec.Cmd
}

func (*service) name() string { return "redrive" }

func (s *service) start(ctx context.Context, v vhost, queue, kind string) (err error) {
	if s.dir, err = os.MkdirTemp("", "redrive-bench-"); err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	listen := l.Addr().String()
	l.Close()
	file := filepath.Join(s.dir, "redrive.yaml")
	yaml := fmt.Sprintf("store: {disk: %s}\nlisten: %s\npolicies: [{name: bench, queues: [%s], backoff: {fixed: 0s}, jitter: none}]\n", filepath.Join(s.dir, "data"), listen, queue)
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		return err
	}
	s.cmd = exec.Command(*binary, "serve", "--config", file)
	s.cmd.Env = append(os.Environ(), "REDRIVE_BROKER_URL="+v.url)
	s.cmd.Stderr = os.Stderr
	if os.Getenv("REDRIVE_BENCH_LOG") == "" {
		s.cmd.Stderr = nil
	}
	if err := s.cmd.Start(); err != nil {
		return err
	}
	for {
		resp, err := http.Get("http://" + listen + "/readyz")
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				break
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the service is not ready: %w", ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
	conn, err := amqp.Dial(v.url)
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	_, err = ch.QueueDeclare(queue, true, false, false, false, amqp.Table{"x-queue-type": kind, "x-dead-letter-exchange": "redrive"})
	return err
}

func (s *service) stop() (u usage) {
	if status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid)); err == nil {
		_, peak, _ := strings.Cut(string(status), "VmHWM:")
		if f := strings.Fields(peak); len(f) > 0 {
			kb, _ := strconv.ParseFloat(f[0], 64)
			u.peak = kb / 1024
		}
	}
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	_ = s.cmd.Wait()
	u.cpu = (s.cmd.ProcessState.UserTime() + s.cmd.ProcessState.SystemTime()).Seconds()
	os.RemoveAll(s.dir)
	return u
}
