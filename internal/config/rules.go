package config

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"

	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/query"
	"github.com/redrive-mq/redrive/internal/rules"
	"github.com/redrive-mq/redrive/policy"
)

const expectedThen = "park, discard, retry, or forward: {exchange: …, routing_key: …} or forward: {queue: …}"

// rules reads the rules of a policy. Each mistake is reported, also that a rule is never asked.
func (d *document) rules(n ast.Node, where string) (all []policy.Rule) {
	var always *policy.Rule // the first one without a condition
	d.each(d.sequence(n, where, "a list of rules"), func(i int, item ast.Node) {
		r := d.rule(item, fmt.Sprintf("%s[%d]", where, i), i)
		switch twin := slices.IndexFunc(all, func(o policy.Rule) bool {
			return o.When != nil && r.When != nil && fmt.Sprint(o.When) == fmt.Sprint(r.When)
		}); {
		case always != nil:
			d.fail(item, "rule %q is never asked: rule %q before it has no when, and applies to every failure; move it before that one", r.Name, always.Name)
		case slices.ContainsFunc(all, func(o policy.Rule) bool { return o.Name == r.Name }):
			d.fail(item, "a second rule is named %q; give it another name", r.Name)
		case twin >= 0:
			d.fail(item, "rule %q is never asked: rule %q before it has the same when; remove one of them", r.Name, all[twin].Name)
		}
		if all = append(all, r); r.When == nil {
			always = &r
		}
	})
	if len(all) == 0 {
		d.fail(n, "%s is empty; leave the key out for a policy without rules", where)
	}
	return all
}

func (d *document) rule(n ast.Node, where string, i int) policy.Rule {
	r := policy.Rule{Name: fmt.Sprintf("rule %d", i+1), Then: policy.AsPolicy}
	thenAt := n
	keys := d.mapping(n, where, map[string]field{
		"name":     func(n ast.Node) { r.Name = d.text(n, where+".name", "a name") },
		"when":     func(n ast.Node) { r.When = d.when(n, where+".when") },
		"then":     func(n ast.Node) { thenAt = n; r.Then, r.Destination = d.then(n, where+".then") },
		"why":      func(n ast.Node) { r.Why = d.text(n, where+".why", "a text for the person who looks at the message") },
		"attempts": func(n ast.Node) { r.Attempts = d.attempts(n, where+".attempts") },
		"backoff":  func(n ast.Node) { r.Backoff = d.backoff(n, where+".backoff") },
		"severity": func(n ast.Node) {
			const expected = "info, warning or critical"
			if r.Severity = d.text(n, where+".severity", expected); !slices.Contains([]string{"info", "warning", "critical"}, r.Severity) {
				d.fail(n, "%s.severity is %s; expected %s", where, show(n), expected)
			}
		},
	})
	retries := r.Attempts > 0 || !r.Backoff.IsZero()
	switch {
	case retries && r.Then == policy.AsPolicy:
		r.Then = policy.Retry
	case retries && r.Then != policy.Retry:
		d.fail(thenAt, "%s has attempts or a backoff, and does not retry but %s; leave out one of them", where, r.Then)
	case r.Why != "" && r.Then != policy.Park:
		d.fail(n, "%s has a why, which is of messages that the rule parks; leave it out, or add then: park", where)
	case r.Then == policy.AsPolicy && r.Severity == "":
		d.fail(n, "%s has %d keys and changes nothing; expected one of then, attempts, backoff, severity", where, keys)
	}
	return r
}

// when reads a condition. Where the text stands in the file as it is, the column of a mistake is
// that of its character.
func (d *document) when(n ast.Node, where string) *rules.When {
	text := d.text(n, where, "a query, such as error:/timeout|refused/")
	if strings.TrimSpace(text) == "" {
		d.fail(n, "%s is empty; leave the key out for a rule that applies to every failure", where)
	}
	w, err := rules.Parse(text)
	var wrong *query.Error
	if !errors.As(err, &wrong) {
		return w
	}
	e := d.at(n)
	e.Msg, e.Hint = fmt.Sprintf("%s: character %d: %s", where, wrong.At+1, wrong.Msg), "docs/reference/query.md has the fields and the syntax"
	if t := n.GetToken(); t != nil && !strings.ContainsAny(text, "\\\n'\"") && e.File == d.file {
		switch t.Type {
		case token.DoubleQuoteType, token.SingleQuoteType:
			e.Column += 1 + wrong.At
		case token.StringType:
			e.Column += wrong.At
		}
	}
	panic(&e)
}

func (d *document) then(n ast.Node, where string) (policy.Action, policy.Destination) {
	if s, ok := n.(*ast.StringNode); ok && s.Value == "retry" {
		return policy.Retry, policy.Destination{}
	}
	e := d.outcome(n, where, expectedThen)
	return e.Action, e.Destination
}

// retryPriority reads the AMQP priority of retries.
func (d *document) retryPriority(n ast.Node, where string) *uint8 {
	v, err := strconv.ParseUint(d.text(n, where, "a number from 0 to 255"), 10, 8)
	if err != nil {
		d.fail(n, "%s is %s; expected a number from 0 to 255", where, show(n))
	}
	p := uint8(v)
	return &p
}

// redirects reads which queues' failures are retried to another queue.
func (d *document) redirects(n ast.Node, c *Config) {
	c.Redirects = map[string]string{}
	d.each(d.sequence(n, "redirects", "a list of queues, each with the queue to retry to"), func(i int, item ast.Node) {
		where := fmt.Sprintf("redirects[%d]", i)
		var from, to string
		d.mapping(item, where, map[string]field{
			"from": func(n ast.Node) { from = d.queueName(n, where+".from") },
			"to":   func(n ast.Node) { to = d.queueName(n, where+".to") },
		})
		switch {
		case from == "" || to == "":
			d.fail(item, "%s needs both queues, such as {from: orders.old, to: orders.new}", where)
		case from == to:
			d.fail(item, "%s redirects %q to itself; leave it out", where, from)
		case c.Redirects[from] != "":
			d.fail(item, "%s: what fails in %q is redirected to %q already; leave out one of them", where, from, c.Redirects[from])
		}
		c.Redirects[from] = to
	})
	for from, to := range c.Redirects {
		if next := c.Redirects[to]; next != "" {
			d.fail(n, "redirects: %q goes to %q, which is redirected to %q itself; redirect it there at once", from, to, next)
		}
	}
}

func (d *document) queueName(n ast.Node, where string) string {
	const expected = "a queue's name, without patterns"
	s := d.text(n, where, expected)
	if s == "" || strings.ContainsAny(s, "*?") || len(s) > 255 || s == "redrive" || strings.HasPrefix(s, "redrive.") {
		d.fail(n, "%s is %s; expected %s, that is not Redrive's own", where, show(n), expected)
	}
	return s
}

// allowRedirects names each queue that is redirected to in its policy, or refuses it: who writes
// a redirect means exactly that queue.
func (c *Config) allowRedirects() error {
	for _, to := range sortedValues(c.Redirects) {
		p, ok := c.Policies.Match(to)
		if !ok {
			return hint.Errorf("add it to the queues of one", "redirects: no policy is for the queue %q, so nothing would be retried to it", to)
		}
		if !c.Policies.Exact(to) {
			p.Queues = append(slices.Clone(p.Queues), to)
		}
	}
	return nil
}

func sortedValues(m map[string]string) (all []string) {
	for _, v := range m {
		all = append(all, v)
	}
	slices.Sort(all)
	return slices.Compact(all)
}
