package management

import (
	"context"
	"net/http"
	"net/url"
)

// Limits of a virtual host or a user, by their names in RabbitMQ: max-connections, max-queues,
// max-channels. A negative one is none.
type Limits map[string]int

// VHostLimits are those of the virtual host.
func (c *Client) VHostLimits(ctx context.Context) (Limits, error) {
	return c.limits(ctx, c.path("vhost-limits"))
}

// UserLimits are those of a user.
func (c *Client) UserLimits(ctx context.Context, user string) (Limits, error) {
	return c.limits(ctx, "user-limits/"+url.PathEscape(user))
}

func (c *Client) limits(ctx context.Context, path string) (Limits, error) {
	var all []struct {
		Value Limits `json:"value"`
	}
	if err := c.Call(ctx, http.MethodGet, path, nil, &all); err != nil || len(all) == 0 {
		return nil, err
	}
	return all[0].Value, nil
}

// TopicPermission narrows what a user may publish to a topic exchange, and bind to it, by routing
// key.
type TopicPermission struct {
	User     string `json:"user"`
	Exchange string `json:"exchange"`
	Write    string `json:"write"`
	Read     string `json:"read"`
}

// TopicPermissions of the virtual host need the tag administrator.
func (c *Client) TopicPermissions(ctx context.Context) (all []TopicPermission, err error) {
	return all, c.Call(ctx, http.MethodGet, c.path("vhosts")+"/topic-permissions", nil, &all)
}

// AllPermissions are those of all users in the virtual host. They need the tag administrator.
func (c *Client) AllPermissions(ctx context.Context) (all []Permission, err error) {
	return all, c.Call(ctx, http.MethodGet, c.path("vhosts")+"/permissions", nil, &all)
}

// Parameter is one of a plugin's in the virtual host.
type Parameter struct {
	Name  string         `json:"name"`
	Value map[string]any `json:"value"`
}

// Parameters of a component, such as shovel, need the tag policymaker.
func (c *Client) Parameters(ctx context.Context, component string) (all []Parameter, err error) {
	return all, c.Call(ctx, http.MethodGet, c.path("parameters/"+component), nil, &all)
}
