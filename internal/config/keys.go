package config

import (
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"

	"github.com/redrive-mq/redrive/internal/addresses"
	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/policy"
)

func (d *document) config(n ast.Node, c *Config) {
	listen := n
	fields := map[string]field{
		"broker": func(n ast.Node) {
			d.mapping(n, "broker", map[string]field{
				"url":        func(n ast.Node) { c.Broker.URL = d.urls(n, "broker.url", "amqp", "amqps") },
				"management": func(n ast.Node) { c.Broker.Management = d.urls(n, "broker.management", "http", "https") },
				"tls":        func(n ast.Node) { d.brokerTLS(n, c) },
				"vhosts":     func(n ast.Node) { c.Broker.VHosts, c.vhosts = d.vhosts(n, "broker.vhosts") },
			})
		},
		"store": func(n ast.Node) {
			d.mapping(n, "store", map[string]field{
				"disk":    func(n ast.Node) { c.Store.Disk = d.text(n, "store.disk", "a folder") },
				"redis":   func(n ast.Node) { d.redis(n, &c.Store.Redis) },
				"reserve": func(n ast.Node) { c.Store.Reserve = d.size(n, "store.reserve") },
				"restorable": func(n ast.Node) {
					c.Store.Restorable = d.duration(n, "store.restorable")
					if c.Store.Restorable < time.Minute || c.Store.Restorable > policy.LongestDelay {
						d.fail(n, "store.restorable is %s; expected a duration from 1m to ten years", show(n))
					}
				},
			})
		},
		"listen": func(n ast.Node) {
			listen = n
			c.Listen = d.text(n, "listen", "an address such as 127.0.0.1:8250")
			if _, port, err := net.SplitHostPort(c.Listen); err != nil || !isPort(port) {
				d.fail(n, "listen is %s; expected host:port, such as 127.0.0.1:8250", show(n))
			}
		},
		"base_path": func(n ast.Node) { c.BasePath = d.basePath(n) },
		"log":       func(n ast.Node) { d.log(n, &c.Log) },
		"policies":  func(n ast.Node) { d.policies(n, c) },
		"decode": func(n ast.Node) {
			d.mapping(n, "decode", map[string]field{"protobuf": func(n ast.Node) { c.Decode.Protobuf = d.protobuf(n) }})
		},
	}
	fields["notify"] = func(n ast.Node) { d.notify(n, c) }
	maps.Copy(fields, d.access(&c.Access))
	for key, read := range fields {
		fields[key] = func(n ast.Node) {
			before := d.unsound[key]
			d.unsound[key] = true
			read(n)
			d.unsound[key] = before
		}
	}
	d.all(
		func() { d.mapping(n, "the file", fields) },
		func() {
			unknown := !lacks(n, fields) // which may be any
			c.brokerUnsound = unknown || d.unsound["broker"]
			if unknown || d.unsound["listen"] || d.unsound["auth"] || d.unsound["tls"] {
				return
			}
			if err := c.CheckExposure(); err != nil {
				d.refuse(listen, err)
			}
		},
	)
	c.warnOfOverlaps()
	c.warnOfTopicPatterns()
}

// steps are those of a path whose characters need no escaping anywhere.
var steps = regexp.MustCompile(`^(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+$`)

func (d *document) basePath(n ast.Node) string {
	s := strings.TrimSuffix(d.text(n, "base_path", "a path such as /redrive"), "/")
	if s != "" && !steps.MatchString(s) {
		d.fail(n, "base_path is %s; expected a path such as /redrive", show(n))
	}
	if s == "/v" || strings.HasPrefix(s, "/v/") {
		d.fail(n, "base_path is %s, and /v/ is where virtual hosts are; expected another path", show(n))
	}
	return s
}

func (d *document) log(n ast.Node, l *Log) {
	d.mapping(n, "log", map[string]field{
		"format": func(n ast.Node) {
			if l.Format = d.text(n, "log.format", "text or json"); l.Format != "text" && l.Format != "json" {
				d.fail(n, "log.format is %s; expected text or json", show(n))
			}
		},
		"level": func(n ast.Node) {
			const expected = "debug, info, warn or error"
			var ok bool
			if l.Level, ok = ParseLevel(d.text(n, "log.level", expected)); !ok {
				d.fail(n, "log.level is %s; expected %s", show(n), expected)
			}
		},
	})
}

