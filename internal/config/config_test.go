package config

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/connect"
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/mask"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/testenv/authority"
	"github.com/redrive-mq/redrive/testenv/expect"
)

func TestTheExampleFile(t *testing.T) {
	c, err := Load("../../redrive.example.yaml", func(string) string { return "" })
	must(t, err)
	want := policy.Exponential(time.Second, 2, 10*time.Minute)
	if p := c.Policies[0]; p.Name != "orders" || p.Attempts != 8 || p.Backoff.Delay(4) != want.Delay(4) {
		t.Errorf("the first policy is %+v", p)
	}
	if p, first := c.Policies[1], c.Policies[0]; p.MaxReplays != 3 || p.MaxAge != 24*time.Hour ||
		first.MaxReplays != 0 || first.MaxAge != 0 {
		t.Errorf("the second policy is %+v", p)
	}
	if _, err := decode.New(c.Decode); err != nil {
		t.Error(err)
	}
	b := described(t, c)
	for _, want := range []string{
		"orders    orders.*      1s, 2s, 4s, 8s, 16s, 32s, 1m 4s, parked after 2m 7s (jitter ±20%)",
		`10s ×6, 15m ×10, forwarded to exchange "alerts" after 2h 31m (jitter ±20%)`,
		"  max_age 1d · max_replays 3\n",
		"  retention 90d · throttle: 200/s, 10000 in flight, breaker\n",
		`  rule bad data: error:"invalid IBAN" or exception:ValidationError → park`,
		"  rule 4: type:CampaignStart → as the policy says\n",
		`30s, 1m, 1m 30s, 2m, forwarded to queue "mail.dead" after 5m (jitter equal)`,
		"1m, 1m, parked after 2m",
		"protobuf  orders.*      shop.Order",
	} {
		if !strings.Contains(b, want) {
			t.Errorf("%q is not in:\n%s", want, b)
		}
	}
}

func TestErrorsNameThePlaceAndWhatWasExpected(t *testing.T) {
	const head = oneQueue
	areRefused(t, []string{"f.yaml:"}, []refusal{
		{"brokr: {}", `f.yaml:1:1: the file has no key "brokr" (did you mean "broker"?)`},
		{head + "    atempts: 3", `f.yaml:4:5: policies[0] has no key "atempts" (did you mean "attempts"?)`},
		{head + "    attempts: 0", `f.yaml:4:15: policies[0].attempts is "0"; expected a whole number from 1`},
		{head + "    attempts: many", `f.yaml:4:15: policies[0].attempts is "many"`},
		{head + "    backoff: {fixed: 1 sec}", `f.yaml:4:22: policies[0].backoff.fixed is "1 sec"; expected a duration such as`},
		{head + "    backoff: {fixed: 10}", `f.yaml:4:22: policies[0].backoff.fixed is "10"`},
		{head + "    backoff: {fixed: -1s}", "f.yaml:4:14: policies[0].backoff: -1s is negative"},
		{head + "    backoff: {fixed: 4000d}", "longer than ten years"},
		{head + "    backoff: {exponential: {factor: 0.5}}", `f.yaml:4:37: policies[0].backoff.exponential.factor is "0.5"; expected a number from 1 to 1000`},
		{head + "    backoff: {exponential: {initial: 1h}}", "max (10m) is shorter than initial (1h)"},
		{head + "    backoff: {linear: {step: -5s}}", "-5s is negative"},
		{head + "    backoff: {fixed: 1s, linear: {}}", "has 2 forms"},
		{head + "    backoff: []", "the list of waits is empty"},
		{head + "    backoff: [1s, 2 s]", `f.yaml:4:19: policies[0].backoff has "2 s"; expected a wait such as`},
		{head + "    backoff: [1s x0]", "repeats 0 times"},
		{head + "    jitter: 2", `f.yaml:4:13: policies[0].jitter is "2"; expected none, full, equal, or a fraction from 0 to 1`},
		{head + "    max_age: 1 day", `f.yaml:4:14: policies[0].max_age is "1 day"; expected a duration such as`},
		{head + "    max_age: 4000d", "max_age is 4000d, and must be up to ten years"},
		{head + "    max_replays: 0", `f.yaml:4:18: policies[0].max_replays is "0"; expected a whole number from 1`},
		{head + "    reasons: [nack]", `"nack" is not a reason RabbitMQ gives`},
		{head + "    reasons: []", "nothing would be retried"},
		{head + "    exhausted: drop", `f.yaml:4:16: policies[0].exhausted is "drop"; expected park, discard, or forward`},
		{head + "    exhausted: {forward: {}}", "names neither an exchange nor a queue"},
		{head + "    exhausted: {forward: {queue: q, exchange: x}}", "both a queue and an exchange"},
		{head + head[10:], `f.yaml:4:9: a second policy is named "p"`},
		{"policies:\n  - name: p", "names no queues"},
		{"policies: []", "policies is empty"},
		{"listen: 8250", `listen is "8250"; expected host:port`},
		{"broker: {url: http://h}", `broker.url begins with "http://": expected amqp:// or amqps://`},
		{"broker: {url: 'amqp://u:secret@ho st/'}", "broker.url is not a URL"},
		{"broker:\n  url: [amqp://u:secret@h1/a, amqp://u:secret@h2/b]", `f.yaml:2:8: broker.url has the virtual host "a" at h1 and "b" at h2: all must be nodes of one cluster`},
		{"broker: {url: []}", "broker.url is not a URL"},
		{"broker: {management: ['http://u:secret@h1:15672', 'amqp://u:secret@h2']}", `broker.management begins with "amqp://": expected http:// or https://`},
		{"notify: {page: ['http://h1', 'http://h2']}", "notify.page has several URLs; expected one"},
		{"store: {reserve: 5}", `store.reserve is "5"; expected a size such as 256MiB`},
		{"store: {restorable: 30}", `f.yaml:1:21: store.restorable is "30"; expected a duration such as`},
		{"store: {restorable: 0s}", `f.yaml:1:21: store.restorable is "0s"; expected a duration from 1m to ten years`},
		{"store: {restorable: 4000d}", "expected a duration from 1m to ten years"},
		{"store:", "store has no value"},
		{"a: [", "not valid YAML"},
		{"policies:\n  - name: a\n\t queues: [a]\n",
			"f.yaml:3:1: not valid YAML: the line is indented with a tab; indent with spaces"},
		{"listen: 127.0.0.1:1\nlisten: 127.0.0.1:2", "f.yaml:2:1"},
		{"listen: 127.0.0.1:1\n---\nlisten: 127.0.0.1:2", "f.yaml:3"},
		{"store: &a {disk: x}", "an anchor or alias"},
		{"decode: {protobuff: {}}", `f.yaml:1:10: decode has no key "protobuff" (did you mean "protobuf"?)`},
		{"decode: {protobuf: {header: x}}", "f.yaml:1:20: decode.protobuf names neither files nor descriptor_sets"},
		{"decode: {protobuf: {files: [a.proto]}}", "does not say which messages have which type; expected queues, header or type_property"},
		{"decode: {protobuf: {files: a.proto}}", `decode.protobuf.files is "a.proto"; expected a list of files`},
		{"decode: {protobuf: {files: [a.proto], type_property: maybe}}", `decode.protobuf.type_property is "maybe"; expected true or false`},
		{"decode: {protobuf: {files: [a.proto], queues: [{message: a.B}]}}", "decode.protobuf.queues[0] needs queues and a message"},
	})
}

