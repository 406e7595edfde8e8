package config

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/redrive-mq/redrive/internal/notify"
	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/testenv/expect"
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
		cfg := parsed(t, oneQueue+"    "+c.yaml)
		b := described(t, cfg)
		if !strings.Contains(b, "*  "+c.want) {
			t.Errorf("%s:\n%swant %s", c.yaml, b, c.want)
		}
		way, waits := cfg.Ways["p"], !strings.Contains(c.yaml, "disk")
		if (way != nil) != waits {
			t.Errorf("%s: the way is %v", c.yaml, way)
		}
		if way != nil && way.Limits().Spreads() == (cfg.Policies[0].Jitter == policy.None) {
			t.Errorf("%s: jitter is %s", c.yaml, cfg.Policies[0].Jitter)
		}
		// RabbitMQ gets no queues of levels that no message reaches.
		if strings.HasSuffix(c.yaml, "wait: levels") && way.Limits().Longest > 4*time.Second {
			t.Errorf("%s: the levels %v", c.yaml, way.Limits().Levels)
		}
		// A way that loses what an unavailable queue does not accept says so.
		drops := way != nil && way.Limits().DropsWhenFull
		if len(cfg.Warnings) != 0 != drops || drops && !strings.Contains(cfg.Warnings[0], "full or has no leader is lost") {
			t.Errorf("%s: warnings %q", c.yaml, cfg.Warnings)
		}
	}
}

func TestAWayRefusesWhatItCannotKeep(t *testing.T) {
	areRefused(t, []string{"f.yaml:4:", "f.yaml:5:"}, []refusal{
		{oneQueue + "    wait: disc", `f.yaml:4:11: policies[0].wait is "disc"; expected disk, levels, {levels: [1s, 10s, 1m]}`},
		{oneQueue + "    wait: [1s]", "f.yaml:4:11: policies[0].wait is a list; expected disk, levels"},
		{oneQueue + "    wait: fixed", "f.yaml:4:11: policies[0].wait: fixed needs a duration, as in {fixed: 1s}"},
		{oneQueue + "    wait: binary", "f.yaml:4:11: policies[0].wait: binary needs a duration"},
		{oneQueue + "    wait: native", "f.yaml:4:11: policies[0].wait: native is the work queue's own wait"},
		{oneQueue + "    wait: {level: [1s]}", `f.yaml:4:12: policies[0].wait has no key "level" (did you mean "levels"?)`},
		{oneQueue + "    wait: {levels: 1s}", `f.yaml:4:20: policies[0].wait.levels is "1s"; expected a list of waits`},
		{oneQueue + "    wait: {levels: []}", "f.yaml:4:20: policies[0].wait.levels is empty; leave the list out"},
		{oneQueue + "    wait: {levels: [1 s]}", `f.yaml:4:21: policies[0].wait.levels has "1 s"; expected a wait such as`},
		{oneQueue + "    wait: {levels: [1s x101]}", "f.yaml:4:20: policies[0].wait.levels are 101; expected at most 100"},
		{oneQueue + "    wait: {levels: [1500us]}", "f.yaml:4:20: policies[0].wait.levels: the level"},
		{oneQueue + "    wait: {fixed: soon}", `f.yaml:4:19: policies[0].wait.fixed is "soon"; expected a duration`},
		{oneQueue + "    wait: {fixed: 0s}", "f.yaml:4:19: policies[0].wait.fixed: the level"},
		{oneQueue + "    wait: {binary: 2s}", "f.yaml:4:20: policies[0].wait.binary: a unit of 2s"},
		{oneQueue + "    wait: {binary: 1s, fixed: 1s}", "has 2 forms; expected disk, levels"},
		{oneQueue + "    wait: {}", "has 0 forms; expected disk, levels"},
		{oneQueue + "    wait:", "policies[0].wait has no value"},
		{oneQueue + "    wait: {levels: [1s, 10s]}", `f.yaml:4:11: policy "p" waits 16s before attempt 6, and levels waits 10s at most: shorten it`},
		{oneQueue + "    wait: {fixed: 30s}", `policy "p" waits 32s before attempt 7, and fixed waits 30s at most`},
		{oneQueue + "    wait: message-ttl", `policy "p" waits 1s before attempt 2 and 2s before the next: with message-ttl a message with the short wait would wait behind those with the long one`},
		{oneQueue + "    backoff: [1000d]\n    wait: {binary: 1ms}", "and binary waits"},
		{oneQueue + "    backoff: [60d]\n    wait: delayed-exchange", "and delayed-exchange waits"},
	})
}

