package main

import (
	"context"
	"errors"
	"strconv"

	"github.com/redrive-mq/redrive/internal/redisnode"
)

// startReplicas is so many services on one Redis that syncs each write.
func startReplicas(n int) func(context.Context, vhost) (way, error) {
	return func(ctx context.Context, v vhost) (_ way, err error) {
		redis, err := redisnode.Start(ctx, redisnode.Options{})
		if errors.Is(err, redisnode.ErrNotInstalled) {
			return way{}, notThere(err.Error())
		}
		if err != nil {
			return way{}, err
		}
		var all []*service
		stop := func() {
			for _, s := range all {
				s.remove()
			}
			_ = redis.Stop()
		}
		defer func() {
			if err != nil {
				stop()
			}
		}()
		pid, err := strconv.Atoi(redis.Info(ctx, "server", "process_id"))
		if err != nil {
			return way{}, err
		}
		pids := []int{pid}
		for range n {
			s, err := newServiceOf(v.url, redis.URL(), policiesOf(delays{work: 0}))
			if err != nil {
				return way{}, err
			}
			all = append(all, s)
			if err := s.start(ctx); err != nil {
				return way{}, err
			}
			pids = append(pids, s.pids()...)
		}
		return way{pids: pids, stop: stop}, enrolled(v, work)
	}
}