// ParseLevel reads the least level that is logged.
func ParseLevel(s string) (slog.Level, bool) {
	l, ok := map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}[s]
	return l, ok
}

func isPort(s string) bool { n, err := strconv.Atoi(s); return err == nil && n >= 0 && n < 1<<16 }

func (d *document) url(n ast.Node, where string, schemes ...string) string {
	s := d.urls(n, where, schemes...)
	if len(addresses.Split(s)) > 1 {
		d.fail(n, "%s has several URLs; expected one", where)
	}
	return s
}

// urls is one URL, or a list of those of a cluster's nodes.
func (d *document) urls(n ast.Node, where string, schemes ...string) string {
	const expected = "a URL, or a list of URLs"
	var s string
	if list, several := n.(*ast.SequenceNode); several {
		texts := d.texts(n, where, expected)
		d.each(list.Values, func(i int, item ast.Node) {
			if err := addresses.Check(texts[i], schemes...); err != nil {
				d.fail(item, "%s %w", where, err)
			}
		})
		s = addresses.Join(texts)
	} else {
		s = d.text(n, where, expected)
	}
	if err := addresses.Check(s, schemes...); err != nil {
		d.fail(n, "%s %w", where, err)
	}
	return s
}

func (d *document) policies(n ast.Node, c *Config) {
	c.Policies, c.Ways, c.Throttle = nil, map[string]delay.Way{}, map[string]throttle.Rules{}
	names := map[string]bool{}
	d.each(d.sequence(n, "policies", "a list of policies"), func(i int, item ast.Node) {
		p := d.policy(item, i, c)
		if names[p.Name] {
			d.fail(item, "a second policy is named %q", p.Name)
		}
		names[p.Name] = true
		c.Policies = append(c.Policies, p)
	})
	if len(c.Policies) == 0 {
		d.fail(n, "policies is empty, so every message would be parked; leave the key out for the default policy")
	}
}

func (d *document) policy(n ast.Node, i int, c *Config) policy.Policy {
	p := policy.Default()
	var way delay.Way
	var wayAt, jitterAt ast.Node
	p.Name, p.Queues = fmt.Sprintf("policy %d", i+1), nil
	var vhosts []string
	where := fmt.Sprintf("policies[%d]", i)
	var limits throttle.Rules
	fields, limitsRead := d.throttle(&limits, where)
	maps.Copy(fields, map[string]field{
		"name": func(n ast.Node) { p.Name = d.text(n, where+".name", "a name") },
		"queues": func(n ast.Node) {
			p.Queues = d.texts(n, where+".queues", `a list of queue names or patterns, such as ["orders.*"]`)
			if len(p.Queues) == 0 {
				d.fail(n, "%s names no queues; expected queues: [\"orders.*\"]", where)
			}
		},
		"attempts": func(n ast.Node) { p.Attempts = d.attempts(n, where+".attempts") },
		"backoff":  func(n ast.Node) { p.Backoff = d.backoff(n, where+".backoff") },
		"jitter":   func(n ast.Node) { p.Jitter, jitterAt = d.jitter(n, where+".jitter"), n },
		"wait":     func(n ast.Node) { way, wayAt = d.wait(n, where+".wait"), n },
		"reasons": func(n ast.Node) {
			p.Reasons = d.texts(n, where+".reasons", "a list of rejected, expired, maxlen, delivery_limit")
			if len(p.Reasons) == 0 {
				d.fail(n, "%s.reasons is empty, so nothing would be retried; expected some of rejected, expired, maxlen, delivery_limit", where)
			}
		},
		"exhausted":       func(n ast.Node) { p.Exhausted = d.exhausted(n, where+".exhausted") },
		"max_retry_after": func(n ast.Node) { p.MaxRetryAfter = d.duration(n, where+".max_retry_after") },
		"vhosts":          func(n ast.Node) { vhosts = d.vhostPatterns(n, where+".vhosts") },
	})
	d.all(
		func() {
			d.mapping(n, where, fields)
			checks := []func(){limitsRead}
			if way != nil {
				checks = append(checks, func() { d.checkWay(wayAt, &p, way, jitterAt != nil, c) })
			}
			d.all(checks...)
		},
		func() {
			if lacks(n, fields, "queues") {
				d.fail(n, "%s names no queues; expected queues: [\"orders.*\"]", where)
			}
		},
		func() { // of keys with mistakes p has the defaults
			valid := p
			if len(p.Queues) == 0 {
				valid.Queues = []string{"*"}
			}
			if err := valid.Validate(); err != nil {
				d.refuse(n, err)
			}
		},
	)
	if way != nil {
		c.Ways[p.Name] = delay.For(&p, way)
	}
	c.Throttle[p.Name] = limits
	c.policyVHosts[p.Name] = vhosts
	c.warnOfLimits(&p, way, limits)
	return p
}