// A list in the file, and a text in a variable, are the same.
func TestSeveralBrokers(t *testing.T) {
	env := map[string]string{"REDRIVE_BROKER_PASSWORD": "s,3"}
	a, err := load(t, "broker:\n  url:\n    - amqp://svc@h1/shop\n    - amqps://svc@h2:5671/shop\n", env)
	must(t, err)
	env["REDRIVE_BROKER_URL"] = "amqp://svc@h1/shop, amqps://svc@h2:5671/shop"
	b, err := load(t, "", env)
	must(t, err)
	want := Broker{URL: "amqp://svc:s,3@h1/shop,amqps://svc:s,3@h2:5671/shop", Management: "http://svc:s,3@h1:15672,https://svc:s,3@h2:15671"}
	if !reflect.DeepEqual(a.Broker, want) || !reflect.DeepEqual(b.Broker, want) || b.VHost() != "shop" {
		t.Errorf("a list is %+v, a text %+v, virtual host %q; want %+v", a.Broker, b.Broker, b.VHost(), want)
	}
	env["REDRIVE_BROKER_URL"] = "amqp://svc@h1/shop,amqp://svc@h2/"
	if _, err := load(t, "", env); err == nil || !strings.Contains(err.Error(), "REDRIVE_BROKER_URL: has the virtual host") {
		t.Errorf("two virtual hosts: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	example, _ := os.ReadFile("../../redrive.example.yaml")
	f.Add(example)
	f.Add([]byte("policies: [{queues: [a], backoff: [1s x3]}]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse("f", data)
		if err != nil {
			return
		}
		for i := range c.Policies {
			if err := c.Policies[i].Validate(); err != nil {
				t.Errorf("accepted what is not valid: %v", err)
			}
		}
	})
}

func TestHowLongWhatIsDiscardedCanBeRestored(t *testing.T) {
	for yaml, want := range map[string]string{"{}": "", "store: {restorable: 1w}": "what is discarded can be restored for 7d", "store: {restorable: 90m}": "restored for 1h 30m"} {
		c := parsed(t, yaml)
		b := described(t, c)
		if !strings.Contains(b, want) || strings.Contains(b, "restored") != (want != "") {
			t.Errorf("%s: %s", yaml, b)
		}
	}
	if keeps := Default().Store.Restorable; keeps != 30*24*time.Hour {
		t.Errorf("by default for %v", keeps)
	}
}

func TestWatchedQueues(t *testing.T) {
	c := parsed(t, `watch:
  - {queues: [a, "b.*"], ready: 1000, growing_for: 1h, unacknowledged: 30m}
  - {queues: ["*.dlq"], standing: never, ready: 0, each_increase: true}
  - {queues: ["b*"], standing: 0}
`)
	b := strings.Join(strings.Fields(described(t, c)), " ")
	const want = "watch a b.* standing for 15m, more than 1000 ready, growing for 1h, unacknowledged for 30m " +
		"watch *.dlq more than 0 ready, each increase watch b* nothing"
	if !strings.Contains(b, want) {
		t.Errorf("check says %s; want %s", b, want)
	}
	for queue, want := range map[string]string{"b.c": "standing for 15m, more than 1000 ready, growing for 1h, " +
		"unacknowledged for 30m true", "a.dlq": "more than 0 ready, each increase true", "bc": "nothing true", "c": "standing for 15m false"} {
		of, named := c.Watch.Match(queue)
		if is := fmt.Sprint(of.describe(), " ", named); is != want {
			t.Errorf("%s is watched for %s; want %s", queue, is, want)
		}
	}
	areRefused(t, []string{"f.yaml:1:"}, []refusal{
		{"watch: [{ready: 1}]", "watch[0] names no queues"},
		{"watch: [{queues: []}]", "watch[0].queues names no queues"},
		{"watch: {queues: [a]}", "watch is a mapping; expected a list of queues"},
		{"watch: [{queues: [a], ready: -1}]", `watch[0].ready is "-1"; expected a number of messages, also 0`},
		{"watch: [{queues: [a], standing: 5s}]", `watch[0].standing is "5s"; expected never, or a duration from 1m`},
		{"watch: [{queues: [a], growing_for: 0}]", `watch[0].growing_for is "0"; expected a duration`},
		{"watch: [{queues: [a], unacknowledged: 0}]", `watch[0].unacknowledged is "0"; expected a duration`},
		{"watch: [{queues: [a], each_increase: true}]", "watch[0] has each_increase, and no ready"},
	})
	if w := parsed(t, `watch: [{queues: ["a.#"]}]`).Warnings; len(w) != 1 || !strings.Contains(w[0], "topic exchanges") {
		t.Errorf("it warns %q", w)
	}
}

var update = flag.Bool("update", false, "write docs/reference/configuration.md")

// rows are those of the reference.
func rows(path string, keys []key) (all []string) {
	slices.SortFunc(keys, func(a, b key) int { return strings.Compare(a.name, b.name) })
	for _, k := range keys {
		at := strings.TrimPrefix(path+"."+k.name, ".")
		cells := []string{"`" + at + "`", strings.NewReplacer("|", `\|`, "*", `\*`).Replace(cmp.Or(k.expected, "keys")), k.standard(), ""}
		if name := Variable(at); name != "" {
			cells[3] = "`" + name + "`"
		}
		all = append(all, "| "+strings.Join(cells, " | ")+" |")
		all = append(append(all, rows(at, k.below)...), rows(at+k.in, k.items)...)
	}
	return all
}

// standard is the value of a key that is left out, where it is one word.
func (k key) standard() string {
	word := ""
	switch to := k.to.(type) {
	case *time.Duration:
		word = strings.ReplaceAll(policy.FormatDuration(*to), " ", "")
	case *uint64:
		word = fmt.Sprintf("%dMiB", *to>>20)
	case *slog.Level:
		word = strings.ToLower(to.String())
	case *string:
		word = *to
	case *mask.Level:
		word = to.String()
	case *int, *float64:
		word = fmt.Sprint(reflect.ValueOf(to).Elem())
	case *bool:
		if k.expected == boolean.expected {
			word = fmt.Sprint(*to)
		}
	}
	if k.expected == perMinute.expected {
		word += "/min"
	}
	if word == "" || word == "0" || word == "0s" || word == "0MiB" || strings.Contains(word, " ") {
		return ""
	}
	return "`" + word + "`"
}

// The reference has each key that the parser knows, and the example file shows each.
func TestTheReference(t *testing.T) {
	const file, begin = "../../docs/reference/configuration.md", "<!-- go test ./internal/config -run TestTheReference -update writes what follows -->\n"
	text, err := os.ReadFile(file)
	must(t, err)
	example, err := os.ReadFile("../../redrive.example.yaml")
	must(t, err)
	all, rows := rows("", Default().keys().below), []string(nil)
	for _, row := range all {
		name := strings.Fields(row)[1]
		if !strings.HasSuffix(row, " | keys |  |  |") && !strings.HasPrefix(name, "`policies[].rules[].then.backoff.") {
			// What is left out is said by the keys below it, or as policies[].backoff.
			rows = append(rows, strings.Replace(row, duration.expected, "a duration", 1))
		}
	}
	before, is, ok := strings.Cut(string(text), begin)
	if !ok {
		t.Fatalf("%s has no place for the reference", file)
	}
	want := "\n| key | value | default | variable |\n|---|---|---|---|\n" + strings.Join(rows, "\n") + "\n"
	switch {
	case is == want:
	case *update:
		must(t, os.WriteFile(file, []byte(before+begin+want), 0o644))
	default:
		t.Errorf("%s differs from the parser: go test ./internal/config -run TestTheReference -update writes it", file)
	}
	for _, row := range all {
		path, _, _ := strings.Cut(strings.TrimPrefix(row, "| `"), "`")
		key := path[strings.LastIndexByte(path, '.')+1:]
		if !strings.Contains(string(example), key+":") {
			t.Errorf("the example does not show %s, so users never hear of it", path)
		}
	}
}

// load reads a file, if there is one, and an environment. Its errors name the file without its folder.
func load(t *testing.T, file string, env map[string]string) (*Config, error) {
	t.Helper()
	path, folder := "", t.TempDir()
	if file != "" {
		path = filepath.Join(folder, "redrive.yaml")
		must(t, os.WriteFile(path, []byte(file), 0o600))
	}
	c, err := Load(path, func(name string) string { return env[name] })
	if err != nil {
		err = errors.New(strings.ReplaceAll(err.Error(), folder+"/", ""))
	}
	return c, err
}

func parsed(t *testing.T, yaml string) *Config {
	t.Helper()
	c, err := Parse("f.yaml", []byte(yaml))
	if err != nil {
		t.Fatalf("%s: %v", yaml, err)
	}
	return c
}

func described(t *testing.T, c *Config) string {
	t.Helper()
	var b strings.Builder
	must(t, Describe(&b, c))
	return b.String()
}

// areRefused parses each text, in which something is wrong, and checks what the error says: it has
// one of the texts in front, so that it names the place, and shows no secret.
func areRefused(t *testing.T, places []string, texts []refusal) {
	t.Helper()
	for _, c := range texts {
		_, err := Parse("f.yaml", []byte(c.yaml))
		if err == nil || !strings.Contains(err.Error(), c.want) || !slices.ContainsFunc(places, func(p string) bool { return strings.HasPrefix(err.Error(), p) }) {
			t.Errorf("%s\n gives %v\n want  %s", c.yaml, err, c.want)
		}
		if err != nil && (strings.Contains(err.Error(), "s3cret") || strings.Contains(err.Error(), "secret")) {
			t.Errorf("the error shows a password: %v", err)
		}
	}
}

type refusal struct{ yaml, want string }

func TestVariablesSetKeys(t *testing.T) {
	env := map[string]string{
		"REDRIVE_LISTEN": "[::1]:9000", "REDRIVE_STORE_DISK": "/data # 1", "REDRIVE_STORE_RESTORABLE": "2d", "REDRIVE_READ_ONLY": "true",
		"REDRIVE_STORE_REDIS_PREFIX": "shop", "REDRIVE_REDIS_URL": "redis://localhost", "REDRIVE_STORE_REDIS_REPLICAS": "2",
		"REDRIVE_STORE_REDIS_DURABILITY": "replicated", "REDRIVE_AUTH_PROXIES": "[10.0.0.0/8]", "REDRIVE_AUTH_METRICS": "open",
		"REDRIVE_TLS": "behind-proxy", "REDRIVE_BASE_PATH": "/redrive/", "REDRIVE_LOG_LEVEL": "warn",
		"REDRIVE_POLICIES": "- name: a\n  queues: [a]\n  attempts: 3\n",
	}
	for name, file := range map[string]string{
		"without a file": "",
		"beside a file":  "store: {disk: other, reserve: 64MiB}\nlisten: 127.0.0.1:1\npolicies: [{queues: [b]}, {name: c, queues: [c]}]\n",
		"one key":        "store:\n  disk: other\n",
	} {
		t.Run(name, func(t *testing.T) {
			c, err := load(t, file, env)
			must(t, err)
			if c.Listen != "[::1]:9000" || c.Store.Disk != "/data # 1" || c.Store.Restorable != 48*time.Hour || !c.Access.ReadOnly || c.BasePath != "/redrive" || c.Log.Level.String() != "WARN" {
				t.Errorf("texts: %+v", c)
			}
			if r := c.Store.Redis; r.Prefix != "shop" || r.Replicas != 2 || r.URL != "redis://localhost" {
				t.Errorf("Redis: %+v", r)
			}
			if a := c.Access; !a.SignIn || !a.OpenMetrics || !a.BehindProxy || len(a.Proxies) != 1 {
				t.Errorf("access: %+v", a)
			}
			if len(c.Policies) != 1 || c.Policies[0].Name != "a" || c.Policies[0].Attempts != 3 {
				t.Errorf("policies: %+v", c.Policies)
			}
			if want := map[bool]uint64{true: 64 << 20, false: 256 << 20}[name == "beside a file"]; c.Store.Reserve != want {
				t.Errorf("what no variable sets: reserve %d", c.Store.Reserve)
			}
		})
	}
}

func TestAMistakeInAVariableHasItsName(t *testing.T) {
	for want, env := range map[string]map[string]string{
		"REDRIVE_LISTEN:1:1: listen is \"nowhere\"; expected host:port, such as 127.0.0.1:8250": {"REDRIVE_LISTEN": "nowhere"},
		"REDRIVE_POLICIES:2:3: policies[0] has no key \"atempts\" (did you mean \"attempts\"?)": {"REDRIVE_POLICIES": "- queues: [a]\n  atempts: 3\n"},
		"REDRIVE_POLICIES:1:": {"REDRIVE_POLICIES": "[{queues: [a]"},
		"both REDRIVE_STORE_DISK and REDRIVE_STORE_DISK_FILE": {"REDRIVE_STORE_DISK": "a", "REDRIVE_STORE_DISK_FILE": "b"},
		"both REDRIVE_BROKER_PASSWORD and ":                   {"REDRIVE_BROKER_PASSWORD": "a", "REDRIVE_BROKER_PASSWORD_FILE": "b"},
	} {
		if _, err := load(t, "listen: 127.0.0.1:1\n", env); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v\nwant %s", err, want)
		}
	}
}

func TestAllMistakesAreReportedAtOnce(t *testing.T) {
	_, err := load(t, `listen: nowhere
store: {disk: [a], reserve: much}
policies:
  - {name: a, queues: [a], attempts: 0}
  - {name: b, atempts: 3}
  - {name: c}
`, map[string]string{"REDRIVE_STORE_RESTORABLE": "1s"})
	var got []string
	for line := range strings.Lines(err.Error()) {
		_, what, _ := strings.Cut(strings.TrimSpace(line), "redrive.yaml:")
		got = append(got, what[:min(len(what), 12)])
	}
	want := []string{"", "1:9: listen ", "2:15: store.", "2:29: store.", "4:38: polici", "5:15: polici", "6:5: policie"}
	if !slices.Equal(got, want) || !strings.HasPrefix(err.Error(), "REDRIVE_STORE_RESTORABLE:1:1: ") {
		t.Errorf("%q, of\n%v", got, err)
	}
	const list = "policies:\n  - {queues: [a], "
	for _, c := range []struct {
		yaml string
		env  map[string]string
		want []string // a line of the error each
	}{
		{"broker: {url: [http://a, ftp://b]}", nil, []string{`"http://"`, `"ftp://"`}},
		{"broker: {vhosts: [{user: u}, [b]]}", nil, []string{"has only one of a user", "has no name", "[1] is a list"}},
		{"listen: 0.0.0.0:80\nlog: {level: loud}", nil, []string{"no one has to sign in", "log.level"}},
		{"listen: 0.0.0.0:80\nauht: {}", nil, []string{"no key"}},
		{"listen: 0.0.0.0:80\nauth: {roles: {a: king}}", nil, []string{"roles.a"}},
		{"listen: nowhere\n---\nlisten: 127.0.0.1:1", nil, []string{"listen is", "a second document"}},
		{"auth: {roles: {a: king, b: queen}, proxies: [c, d]}", nil, []string{"roles.a", "roles.b", `"c"`, `"d"`}},
		{"policies: [{queues: [[a], [b]]}]", nil, []string{"1:22", "1:27"}},
		{"policies: [{attempts: 0}]", nil, []string{"attempts", "names no queues"}},
		{list + "backoff: [1 s, -2s]}", nil, []string{`"1 s"`, "-2s is negative"}},
		{list + "wait: {levels: [1 s, 2 s]}}", nil, []string{`"1 s"`, `"2 s"`}},
		{list + "reasons: [nack, drop], attempts: 0}", nil, []string{"nack", "drop", "attempts"}},
		{list + "settle: 1m, breaker: {window: 1s}, wait: delayed-exchange, backoff: {fixed: 90d}, max_retry_after: 91d}", nil,
			[]string{"window", "90d", "91d"}},
		{"decode: {protobuf: {import_paths: [a]}}", nil, []string{"names neither", "does not say"}},
		{"decode: {protobuf: {files: [[a], [b]], header: c}}", nil, []string{"1:29", "1:34"}},
		{"notify: {allow_private: [a, b], routes: [{events: [c, d]}]}", nil,
			[]string{`"a"`, `"b"`, `"c"`, `"d"`, "has no name", "has no URL"}},
		{"notify: {routes: [{name: a, url_env: NONE}, {name: b, url_env: NONE}, {name: c, url: a}, {name: a, url: b}]}", nil,
			[]string{"route \"a\"", "route \"b\"", "[2].url", "second route", "[3].url"}},
		{"broker: {vhosts: [{name: a, user: a, password_env: NONE}, {name: b, user: b, password_env: NONE}, {name: a}]}", nil,
			[]string{`"a": `, `"b": `, "twice"}},
		{"listen: nowhere", map[string]string{"REDRIVE_POLICIES": "[a", "REDRIVE_DECODE_PROTOBUF": "[b",
			"REDRIVE_STORE_DISK": "a", "REDRIVE_STORE_DISK_FILE": "b", "REDRIVE_BROKER_URL": "http://a", "REDRIVE_REDIS_URL": "http://b"},
			[]string{"REDRIVE_STORE_DISK_FILE", "DECODE", "POLICIES", "listen", "BROKER_URL", "REDIS_URL"}},
	} {
		_, err := load(t, c.yaml, c.env)
		if err == nil {
			t.Errorf("%s: accepted", c.yaml)
			continue
		}
		got := strings.Split(err.Error(), "\n")
		if len(got) != len(c.want) {
			t.Errorf("%s: %d mistakes, expected %d:\n%v", c.yaml, len(got), len(c.want), err)
		}
		for _, want := range c.want {
			if !slices.ContainsFunc(got, func(line string) bool { return strings.Contains(line, want) }) {
				t.Errorf("%s: no mistake has %q:\n%v", c.yaml, want, err)
			}
		}
	}
}

// What is allowed, and yet will not do what somebody meant, is warned of.
func TestWarnings(t *testing.T) {
	const vhosts = "broker: {url: 'amqp://h/shop', vhosts: [billing, crm]}\n"
	for yaml, want := range map[string][]string{
		`policies: [{name: a, queues: ["orders.#", "c#", "#"]}]`: {
			`policy "a": queues "orders.#": # is a wildcard of topic exchanges, and matches only itself here: "orders.*" matches any characters`,
			`policy "a": queues "#": # is a wildcard of topic exchanges, and matches only itself here: "*" matches any characters`},
		// A way without jitter, and its limits.
		oneQueue + "    jitter: 0.3\n    wait: levels":  {"its jitter has no effect"},
		oneQueue + "    jitter: full\n    wait: levels": {"its jitter has no effect"},
		oneQueue + "    jitter: none\n    wait: levels": nil,
		oneQueue + "    rate: 5/s\n    wait: levels":    {"apply to replays alone"},
		// What is done still counts as in flight until its settle time is over.
		oneQueue + "    rate: 200/s\n    in_flight: 50":                {"in_flight 50 and settle 30s allow 100/min"},
		oneQueue + "    rate: 10/s\n    in_flight: 49\n    settle: 5s": {"settle 5s"},
		oneQueue + "    rate: 10/s\n    in_flight: 50\n    settle: 5s": nil,
		oneQueue + "    max_age: 700ms":                                {"max_age (700ms) is shorter than the first delay"},
		oneQueue + "    max_age: 900ms":                                nil,
		oneQueue + "    in_flight: 1":                                  nil,
		vhosts:                                                         nil,
		vhosts + "policies: [{name: a, queues: [q], vhosts: [shop]}, {name: b, queues: [q], vhosts: [billing, crm]}]": nil,
		vhosts + "policies: [{name: a, queues: [q], vhosts: [shop]}, {name: b, queues: [q], vhosts: ['*']}]":          {`policy "b": queues "q": policy "a" comes first`},
		vhosts + "policies: [{name: a, queues: [q], vhosts: [none]}, {name: b, queues: [q], vhosts: [none, shop]}]": {
			`virtual host "billing": no policy is for it, so all that fails there is parked`, `virtual host "crm": no policy is for it`},
	} {
		c, err := load(t, yaml, nil)
		must(t, err)
		if !slices.EqualFunc(c.Warnings, want, strings.Contains) {
			t.Errorf("%s: %q, want %q", yaml, c.Warnings, want)
		}
		if way := c.Ways["p"]; way != nil && c.Policies[0].Jitter != policy.None {
			t.Errorf("%s: jitter %s", yaml, c.Policies[0].Jitter)
		}
	}
}

var must = expect.NoError

func TestRedis(t *testing.T) {
	c := parsed(t, `store: {redis: {url: "rediss://u:p@h:1", prefix: x, durability: replicated, replicas: 2, lease: 10s, timeout: 1s, tls: {ca: a, cert: b, key: c}}}`)
	want := Redis{URL: "rediss://u:p@h:1", Prefix: "x", Durability: "replicated", Replicas: 2, Lease: 10 * time.Second, Timeout: time.Second, CA: "a", Cert: "b", Key: "c"}
	if c.Store.Redis != want {
		t.Errorf("read as %+v", c.Store.Redis)
	}
	if place := c.Store.Place(); place != "rediss://u:xxxxx@h:1, prefix x" {
		t.Errorf("logged as %s", place)
	}
	if place := Default().Store.Place(); place != "./redrive-data" {
		t.Errorf("the default is logged as %s", place)
	}
	var refused []refusal
	for yaml, want := range map[string]string{
		`url: "amqp://h"`:                   "redis://",
		`url: "redis://:s3cret@"`:           "is not a URL",
		`prefix: "a{b"`:                     "without braces",
		`shards: 4`:                         "shards",
		`durability: always`:                "synced",
		`replicas: 2`:                       "durability: replicated",
		`lease: 1s`:                         "from 5s to 10m0s",
		`timeout: 10m`:                      "from 100ms to 1m0s",
		`tls: {cert: a}`:                    "both cert and key",
		`host: h`:                           `no key "host"`,
		`tls: {ca: a, cert: b, key: c, x:}`: `no key "x"`,
	} {
		refused = append(refused, refusal{"store: {redis: {" + yaml + "}}", want})
	}
	areRefused(t, []string{"f.yaml:1:"}, refused)
}

func TestRedisFromTheEnvironment(t *testing.T) {
	file := t.TempDir() + "/password"
	must(t, os.WriteFile(file, []byte("s3cret\n"), 0o600))
	env := map[string]string{"REDRIVE_REDIS_PASSWORD_FILE": file}
	if _, err := load(t, "", env); err == nil || !strings.Contains(err.Error(), "store.redis.url") {
		t.Errorf("a password for nothing: %v", err)
	}
	env["REDRIVE_REDIS_URL"] = "redis://u@h:1?master_set=m"
	c, err := load(t, "", env)
	if err != nil || c.Store.Redis.URL != "redis://u:s3cret@h:1?master_set=m" || c.Store.Redis.Login != (connect.Login{User: "u", PasswordFile: file}) {
		t.Errorf("%+v, %v", c, err)
	}
	must(t, os.WriteFile(file, []byte("another\n"), 0o600))
	if after, err := load(t, "", env); err != nil || after.Store == c.Store || !after.Store.Same(c.Store) {
		t.Errorf("another password is another store: %v", err)
	}
	env["REDRIVE_REDIS_URL"] = "http://h"
	if _, err := load(t, "", env); err == nil || !strings.Contains(err.Error(), "REDRIVE_REDIS_URL") {
		t.Errorf("a URL of something else: %v", err)
	}
}

const cert = "\ntls: {cert: c.pem, key: k.pem}\n"

// A service that others can reach, and that lets in whoever asks, or shows their
// password to the network, does not start.
func TestAServiceThatOthersReachIsClosed(t *testing.T) {
	for _, c := range []struct{ yaml, want string }{
		{"listen: 127.0.0.1:1", ""},
		{"listen: '[::1]:1'", ""},
		{"listen: localhost:1", ""},
		{"auth: {}", ""},
		{"listen: 127.0.0.1:1" + cert, ""},
		{"listen: 0.0.0.0:1", `f.yaml:1:9: listen is "0.0.0.0:1", which other machines can reach, and no one has to sign in; set ` + "`auth: {}`"},
		{"listen: :1", "no one has to sign in"},
		{"listen: '[::]:1'", "no one has to sign in"},
		{"listen: redrive.example:1", "no one has to sign in"},
		{"listen: 10.0.0.7:1" + cert, "no one has to sign in"},
		{"listen: 10.0.0.7:1\nauth: {}", "f.yaml:1:9: listen is \"10.0.0.7:1\", which other machines can reach, and passwords and tokens would go there in the clear; set tls.cert and tls.key"},
		{"auth: {}\nlisten: 10.0.0.7:1\ntls: behind-proxy", ""},
		{"auth: {}\nlisten: 10.0.0.7:1" + cert, ""},
		{"tls: behind-proxy", "tls is behind-proxy, so that others can reach the service"},
		// Where a proxy alone signs people in, no one else comes near.
		{"auth: {roles: {}, proxies: " + naming("127.0.0.1") + "}", ""},
		{"listen: '[::1]:1'\nauth: {roles: {}, proxies: " + naming("10.0.0.7, '::1'") + "}", ""},
		{"auth: {proxies: " + naming("10.0.0.7") + "}", ""},
		{"listen: 0.0.0.0:1\ntls: behind-proxy\nauth: {proxies: " + naming("10.0.0.7") + "}", ""},
		{"listen: 0.0.0.0:1\nauth: {roles: {}, oidc: " + oidc + ", proxies: " + naming("10.0.0.7") + "}\nnotify: {page: 'https://a'}" + cert, ""},
		{"auth: {roles: {}, proxies: " + naming("10.0.0.7") + "}", `listen is "127.0.0.1:8250", which others than the proxies can reach, and people can sign in by a proxy alone; listen on 127.0.0.1`},
		{"listen: 0.0.0.0:1\ntls: behind-proxy\nauth: {roles: {}, proxies: " + naming("127.0.0.1") + "}", "f.yaml:1:9: listen is \"0.0.0.0:1\", which others than the proxies can reach"},
		{"auth: {roles: {}}", "auth.roles is empty, so no user of RabbitMQ's can sign in, and there is no other way for people"},
		{"auth: {roles: {}, proxies: [127.0.0.1]}", "there is no other way for people; leave auth.roles out"},
	} {
		_, err := Parse("f.yaml", []byte(c.yaml))
		if err == nil && c.want != "" || err != nil && (c.want == "" || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%q\n gives %v\n want  %s", c.yaml, err, c.want)
		}
	}
}

func TestAccess(t *testing.T) {
	c := parsed(t, `
auth:
  roles: {administrator: admin, shop: {role: operator, queues: ["orders.*", mail]}}
  metrics: open
  proxies: [10.1.2.3/8, 192.0.2.7, "::1"]
tls: {cert: c.pem, key: k.pem, client_ca: ca.pem}
read_only: true
`)
	a := c.Access
	if want := map[string]auth.Grant{"administrator": {Role: auth.Admin}, "shop": {Role: auth.Operator, Queues: []string{"orders.*", "mail"}}}; !reflect.DeepEqual(a.Roles, want) {
		t.Errorf("the roles are %+v", a.Roles)
	}
	if !a.SignIn || !a.OpenMetrics || !a.ReadOnly || a.BehindProxy || a.TLS != (auth.TLSFiles{Cert: "c.pem", Key: "k.pem", ClientCA: "ca.pem"}) {
		t.Errorf("%+v", a)
	}
	if len(a.Proxies) != 3 || a.Proxies[0].String() != "10.0.0.0/8" || a.Proxies[1].String() != "192.0.2.7/32" || a.Proxies[2].String() != "::1/128" {
		t.Errorf("the proxies are %v", a.Proxies)
	}
	b := described(t, c)
	if !strings.Contains(b, "(administrator: admin, shop: operator of orders.* mail); read-only, whoever calls\n") {
		t.Errorf("it is described as %s", b)
	}
	if c, err := Parse("f.yaml", []byte("auth: {metrics: viewer}\n")); err != nil || c.Access.OpenMetrics || !c.Access.SignIn {
		t.Errorf("metrics for viewers: %+v, %v", c, err)
	}
	if strings.Contains(b, "bodies of messages") {
		t.Errorf("it tells of the default levels: %s", b)
	}
	for yaml, want := range map[string]string{
		"auth: {bodies: {viewer: hidden}}": "viewer: hidden, operator: masked, editor: masked, admin: shown; without a rule",
		"auth: {show: [operator, editor]}\nmask: [{patterns: [email]}]": "viewer: masked, operator: masked, editor: masked, admin: shown; " +
			"single ones for a reason: operator, editor; rules of mask: 1\n",
	} {
		if b := described(t, parsed(t, yaml)); !strings.Contains(b, "\nbodies of messages, by role: "+want) {
			t.Errorf("%s is described as %s", yaml, b)
		}
	}
	d := Default()
	if d.Access.SignIn || d.Access.ReadOnly || d.Access.Roles["monitoring"].Role != auth.Viewer || d.Access.describe() != "" {
		t.Errorf("by default: %+v", d.Access)
	}
}

const oidc = "{issuer: 'https://login.example.com/a', client_id: b, client_secret_file: s, " +
	"roles: {ops: admin, shop: {role: operator, queues: ['orders.*'], vhosts: [shop]}}}"

// naming is proxies that name people.
func naming(addresses string) string {
	return "{addresses: [" + addresses + "], user_header: X-User, groups_header: X-Groups, sign_out: /out, contact: ops, " +
		"roles: {ops: admin, shop: {role: operator, queues: ['orders.*'], vhosts: [shop]}}}"
}

// A group has its role in some virtual hosts, and the provider leads back to the page of each.
func TestRolesOfGroups(t *testing.T) {
	c := parsed(t, "broker: {url: 'amqp://h/shop', vhosts: [crm]}\nauth: {oidc: "+oidc+", proxies: "+naming("10.0.0.0/8, '::1'")+"}\nnotify: {page: 'https://r.example.com'}\n")
	all, err := c.PerVHost()
	must(t, err)
	ops, shop := auth.Grant{Role: auth.Admin}, auth.Grant{Role: auth.Operator, Queues: []string{"orders.*"}}
	for i, want := range []map[string]auth.Grant{{"ops": ops, "shop": shop}, {"ops": ops}} {
		o := all[i].Access.OIDC
		if !reflect.DeepEqual(o.Groups, want) || o.Name != "login.example.com" || o.Claim != "groups" || !slices.Equal(o.Scopes, []string{"profile", "email"}) {
			t.Errorf("%s: %+v", all[i].VHost(), o)
		}
		p := auth.ProxyConfig{UserHeader: "X-User", GroupsHeader: "X-Groups", Groups: want, Contact: "ops", SignOut: "/out"}
		if got := all[i].Access; !reflect.DeepEqual(got.Proxy, p) || len(got.Proxies) != 2 || got.Proxies[0].String() != "10.0.0.0/8" {
			t.Errorf("%s: %v %+v", all[i].VHost(), got.Proxies, got.Proxy)
		}
	}
	if b := described(t, c); !strings.Contains(b, "a proxy names people in X-User (ops: admin, shop: operator of orders.*); people sign in at https://login.example.com/a (ops: admin, shop: operator of orders.*)") {
		t.Errorf("it is described as %s", b)
	}
	for _, r := range []refusal{
		{"auth: {oidc: {}}", "auth.oidc has no issuer; expected the provider's URL"},
		{"auth: {oidc: {issuer: 'https://a'}}", "auth.oidc has no roles, so nobody could sign in"},
		{"auth: {oidc: {issuer: 'http://a'}}", "auth.oidc.issuer is not right; expected the provider's URL, with https"},
		{"auth: {oidc: {issuer: 'https://u:p@a'}}", "expected the provider's URL"},
		{"auth: {oidc: {client_secret: x}}", `auth.oidc has no key "client_secret"; expected one of`},
		{"auth: {oidc: {roles: {a: boss}}}", `auth.oidc.roles.a: "boss" is not a role`},
		{"auth: {roles: {a: {role: viewer, vhosts: [a]}}}", `auth.roles.a has no key "vhosts"`},
		{"auth: {oidc: " + oidc + "}", "notify.page does not say where that is"},
		{"auth: {oidc: " + oidc + "}\nnotify: {page: 'http://a'}", "would go there in the clear"},
		{"auth: {oidc: {issuer: 'https://a', client_id: '', client_secret_file: s, roles: {a: admin}}}\nnotify: {page: 'https://a'}", "has an empty client_id"},
		{"auth: {oidc: {issuer: 'https://a', roles: {a: admin}}}", "auth.oidc has no client_id; expected"},
		{"auth: {oidc: {issuer: 'https://a', roles: {a: admin}}}", "auth.oidc has no client_secret_file; expected"},
	} {
		if _, err := Parse("f.yaml", []byte(r.yaml)); err == nil || !strings.HasPrefix(err.Error(), "f.yaml:1:") || !strings.Contains(err.Error(), r.want) || strings.Contains(err.Error(), "u:p") {
			t.Errorf("%s\n gives %v\n want  %s", r.yaml, err, r.want)
		}
	}
	if err := c.CheckFiles(); err == nil || !strings.Contains(err.Error(), "auth.oidc.client_secret_file: open ") {
		t.Errorf("without the file of the secret: %v", err)
	}
}

func TestErrorsOfAccess(t *testing.T) {
	areRefused(t, []string{"f.yaml:1:"}, []refusal{
		{"auth:", "auth has no value"},
		{"auth: on", `f.yaml:1:7: auth is "on"; expected keys: bodies, metrics, oidc, proxies, roles, show`},
		{"auth: {role: {}}", `auth has no key "role" (did you mean "roles"?)`},
		{"auth: {roles: }", "auth.roles has no value"},
		{"auth: {roles: [admin]}", "auth.roles is a list; expected tags"},
		{"auth: {roles: {ops: boss}}", `f.yaml:1:21: auth.roles.ops: "boss" is not a role: expected viewer, operator, editor or admin`},
		{"auth: {roles: {ops: nobody}}", "is not a role"},
		{"auth: {roles: {ops: {queues: [a]}}}", "auth.roles.ops names no role"},
		{"auth: {roles: {ops: {role: viewer, queues: []}}}", "auth.roles.ops.queues is empty"},
		{"auth: {roles: {ops: {role: viewer, queue: a}}}", `auth.roles.ops has no key "queue" (did you mean "queues"?)`},
		{"auth: {bodies: {viewer: all}}", `auth.bodies.viewer is "all"; expected hidden, masked or shown`},
		{"auth: {show: [nobody]}", `auth.show: "nobody" is not a role`},
		{"auth: {show: []}", "auth.show is empty"},
		{"mask: [{}]", "mask[0] masks nothing"},
		{"mask: [{queues: [a]}]", "mask[0] masks nothing"},
		{"mask: [{paths: [email]}]", `mask[0].paths: "email" is no path: expected one such as body.customer.email`},
		{"mask: [{patterns: [card]}]", `mask[0].patterns: "card" is no pattern: expected card_number, email, iban or a`},
		{"mask: [{patterns: [/x*/]}]", "matches an empty text"},
		{"auth: {metrics: yes}", `auth.metrics is "yes"; expected open, for everybody, or viewer`},
		{"auth: {proxies: [10.0.0.0/40]}", `auth.proxies has "10.0.0.0/40"; expected an address or network`},
		{"auth: {proxies: {addresses: [a]}}", `auth.proxies.addresses has "a"; expected an address or network`},
		{"auth: {proxies: {user_header: X_User}}", `auth.proxies.user_header is "X_User"; expected a header such as X-Forwarded-User`},
		{"auth: {proxies: {user_header: X-User}}", "auth.proxies has no addresses; expected those of the proxies"},
		{"auth: {proxies: {addresses: [10.0.0.7]}}", "auth.proxies has no user_header; expected"},
		{"auth: {proxies: {addresses: [10.0.0.7], user_header: A}}", "auth.proxies has no groups_header; expected"},
		{"auth: {proxies: {addresses: [10.0.0.7], user_header: A, groups_header: B}}", "auth.proxies has no roles, so nobody could sign in"},
		{"auth: {proxies: {addresses: [10.0.0.7], user_header: A, groups_header: a, roles: {x: admin}}}", "user_header and .groups_header are the same"},
		{"auth: {proxies: {roles: {}}}", "auth.proxies.roles is a mapping; expected groups with a role each"},
		{"auth: {proxies: {sign_out: 'javascript:alert(1)'}}", "expected a URL or a path, such as /oauth2/sign_out"},
		{"auth: {proxies: " + naming("0.0.0.0/0") + "}", "auth.proxies.addresses says whose X-User is believed"},
		{"auth: {proxies: " + naming("10.0.0.7, '::/0'") + "}", "expected the addresses of proxies"},
		{"auth: {proxies: " + naming("") + "}", "auth.proxies.addresses says whose X-User is believed"},
		{"tls: off", `f.yaml:1:6: tls is "off"; expected keys`},
		{"tls: {cert: c.pem}", "tls needs both cert and key"},
		{"tls: {}", "tls needs both cert and key"},
		{"read_only: yes please", `read_only is "yes please"; expected true or false`},
	})
}

// broker.tls names files that must be there and usable; errors name the place.
func TestBrokerTLS(t *testing.T) {
	dir := t.TempDir()
	ca, err := authority.New(dir)
	must(t, err)
	other, err := authority.New(t.TempDir())
	must(t, err)
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, err := range []error{
		ca.Issue(authority.Leaf{User: "redrive"}, at("cert.pem"), at("key.pem")),
		ca.Issue(authority.Leaf{User: "redrive", NotAfter: time.Now().Add(-time.Hour)}, at("old.pem"), at("old-key.pem")),
		other.Issue(authority.Leaf{User: "redrive"}, at("other.pem"), at("other-key.pem")),
		os.WriteFile(at("empty.pem"), nil, 0o600),
	} {
		must(t, err)
	}
	file := at("redrive.yaml")
	load := func(url, tls string) (*Config, error) {
		must(t, os.WriteFile(file, []byte("broker:\n  url: "+url+"\n  tls: {"+tls+"}\n"), 0o600))
		return Load(file, func(string) string { return "" })
	}
	const secure = "amqps://redrive@h:5671/"
	c, err := load(secure, "ca: ca.pem, cert: cert.pem, key: "+at("key.pem")+", server_name: rabbit.example")
	must(t, err)
	if got := c.Broker.Credentials.TLS; got.CA != at("ca.pem") || got.Cert != at("cert.pem") || got.Key != at("key.pem") || got.ServerName != "rabbit.example" {
		t.Errorf("%+v", got)
	}
	if got := c.Broker.Management; got != "https://redrive@h:15671" || len(c.Warnings) > 0 {
		t.Errorf("management at %s, warnings %q", got, c.Warnings)
	}
	if c, err = load(secure, "ca: ca.pem, cert: old.pem, key: old-key.pem"); err != nil || len(c.Warnings) != 1 || !strings.Contains(c.Warnings[0], "old.pem is valid from") {
		t.Errorf("an expired certificate: %v, %q", err, c.Warnings)
	}
	if _, err := Load("", func(name string) string {
		return map[string]string{"REDRIVE_MANAGEMENT_URL": "https://u:s3cret@h:15671/?cacertfile=ca.pem"}[name]
	}); err == nil || !strings.Contains(err.Error(), "at h:15671 has parameters") || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("parameters of management: %v", err)
	}
	for _, c := range []struct{ url, tls, want string }{
		{secure, "ca: nowhere.pem", "redrive.yaml:3:13: broker.tls.ca: TLS: CA: open " + at("nowhere.pem")},
		{secure, "ca: empty.pem", "redrive.yaml:3:13: broker.tls.ca: TLS: CA " + at("empty.pem") + " has no certificate in PEM"},
		{secure, "cert: cert.pem", "redrive.yaml:3:15: broker.tls: TLS: a client certificate needs both"},
		{secure, "cert: cert.pem, key: other-key.pem", "redrive.yaml:3:30: broker.tls: TLS: certificate " + at("cert.pem") + " and key " + at("other-key.pem") + ": tls: private key does not match"},
		{secure, "verify: none", `redrive.yaml:3:9: broker.tls has no key "verify"`},
		{secure, "", "redrive.yaml:3:8: broker.tls is empty"},
		{"amqp://h/", "ca: ca.pem", "redrive.yaml:3:8: broker.tls is set, and neither broker.url"},
		{secure + "?cacertfile=/ca.pem", "ca: ca.pem", "redrive.yaml:3:8: broker.tls is set, and the URL of RabbitMQ at h:5671 has cacertfile"},
	} {
		if _, err := load(c.url, c.tls); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s, %s: %v, want %s", c.url, c.tls, err, c.want)
		}
	}
}

