package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func load(t *testing.T, file string, env map[string]string) (*Config, error) {
	t.Helper()
	path := ""
	if file != "" {
		path = filepath.Join(t.TempDir(), "redrive.yaml")
		if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return Load(path, func(name string) string { return env[name] })
}

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
			if err != nil {
				t.Fatal(err)
			}
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
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		`policy "a": queues "orders.#": # is a wildcard of topic exchanges, and matches only itself here: "orders.*" matches any characters`,
		`policy "a": queues "#": # is a wildcard of topic exchanges, and matches only itself here: "*" matches any characters`,
	}
	if !slices.Equal(c.Warnings, want) {
		t.Errorf("%q", c.Warnings)
	}
}