func TestLimitsOfRetriesAreParsed(t *testing.T) {
	on := throttle.DefaultBreaker()
	own := throttle.Breaker{FailureRatio: 0.25, MinRetries: 5, Window: 2 * time.Minute, Wait: time.Second, MaxWait: time.Minute, Probes: 1, Ramp: 10 * time.Second}
	long := on
	long.Wait, long.MaxWait = 10*time.Minute, 10*time.Minute
	wide := on
	wide.Window = 4 * time.Minute
	for _, c := range []struct {
		yaml, says string
		want       throttle.Rules
	}{
		{"attempts: 2", "", throttle.Rules{}},
		{"rate: 200/s", "  throttle: 200/s\n", throttle.Rules{Rate: 200}},
		{"rate: 30/min", "  throttle: 30/min\n", throttle.Rules{Rate: 0.5}},
		{"rate: 7 / h\n    in_flight: 50\n    breaker: on", "  throttle: 7/h, 50 in flight, breaker\n",
			throttle.Rules{Rate: 7.0 / 3600, InFlight: 50, Breaker: &on}},
		{"settle: 5s\n    breaker: off", "", throttle.Rules{Settle: 5 * time.Second}},
		{"breaker: {share: 25%, least: 5, window: 2m, wait: 1s, max_wait: 1m, probes: 1, ramp: 10s}",
			"  throttle: breaker\n", throttle.Rules{Breaker: &own}},
		{"breaker: {wait: 10m}", "  throttle: breaker\n", throttle.Rules{Breaker: &long}},
		{"breaker: on\n    settle: 2m", "  throttle: breaker\n", throttle.Rules{Settle: 2 * time.Minute, Breaker: &wide}},
		{"no_consumer: retry", "", throttle.Rules{NoConsumer: throttle.RetryWithoutConsumers}},
		{"no_queue: 1h", "", throttle.Rules{NoQueue: time.Hour}},
		{"no_consumer: {probes: 5}", "", throttle.Rules{Probes: 5}},
	} {
		cfg := parsed(t, oneQueue+"    "+c.yaml)
		if c.want.Settle == 0 {
			c.want.Settle = 30 * time.Second
		}
		if c.want.NoConsumer == "" {
			c.want.NoConsumer = throttle.PauseWithoutConsumers
		}
		if d := cmp.Diff(c.want, cfg.Throttle["p"]); d != "" || len(cfg.Warnings) > 0 {
			t.Errorf("%s: %s %q", c.yaml, d, cfg.Warnings)
		}
		b := described(t, cfg)
		if !strings.Contains(b, c.says) || c.says == "" && strings.Contains(b, "throttle") {
			t.Errorf("%s: %s", c.yaml, b)
		}
	}
}

