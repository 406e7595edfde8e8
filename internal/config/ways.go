package config

import (
	"fmt"
	"slices"
	"time"

	"github.com/goccy/go-yaml/ast"

	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/delay/binary"
	"github.com/redrive-mq/redrive/internal/delay/plugin"
	"github.com/redrive-mq/redrive/internal/delay/ttlqueue"
	"github.com/redrive-mq/redrive/policy"
)

const expectedWait = "disk, levels, {levels: [1s, 10s, 1m]}, {fixed: 30s}, dynamic, message-ttl, {binary: 1s} or delayed-exchange"

// shortestDynamic is what delays of the way dynamic are rounded up to at least.
const shortestDynamic = 100 * time.Millisecond

const mostLevels = 100

// wait reads how the messages of a policy wait: nil for the service's own store.
func (d *document) wait(n ast.Node, where string) (way delay.Way) {
	must := func(n ast.Node, where string, w delay.Way, err error) {
		if way = w; err != nil {
			d.fail(n, "%s: %w", where, err)
		}
	}
	if _, ok := pairs(n); ok {
		forms := d.mapping(n, where, map[string]field{
			"levels": func(n ast.Node) {
				levels := d.waits(n, where+".levels")
				if len(levels) == 0 {
					d.fail(n, "%s.levels is empty; leave the list out for levels from 1s to 1h", where)
				}
				if len(levels) > mostLevels {
					d.fail(n, "%s.levels are %d; expected at most %d, since each is a queue in RabbitMQ", where, len(levels), mostLevels)
				}
				w, err := ttlqueue.NewLevels(ttlqueue.Quorum, levels...)
				must(n, where+".levels", w, err)
			},
			"fixed": func(n ast.Node) {
				w, err := ttlqueue.NewFixed(ttlqueue.Quorum, d.duration(n, where+".fixed"))
				must(n, where+".fixed", w, err)
			},
			"binary": func(n ast.Node) {
				w, err := binary.New(d.duration(n, where+".binary"))
				must(n, where+".binary", w, err)
			},
		})
		if forms != 1 {
			d.fail(n, "%s has %d forms; expected %s", where, forms, expectedWait)
		}
		return way
	}
	switch s := d.text(n, where, expectedWait); s {
	case "disk":
		return nil
	case "levels":
		w, err := ttlqueue.NewLevels(ttlqueue.Quorum)
		must(n, where, w, err)
	case "dynamic":
		w, err := ttlqueue.NewDynamic(shortestDynamic)
		must(n, where, w, err)
	case "message-ttl":
		way = ttlqueue.NewMessageTTL(ttlqueue.Quorum, false)
	case "delayed-exchange":
		way = plugin.Way{}
	case "fixed", "binary":
		d.fail(n, "%s: %s needs a duration, as in {%s: 1s}", where, s, s)
	case "native":
		d.fail(n, "%s: native is the work queue's own wait, in which the service has no part; set it on the queue, and let it dead-letter to Redrive what passes its delivery limit", where)
	default:
		d.fail(n, "%s is %s; expected %s", where, show(n), expectedWait)
	}
	return way
}

// checkWay refuses, at n, a policy whose way cannot keep it, and takes away what the
// way does not have.
func (d *document) checkWay(n ast.Node, p *policy.Policy, way delay.Way, jitterSet bool, c *Config) {
	l := way.Limits()
	if err := l.Check(p); err != nil {
		d.refuse(n, err)
	}
	if l.DropsWhenFull {
		c.Warnings = append(c.Warnings, fmt.Sprintf("policy %q: with %s a retry that comes due while its work queue is full or has no leader is lost; levels, binary and disk keep it", p.Name, l.Name))
	}
	if !l.Spreads() {
		if jitterSet && p.Jitter != policy.None {
			c.Warnings = append(c.Warnings, fmt.Sprintf("policy %q: its jitter has no effect: %s waits only what it waits", p.Name, l.Name))
		}
		p.Jitter = policy.None
	}
}

// rounded are a policy's waits as its way rounds them.
func rounded(p *policy.Policy, way delay.Way) []time.Duration {
	waits := p.Waits()
	if way == nil {
		return waits
	}
	rounded := slices.Clone(waits)
	for i, w := range waits {
		if i > 0 && w == waits[i-1] {
			rounded[i] = rounded[i-1]
		} else if t, err := way.Ticket("", w); err == nil {
			rounded[i] = t.Delay
		}
	}
	return rounded
}
