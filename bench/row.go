package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/testenv/brokertest"
)

// work is the queue whose messages are rejected and come back.
const work = "work"

// row is one way to bring a message back.
type row struct {
	name string
	// requeue: its consumer rejects with requeue, and the queue itself delays.
	requeue bool
	// start makes the work queue and what brings its messages back, and returns
	// when all is ready, or with notThere.
	start func(ctx context.Context, v vhost) (way, error)
}

// way is what retries messages while it runs.
type way struct {
	pids  []int // of its own processes, if it has any
	redis []int // of the Redis that keeps its messages
	stop  func()
}

const forwarderRow, redriveRow = "bare forwarder", "redrive"

// mostReplicas are in one row, but with -scale.
const mostReplicas = 3

func replicasRow(count int) string {
	if count == 1 {
		return "redrive on Redis"
	}
	return fmt.Sprintf("redrive on Redis, %d replicas", count)
}

func rows() []row {
	return []row{
		{name: forwarderRow, start: startForwarder},
		{name: redriveRow, start: startService},
		{name: replicasRow(1), start: replicas{count: 1}.start},
		{name: replicasRow(2), start: replicas{count: 2}.start},
		{name: replicasRow(mostReplicas), start: replicas{count: mostReplicas}.start},
		{name: "fixed recipe (broker alone)", start: startFixed},
		{name: "shovel, one hop", start: startShovel},
		{name: "native delayed retry", requeue: true, start: startNative},
	}
}

// notThere is why a broker does not have a row.
type notThere string

func (n notThere) Error() string { return "not there: " + string(n) }

// vhost is where one round of one row runs.
type vhost struct {
	brokertest.Broker
	name, url string
	kind      string // of the work queue
	api       *management.Client
}

func newVHost(ctx context.Context, b brokertest.Broker, kind string) (v vhost, remove func(), err error) {
	v = vhost{Broker: b, name: "redrive-bench-" + uuid.NewString(), kind: kind}
	u, err := url.Parse(b.AMQP)
	if err != nil {
		return v, nil, err
	}
	u.Path = "/" + v.name
	v.url = u.String()
	if v.api, err = management.New(b.Management, v.name); err != nil {
		return v, nil, err
	}
	user := "guest"
	if u.User != nil {
		user = u.User.Username()
	}
	if err := v.api.Call(ctx, http.MethodPut, "vhosts/"+v.name, map[string]any{}, nil); err != nil {
		return v, nil, err
	}
	remove = func() {
		_ = v.api.Call(context.WithoutCancel(ctx), http.MethodDelete, "vhosts/"+v.name, nil, nil)
	}
	if err := v.api.Call(ctx, http.MethodPut, "permissions/"+v.name+"/"+url.PathEscape(user), map[string]any{"configure": ".*", "write": ".*", "read": ".*"}, nil); err != nil {
		remove()
		return v, nil, err
	}
	return v, remove, nil
}

// since tells whether the broker is of that version or a later one.
func (v vhost) since(major, minor int) bool {
	var a, b int
	_, err := fmt.Sscanf(v.Version, "%d.%d", &a, &b)
	return err == nil && slices.Compare([]int{a, b}, []int{major, minor}) >= 0
}
