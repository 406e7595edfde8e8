package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"

	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/policy"
)

const (
	mostRate     = 1_000_000 // a second
	shortest     = 100 * time.Millisecond
	longestWait  = 24 * time.Hour
	expectedRate = "a number of retries per second, minute or hour, such as 200/s, 30/min or 5/h"
)

// throttle are the keys of a policy that limit its retries. Call done when all were read.
func (d *document) throttle(r *throttle.Rules, where string) (fields map[string]field, done func()) {
	*r = throttle.Rules{Settle: throttle.DefaultSettle, NoConsumer: throttle.PauseWithoutConsumers}
	var windowAt ast.Node
	window := false
	fields = map[string]field{
		"rate":      func(n ast.Node) { r.Rate = d.rate(n, where+".rate") },
		"in_flight": func(n ast.Node) { r.InFlight = d.whole(n, where+".in_flight", throttle.MaxTracked) },
		"settle":    func(n ast.Node) { r.Settle = d.span(n, where+".settle") },
		"breaker":   func(n ast.Node) { windowAt = n; r.Breaker, window = d.breaker(n, where+".breaker") },
		"no_queue":  func(n ast.Node) { r.NoQueue = d.span(n, where+".no_queue") },
		"no_consumer": func(n ast.Node) {
			const expected = "pause, {probes: N} for an autoscaler that starts at N messages, or retry for queues that are read with basic.get"
			if _, ok := pairs(n); ok {
				d.mapping(n, where+".no_consumer", map[string]field{"probes": func(n ast.Node) { r.Probes = d.whole(n, where+".no_consumer.probes", 1000) }})
				return
			}
			if r.NoConsumer = d.text(n, where+".no_consumer", expected); r.NoConsumer != throttle.PauseWithoutConsumers && r.NoConsumer != throttle.RetryWithoutConsumers {
				d.fail(n, "%s.no_consumer is %s; expected %s", where, show(n), expected)
			}
		},
	}
	return fields, func() {
		switch b := r.Breaker; {
		case b == nil || b.Window >= r.Settle:
		case window:
			d.fail(windowAt, "%s.breaker.window is shorter than settle (%s), so no retry would finish within it", where, policy.FormatDuration(r.Settle))
		default:
			b.Window = 2 * r.Settle
		}
	}
}

func (d *document) rate(n ast.Node, where string) float64 {
	v, ok := ParseRate(d.text(n, where, expectedRate))
	if !ok {
		d.fail(n, "%s is %s; expected %s", where, show(n), expectedRate)
	}
	return v
}

// ParseRate reads a rate per second, minute or hour ("200/s", "30/min", "5/h"), as messages
// per second.
func ParseRate(s string) (perSecond float64, ok bool) {
	number, per, _ := strings.Cut(s, "/")
	seconds := map[string]float64{"s": 1, "min": 60, "h": 3600}[strings.TrimSpace(per)]
	v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if seconds == 0 || err != nil || !(v > 0 && v/seconds <= mostRate) {
		return 0, false
	}
	return v / seconds, true
}

func (d *document) whole(n ast.Node, where string, most int) int {
	v, err := strconv.Atoi(d.text(n, where, "a whole number"))
	if err != nil || v < 1 || v > most {
		d.fail(n, "%s is %s; expected a whole number from 1 to %d", where, show(n), most)
	}
	return v
}

func (d *document) span(n ast.Node, where string) time.Duration {
	v := d.duration(n, where)
	if v < shortest || v > longestWait {
		d.fail(n, "%s is %s; expected a duration from 100ms to 1d", where, show(n))
	}
	return v
}

// breaker reads a breaker, and returns whether its window was given.
func (d *document) breaker(n ast.Node, where string) (b *throttle.Breaker, window bool) {
	is := throttle.DefaultBreaker()
	if _, ok := pairs(n); !ok {
		const expected = "on, off, or a mapping such as {share: 50%, least: 20, window: 1m, wait: 10s, max_wait: 2m, probes: 3, ramp: 1m}"
		switch d.text(n, where, expected) {
		case "on", "true":
			return &is, false
		case "off", "false":
			return nil, false
		}
		d.fail(n, "%s is %s; expected %s", where, show(n), expected)
	}
	var maxAt ast.Node
	// These keys never change.
	d.mapping(n, where, map[string]field{
		"share": func(n ast.Node) {
			s, percent := strings.CutSuffix(d.text(n, where+".share", "a share such as 50%"), "%")
			v, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
			if percent {
				v /= 100
			}
			if err != nil || !(v > 0 && v <= 1) {
				d.fail(n, "%s.share is %s; expected a share above 0 and up to 100%%, such as 50%% or 0.5", where, show(n))
			}
			is.FailureRatio = v
		},
		"least":    func(n ast.Node) { is.MinRetries = d.whole(n, where+".least", throttle.MaxTracked) },
		"window":   func(n ast.Node) { window, is.Window = true, d.span(n, where+".window") },
		"wait":     func(n ast.Node) { is.Wait = d.span(n, where+".wait") },
		"max_wait": func(n ast.Node) { maxAt, is.MaxWait = n, d.span(n, where+".max_wait") },
		"probes":   func(n ast.Node) { is.Probes = d.whole(n, where+".probes", 1000) },
		"ramp":     func(n ast.Node) { is.Ramp = d.span(n, where+".ramp") },
	})
	if is.MaxWait < is.Wait {
		if maxAt != nil {
			d.fail(maxAt, "%s.max_wait is shorter than wait (%s)", where, policy.FormatDuration(is.Wait))
		}
		is.MaxWait = is.Wait
	}
	return &is, window
}

// warnOfLimits warns of limits that apply to replays alone, and of a rate that in_flight does not allow.
func (c *Config) warnOfLimits(p *policy.Policy, way delay.Way, r throttle.Rules) {
	if way != nil && (r.Rate > 0 || r.InFlight > 0 || r.Breaker != nil) {
		c.Warnings = append(c.Warnings, fmt.Sprintf("policy %q: rate, in_flight and breaker apply to replays alone: RabbitMQ itself retries messages that wait in it (%s); with wait: disk they apply to all", p.Name, way.Limits().Name))
	}
	if through := float64(r.InFlight) / r.Settle.Seconds(); r.InFlight > 0 && through < r.Rate {
		c.Warnings = append(c.Warnings, fmt.Sprintf("policy %q: in_flight %d and settle %s allow %s, less than rate: in_flight must be at least rate times settle", p.Name, r.InFlight, policy.FormatDuration(r.Settle), throttle.FormatRate(math.Round(through*3600)/3600)))
	}
}