func TestHowFastIsRefused(t *testing.T) {
	areRefused(t, []string{"f.yaml:4:"}, []refusal{
		{oneQueue + "    rate: 200", `f.yaml:4:11: policies[0].rate is "200"; expected a number of retries per second`},
		{oneQueue + "    rate: 0/s", `f.yaml:4:11: policies[0].rate is "0/s"`},
		{oneQueue + "    rate: NaN/s", `f.yaml:4:11: policies[0].rate is "NaN/s"`},
		{oneQueue + "    rate: 5/d", `f.yaml:4:11: policies[0].rate is "5/d"`},
		{oneQueue + "    rate: 2000000/s", `f.yaml:4:11: policies[0].rate is`},
		{oneQueue + "    in_flight: 0", `f.yaml:4:16: policies[0].in_flight is "0"; expected a whole number from 1 to 65536`},
		{oneQueue + "    settle: 1ms", `f.yaml:4:13: policies[0].settle is "1ms"; expected a duration from 100ms to 1d`},
		{oneQueue + "    breaker: maybe", `f.yaml:4:14: policies[0].breaker is "maybe"; expected on, off, or a mapping`},
		{oneQueue + "    breaker: {shares: 50%}", `f.yaml:4:15: policies[0].breaker has no key "shares" (did you mean "share"?)`},
		{oneQueue + "    breaker: {share: 150%}", `f.yaml:4:22: policies[0].breaker.share is "150%"`},
		{oneQueue + "    breaker: {share: 0}", `f.yaml:4:22: policies[0].breaker.share is "0"`},
		{oneQueue + "    breaker: {probes: 0}", `f.yaml:4:23: policies[0].breaker.probes is "0"`},
		{oneQueue + "    breaker: {wait: 10s, max_wait: 5s}", `f.yaml:4:36: policies[0].breaker.max_wait is shorter than wait (10s)`},
		{oneQueue + "    breaker: {window: 10s}", "policies[0].breaker.window is shorter than settle (30s)"},
		{oneQueue + "    no_consumer: wait", `f.yaml:4:18: policies[0].no_consumer is "wait"; expected pause, {probes: N}`},
		{oneQueue + "    no_consumer: {probes: 0}", `f.yaml:4:27: policies[0].no_consumer.probes is "0"`},
	})
}

func TestRules(t *testing.T) {
	c := parsed(t, oneQueue+`    rules:
      - name: bad data
        when: 'error:"invalid IBAN" or exception:ValidationError'
        then: park
      - when: error:/timeout|deadlock/ attempt:<3
        then: {backoff: [200ms, 1s], attempts: 4}
      - when: header.x-tenant:trial
        then: discard
      - {when: type:Payment, then: {delay: 5m}}
      - when: |
          type:Refund
          key:eu.*
        then: {forward: {exchange: refunds, routing_key: eu}}
      - {when: "type:Campaign", notify: urgent}
      - {when: "type:Order", notify: never, then: {backoff: {linear: {initial: 1s, max: 1m}}}}
`)
	var got []string
	for i, r := range c.Policies[0].Rules {
		got = append(got, fmt.Sprintf("%s: %s: %s%s", c.Policies[0].RuleName(i), r.When, r.Then, r.Notify))
	}
	expect.Equal(t, strings.Join(got, "|"), strings.Join([]string{
		`bad data: error:"invalid IBAN" or exception:ValidationError: park`,
		"2: error:/timeout|deadlock/ attempt:<3: retry, 200ms, 1s, 4 attempts",
		"3: header.x-tenant:trial: discard",
		"4: type:Payment: retry, fixed at 5m",
		"5: type:Refund\nkey:eu.*\n: forward to exchange \"refunds\"",
		"6: type:Campaign: urgent",
		"7: type:Order: retry, linear from 1s by 1s to 1mnever",
	}, "|"), "the rules")
	if len(c.Warnings) > 0 {
		t.Errorf("warnings: %q", c.Warnings)
	}
	// RabbitMQ gets the levels that a rule needs.
	c = parsed(t, oneQueue+"    attempts: 3\n    wait: levels\n    rules: [{when: 'error:x', then: {delay: 10m}}]\n")
	if longest := c.Ways["p"].Limits().Longest; longest < 10*time.Minute {
		t.Errorf("the longest level is %s", longest)
	}
}