// A password in a file is read again for each connection: of the file that says it last,
// and of a virtual host of its own.
func TestWherePasswordsAreReadAgain(t *testing.T) {
	dir := t.TempDir()
	at := func(name, text string) string {
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	file := at("redrive.yaml", "broker:\n  url: amqp://shop:x@h/\n  vhosts:\n    - {name: crm, user: crm, password_file: crm}\n    - billing\n")
	at("crm", "c1")
	password, whole := at("password", "p1"), at("url", "amqp://svc:u1@h/")
	load := func(env map[string]string) []*Config {
		t.Helper()
		c, err := Load(file, func(name string) string { return env[name] })
		must(t, err)
		all, err := c.PerVHost()
		must(t, err)
		return all
	}
	check := func(env map[string]string, broker, management, crm string) {
		t.Helper()
		for i, want := range []string{broker, crm, broker} {
			b := load(env)[i].Broker
			at("password", "p2")
			at("url", "amqp://other:u2@h/")
			at("crm", "c2")
			was, _ := url.Parse(b.URL)
			if got := b.Credentials.Login.Current(was.User); got.String() != want {
				t.Errorf("%v: virtual host %d connects as %s, want %s", env, i, got, want)
			}
			was, _ = url.Parse(b.Management)
			if got := b.ManagementLogin.Current(was.User); i == 0 && got.String() != management {
				t.Errorf("%v: it asks as %s, want %s", env, got, management)
			}
			at("password", "p1")
			at("url", "amqp://svc:u1@h/")
			at("crm", "c1")
		}
	}
	check(nil, "shop:x", "shop:x", "crm:c2")
	check(map[string]string{"REDRIVE_BROKER_PASSWORD_FILE": password}, "shop:p2", "shop:p2", "crm:c2")
	check(map[string]string{"REDRIVE_BROKER_PASSWORD_FILE": password, "REDRIVE_MANAGEMENT_URL": "http://monitor:m@h:1"}, "shop:p2", "monitor:p2", "crm:c2")
	check(map[string]string{"REDRIVE_MANAGEMENT_URL": "http://h:1"}, "shop:x", "shop:x", "crm:c2")
	check(map[string]string{"REDRIVE_BROKER_PASSWORD_FILE": password, "REDRIVE_MANAGEMENT_URL": "http://h:1,http://i:1"},
		"shop:p2", "shop:p2", "crm:c2")
	check(map[string]string{"REDRIVE_BROKER_URL_FILE": whole, "REDRIVE_MANAGEMENT_URL_FILE": at("api", "http://h:1")},
		"other:u2", "other:u2", "crm:c2")
	if b := load(map[string]string{"REDRIVE_BROKER_URL": "amqp://h/"})[0].Broker; b.Management != "http://guest:guest@h:15672" {
		t.Errorf("without any user it asks at %s", b.Management)
	}
	check(map[string]string{"REDRIVE_BROKER_URL_FILE": whole}, "other:u2", "other:u2", "crm:c2")
	check(map[string]string{"REDRIVE_BROKER_URL_FILE": whole, "REDRIVE_BROKER_PASSWORD": "fixed"}, "svc:fixed", "svc:fixed", "crm:c2")

	env := map[string]string{"REDRIVE_BROKER_PASSWORD_FILE": password}
	before := load(env)[0].Broker
	at("password", "p2")
	if after := load(env)[0].Broker; !after.Same(before) || after.Same(load(nil)[0].Broker) {
		t.Error("a changed password is taken for a changed config, or another config for the same")
	}
	must(t, os.Remove(password))
	if got := before.Credentials.Login.Current(url.UserPassword("shop", "p1")).String(); got != "shop:p1" {
		t.Errorf("with the file gone it is %s", got)
	}
}

// Files are looked for beside the config file, all of them.
func TestFilesAreBesideTheConfig(t *testing.T) {
	c, err := Parse("etc/f.yaml", []byte(`
store: {redis: {url: "rediss://h:1", tls: {ca: ca.pem, cert: c.pem, key: /k.pem}}}
tls: {cert: c.pem, key: k.pem, client_ca: /ca.pem}
`))
	must(t, err)
	if r := c.Store.Redis; r.CA != "etc/ca.pem" || r.Cert != "etc/c.pem" || r.Key != "/k.pem" {
		t.Errorf("Redis: %+v", r)
	}
	if a := c.Access.TLS; a.Cert != "etc/c.pem" || a.Key != "etc/k.pem" || a.ClientCA != "/ca.pem" {
		t.Errorf("tls: %+v", a)
	}
}

const several = `
broker:
  url: amqp://svc:s3cret@h1:5672/shop
  management: http://look:s3cret@h1:15672
  vhosts:
    - billing
    - {name: "a/b %", user: own, password_env: OWN}
    - {name: "..", user: other, password_file: other.txt}
store: {disk: /data, redis: {url: "redis://h2", prefix: r}}
policies:
  - {name: orders, queues: ["orders.*"], wait: levels}
  - {name: billing only, queues: ["bill.*"], vhosts: ["bill*"], wait: dynamic}
  - {name: not there, queues: ["x"], vhosts: [shop, billing]}
notify:
  page: https://redrive.example.com/
  routes:
    - {name: all, url: "generic+https://h/"}
    - {name: shop, url: "generic+https://h/", vhosts: [shop]}
`

func TestEachVirtualHostHasAWholeConfigurationOfItsOwn(t *testing.T) {
	dir := t.TempDir()
	password := filepath.Join(dir, "other.txt")
	must(t, os.WriteFile(password, []byte(" o:th@er\n"), 0o600))
	c, err := load(t, strings.Replace(several, "other.txt", password, 1), map[string]string{"OWN": "own/secret"})
	must(t, err)
	all, err := c.PerVHost()
	if err != nil || len(all) != 4 {
		t.Fatal(len(all), err)
	}
	type want struct{ vhost, url, management, disk, prefix, policies, ways, routes, page string }
	for i, w := range []want{
		{"shop", "amqp://svc:s3cret@h1:5672/shop", "http://look:s3cret@h1:15672", "/data", "r", "orders, not there", "orders", "all, shop", "https://redrive.example.com/"},
		{"billing", "amqp://svc:s3cret@h1:5672/billing", "http://look:s3cret@h1:15672", "/data/vhosts/billing", "r:vhost:billing",
			"orders, billing only, not there", "billing only, orders", "all", "https://redrive.example.com/v/billing"},
		{"a/b %", "amqp://own:own%2Fsecret@h1:5672/a%2Fb%20%25", "http://own:own%2Fsecret@h1:15672", "/data/vhosts/a%2Fb%20%25", "r:vhost:a%2Fb%20%25",
			"orders", "orders", "all", "https://redrive.example.com/v/a%2Fb%20%25"},
		{"..", "amqp://other:o%3Ath%40er@h1:5672/%2E%2E", "http://other:o%3Ath%40er@h1:15672", "/data/vhosts/%2E%2E", "r:vhost:%2E%2E",
			"orders", "orders", "all", "https://redrive.example.com/v/%2E%2E"},
	} {
		c := all[i]
		var policies, ways, routes []string
		for _, p := range c.Policies {
			policies = append(policies, p.Name)
		}
		for name := range c.Ways {
			ways = append(ways, name)
		}
		slices.Sort(ways)
		for _, r := range c.Notify.Routes {
			routes = append(routes, r.Name)
		}
		got := want{c.VHost(), c.Broker.URL, c.Broker.Management, c.Store.Disk, c.Store.Redis.Prefix,
			strings.Join(policies, ", "), strings.Join(ways, ", "), strings.Join(routes, ", "), c.Notify.Page}
		if got != w {
			t.Errorf("%d is\n%+v\nwant\n%+v", i, got, w)
		}
		if again, err := c.PerVHost(); err != nil || len(again) != 1 || again[0].Store != c.Store {
			t.Errorf("%d is no configuration of one virtual host: %d, %v", i, len(again), err)
		}
		if err := connect.CheckURLs(c.Broker.URL, "amqp"); err != nil {
			t.Errorf("%d: %v", i, err)
		}
	}
	b := described(t, c)
	for _, line := range []string{"virtual host  a/b %", "as own, in prefix r:vhost:a%2Fb%20%25, policies: orders", "(virtual hosts: bill*)", "all events of all queues (virtual hosts: shop)"} {
		if !strings.Contains(b, line) {
			t.Errorf("%q is not in:\n%s", line, b)
		}
	}
	if strings.Contains(b, "s3cret") || strings.Contains(b, "own/secret") {
		t.Errorf("it shows a password:\n%s", b)
	}
}

func TestErrorsOfVirtualHostsNameThePlace(t *testing.T) {
	env := map[string]string{"PW": "s3cret", "EMPTY": "  "}
	broker := func(item string) string {
		return "broker:\n  url: amqp://h/shop\n  vhosts:\n    - billing\n    - " + item + "\n"
	}
	for yaml, want := range map[string]string{
		broker("shop"):                                 `redrive.yaml:5:7: broker.vhosts has "shop", which broker.url names already; expected further virtual hosts only`,
		broker("billing"):                              `redrive.yaml:5:7: broker.vhosts has "billing" twice`,
		broker("{name: billing}"):                      `redrive.yaml:5:14: broker.vhosts has "billing" twice`,
		broker("''"):                                   `redrive.yaml:5:7: broker.vhosts[1] has no name; expected a virtual host's, such as billing`,
		broker("{user: u, password_env: PW}"):          `broker.vhosts[1] has no name`,
		broker("{name: x, user: u}"):                   `broker.vhosts[1] has only one of a user and a password`,
		broker("{name: x, password_env: PW}"):          `broker.vhosts[1] has only one of a user and a password`,
		broker("{name: x, user: u, password: s3cret}"): `broker.vhosts[1] has no key "password"`,
		broker("{name: x, user: u, password_env: PW, password_file: f}"):         `broker.vhosts[1] has password_env and password_file; expected one of them`,
		broker("{name: x, user: u, password_env: EMPTY}"):                        `redrive.yaml:5:14: virtual host "x": the environment variable EMPTY is empty; expected the password of "u"`,
		broker("{name: x, user: u, password_file: none}"):                        `redrive.yaml:5:14: virtual host "x": its password cannot be read: open none`,
		"broker: {vhosts: billing}":                                              `redrive.yaml:1:18: broker.vhosts is "billing"; expected a list of virtual hosts`,
		"policies: [{queues: [a], vhosts: []}]":                                  `policies[0].vhosts is empty; leave the key out for all virtual hosts`,
		"notify: {routes: [{name: r, url: 'generic+https://h/', vhosts: shop}]}": `notify.routes[0].vhosts is "shop"; expected a list of virtual hosts or patterns`,
	} {
		if _, err := load(t, yaml, env); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s\n%v\nwant %s", yaml, err, want)
		}
	}
	// The environment may say which is the first.
	env["REDRIVE_BROKER_URL"] = "amqp://h/billing"
	if _, err := load(t, broker("crm"), env); err == nil || !strings.Contains(err.Error(), `redrive.yaml:4:7: broker.vhosts has "billing", which broker.url names already`) {
		t.Errorf("the first again, by the environment: %v", err)
	}
	if c, err := load(t, broker("shop"), map[string]string{"REDRIVE_BROKER_URL": "amqp://h/crm"}); err != nil || len(c.Broker.VHosts) != 2 {
		t.Errorf("another first: %v", err)
	}
}

