package main

import (
	"context"
	"errors"
	"net/url"
	"os"
	"strconv"
	"time"

	"github.com/redrive-mq/redrive/testenv/proxy"
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

// footprint is its memory, and how many bytes of it Redis says that it uses; nothing
// for none.
func (r *redis) footprint(ctx context.Context) (f *footprint, used float64) {
	if r == nil {
		return nil, 0
	}
	of := footprintOf(r.pid)
	used, _ = strconv.ParseFloat(r.Info(ctx, "memory", "used_memory"), 64)
	return &of, used
}

// rewrites tells whether it is writing its append-only file again.
func (r *redis) rewrites(ctx context.Context) bool {
	return r != nil && r.Info(ctx, "persistence", "aof_rewrite_in_progress") == "1"
}

// replicas are services on one Redis.
type replicas struct {
	count int
	delay time.Duration
	// link is how many bytes a second pass between each of them and RabbitMQ, each way;
	// 0 is as many as the machine can.
	link int64
}

func (o replicas) start(ctx context.Context, v vhost) (w way, err error) {
	var began []func()
	w.stop = func() {
		for i := range began {
			began[len(began)-1-i]()
		}
	}
	defer func() {
		if err != nil {
			w.stop()
		}
	}()
	on, err := startRedis(ctx)
	if err != nil {
		return w, err
	}
	began, w.redis = append(began, on.stop), []int{on.pid}
	for range o.count {
		at := v.url
		if o.link > 0 {
			between, through, err := link(at, o.link)
			if err != nil {
				return w, err
			}
			began, at = append(began, between.Close), through
		}
		s, err := newServiceOf(at, on.URL(), policiesOf(delays{work: o.delay}))
		if err != nil {
			return w, err
		}
		began = append(began, s.remove)
		if err := s.start(ctx); err != nil {
			return w, err
		}
		w.pids = append(w.pids, s.pids()...)
	}
	return w, enrolled(v, work)
}

// link is a way to the broker at a URL that lets so many bytes a second through.
func link(to string, perSecond int64) (p *proxy.Proxy, through string, err error) {
	u, err := url.Parse(to)
	if err != nil {
		return nil, "", err
	}
	if u.Port() == "" {
		u.Host += ":5672"
	}
	if p, err = proxy.Start(u.Host); err != nil {
		return nil, "", err
	}
	p.Limit(perSecond)
	u.Host = p.Addr()
	return p, u.String(), nil
}