func TestMistakesInRules(t *testing.T) {
	const head = oneQueue + "    rules:\n"
	areRefused(t, []string{"f.yaml:"}, []refusal{
		{head + "      - {when: error:x}", "f.yaml:5:9: policies[0].rules[0] does not say what then; expected then: park, discard"},
		{head + "      - {when: a, notify: loud}", "policies[0].rules[0].notify is \"loud\"; expected urgent, normal or never"},
		{head + "      - then: park", "f.yaml:5:13: policies[0].rules[0] does not say when; expected a query"},
		{head + "      - when: error:/a(b/\n        then: park", "f.yaml:5:21: policies[0].rules[0].when: not a regular expression: missing closing ): a(b"},
		{head + "      - when: 'type:A state:parked'\n        then: park", "f.yaml:5:23: policies[0].rules[0].when: a rule decides when a message has just failed, which has no state"},
		{head + "      - when: \"\"\n        then: park", "f.yaml:5:16: policies[0].rules[0].when: expected a condition"},
		{head + "      - {when: a, then: wait}", "f.yaml:5:25: policies[0].rules[0].then is \"wait\"; expected park, discard, or a mapping"},
		{head + "      - {when: a, then: {attempts: 3}}", "policies[0].rules[0].then needs one of forward, backoff and delay"},
		{head + "      - {when: a, then: {delay: 1s, backoff: [1s]}}", "policies[0].rules[0].then needs one of forward, backoff and delay"},
		{head + "      - {when: a, then: {forward: {queue: x}, attempts: 3}}", "policies[0].rules[0].then: attempts goes with backoff or delay"},
		{head + "      - {when: a, then: {forward: {}}}", "policies[0].rules[0].then.forward names neither an exchange nor a queue"},
		{head + "      - {when: a, then: {backoff: []}}", "policies[0].rules[0].then.backoff: the list of waits is empty"},
		{head + "      - {when: a, then: {delay: 20y}}", "policies[0].rules[0].then.delay is \"20y\"; expected a duration"},
		{head + "      - {name: b, when: a, then: park}\n      - {name: b, when: c, then: park}", "policy \"p\": rule b: a rule before it has that name"},
		{head + "      - {when: a, then: {delay: 5s}}\n    backoff: {fixed: 1s}\n    wait: message-ttl", "waits 1s, and one of its rules 5s: with message-ttl"},
	})
	if c := parsed(t, head+"      - {when: error:x, notify: urgent}\n      - {when: error:x, then: park}\n"); len(c.Warnings) > 0 {
		t.Errorf("a rule that only notifies is said to decide: %q", c.Warnings)
	}
	c := parsed(t, head+"      - {when: error:x, then: park}\n      - {when: b, then: park}\n      - {name: late, when: error:x b, then: discard}\n")
	expect.Equal(t, strings.Join(c.Warnings, "|"), `policy "p": rule late never decides: rule 1 before it matches all of its failures`, "warnings")
}

const hookURL = "generic+https://hooks.example.com/s3cret"

// exampleNotify is what the example file has as comments.
func exampleNotify(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile("../../redrive.example.yaml")
	must(t, err)
	_, section, ok := strings.Cut(string(data), "\n# notify:\n")
	if !ok {
		t.Fatal("the example does not show notify")
	}
	return "notify:\n" + regexp.MustCompile(`(?m)^# ?`).ReplaceAllString(section, "")
}

func TestTheExampleOfNotify(t *testing.T) {
	yaml := exampleNotify(t)
	c := parsed(t, yaml)
	if n := len(c.Notify.Routes); n != 3 || len(c.Warnings) != 0 || c.Notify.Burst != 100 || c.Notify.OldestWaiting != 24*time.Hour {
		t.Errorf("%d routes, warnings %q, %+v", n, c.Warnings, c.Notify)
	}
	for _, k := range notify.KindNames() {
		if !strings.Contains(yaml, k) {
			t.Errorf("the example does not name the event %s", k)
		}
	}
}

