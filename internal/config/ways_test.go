package config

import (
	"strings"
	"testing"

	"github.com/redrive-mq/redrive/policy"
)

const oneQueue = "policies:\n  - name: p\n    queues: [\"*\"]\n"

// What each way comes to: the real waits, the way, and no jitter where it has none.
func TestWaysAreDescribedAsTheyAre(t *testing.T) {
	for _, c := range []struct{ yaml, want string }{
		{"attempts: 4\n    wait: disk", "1s, 2s, 4s, parked after 7s (jitter ±20%)"},
		{"attempts: 4\n    wait: levels", "1s, 2s, 4s, parked after 7s (waits in RabbitMQ: levels)"},
		{"attempts: 4\n    wait: {levels: [3s, 1m]}", "3s, 3s, 1m, parked after 1m 6s (waits in RabbitMQ: levels)"},
		{"attempts: 4\n    backoff: {fixed: 20s}\n    wait: {fixed: 30s}", "30s ×3, parked after 1m 30s (waits in RabbitMQ: fixed)"},
		{"attempts: 3\n    backoff: [1234ms, 5678ms]\n    wait: dynamic", "1.3s, 5.7s, parked after 7s (jitter ±20%) (waits in RabbitMQ: dynamic)"},
		{"attempts: 3\n    backoff: {fixed: 1500us}\n    wait: message-ttl", "2ms, 2ms, parked after 4ms (waits in RabbitMQ: message-ttl)"},
		{"attempts: 3\n    backoff: [1200ms, 90s]\n    jitter: full\n    wait: {binary: 1s}", "2s, 1m 30s, parked after 1m 32s (jitter full) (waits in RabbitMQ: binary)"},
		{"attempts: 2\n    wait: delayed-exchange", "1s, parked after 1s (jitter ±20%) (waits in RabbitMQ: delayed-exchange)"},
		{"attempts: 1\n    wait: levels", "parked after the first attempt"},
	} {
		cfg, err := Parse("f.yaml", []byte(oneQueue+"    "+c.yaml))
		if err != nil {
			t.Errorf("%s: %v", c.yaml, err)
			continue
		}
		var b strings.Builder
		if err := Describe(&b, cfg); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(b.String(), "*  "+c.want) {
			t.Errorf("%s:\n%swant %s", c.yaml, b.String(), c.want)
		}
		way, waits := cfg.Ways["p"], !strings.Contains(c.yaml, "disk")
		if (way != nil) != waits {
			t.Errorf("%s: the way is %v", c.yaml, way)
		}
		if way != nil && way.Limits().Spreads() == (cfg.Policies[0].Jitter == policy.None) {
			t.Errorf("%s: jitter is %s", c.yaml, cfg.Policies[0].Jitter)
		}
		// A way that loses what an unavailable queue does not accept says so.
		drops := way != nil && way.Limits().DropsWhenFull
		if len(cfg.Warnings) != 0 != drops || drops && !strings.Contains(cfg.Warnings[0], "full or has no leader is lost") {
			t.Errorf("%s: warnings %q", c.yaml, cfg.Warnings)
		}
	}
}

func TestAWayRefusesWhatItCannotKeep(t *testing.T) {
	for _, c := range []struct{ yaml, want string }{
		{"    wait: disc", `f.yaml:4:11: policies[0].wait is "disc"; expected disk, levels, {levels: [1s, 10s, 1m]}`},
		{"    wait: [1s]", "f.yaml:4:11: policies[0].wait is a list; expected disk, levels"},
		{"    wait: fixed", "f.yaml:4:11: policies[0].wait: fixed needs a duration, as in {fixed: 1s}"},
		{"    wait: binary", "f.yaml:4:11: policies[0].wait: binary needs a duration"},
		{"    wait: native", "f.yaml:4:11: policies[0].wait: native is the work queue's own wait"},
		{"    wait: {level: [1s]}", `f.yaml:4:12: policies[0].wait has no key "level" (did you mean "levels"?)`},
		{"    wait: {levels: 1s}", `f.yaml:4:20: policies[0].wait.levels is "1s"; expected a list of waits`},
		{"    wait: {levels: []}", "f.yaml:4:20: policies[0].wait.levels is empty; leave the list out"},
		{"    wait: {levels: [1 s]}", `f.yaml:4:21: policies[0].wait.levels has "1 s"; expected a wait such as`},
		{"    wait: {levels: [1s x101]}", "f.yaml:4:20: policies[0].wait.levels are 101; expected at most 100"},
		{"    wait: {levels: [1500us]}", "f.yaml:4:20: policies[0].wait.levels: the level"},
		{"    wait: {fixed: soon}", `f.yaml:4:19: policies[0].wait.fixed is "soon"; expected a duration`},
		{"    wait: {fixed: 0s}", "f.yaml:4:19: policies[0].wait.fixed: the level"},
		{"    wait: {binary: 2s}", "f.yaml:4:20: policies[0].wait.binary: a unit of 2s"},
		{"    wait: {binary: 1s, fixed: 1s}", "has 2 forms; expected disk, levels"},
		{"    wait: {}", "has 0 forms; expected disk, levels"},
		{"    wait:", "policies[0].wait has no value"},
		{"    wait: {levels: [1s, 10s]}", `f.yaml:4:11: policy "p" waits 16s before attempt 6, and levels waits 10s at most: shorten it`},
		{"    wait: {fixed: 30s}", `policy "p" waits 32s before attempt 7, and fixed waits 30s at most`},
		{"    wait: message-ttl", `policy "p" waits 1s before attempt 2 and 2s before the next: with message-ttl a message with the short wait would wait behind those with the long one`},
		{"    backoff: [1000d]\n    wait: {binary: 1ms}", "and binary waits"},
		{"    backoff: [60d]\n    wait: delayed-exchange", "and delayed-exchange waits"},
	} {
		_, err := Parse("f.yaml", []byte(oneQueue+c.yaml))
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "f.yaml:4:") && !strings.HasPrefix(err.Error(), "f.yaml:5:") {
			t.Errorf("%s\n got %v\nwant %s", c.yaml, err, c.want)
		}
	}
}

func TestJitterThatAWayDoesNotHaveIsWarnedOf(t *testing.T) {
	for jitter, warnings := range map[string]int{"0.3": 1, "full": 1, "none": 0} {
		c, err := Parse("f.yaml", []byte(oneQueue+"    jitter: "+jitter+"\n    wait: levels"))
		if err != nil {
			t.Fatal(err)
		}
		if len(c.Warnings) != warnings || c.Policies[0].Jitter != policy.None {
			t.Errorf("%s: warnings %q, jitter %s", jitter, c.Warnings, c.Policies[0].Jitter)
		}
	}
}
