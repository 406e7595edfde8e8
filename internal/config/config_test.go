package config

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/policy"
)

func TestTheExampleFile(t *testing.T) {
	c, err := Load("../../redrive.example.yaml", func(string) string { return "" })
	must(t, err)
	want := policy.Exponential(time.Second, 2, 10*time.Minute)
	if p := c.Policies[0]; p.Name != "orders" || p.Attempts != 8 || p.Backoff.Delay(4) != want.Delay(4) {
		t.Errorf("the first policy is %+v", p)
	}
	if _, err := decode.New(c.Decode); err != nil {
		t.Error(err)
	}
	b := described(t, c)
	for _, want := range []string{
		"orders    orders.*      1s, 2s, 4s, 8s, 16s, 32s, 1m 4s, parked after 2m 7s (jitter ±20%)",
		`10s ×6, 15m ×10, forwarded to exchange "alerts" after 2h 31m (jitter ±20%)`,
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
	const head = "policies:\n  - name: p\n    queues: [\"*\"]\n"
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

func TestSecretsComeFromTheEnvironmentOrAFile(t *testing.T) {
	file := t.TempDir() + "/password"
	must(t, os.WriteFile(file, []byte("s3cret\n"), 0o600))
	env := map[string]string{"REDRIVE_BROKER_URL": "amqp://svc@rabbit:5672/shop", "REDRIVE_BROKER_PASSWORD_FILE": file}
	c, err := load(t, "", env)
	must(t, err)
	if c.Broker.URL != "amqp://svc:s3cret@rabbit:5672/shop" || c.Broker.Management != "http://svc:s3cret@rabbit:15672" || c.VHost() != "shop" {
		t.Errorf("got %+v, vhost %q", c.Broker, c.VHost())
	}
	env["REDRIVE_BROKER_PASSWORD"] = "x"
	if _, err := load(t, "", env); err == nil {
		t.Error("a value and a file for it were both taken")
	}
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

var update = flag.Bool("update", false, "write docs/reference/configuration.md")

var (
	keysOf   = regexp.MustCompile(`has no key "zzz"; expected one of: ([a-z0-9_, ]+)`)
	expected = regexp.MustCompile(`(?:^|[;,:] )expected (.+)`)
)

// refused is the error for a file in which the key at path has this value.
func refused(t *testing.T, path []string, value string) string {
	t.Helper()
	for _, key := range slices.Backward(path) {
		if name, list := strings.CutSuffix(key, "[]"); list {
			value = "{" + name + ": [" + value + "]}"
		} else {
			value = "{" + name + ": " + value + "}"
		}
	}
	file := t.TempDir() + "/redrive.yaml"
	must(t, os.WriteFile(file, []byte(value+"\n"), 0o600))
	_, err := Load(file, func(string) string { return "" })
	if err == nil {
		return ""
	}
	return err.Error()
}

// keys appends a row for each key below path. They come from the parser itself: from what
// it says of a key that it does not know, and of a value that it cannot read.
func keys(t *testing.T, path []string, rows *[]string) bool {
	t.Helper()
	m := keysOf.FindStringSubmatch(refused(t, path, "{zzz: 1}"))
	if m == nil {
		return false
	}
	for key := range strings.SplitSeq(m[1], ", ") {
		below := append(slices.Clone(path), key)
		at := len(*rows)
		*rows = append(*rows, "")
		if keys(t, below, rows) {
			(*rows)[at] = fmt.Sprintf("| `%s` | keys | %s |", strings.Join(below, "."), variableOf(below))
			continue
		}
		what := "–"
		if e := expected.FindStringSubmatch(refused(t, below, "{zzz: 1}")); e != nil {
			what = strings.NewReplacer("|", `\|`, "*", `\*`).Replace(strings.TrimSpace(e[1]))
		}
		list := append(slices.Clone(path), key+"[]")
		(*rows)[at] = fmt.Sprintf("| `%s` | %s | %s |", strings.Join(below, "."), what, variableOf(below))
		keys(t, list, rows)
		if key == "roles" {
			keys(t, append(below, "NAME"), rows)
		}
	}
	return true
}

func variableOf(path []string) string {
	if name := Variable(strings.Join(path, ".")); name != "" {
		return "`" + name + "`"
	}
	return ""
}

// The reference has each key that the parser knows, and the example file, which shows
// each of them.
func TestTheReference(t *testing.T) {
	const file, begin = "../../docs/reference/configuration.md", "<!-- go test ./internal/config -run TestTheReference -update writes what follows -->\n"
	text, err := os.ReadFile(file)
	must(t, err)
	example, err := os.ReadFile("../../redrive.example.yaml")
	must(t, err)
	var rows []string
	keys(t, nil, &rows)
	if len(rows) < 90 {
		t.Errorf("only %d keys were found", len(rows))
	}
	before, is, ok := strings.Cut(string(text), begin)
	if !ok {
		t.Fatalf("%s has no place for the reference", file)
	}
	want := "\n| key | value | variable |\n|---|---|---|\n" + strings.Join(rows, "\n") +
		"\n\n## The example file\n\n`redrive.example.yaml` explains each key.\n\n```yaml\n" + string(example) + "```\n"
	switch {
	case is == want:
	case *update:
		must(t, os.WriteFile(file, []byte(before+begin+want), 0o644))
	default:
		t.Errorf("%s differs from the parser: go test ./internal/config -run TestTheReference -update writes it", file)
	}
	for _, row := range rows {
		path, _, _ := strings.Cut(strings.TrimPrefix(row, "| `"), "`")
		key := path[strings.LastIndexByte(path, '.')+1:]
		if !strings.Contains(string(example), strings.TrimSuffix(key, "[]")+":") && key != "NAME" {
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

// Each key that the parser knows outside of lists has a variable.
func TestEveryKeyHasAVariable(t *testing.T) {
	var rows []string
	keys(t, nil, &rows)
	names := map[string]string{}
	for _, row := range rows {
		key, rest, _ := strings.Cut(strings.TrimPrefix(row, "| `"), "`")
		if strings.Contains(key, "[]") || strings.Contains(key, "NAME") || strings.HasPrefix(rest, " | keys |") {
			continue
		}
		name := Variable(key)
		if name == "" || names[name] != "" {
			t.Errorf("%s has the variable %q, as %q", key, name, names[name])
		}
		names[name] = key
	}
	for _, key := range settings {
		if !slices.ContainsFunc(rows, func(row string) bool { return strings.HasPrefix(row, "| `"+key+"`") }) {
			t.Errorf("there is a variable for %s, which is no key", key)
		}
	}
}

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

// A list is set as a whole: what the file has is not added to.
func TestAVariableReplacesAList(t *testing.T) {
	const route = "{name: %s, url: generic+https://example.com}"
	file := "notify: {burst: 5/min, routes: [" + strings.ReplaceAll(route, "%s", "file") + "]}\n"
	c, err := load(t, file, map[string]string{"REDRIVE_NOTIFY_ROUTES": "[" + strings.ReplaceAll(route, "%s", "variable") + "]"})
	must(t, err)
	if r := c.Notify.Routes; len(r) != 1 || r[0].Name != "variable" || c.Notify.Burst != 5 {
		t.Errorf("%d routes, %+v; burst %v", len(r), r, c.Notify.Burst)
	}
}

func TestAMistakeInAVariableHasItsName(t *testing.T) {
	for want, env := range map[string]map[string]string{
		"REDRIVE_LISTEN:1:1: listen is \"nowhere\"; expected host:port, such as 127.0.0.1:8250": {"REDRIVE_LISTEN": "nowhere"},
		"REDRIVE_POLICIES:2:3: policies[0] has no key \"atempts\" (did you mean \"attempts\"?)": {"REDRIVE_POLICIES": "- queues: [a]\n  atempts: 3\n"},
		"REDRIVE_POLICIES:1:": {"REDRIVE_POLICIES": "[{queues: [a]"},
		"both REDRIVE_STORE_DISK and REDRIVE_STORE_DISK_FILE": {"REDRIVE_STORE_DISK": "a", "REDRIVE_STORE_DISK_FILE": "b"},
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
}

func TestATabIsNamed(t *testing.T) {
	_, err := load(t, "policies:\n  - name: a\n\t queues: [a]\n", nil)
	if err == nil || !strings.HasSuffix(err.Error(), "redrive.yaml:3:1: not valid YAML: the line is indented with a tab; indent with spaces") {
		t.Error(err)
	}
}

func TestAPatternOfTopicExchangesIsWarnedOf(t *testing.T) {
	c, err := load(t, `policies: [{name: a, queues: ["orders.#", "c#", "#"]}]`, nil)
	must(t, err)
	want := []string{
		`policy "a": queues "orders.#": # is a wildcard of topic exchanges, and matches only itself here: "orders.*" matches any characters`,
		`policy "a": queues "#": # is a wildcard of topic exchanges, and matches only itself here: "*" matches any characters`,
	}
	if !slices.Equal(c.Warnings, want) {
		t.Errorf("%q", c.Warnings)
	}
}

func must(t interface {
	Helper()
	Fatal(args ...any)
}, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