func (d *document) texts(n ast.Node, where, expected string) []string {
	var out []string
	d.each(d.sequence(n, where, expected), func(_ int, item ast.Node) { out = append(out, d.text(item, where, "a text")) })
	return out
}

func (d *document) attempts(n ast.Node, where string) int {
	v, err := strconv.Atoi(d.text(n, where, "a number"))
	if err != nil || v < 1 || v > policy.MaxAttempts {
		d.fail(n, "%s is %s; expected a whole number from 1 to %d, the first delivery included", where, show(n), policy.MaxAttempts)
	}
	return v
}

func (d *document) backoff(n ast.Node, where string) (b policy.Backoff) {
	if _, ok := n.(*ast.SequenceNode); ok {
		b = policy.List(d.waits(n, where)...)
	} else {
		forms := d.mapping(n, where, map[string]field{
			"fixed": func(n ast.Node) { b = policy.Fixed(d.duration(n, where+".fixed")) },
			"linear": func(n ast.Node) {
				initial, step, longest, hasStep := time.Second, time.Duration(0), 10*time.Minute, false
				d.mapping(n, where+".linear", map[string]field{
					"initial": func(n ast.Node) { initial = d.duration(n, where+".linear.initial") },
					"step":    func(n ast.Node) { step, hasStep = d.duration(n, where+".linear.step"), true },
					"max":     func(n ast.Node) { longest = d.duration(n, where+".linear.max") },
				})
				if !hasStep {
					step = initial
				}
				b = policy.Linear(initial, step, longest)
			},
			"exponential": func(n ast.Node) {
				initial, factor, longest := time.Second, 2.0, 10*time.Minute
				d.mapping(n, where+".exponential", map[string]field{
					"initial": func(n ast.Node) { initial = d.duration(n, where+".exponential.initial") },
					"factor":  func(n ast.Node) { factor = d.number(n, where+".exponential.factor", 1, 1000) },
					"max":     func(n ast.Node) { longest = d.duration(n, where+".exponential.max") },
				})
				b = policy.Exponential(initial, factor, longest)
			},
		})
		if forms != 1 {
			d.fail(n, "%s has %d forms; expected one of fixed, linear, exponential, or a list of waits", where, forms)
		}
	}
	if err := b.Validate(); err != nil {
		d.fail(n, "%s: %w", where, err)
	}
	return b
}

// repeated is a wait with how often: 10s x6.
var repeated = regexp.MustCompile(`^(\S+)\s+[x×]\s*(\d+)$`)

const mostWaits = 100_000

func (d *document) waits(n ast.Node, where string) (waits []time.Duration) {
	d.each(d.sequence(n, where, "a list of waits"), func(_ int, item ast.Node) {
		s, times := d.text(item, where, "a wait such as 10s, or 10s x6"), 1
		if m := repeated.FindStringSubmatch(s); m != nil {
			s = m[1]
			var err error
			if times, err = strconv.Atoi(m[2]); err != nil || times < 1 || len(waits)+times > mostWaits {
				d.fail(item, "%s: %s repeats %s times; expected from 1 to %d waits in all", where, m[1], m[2], mostWaits)
			}
		}
		w, err := ParseDuration(s)
		if err != nil {
			d.fail(item, "%s has %s; expected a wait such as 500ms, 10s, 1m30s, 2h or 1d, with repeats as in 10s x6", where, show(item))
		}
		if err := policy.Fixed(w).Validate(); err != nil {
			d.fail(item, "%s: %w", where, err)
		}
		for range times {
			waits = append(waits, w)
		}
	})
	return waits
}