// The documentation's example: a message that triggers a campaign pages someone; one
// that counts texts goes to Slack in the morning.
func TestTheDocumentedNotify(t *testing.T) {
	doc, err := os.ReadFile("../../docs/how-to/notifications.md")
	must(t, err)
	_, rest, _ := strings.Cut(string(doc), "```yaml\n")
	yaml, _, _ := strings.Cut(rest, "```")
	file := filepath.Join(t.TempDir(), "slack")
	must(t, os.WriteFile(file, []byte("slack+https://hooks.slack.com/services/T00000000/B00000000/123456789012345678901234\n"), 0o600))
	config := filepath.Join(t.TempDir(), "redrive.yaml")
	must(t, os.WriteFile(config, []byte(strings.Replace(yaml, "/run/secrets/slack", file, 1)), 0o600))
	c, err := Load(config, func(name string) string {
		return map[string]string{"PAGERDUTY_URL": "pagerduty://events.pagerduty.com/abcdef0123456789"}[name]
	})
	must(t, err)
	pager, slack := c.Notify.Routes[0], c.Notify.Routes[1]
	if pager.MinSeverity != notify.Critical || pager.GroupWait != 10*time.Second || !strings.HasPrefix(string(pager.URL), "pagerduty://") {
		t.Errorf("the pager is %+v", pager)
	}
	if slack.Quiet.From != 18*60 || slack.Quiet.To != 8*60 || slack.Quiet.Zone.String() != "Europe/Berlin" || slack.Repeat != 4*time.Hour || !slack.Resolved || !strings.HasSuffix(string(slack.URL), "/123456789012345678901234") {
		t.Errorf("slack is %+v", slack)
	}
	b := described(t, c)
	if want := "notify   slack  all events of texts.*, not from 18:00 to 08:00 Europe/Berlin unless critical"; !strings.Contains(b, want) {
		t.Errorf("%q is not in\n%s", want, b)
	}
	if strings.Contains(b, "abcdef") {
		t.Errorf("a secret is in\n%s", b)
	}
	for _, k := range notify.Kinds {
		if !strings.Contains(string(doc), "| `"+string(k.Kind)+"` | "+k.Severity.String()+" |") {
			t.Errorf("the documentation does not say what %s is", k.Kind)
		}
	}
}

