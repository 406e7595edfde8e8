package config

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/notify"
)

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
	for _, key := range []string{"page", "critical", "no_consumer", "oldest_waiting", "burst", "allow_private", "routes", "name", "url_env", "url_file", "severity",
		"group_wait", "events", "queues", "repeat", "quiet", "hours", "zone", "resolved", "body"} {
		if !strings.Contains(yaml, key+":") {
			t.Errorf("the example does not show %q", key)
		}
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
	if pager.Least != notify.Critical || pager.GroupWait != 10*time.Second || !strings.HasPrefix(string(pager.URL), "pagerduty://") {
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
		{head + "      events: [lunch]", "f.yaml:5:16: notify.routes[0].events has \"lunch\"; expected some of parked, parked_burst"},
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