// Names that file systems, URLs or Redis would take for something else stay apart.
func TestPlacesOfVirtualHostsStayApart(t *testing.T) {
	long := strings.Repeat("é", 127)
	names := []string{"/", ".", "..", "a", "A", "a/b", "a%2Fb", "a b", "{0}", "a*", "[a]", "a:vhost:b", long, long[:252] + "e"}
	c := Default()
	for _, n := range names {
		c.Broker.VHosts = append(c.Broker.VHosts, VHost{Name: n})
	}
	c.Broker.URL = "amqp://h/first"
	all, err := c.PerVHost()
	must(t, err)
	c.Store.Redis.URL = "redis://h"
	onRedis, err := c.PerVHost()
	must(t, err)
	folders, prefixes := map[string]bool{}, map[string]bool{}
	for i, n := range names {
		folder, prefix := filepath.Clean(all[i+1].Store.Disk), onRedis[i+1].Store.Redis.Prefix
		if is := all[i+1].VHost(); is != n {
			t.Errorf("%q is served as %q", n, is)
		}
		if filepath.Dir(folder) != filepath.Join(c.Store.Disk, "vhosts") || folders[folder] || len(filepath.Base(folder)) > 255 {
			t.Errorf("%q is in %s", n, folder)
		}
		if strings.ContainsAny(prefix, "{}*?[] ") || prefixes[prefix] {
			t.Errorf("%q has the prefix %s", n, prefix)
		}
		folders[folder], prefixes[prefix] = true, true
	}
}