func TestMistakesInNotify(t *testing.T) {
	const head = "notify:\n  routes:\n    - name: a\n      url_env: U\n"
	areRefused(t, []string{"f.yaml:"}, []refusal{
		{"notify: [a]", "f.yaml:1:9: notify is a list; expected keys"},
		{"notify: {routs: []}", `(did you mean "routes"?)`},
		{"notify:\n  page: ftp://x", `f.yaml:2:9: notify.page begins with "ftp://"`},
		{"notify:\n  page: https://x/?q=1", "f.yaml:2:9: notify.page is"},
		{"notify:\n  allow_private: [10.0.0.0/33]", "f.yaml:2:19: notify.allow_private has"},
		{"notify: {burst: 5}", "expected a number in a minute, such as 100/min"},
		{"notify: {burst: 0/min}", "expected a number in a minute"},
		{"notify: {no_consumer: -1m}", "expected a duration from 0s to a year"},
		{"notify: {critical: []}", "notify.critical is empty"},
		{head + "      queues: []", "f.yaml:5:15: notify.routes[0].queues is empty"},
		{head + "    - name: a\n      url_env: V", `f.yaml:5:11: a second route is named "a"`},
		{"notify: {routes: [{name: a}]}", "has no URL; expected url_env, url_file or url"},
		{"notify: {routes: [{url_env: U}]}", "has no name"},
		{"notify: {routes: [{name: a/b, url_env: U}]}", "expected up to 63 letters"},
		{head + "      url_file: x", "has url_env and url_file; expected one of them"},
		{"notify: {routes: [{name: a, url: \"slack://s3cret\"}]}", "url is not a URL of slack; expected slack+https://hooks.slack.com/services/"},
		{"notify: {routes: [{name: a, url: \"s3cret\"}]}", "is not a URL"},
		{"notify: {routes: [{name: a, url: \"nosuch://s3cret\"}]}", "no known service; expected one of alertmanager, discord, generic, googlechat"},
		{head + "      body: {}", "such as {text: \"{{.title}}\"}: it is empty"},
		{head + "      body: [a]", "f.yaml:5:13: notify.routes[0].body is no mapping of texts that are templates"},
		{head + "      body: {text: \"{{.titel}}\"}", `map has no entry for key "titel"`},
		{"notify: {routes: [{name: a, url: \"slack+https://h/s3cret\", body: {text: hi}}]}", "f.yaml:1:34: notify.routes[0].url is of slack, which has a body of its own"},
		{"notify: {routes: [{name: a, url: \"alertmanager+https://s3cret@h/\", repeat: 1h}]}", "f.yaml:1:34: notify.routes[0].url is of alertmanager, which groups, repeats and silences by itself"},
		{"notify: {routes: [{name: a, url: \"telegram://s3cret:s3cret@telegram?chats=1\"}]}", "is a URL of no known service; expected one of alertmanager, discord,"},
		{head + "      events: [lunch]", "f.yaml:5:16: notify.routes[0].events has \"lunch\"; expected some of parked, parked_urgent"},
		{head + "      severity: bad", `f.yaml:5:17: notify.routes[0].severity: "bad" is not a severity`},
		{head + "      repeat: 10s", "expected a duration from 1m0s to a year"},
		{head + "      group_wait: soon", "expected a duration such as"},
		{head + "      resolved: maybe", "expected true or false"},
		{head + "      quiet: {hours: 22:00-07:00}", "needs hours and a zone"},
		{head + "      quiet: {hours: 22-7, zone: UTC}", "expected two times of day, such as 22:00-07:00"},
		{head + "      quiet: {hours: 22:00-25:00, zone: UTC}", "expected two times of day"},
		{head + "      quiet: {hours: 22:00-07:00, zone: Mars}", "expected a time zone such as Europe/Berlin"},
	})
}

func TestWhereRoutesHaveTheirURLs(t *testing.T) {
	folder := t.TempDir()
	write := func(name, text string) {
		must(t, os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600))
	}
	write("hook", hookURL+"\n")
	write("bad", "slack://s3cret")
	load := func(route, env string) (*Config, error) {
		write("redrive.yaml", "notify:\n  routes:\n    - {name: a, "+route+"}\n")
		return Load(filepath.Join(folder, "redrive.yaml"), func(name string) string {
			if name == "U" {
				return env
			}
			return ""
		})
	}
	for _, c := range []struct{ route, env, want string }{
		{"url_env: U", hookURL, ""},
		{"url_file: hook", "", ""}, // beside the config file
		{"url: " + hookURL, "", ""},
		{"url_env: U", "", `redrive.yaml:3:26: notify route "a": the environment variable U is empty`},
		{"url_env: U", "s3cret", "the environment variable U is not a URL"},
		{"url_file: bad", "", "bad is not a URL of slack"},
		{"url_file: none", "", "its URL cannot be read"},
	} {
		cfg, err := load(c.route, c.env)
		switch {
		case c.want == "" && (err != nil || string(cfg.Notify.Routes[0].URL) != hookURL):
			t.Errorf("%s: %v", c.route, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "s3cret")):
			t.Errorf("%s: %v, want %s", c.route, err, c.want)
		}
		if err == nil && (len(cfg.Warnings) == 1) != strings.HasPrefix(c.route, "url:") {
			t.Errorf("%s: warnings %q", c.route, cfg.Warnings)
		}
	}
}