func (d *document) duration(n ast.Node, where string) time.Duration {
	v, err := ParseDuration(d.text(n, where, "a duration"))
	if err != nil {
		d.fail(n, "%s is %s; expected a duration such as 500ms, 10s, 1m30s, 2h or 1d", where, show(n))
	}
	return v
}

// ParseDuration is Go's, with days and weeks.
func ParseDuration(s string) (time.Duration, error) {
	for unit, hours := range map[string]float64{"d": 24, "w": 7 * 24} {
		if number, ok := strings.CutSuffix(s, unit); ok {
			v, err := strconv.ParseFloat(number, 64)
			if ns := v * hours * float64(time.Hour); err == nil && math.Abs(ns) < math.MaxInt64 {
				return time.Duration(ns), nil
			}
			return 0, fmt.Errorf("%q is not a duration", s)
		}
	}
	if s == "0" {
		return 0, fmt.Errorf("a duration needs a unit")
	}
	return time.ParseDuration(s)
}

func (d *document) number(n ast.Node, where string, low, high float64) float64 {
	v, err := strconv.ParseFloat(d.text(n, where, "a number"), 64)
	if err != nil || !(v >= low && v <= high) {
		d.fail(n, "%s is %s; expected a number from %v to %v", where, show(n), low, high)
	}
	return v
}

var sizeUnits = map[string]uint64{"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}

func (d *document) size(n ast.Node, where string) uint64 {
	s := d.text(n, where, "a size")
	for unit, by := range sizeUnits {
		if number, ok := strings.CutSuffix(s, unit); ok {
			if v, err := strconv.ParseUint(strings.TrimSpace(number), 10, 32); err == nil && v > 0 {
				return v * by
			}
		}
	}
	d.fail(n, "%s is %s; expected a size such as 256MiB or 2GiB", where, show(n))
	return 0
}

func (d *document) jitter(n ast.Node, where string) policy.Jitter {
	const expected = "none, full, equal, or a fraction from 0 to 1"
	switch s := d.text(n, where, expected); s {
	case "none":
		return policy.None
	case "full":
		return policy.Full
	case "equal":
		return policy.Equal
	default:
		v, err := strconv.ParseFloat(s, 64)
		if err != nil || !(v >= 0 && v <= 1) {
			d.fail(n, "%s is %s; expected %s", where, show(n), expected)
		}
		return policy.Fraction(v)
	}
}

func (d *document) exhausted(n ast.Node, where string) (e policy.Exhausted) {
	const expected = "park, discard, or forward: {exchange: …, routing_key: …} or forward: {queue: …}"
	if s, ok := n.(*ast.StringNode); ok {
		switch s.Value {
		case "park":
			return policy.Exhausted{Action: policy.Park}
		case "discard":
			return policy.Exhausted{Action: policy.Discard}
		}
		d.fail(n, "%s is %s; expected %s", where, show(n), expected)
	}
	d.mapping(n, where, map[string]field{"forward": func(n ast.Node) {
		e.Action = policy.Forward
		var queue string
		d.mapping(n, where+".forward", map[string]field{
			"exchange":    func(n ast.Node) { e.Destination.Exchange = d.text(n, where+".forward.exchange", "a name") },
			"routing_key": func(n ast.Node) { e.Destination.RoutingKey = d.text(n, where+".forward.routing_key", "a text") },
			"queue":       func(n ast.Node) { queue = d.text(n, where+".forward.queue", "a queue's name") },
		})
		switch {
		case queue != "" && e.Destination != (policy.Destination{}):
			d.fail(n, "%s.forward has both a queue and an exchange or routing key; expected one", where)
		case queue != "":
			e.Destination.RoutingKey = queue
		case e.Destination.Exchange == "":
			d.fail(n, "%s.forward names neither an exchange nor a queue", where)
		}
	}})
	return e
}
