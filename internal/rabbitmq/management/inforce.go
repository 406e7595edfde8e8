package management

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
)

// Policy is a RabbitMQ policy, or an operator policy.
type Policy struct {
	Name       string         `json:"name,omitempty"`
	Pattern    string         `json:"pattern"`
	ApplyTo    string         `json:"apply-to"`
	Priority   int            `json:"priority"`
	Definition map[string]any `json:"definition"`
}

// PolicyNamed returns the policy of that name; nil when there is none.
func PolicyNamed(all []Policy, name string) *Policy {
	if i := slices.IndexFunc(all, func(p Policy) bool { return p.Name == name }); i >= 0 {
		return &all[i]
	}
	return nil
}

// For reports whether a policy is for a queue of that name and type; known is false where Go cannot
// compile its pattern. A queue need not have it all the same: see Client.Queues.
func (p *Policy) For(name, kind string) (is, known bool) {
	switch p.ApplyTo {
	case "exchanges":
		return false, true
	case "classic_queues", "quorum_queues", "streams":
		if strings.TrimSuffix(strings.TrimSuffix(p.ApplyTo, "s"), "_queue") != kind {
			return false, true
		}
	} // a value that only later versions have counts as all types
	re, err := regexp.Compile(p.Pattern)
	return err == nil && re.MatchString(name), err == nil
}

func (c *Client) Policies(ctx context.Context) (all []Policy, err error) {
	return all, c.Call(ctx, http.MethodGet, c.path("policies"), nil, &all)
}

func (c *Client) Policy(ctx context.Context, name string) (p Policy, err error) {
	return p, c.Call(ctx, http.MethodGet, c.path("policies", name), nil, &p)
}

func (c *Client) PutPolicy(ctx context.Context, p Policy) error {
	name := p.Name
	p.Name = ""
	return c.Call(ctx, http.MethodPut, c.path("policies", name), p, nil)
}

func (c *Client) DeletePolicy(ctx context.Context, name string) error {
	return c.Call(ctx, http.MethodDelete, c.path("policies", name), nil, nil)
}

func (c *Client) OperatorPolicies(ctx context.Context) (all []Policy, err error) {
	return all, c.Call(ctx, http.MethodGet, c.path("operator-policies"), nil, &all)
}

// Queues are all of the virtual host, with what their policies set, as it is now. They come without
// statistics, which are seconds old or switched off: without any count.
//
// Which policy a queue has only RabbitMQ knows: none with a key that the queue's type does not have.
func (c *Client) Queues(ctx context.Context) (all []Queue, err error) {
	const columns = "name,vhost,type,arguments,policy,operator_policy,effective_policy_definition,exclusive,durable,auto_delete"
	if err = c.Call(ctx, http.MethodGet, c.path("queues")+"?disable_stats=true&columns="+columns, nil, &all); err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(all, func(q Queue) bool { return q.Effective == nil }) {
		return all, nil
	}
	// RabbitMQ 3 takes only a policy's name from elsewhere than its statistics.
	policies, err := c.Policies(ctx)
	if err != nil {
		return nil, err
	}
	operator, err := c.OperatorPolicies(ctx)
	if err != nil {
		return nil, err
	}
	for i := range all {
		if all[i].Effective == nil && !all[i].inForce(policies, operator) {
			return nil, fmt.Errorf("policy %q of queue %q was deleted just now", all[i].Policy, all[i].Name)
		}
	}
	return all, nil
}

// inForce sets what the queue's policy and operator policy set together. It is false where its policy
// is not among these.
func (q *Queue) inForce(policies, operator []Policy) bool {
	q.Effective = Definition{}
	p := PolicyNamed(policies, q.Policy)
	if p != nil {
		maps.Copy(q.Effective, p.Definition)
	}
	var best *Policy
	for i := range operator {
		if is, _ := operator[i].For(q.Name, q.Type); is && (best == nil || operator[i].Priority > best.Priority) {
			best = &operator[i]
		}
	}
	if best == nil {
		return p != nil || q.Policy == ""
	}
	q.OperatorPolicy = best.Name
	for key, v := range best.Definition {
		limit, isNumber := v.(float64)
		if was, ok := q.Effective[key].(float64); !ok || !isNumber || limit < was {
			q.Effective[key] = v
		}
	}
	return p != nil || q.Policy == ""
}

// useInForce sets on queues what is in force, which the statistics they come with may not know.
func (c *Client) useInForce(ctx context.Context, queues ...*Queue) error {
	all, err := c.Queues(ctx)
	if err != nil {
		return err
	}
	now := make(map[string]*Queue, len(all))
	for i := range all {
		now[all[i].Name] = &all[i]
	}
	for _, q := range queues {
		if is := now[q.Name]; is != nil {
			q.Policy, q.OperatorPolicy, q.Effective = is.Policy, is.OperatorPolicy, is.Effective
		}
	}
	return nil
}

// QueueInForce is Queue with what its policies set as it is now.
func (c *Client) QueueInForce(ctx context.Context, name string) (Queue, error) {
	q, err := c.Queue(ctx, name)
	if err == nil {
		err = c.useInForce(ctx, &q)
	}
	return q, err
}
