package management

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
)

// Consumer is one of a queue of the virtual host.
type Consumer struct {
	QueueConsumer
	Queue struct {
		Name string `json:"name"`
	} `json:"queue"`
	// AckRequired is false for one with automatic acknowledgement (no_ack).
	AckRequired bool `json:"ack_required"`
	Prefetch    int  `json:"prefetch_count"` // 0: unlimited
}

// Channel is one of a client's in the virtual host.
type Channel struct {
	Name    string `json:"name"`
	Unacked int    `json:"messages_unacknowledged"`
	// GlobalPrefetch is for all consumers of the channel together; 0: unlimited.
	GlobalPrefetch int `json:"global_prefetch_count"`
	// IdleSince is when it last did anything, as QueueState.IdleSince; "": it is busy.
	IdleSince string `json:"idle_since"`
}

// Connection is one of a client's, in any virtual host.
type Connection struct {
	User     string `json:"user"`
	VHost    string `json:"vhost"`
	Channels int    `json:"channels"`
}

// Consumers of all queues of the virtual host. A user without the tag monitoring gets its own
// alone.
func (c *Client) Consumers(ctx context.Context) (all []Consumer, err error) {
	return all, c.Call(ctx, http.MethodGet, c.path("consumers")+"?columns=consumer_tag,queue.name,ack_required,prefetch_count,channel_details", nil, &all)
}

// Channels of the virtual host, as Consumers.
func (c *Client) Channels(ctx context.Context) (all []Channel, err error) {
	return all, c.Call(ctx, http.MethodGet, c.path("vhosts")+"/channels?columns=name,messages_unacknowledged,global_prefetch_count,idle_since", nil, &all)
}

// Connections of all virtual hosts, as Consumers.
func (c *Client) Connections(ctx context.Context) (all []Connection, err error) {
	return all, c.Call(ctx, http.MethodGet, "connections?columns=user,vhost,channels", nil, &all)
}

// Monitors tells whether the client's own user sees what belongs to others: RabbitMQ refuses nothing
// to those who do not, and leaves it out.
func (c *Client) Monitors(ctx context.Context) (bool, error) {
	var me struct {
		Tags json.RawMessage `json:"tags"` // a list, or in one text, by version
	}
	err := c.Call(ctx, http.MethodGet, "whoami", nil, &me)
	tags := strings.FieldsFunc(string(me.Tags), func(r rune) bool { return strings.ContainsRune(`[]", `, r) })
	return slices.Contains(tags, "monitoring") || slices.Contains(tags, "administrator"), err
}
