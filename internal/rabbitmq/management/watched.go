package management

import (
	"context"
	"net/http"
)

// watchedColumns are as few as can be, since they are asked for again and again. A policy's settings
// can be asked for one by one, arguments only together.
const watchedColumns = "name,type,exclusive,consumers,messages,arguments" +
	",effective_policy_definition.dead-letter-exchange,effective_policy_definition.message-ttl"

// WatchedQueues are all queues of the virtual host, with how much is in them and who consumes, and
// of their policies only where dead letters go and the TTL.
func (c *Client) WatchedQueues(ctx context.Context) (all []Queue, err error) {
	return all, c.Call(ctx, http.MethodGet, c.path("queues")+"?columns="+watchedColumns, nil, &all)
}

// Setting is what is in force: an argument of the queue, or else what its policies set.
func (q *Queue) Setting(name string) any {
	if v, ok := q.Arguments["x-"+name]; ok {
		return v
	}
	return q.Effective[name]
}
